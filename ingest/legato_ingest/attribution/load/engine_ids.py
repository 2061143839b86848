"""Ids of engines in SQL."""

from __future__ import annotations

from collections.abc import Collection

from legato_ingest.attribution.model.scraped import EngineKey
from legato_ingest.definitions import server_of
from legato_ingest.storage.sql import quoted, quoted_all

__all__ = ["ids_of_server", "is_engine", "is_one_of"]


def ids_of_server(engine_id: str) -> str:
    """Return the ids under which the processes and GPUs of an engine are sampled, as a list in SQL: ranks share those of their server."""
    return quoted_all(sorted({engine_id, server_of(engine_id)}))


def is_engine(key: EngineKey) -> str:
    """Return the condition for the rows of one engine."""
    return f"tenant = {quoted(key[0])} AND engine_id = {quoted(key[1])}"


def is_one_of(keys: Collection[EngineKey], with_ranks: bool = False) -> str:
    """Return the condition for the rows of these engines, and also of the ranks behind them if ``with_ranks``."""
    own = "(tenant, engine_id) IN (" + ", ".join(f"({quoted(tenant)}, {quoted(engine)})" for tenant, engine in sorted(keys)) + ")"
    if not with_ranks:
        return own
    ranks = [f"(tenant = {quoted(tenant)} AND startsWith(engine_id, {quoted(engine + '/')}))" for tenant, engine in sorted(keys)]
    return f"({' OR '.join((own, *ranks))})"
