"""Deduplication: which rows of a commit the store already holds.

A stream row is identified by (tenant, trace, span, rev), which all come from the span. An engine step, finished request or sample is
identified by its time and the columns that distinguish rows of the same time. Each lookup restricts columns at the front of the table's
sorting key, so that ClickHouse reads few granules. The exact comparison is made here; that of rejected items in `rejections`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from legato_ingest.errors import StoreRefused
from legato_ingest.storage import Store
from legato_ingest.storage.sql import between_ns, integers, quoted_all, texts, tuples, unquoted

__all__ = [
    "TIMED_TABLES",
    "StreamKey",
    "TimedTable",
    "halving",
    "in_minutes",
    "nanoseconds",
    "new_rows",
    "query_parts",
    "stored_streams",
    "stream_keys",
    "values",
]

StreamKey = tuple[str, bytes, bytes, int]
T = TypeVar("T")

_MINUTE_NS = 60_000_000_000
# Beyond every minute of a time in ns.
_MINUTES_MAX = 2**32
_STREAM_KEY = ("tenant", "trace_id", "span_id", "rev")
_PIECE_ROWS = 4_096
# The values that one query names: so many bytes together, of which those of times and ids are so many a row.
_QUERY_BYTES, _ROW_BYTES = 2 * 2**20, 32
# Columns of bytes that are no text.
_IDS = ("trace_id", "span_id")


def new_rows(rows: pa.Table, keys: Iterable[T], seen: set[T]) -> pa.Table:
    """Return the rows with keys that are not in ``seen``, and add all keys to it: of rows with equal keys the first is kept."""
    mask = []
    for key in keys:
        mask.append(key not in seen)
        seen.add(key)
    return rows if all(mask) else rows.filter(pa.array(mask, pa.bool_()))


def halving(look_up: Callable[[pa.Table], T], rows: pa.Table) -> list[T]:
    """Return the results of a look-up of all rows, in pieces if the store refuses it: the number of rows is that of the senders.

    Raises ``StoreRefused`` if it refuses that of a single row.
    """
    try:
        return [look_up(rows)]
    except StoreRefused:
        if rows.num_rows < 2:
            raise
    half = rows.num_rows // 2
    return [*halving(look_up, rows.slice(0, half)), *halving(look_up, rows.slice(half))]


def stream_keys(rows: pa.Table) -> list[StreamKey]:
    """Return the key of each row of ``stream_revs``."""
    return _keys(rows, _STREAM_KEY)


def stored_streams(store: Store, tables: Sequence[pa.Table]) -> set[StreamKey]:
    """Return the keys of those streams that are stored, whatever their rev; of each stream the highest rev that is stored."""
    rows = pa.concat_tables([table.select(["tenant", "start_time", "trace_id", "span_id"]) for table in tables])
    return set[StreamKey]().union(*_looked_up(partial(_stored_streams, store), rows, "start_time"))


def _stored_streams(store: Store, inside: str, rows: pa.Table) -> set[StreamKey]:
    # Span ids are compared as integers first, which ClickHouse looks up in a set.
    spans = rows["span_id"].combine_chunks().view(pa.uint64()).to_numpy()
    sql = f"""
        SELECT tenant, trace_id, span_id, max(rev) AS rev FROM stream_revs
        PREWHERE tenant IN ({quoted_all(pc.unique(rows["tenant"]).to_pylist())}) AND {inside}
          AND reinterpretAsUInt64(span_id) IN ({integers(spans)})
        WHERE (trace_id, span_id) IN ({tuples([rows["trace_id"], rows["span_id"]])})
        GROUP BY tenant, trace_id, span_id"""
    # ClickHouse returns strings as bytes.
    return {(unquoted(tenant), *ids) for tenant, *ids in stream_keys(store.select_arrow(sql))}


def _looked_up(look_up: Callable[[str, pa.Table], T], rows: pa.Table, at: str) -> list[T]:
    """Return the results of a look-up of all rows, in parts. ``at``: the time column.

    The look-up gets the condition for the time. A query names only the values of the rows that it is for, and finds no others.
    """

    def look_up_part(part: pa.Table) -> T:
        return look_up(in_minutes(at, part["tenant"], nanoseconds(part[at])), part)

    parts = query_parts(_bytes_of_texts(rows)) if rows.num_rows else ()
    return [found for part in parts for found in halving(look_up_part, rows.slice(part.start, part.stop - part.start))]


def _bytes_of_texts(rows: pa.Table) -> NDArray[np.int64]:
    """Return the bytes of texts in each row."""
    sizes = np.zeros(rows.num_rows, np.int64)
    for column in (column for column in rows.columns if pa.types.is_string(column.type)):
        sizes += pc.binary_length(column).to_numpy()
    return sizes


def query_parts(sizes: NDArray[np.int64]) -> list[slice]:
    """Return which rows to name in one query each. ``sizes``: the bytes of texts of each row, chosen by senders as their number is."""
    numbers = np.cumsum(sizes + _ROW_BYTES) // _QUERY_BYTES
    starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(sizes)]
    return [slice(*limits) for limits in pairwise(starts)]


def values(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column as objects, in pieces: Arrow holds Python's interpreter for a piece, 50 ms for 44,000 rows."""
    starts = range(0, len(column), _PIECE_ROWS)
    return [value for start in starts for value in column.slice(start, _PIECE_ROWS).to_pylist()]


