"""Ids of engines in SQL."""

from __future__ import annotations

from collections.abc import Collection

from legato_ingest.attribution.model.scraped import EngineKey
from legato_ingest.definitions import server_of
from legato_ingest.storage.sql import quoted

__all__ = ["ids_of_server", "is_one_of", "is_one_of_servers"]


def ids_of_server(engine_id: str) -> frozenset[str]:
    """Return the ids under which the processes and GPUs of an engine are sampled: ranks share those of their server."""
    return frozenset((engine_id, server_of(engine_id)))


def is_one_of(keys: Collection[EngineKey], with_ranks: bool = False) -> str:
    """Return the condition for the rows of these engines, and also of the ranks behind them if ``with_ranks``."""
    own = "(tenant, engine_id) IN (" + ", ".join(f"({quoted(tenant)}, {quoted(engine)})" for tenant, engine in sorted(keys)) + ")"
    if not with_ranks:
        return own
    ranks = [f"(tenant = {quoted(tenant)} AND startsWith(engine_id, {quoted(engine + '/')}))" for tenant, engine in sorted(keys)]
    return f"({' OR '.join((own, *ranks))})"


def is_one_of_servers(keys: Collection[EngineKey]) -> str:
    """Return the condition for rows with an id under which the processes and GPUs of these engines are sampled."""
    return is_one_of({(tenant, each) for tenant, engine in keys for each in ids_of_server(engine)})
