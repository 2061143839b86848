"""Ids of engines in SQL. Many ids are one string: ClickHouse takes some KB for each literal, and refuses a statement of too many."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from legato_ingest.attribution.model.scraped import EngineKey
from legato_ingest.definitions import server_of
from legato_ingest.storage.sql import digits_of, quoted, quoted_all

__all__ = [
    "IS_RANK",
    "SERVER",
    "ids_of_server",
    "is_behind",
    "is_one_of",
    "is_one_of_servers",
    "process_key",
    "stored_key",
]

IS_RANK = "match(engine_id, '/[0-9]+$')"
"""The condition for rows of a rank behind a server, as ``definitions.server_of`` recognises it."""
SERVER = "replaceRegexpOne(engine_id, '/[0-9]+$', '')"
"""The id of the server of an engine, as an expression."""
# More ids are sent as one string of their hexadecimal digits.
_LITERALS_MAX = 256
# Follows the engine id in the key of one process, before the start of the process.
_PROCESS = "\0"


def process_key(key: EngineKey, epoch_ns: int) -> EngineKey:
    """Return the key of the process that started at ``epoch_ns``, one of several at a time with this engine id; 0: there is only one."""
    return (key[0], f"{key[1]}{_PROCESS}{epoch_ns}") if epoch_ns else key


def stored_key(key: EngineKey) -> EngineKey:
    """Return the key under which the rows of a process are stored: that of its engine."""
    return key[0], key[1].partition(_PROCESS)[0]


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


def is_behind(keys: Collection[EngineKey]) -> str:
    """Return the condition for the rows of these engines and of all ranks behind the same servers."""
    return _is_own(sorted({(tenant, server_of(engine)) for tenant, engine in keys}), SERVER)


def _is_own(keys: Sequence[EngineKey], column: str = "engine_id") -> str:
    """Return the condition for the rows with these engines in a column.

    To look up pairs of two texts takes half of the time of a read of many steps.
    """
    engines = [engine for _, engine in keys]
    if len({tenant for tenant, _ in keys}) == 1:
        ids = quoted_all(engines) if len(keys) <= _LITERALS_MAX else f"SELECT unhex(arrayJoin({digits_of(engines)}))"
        return f"(tenant = {quoted(keys[0][0])} AND {column} IN ({ids}))"
    if len(keys) <= _LITERALS_MAX:
        return f"(tenant, {column}) IN (" + ", ".join(f"({quoted(tenant)}, {quoted(engine)})" for tenant, engine in keys) + ")"
    pairs = f"arrayZip({digits_of(tenant for tenant, _ in keys)}, {digits_of(engines)})"
    return f"(tenant, {column}) IN (SELECT unhex(key.1), unhex(key.2) FROM (SELECT arrayJoin({pairs}) AS key))"


def is_one_of_servers(keys: Collection[EngineKey]) -> str:
    """Return the condition for rows with an id under which the processes and GPUs of these engines are sampled."""
    return is_one_of({(tenant, each) for tenant, engine in keys for each in ids_of_server(engine)})
