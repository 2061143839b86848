"""Deduplication: which rows of a commit the store already holds.

A stream row is identified by (tenant, trace, span, rev), which all come from the span. An engine step, finished request or sample is
identified by its time and the columns that distinguish rows of the same time. Each lookup restricts columns at the front of the table's
sorting key, so that ClickHouse reads few granules. The exact comparison is made here; that of rejected items in `rejections`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from legato_ingest.storage import Store
from legato_ingest.storage.sql import between_ns, integers, quoted_all, unquoted

__all__ = [
    "TIMED_TABLES",
    "StreamKey",
    "TimedTable",
    "minute_ranges",
    "new_rows",
    "stored_streams",
    "stream_keys",
    "values",
]

StreamKey = tuple[str, bytes, bytes, int]
T = TypeVar("T")

_MINUTE_NS = 60_000_000_000
# More separate ranges of time than this are queried as one, so that a backfill of months does not cause hundreds of queries.
_RANGES_MAX = 16
_STREAM_KEY = ("tenant", "trace_id", "span_id", "rev")
_PIECE_ROWS = 4_096
# Columns of bytes that are no text.
_IDS = ("trace_id", "span_id")


def new_rows(rows: pa.Table, keys: Iterable[T], seen: set[T]) -> pa.Table:
    """Return the rows with keys that are not in ``seen``, and add all keys to it: of rows with equal keys the first is kept."""
    mask = []
    for key in keys:
        mask.append(key not in seen)
        seen.add(key)
    return rows if all(mask) else rows.filter(pa.array(mask, pa.bool_()))


def stream_keys(rows: pa.Table) -> list[StreamKey]:
    """Return the key of each row of ``stream_revs``."""
    return _keys(rows, _STREAM_KEY)


def stored_streams(store: Store, tables: Sequence[pa.Table]) -> set[StreamKey]:
    """Return the keys of stored streams that may be among these rows: all that are, and others with the same span id and minute.

    One query for each range of minutes that the rows touch. It compares span ids as integers, which ClickHouse looks up in a set.
    """
    rows = pa.concat_tables([table.select(["tenant", "start_time", "span_id"]) for table in tables])
    if not rows.num_rows:
        return set()
    starts = _nanoseconds(rows["start_time"])
    spans = rows["span_id"].combine_chunks().view(pa.uint64()).to_numpy()
    tenants = quoted_all(str(tenant) for tenant in pc.unique(rows["tenant"]).to_pylist())
    found: set[StreamKey] = set()
    for low, high in minute_ranges(starts):
        inside = spans[(starts >= low) & (starts <= high)]
        sql = f"""
            SELECT {", ".join(_STREAM_KEY)} FROM stream_revs
            WHERE tenant IN ({tenants})
              AND {between_ns("start_time", low, high)}
              AND reinterpretAsUInt64(span_id) IN ({integers(inside)})"""
        # ClickHouse returns strings as bytes.
        found.update((unquoted(tenant), *ids) for tenant, *ids in stream_keys(store.select_arrow(sql)))
    return found


def values(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column as objects, in pieces: Arrow holds Python's interpreter for a piece, 50 ms for 44,000 rows."""
    starts = range(0, len(column), _PIECE_ROWS)
    return [value for start in starts for value in column.slice(start, _PIECE_ROWS).to_pylist()]


def _keys(rows: pa.Table, names: Sequence[str]) -> list[Any]:
    return list(zip(*(values(rows[name]) for name in names), strict=True))


@dataclass(frozen=True, slots=True)
class TimedTable:
    """A table with rows that are identified by ``recorded_at`` and the columns in ``key``.

    ``rows`` is the name of the rows in a batch. ``prefix`` names columns at the front of the sorting key, which lookups restrict.
    """

    table: str
    rows: str
    key: tuple[str, ...]
    prefix: tuple[str, ...]

    def keys(self, rows: pa.Table) -> list[Any]:
        """Return the key of each row."""
        columns = [values(rows[name]) for name in self.key]
        times = _nanoseconds(rows["recorded_at"]).tolist()
        texts = [column if name in _IDS else list(map(unquoted, column)) for name, column in zip(self.key, columns, strict=True)]
        return list(zip(*texts, times, strict=True))

    def stored(self, store: Store, rows: pa.Table) -> set[Any]:
        """Return the keys of stored rows that may be among these rows: all that are, and others with the same times and prefixes."""
        if not rows.num_rows:
            return set()
        times = _nanoseconds(rows["recorded_at"])
        conditions = [f"{name} IN ({_literals(pc.unique(rows[name]))})" for name in self.prefix]
        moments = np.unique(times)
        found: set[Any] = set()
        for low, high in minute_ranges(times):
            inside = moments[(moments >= low) & (moments <= high)]
            sql = f"""
                SELECT {", ".join(self.key)}, recorded_at FROM {self.table}
                WHERE {" AND ".join(conditions)}
                  AND {between_ns("recorded_at", low, high)}
                  AND toUnixTimestamp64Nano(recorded_at) IN ({integers(inside)})"""
            found.update(self.keys(store.select_arrow(sql)))
        return found


TIMED_TABLES = (
    TimedTable("stream_silences", "silences", ("tenant", "trace_id", "span_id"), ("tenant",)),
    TimedTable("engine_steps", "steps", ("tenant", "engine_id", "step"), ("tenant", "engine_id")),
    TimedTable("engine_requests", "requests", ("tenant", "engine_id", "response_id"), ("tenant", "engine_id")),
    # A series is a hash of everything that identifies it, including engine and host.
    TimedTable("node_samples", "samples", ("tenant", "series"), ("tenant", "metric", "series")),
)


def _nanoseconds(times: pa.ChunkedArray) -> NDArray[np.int64]:
    values: NDArray[np.int64] = times.combine_chunks().cast(pa.int64()).to_numpy()
    return values


def minute_ranges(times: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the minutes that these times touch, adjacent ones joined, so that one late row does not widen the range for all rows."""
    minutes = np.unique(times // _MINUTE_NS)
    breaks = np.flatnonzero(np.diff(minutes) > 1) + 1
    if len(breaks) >= _RANGES_MAX:
        breaks = breaks[:0]
    return [(int(run[0]) * _MINUTE_NS, (int(run[-1]) + 1) * _MINUTE_NS - 1) for run in np.split(minutes, breaks)]


def _literals(values: pa.Array) -> str:
    return quoted_all(values.to_pylist()) if pa.types.is_string(values.type) else integers(values.to_numpy(zero_copy_only=False))
