"""Computes the rollups of given minutes and replaces the earlier rows of these minutes.

A minute is always written completely. A key that a minute no longer has (a later revision of a stream named another model) gets a row of
zeros with a later version, so no row is ever deleted and a query sees the newest row of each key. No row leaves the store. The module does
not decide which minutes to compute; `worker` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from legato_ingest.rollups.pieces import Piece
from legato_ingest.rollups.queries import KEYS, MINUTES, SETTINGS, STORED, VERSION, Rollup, Statement
from legato_ingest.storage import Store
from legato_ingest.storage.sql import time_ns

__all__ = [
    "HOURS_MAX",
    "HOUR_S",
    "MINUTES_MAX",
    "MINUTE_S",
    "TIME_MAX",
    "Written",
    "columns_of",
    "compute_hours",
    "compute_minutes",
    "computed_columns",
    "pass_with",
    "passes",
    "tenants_of_hours",
    "tenants_of_minutes",
    "within",
]

MINUTE_S, HOUR_S = 60, 3_600
MINUTES_MAX = 240
"""The number of minutes of one pass."""
# The other limit of a pass: stretches of minutes, each of which is one range of the primary key. Minutes that are at most _HOLE_S_MAX
# apart form one stretch; the condition on the minute excludes those between them.
_STRETCHES_MAX = 64
_HOLE_S_MAX = 900
HOURS_MAX = 96
"""The number of hours that are computed at once."""
TIME_MAX = "toDateTime64('2106-02-07 00:00:00', 9, 'UTC')"
"""The end of the last whole day that a DateTime can hold, in SQL. Rows with later times have no minute."""
# More are computed by all cores: an administrator asked for them, or the server was away.
_FEW_MINUTES, _FEW_HOURS = 8, 2
# In these statements a column counts before an alias of the same name. Sums of nothing are NULL, and are stored as 0. All rows of a
# statement become visible at once.
_ALIASES = "prefer_column_name_to_alias = 1"
_INSERTS = "insert_null_as_default = 1, max_insert_threads = 1, max_partitions_per_insert_block = 0"


class Written(NamedTuple):
    """The rows written of a minute (Unix s), and when its first running stream is overdue (Unix ms; 0: there is none)."""

    minute_s: int
    rows: int
    due_ms: int


def passes(minutes_s: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Split minutes, or longer periods, (Unix s, ascending) into passes of at most 240 and 64 ranges of the primary key."""
    stretch, first = _stretches(minutes_s), 0
    while first < len(minutes_s):
        last = min(first + MINUTES_MAX, int(np.searchsorted(stretch, stretch[first] + _STRETCHES_MAX)))
        yield minutes_s[first:last]
        first = last


def pass_with(minutes_s: NDArray[np.int64], minute_s: int) -> NDArray[np.int64]:
    """Return one pass of minutes (Unix s, ascending, at most ``MINUTES_MAX``) with this one among them."""
    stretch = _stretches(minutes_s)
    first = min(int(stretch[np.searchsorted(minutes_s, minute_s)]), max(0, int(stretch[-1]) + 1 - _STRETCHES_MAX))
    return minutes_s[(stretch >= first) & (stretch < first + _STRETCHES_MAX)]


