"""Computes minutes anew and puts them in the place of the older ones.

One idea: a minute is written whole. Combinations that a minute no longer has (a later rev named another model) get a row of zeros, which
outranks the older one, so nothing is ever deleted and a reader sees the newest of each key. It decides nothing about when.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from legato_ingest.rollups.queries import MINUTES, Rollup
from legato_ingest.storage.chdb import Store
from legato_ingest.storage.sql import time_ns

__all__ = ["HOUR_S", "MINUTE_S", "columns_of", "roll", "roll_hours", "slices"]

MINUTE_S, HOUR_S = 60, 3_600
# One pass computes at most so many minutes, in at most so many stretches: each is a range for the primary key. Minutes that are this near
# to one another are read as one stretch, and those between them left out.
_MINUTES_MAX = 240
_STRETCHES_MAX = 64
_HOLE_S_MAX = 900
_HOURS_MAX = 96
_ROLLED = pa.timestamp("ms", "UTC")


def slices(minutes_s: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Minutes (unix s, ascending) in passes."""
    stretch = np.cumsum(np.diff(minutes_s, prepend=minutes_s[:1]) > _HOLE_S_MAX)
    first = 0
    while first < len(minutes_s):
        last = min(first + _MINUTES_MAX, int(np.searchsorted(stretch, stretch[first] + _STRETCHES_MAX)))
        yield minutes_s[first:last]
        first = last


def _within(column: str, minutes_s: NDArray[np.int64]) -> str:
    """The condition that a time lies in one of these minutes."""
    stretches = np.split(minutes_s, np.flatnonzero(np.diff(minutes_s) > _HOLE_S_MAX) + 1)
    ranges = ((int(each[0]) * 10**9, (int(each[-1]) + MINUTE_S) * 10**9) for each in stretches)
    inside = " OR ".join(f"({column} >= {time_ns(low)} AND {column} < {time_ns(high)})" for low, high in ranges)
    listed = ", ".join(map(str, (minutes_s // MINUTE_S).tolist()))
    return f"({inside}) AND intDiv(toUnixTimestamp64Second({column}), {MINUTE_S}) IN ({listed})"


def roll(store: Store, rollup: Rollup, time: str, minutes_s: NDArray[np.int64], parameters: Mapping[str, Any], now_ms: int) -> int:
    """Compute these minutes (unix s, ascending) of the rows with this time column, and write them; the number of rows written."""
    fresh = store.select_arrow(rollup.sql.replace(MINUTES, _within(time, minutes_s)), parameters)
    keys = ("tenant", "minute", *rollup.keys)
    known = store.select_arrow(
        f"SELECT {', '.join(keys)}, toUnixTimestamp64Milli(rolled_at) AS rolled_ms, {rollup.alive} > 0 AS alive FROM {rollup.table} FINAL"
        f" WHERE minute >= {int(minutes_s[0])} AND minute <= {int(minutes_s[-1])}"
        f" AND minute IN ({', '.join(map(str, minutes_s.tolist()))})"
    )
    rows = pa.concat_tables([fresh, _zeros(fresh.schema, _gone(known, fresh, keys))])
    # Also where the machine's clock was set back since: what is computed now outranks what was computed before.
    rolled_ms = max(now_ms, max(known["rolled_ms"].to_pylist(), default=0) + 1)
    store.insert(rollup.table, rows.append_column("rolled_at", pa.array(np.full(rows.num_rows, rolled_ms, np.int64)).cast(_ROLLED)))
    return int(rows.num_rows)


def columns_of(store: Store, table: str) -> list[tuple[str, str]]:
    """Name and type of each of a table's columns, in order."""
    rows = store.select(f"SELECT name, type FROM system.columns WHERE database = currentDatabase() AND table = '{table}' ORDER BY position")
    return [(str(name), str(kind)) for name, kind in rows]


def roll_hours(store: Store, sql: str, minutes_s: NDArray[np.int64]) -> None:
    """Add up the hours of these minutes (unix s, ascending) anew, by a statement of ``hours_sql``. The minutes must have been written."""
    hours_s = np.unique(minutes_s // HOUR_S * HOUR_S)
    for first in range(0, len(hours_s), _HOURS_MAX):
        part = hours_s[first : first + _HOURS_MAX]
        within = f"minute >= {int(part[0])} AND minute < {int(part[-1]) + HOUR_S}"
        listed = ", ".join(map(str, part.tolist()))
        store.command(sql.replace(MINUTES, f"{within} AND toUnixTimestamp(toStartOfHour(minute)) IN ({listed})"))


def _gone(known: pa.Table, fresh: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The keys of the store's rows that stand for something and were not computed again."""
    now = set(_tuples(fresh, keys))
    mask = [bool(alive) and key not in now for key, alive in zip(_tuples(known, keys), known["alive"].to_pylist(), strict=True)]
    return known.select(list(keys)).filter(pa.array(mask, pa.bool_()))


def _tuples(rows: pa.Table, keys: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(rows[key].to_pylist() for key in keys), strict=True)) if rows.num_rows else []


def _zeros(schema: pa.Schema, keys: pa.Table) -> pa.Table:
    """A row of zeros and empty maps for each of these keys."""
    columns = []
    for field in schema:
        if field.name in keys.column_names:
            columns.append(keys[field.name].cast(field.type))
        else:
            empty: Any = [] if pa.types.is_map(field.type) else 0
            columns.append(pa.array([empty] * keys.num_rows, pa.int64() if empty == 0 else field.type).cast(field.type))
    return pa.table(dict(zip(schema.names, columns, strict=True)), schema=schema)
