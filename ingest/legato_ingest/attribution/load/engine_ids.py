"""Ids of engines in SQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from legato_ingest.attribution.model.scraped import EngineKey
from legato_ingest.definitions import server_of
from legato_ingest.storage.sql import quoted, quoted_all

__all__ = ["ids_of_server", "is_one_of", "is_one_of_servers"]


def ids_of_server(engine_id: str) -> frozenset[str]:
    """Return the ids under which the processes and GPUs of an engine are sampled: ranks share those of their server."""
    return frozenset((engine_id, server_of(engine_id)))


def is_one_of(keys: Collection[EngineKey], with_ranks: bool = False) -> str:
    """Return the condition for the rows of these engines, and also of the ranks behind them if ``with_ranks``."""
    own = _is_own(sorted(keys))
    if not with_ranks:
        return own
    ranks = [f"(tenant = {quoted(tenant)} AND startsWith(engine_id, {quoted(engine + '/')}))" for tenant, engine in sorted(keys)]
    return f"({' OR '.join((own, *ranks))})"


def _is_own(keys: Sequence[EngineKey]) -> str:
    """Return the condition for the rows of these engines. To look up pairs of two texts takes half of the time of a read of many steps."""
    if len({tenant for tenant, _ in keys}) == 1:
        return f"(tenant = {quoted(keys[0][0])} AND engine_id IN ({quoted_all([engine for _, engine in keys])}))"
    return "(tenant, engine_id) IN (" + ", ".join(f"({quoted(tenant)}, {quoted(engine)})" for tenant, engine in keys) + ")"


def is_one_of_servers(keys: Collection[EngineKey]) -> str:
    """Return the condition for rows with an id under which the processes and GPUs of these engines are sampled."""
    return is_one_of({(tenant, each) for tenant, engine in keys for each in ids_of_server(engine)})