def within(column: str, starts_s: NDArray[np.int64], length_s: int = MINUTE_S) -> str:
    """Return the SQL condition that the time in ``column`` lies in one of these minutes, or periods of ``length_s``."""
    stretches = np.split(starts_s, np.flatnonzero(np.diff(starts_s) > _HOLE_S_MAX) + 1)
    ranges = ((int(each[0]) * 10**9, (int(each[-1]) + length_s) * 10**9) for each in stretches)
    inside = " OR ".join(f"({column} >= {time_ns(low)} AND {column} < {time_ns(high)})" for low, high in ranges)
    listed = ", ".join(map(str, (starts_s // length_s).tolist()))
    return f"({inside}) AND intDiv(toUnixTimestamp64Second({column}), {length_s}) IN ({listed})"


def compute_minutes(store: Store, statement: Statement, time: str, piece: Piece, now_ms: int) -> list[Written]:
    """Compute and write one rollup of a piece of minutes with a statement of ``minutes_sql``. Return what was written.

    ``time`` is the time column of the source rows. The rows stay in the store's process: a small request can make them long. Raises
    ``StoreUnavailable``, with ``MEMORY_LIMIT_EXCEEDED`` if the piece must be divided.
    """
    rollup, stored = statement.rollup, _stored(piece)
    minutes = _listed(piece.starts_s)
    # The version must exceed that of the stored rows even if the clock was set back since they were written.
    ((newest_ms,),) = store.select(f"SELECT toUnixTimestamp64Milli(max(rolled_at)) FROM {rollup.table} WHERE {minutes}")
    version_ms = max(now_ms, int(newest_ms) + 1)
    sql = statement.sql.replace(VERSION, f"toInt64({version_ms})").replace(MINUTES, _source(time, piece))
    _run(store, sql, rollup, piece, stored, _FEW_MINUTES)
    rows = store.select(
        f"SELECT toUnixTimestamp(minute) AS at, count(), {rollup.due} FROM {rollup.table}"
        f" WHERE {minutes} AND toUnixTimestamp64Milli(rolled_at) >= {version_ms} GROUP BY at"
    )
    return [Written(*map(int, row)) for row in rows]


def tenants_of_minutes(store: Store, rollup: Rollup, source: str, time: str, piece: Piece) -> list[str]:
    """Return the tenants that have rows in a piece: in the table ``source``, with the time column ``time``, or in the rollup."""
    sources = f"SELECT DISTINCT tenant FROM {source} WHERE {_source(time, piece)}"
    return _tenants(store, f"{sources} UNION DISTINCT SELECT DISTINCT tenant FROM {rollup.table} WHERE {_stored(piece)}")


def tenants_of_hours(store: Store, rollup: Rollup, piece: Piece) -> list[str]:
    """Return the tenants that have 1-minute rows in a piece of hours."""
    return _tenants(store, f"SELECT DISTINCT tenant FROM {rollup.table} WHERE {_stored_hours(piece)}")


def computed_columns(store: Store, rollup: Rollup) -> list[tuple[str, str]]:
    """Return the name and the type of each column that a rollup's statement computes, in order."""
    sql = rollup.sql.replace(VERSION, "toInt64(0)").replace(MINUTES, "1")
    rows = store.select(f"DESCRIBE TABLE ({sql}) SETTINGS {_ALIASES}")
    return [(str(row[0]), str(row[1])) for row in rows]


def columns_of(store: Store, table: str) -> list[tuple[str, str]]:
    """Return the name and the type of each column of a table, in order."""
    rows = store.select(f"SELECT name, type FROM system.columns WHERE database = currentDatabase() AND table = '{table}' ORDER BY position")
    return [(str(name), str(kind)) for name, kind in rows]


def compute_hours(store: Store, statement: Statement, piece: Piece) -> None:
    """Recompute a piece of hours (at most ``HOURS_MAX``) with a statement of ``hours_sql``. Raises as ``compute_minutes`` does.

    The 1-minute rollups must have been written before.
    """
    _run(store, statement.sql, statement.rollup, piece, _stored_hours(piece), _FEW_HOURS)


def _run(store: Store, sql: str, rollup: Rollup, piece: Piece, stored: str, few: int) -> None:
    """Run a statement for a piece: on one thread for few minutes or hours, else on one for each core, which is 0."""
    threads = 1 if len(piece.starts_s) <= few else 0
    settings = f"{_ALIASES}, {_INSERTS}, max_threads = {threads}, {piece.settings}"
    store.command(sql.replace(SETTINGS, settings).replace(STORED, stored).replace(KEYS, piece.keys(rollup.key_hash)))


def _stretches(minutes_s: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of the stretch of each minute."""
    return np.cumsum(np.diff(minutes_s, prepend=minutes_s[:1]) > _HOLE_S_MAX, dtype=np.int64)


def _source(time: str, piece: Piece) -> str:
    """Return the SQL condition that a source row is in a piece of minutes."""
    return f"{within(time, piece.starts_s)} AND {piece.rows(f'toUnixTimestamp64Second({time}) - toUnixTimestamp64Second({time}) % 60')}"


def _stored(piece: Piece) -> str:
    """Return the SQL condition that a stored row is in a piece of minutes."""
    return f"{_listed(piece.starts_s)} AND {piece.rows('toUnixTimestamp(minute)')}"


def _stored_hours(piece: Piece) -> str:
    """Return the SQL condition that a stored 1-minute row is in a piece of hours."""
    hours, start = piece.starts_s, "toUnixTimestamp(toStartOfHour(minute))"
    inside = f"minute >= {int(hours[0])} AND minute < {int(hours[-1]) + HOUR_S}"
    return f"{inside} AND {start} IN ({', '.join(map(str, hours.tolist()))}) AND {piece.rows(start)}"


def _listed(minutes_s: NDArray[np.int64]) -> str:
    """Return the SQL condition that the minute of a stored row is one of these."""
    return f"minute >= {int(minutes_s[0])} AND minute <= {int(minutes_s[-1])} AND minute IN ({', '.join(map(str, minutes_s.tolist()))})"


def _tenants(store: Store, sql: str) -> list[str]:
    return sorted(str(tenant) for (tenant,) in store.select(f"SELECT tenant FROM ({sql})"))
