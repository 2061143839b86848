"""Computes the rollups of given minutes and replaces the earlier rows of these minutes.

A minute is always written completely. A key that a minute no longer has (a later revision of a stream named another model) gets a row of
zeros with a later version, so no row is ever deleted and a query sees the newest row of each key. The module does not decide which minutes
to compute; `worker` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from legato_ingest.rollups.queries import MINUTES, Rollup
from legato_ingest.storage import Store
from legato_ingest.storage.sql import time_ns

__all__ = ["HOURS_MAX", "HOUR_S", "MINUTE_S", "TIME_MAX", "columns_of", "compute_hours", "compute_minutes", "passes", "within"]

MINUTE_S, HOUR_S = 60, 3_600
# Limits of one pass: minutes, and stretches of minutes, each of which is one range of the primary key. Minutes that are at most
# _HOLE_S_MAX apart form one stretch; the condition on the minute excludes those between them.
_MINUTES_MAX = 240
_STRETCHES_MAX = 64
_HOLE_S_MAX = 900
HOURS_MAX = 96
"""The number of hours that are computed at once."""
TIME_MAX = "toDateTime64('2106-02-07 00:00:00', 9, 'UTC')"
"""The end of the last whole day that a DateTime can hold, in SQL. Rows with later times have no minute."""
# More are computed by all cores: an administrator asked for them, or the server was away.
_FEW_MINUTES, _FEW_HOURS = 8, 2
_ROLLED_AT = pa.timestamp("ms", "UTC")


def passes(minutes_s: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Split minutes, or longer periods, (Unix s, ascending) into passes of at most 240 and 64 ranges of the primary key."""
    stretch = np.cumsum(np.diff(minutes_s, prepend=minutes_s[:1]) > _HOLE_S_MAX)
    first = 0
    while first < len(minutes_s):
        last = min(first + _MINUTES_MAX, int(np.searchsorted(stretch, stretch[first] + _STRETCHES_MAX)))
        yield minutes_s[first:last]
        first = last


def within(column: str, starts_s: NDArray[np.int64], length_s: int = MINUTE_S) -> str:
    """Return the SQL condition that the time in ``column`` lies in one of these minutes, or periods of ``length_s``."""
    stretches = np.split(starts_s, np.flatnonzero(np.diff(starts_s) > _HOLE_S_MAX) + 1)
    ranges = ((int(each[0]) * 10**9, (int(each[-1]) + length_s) * 10**9) for each in stretches)
    inside = " OR ".join(f"({column} >= {time_ns(low)} AND {column} < {time_ns(high)})" for low, high in ranges)
    listed = ", ".join(map(str, (starts_s // length_s).tolist()))
    return f"({inside}) AND intDiv(toUnixTimestamp64Second({column}), {length_s}) IN ({listed})"


def compute_minutes(store: Store, rollup: Rollup, time: str, minutes_s: NDArray[np.int64], now_ms: int) -> pa.Table:
    """Compute and write one rollup of these minutes (Unix s, ascending). Return the rows written, without their version.

    ``time`` is the time column of the source rows.
    """
    threads = _threads(len(minutes_s), _FEW_MINUTES)
    fresh = store.select_arrow(f"{rollup.sql.replace(MINUTES, within(time, minutes_s))}, {threads}")
    keys = ("tenant", "minute", *rollup.keys)
    stored = store.select_arrow(
        f"SELECT {', '.join(keys)}, toUnixTimestamp64Milli(rolled_at) AS rolled_ms, {rollup.alive} > 0 AS alive FROM {rollup.table} FINAL"
        f" WHERE minute >= {int(minutes_s[0])} AND minute <= {int(minutes_s[-1])}"
        f" AND minute IN ({', '.join(map(str, minutes_s.tolist()))}) SETTINGS {threads}"
    )
    rows = pa.concat_tables([fresh, _zeros(fresh.schema, _vanished_keys(stored, fresh, keys))])
    # The version must exceed that of the stored rows even if the clock was set back since they were written.
    rolled_ms = max(now_ms, max(stored["rolled_ms"].to_pylist(), default=0) + 1)
    store.insert(rollup.table, rows.append_column("rolled_at", pa.array(np.full(rows.num_rows, rolled_ms, np.int64)).cast(_ROLLED_AT)))
    return rows


def columns_of(store: Store, table: str) -> list[tuple[str, str]]:
    """Return the name and the type of each column of a table, in order."""
    rows = store.select(f"SELECT name, type FROM system.columns WHERE database = currentDatabase() AND table = '{table}' ORDER BY position")
    return [(str(name), str(kind)) for name, kind in rows]


def compute_hours(store: Store, sql: str, hours_s: NDArray[np.int64]) -> None:
    """Recompute these hours (Unix s, ascending, at least one, at most ``HOURS_MAX``) with a statement of ``hours_sql``.

    The 1-minute rollups must have been written before.
    """
    within = f"minute >= {int(hours_s[0])} AND minute < {int(hours_s[-1]) + HOUR_S}"
    listed = ", ".join(map(str, hours_s.tolist()))
    sql = sql.replace(MINUTES, f"{within} AND toUnixTimestamp(toStartOfHour(minute)) IN ({listed})")
    store.command(f"{sql}\nSETTINGS {_threads(len(hours_s), _FEW_HOURS)}")


def _threads(count: int, few: int) -> str:
    """Return the setting for the threads of a statement: one for few minutes or hours, else one for each core, which is 0."""
    return f"max_threads = {1 if count <= few else 0}"


def _vanished_keys(stored: pa.Table, fresh: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the keys of stored rows that are not zero and have no freshly computed row."""
    present = set(_tuples(fresh, keys))
    mask = [bool(alive) and key not in present for key, alive in zip(_tuples(stored, keys), stored["alive"].to_pylist(), strict=True)]
    return stored.select(list(keys)).filter(pa.array(mask, pa.bool_()))


def _tuples(rows: pa.Table, keys: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(rows[key].to_pylist() for key in keys), strict=True)) if rows.num_rows else []


def _zeros(schema: pa.Schema, keys: pa.Table) -> pa.Table:
    """Return a row of zeros, empty maps and empty texts for each of these keys."""
    columns = []
    for field in schema:
        if field.name in keys.column_names:
            columns.append(keys[field.name].cast(field.type))
        else:
            columns.append(_empty(field.type, keys.num_rows))
    return pa.table(dict(zip(schema.names, columns, strict=True)), schema=schema)


def _empty(kind: pa.DataType, rows: int) -> pa.Array:
    if pa.types.is_map(kind):
        return pa.array([[]] * rows, kind)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pa.array([""] * rows, kind)
    return pa.array([0] * rows, pa.int64()).cast(kind)