def _keys(rows: pa.Table, names: Sequence[str]) -> list[Any]:
    return list(zip(*(values(rows[name]) for name in names), strict=True))


@dataclass(frozen=True, slots=True)
class TimedTable:
    """A table with rows that are identified by ``recorded_at`` and the columns in ``key``.

    ``rows`` is the name of the rows in a batch. ``prefix`` names columns at the front of the sorting key, which lookups restrict
    beside the key.
    """

    table: str
    rows: str
    key: tuple[str, ...]
    prefix: tuple[str, ...] = ("tenant",)

    def keys(self, rows: pa.Table) -> list[Any]:
        """Return the key of each row."""
        columns = [values(rows[name]) for name in self.key]
        times = nanoseconds(rows["recorded_at"]).tolist()
        texts = [column if name in _IDS else list(map(unquoted, column)) for name, column in zip(self.key, columns, strict=True)]
        return list(zip(*texts, times, strict=True))

    def stored(self, store: Store, rows: pa.Table) -> set[Any]:
        """Return the keys of those rows that are stored."""
        named = rows.select(sorted({*self.key, *self.prefix, "recorded_at"}))
        return set[Any]().union(*_looked_up(partial(self._stored, store), named, "recorded_at"))

    def _stored(self, store: Store, inside: str, rows: pa.Table) -> set[Any]:
        conditions = [f"{name} IN ({texts(pc.unique(rows[name]).to_pylist())})" for name in self.prefix]
        names, moments = self.key[1:], np.unique(nanoseconds(rows["recorded_at"]))
        keys = tuples([rows[name] for name in (*names, "recorded_at")])
        # A sender can store any number of rows with the time of one, so the whole key is compared here: of what the other conditions leave.
        sql = f"""
            SELECT {", ".join(self.key)}, recorded_at FROM {self.table}
            PREWHERE {" AND ".join(conditions)} AND {inside} AND toUnixTimestamp64Nano(recorded_at) IN ({integers(moments)})
            WHERE ({", ".join(names)}, toUnixTimestamp64Nano(recorded_at)) IN ({keys})"""
        return set(self.keys(store.select_arrow(sql)))


TIMED_TABLES = (
    TimedTable("stream_silences", "silences", ("tenant", "trace_id", "span_id")),
    TimedTable("engine_steps", "steps", ("tenant", "engine_id", "step")),
    TimedTable("engine_requests", "requests", ("tenant", "engine_id", "response_id")),
    # A series is a hash of everything that identifies it, including engine and host.
    TimedTable("node_samples", "samples", ("tenant", "series"), ("tenant", "metric")),
)


def nanoseconds(times: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the times of a column in ns since the epoch."""
    values: NDArray[np.int64] = times.combine_chunks().cast(pa.int64()).to_numpy()
    return values


def in_minutes(at: str, tenants: pa.ChunkedArray, times_ns: NDArray[np.int64], around: int = 0) -> str:
    """Return the condition that a row is of one of these tenants, in a minute of one of its times, or at most ``around`` minutes beside it.

    ``at``: the time column; ``tenants``, ``times_ns``: at least one, in pairs. The times of one tenant add nothing to what is read of
    another, and one late row adds a minute. ClickHouse uses the pairs with the primary key.
    """
    encoded = tenants.combine_chunks().dictionary_encode()
    minutes = times_ns // _MINUTE_NS
    beside = np.arange(2 * around + 1)
    pairs = np.unique((encoded.indices.to_numpy().astype(np.int64) * _MINUTES_MAX + minutes)[:, None] + beside)
    tenant, minute = np.divmod(pairs, _MINUTES_MAX)
    columns = [encoded.dictionary.take(pa.array(tenant)), pa.array(minute - around)]
    inside = between_ns(at, (int(minutes.min()) - around) * _MINUTE_NS, (int(minutes.max()) + around + 1) * _MINUTE_NS - 1)
    named = tuples([pa.chunked_array([column]) for column in columns])
    return f"{inside} AND (tenant, intDiv(toUnixTimestamp64Second({at}), 60)) IN ({named})"
