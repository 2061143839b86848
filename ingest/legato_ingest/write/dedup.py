"""Which rows of a group the store has already.

One idea: a row's identity is (tenant, trace, span, rev), all of it from the span; that of a step or a sample is its time and what tells
rows of one moment apart. One query a group asks the store for the minutes that the group touches, by numbers, which ClickHouse looks up
in a set; the exact comparison is made here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from legato_ingest.storage import Store
from legato_ingest.storage.sql import between_ns, quoted_all, unquoted

__all__ = ["BESIDE", "Identity", "Key", "keys_of", "known_keys"]

Key = tuple[str, bytes, bytes, int]
_MINUTE_NS = 60_000_000_000
# More stretches of time than this are asked for in one: a backfill of months must not be hundreds of queries.
_RANGES_MAX = 16
_COLUMNS = ("tenant", "trace_id", "span_id", "rev")


def keys_of(rows: pa.Table) -> list[Key]:
    """The identity of each row."""
    return list(zip(*(rows[name].to_pylist() for name in _COLUMNS), strict=True)) if rows.num_rows else []


def known_keys(store: Store, tables: Sequence[pa.Table]) -> set[Key]:
    """The identities among these rows' that the store may hold, exactly those that it does hold."""
    rows = pa.concat_tables([table.select(["tenant", "start_time", "span_id"]) for table in tables])
    if not rows.num_rows:
        return set()
    starts = rows["start_time"].combine_chunks().cast(pa.int64()).to_numpy()
    spans = np.frombuffer(b"".join(rows["span_id"].to_pylist()), "<u8")
    tenants = [str(tenant) for tenant in pc.unique(rows["tenant"]).to_pylist()]
    found: set[Key] = set()
    for low, high in _ranges(starts):
        inside = spans[(starts >= low) & (starts <= high)]
        found.update(_ask(store, tenants, low, high, inside))
    return found


def _ranges(starts: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[tuple[int, int]]:
    """The minutes that these starts touch, neighbours joined: a late stream does not make the query read the time between."""
    minutes = np.unique(starts // _MINUTE_NS)
    breaks = np.flatnonzero(np.diff(minutes) > 1) + 1
    if len(breaks) >= _RANGES_MAX:
        breaks = breaks[:0]
    return [(int(run[0]) * _MINUTE_NS, (int(run[-1]) + 1) * _MINUTE_NS - 1) for run in np.split(minutes, breaks)]


def _ask(store: Store, tenants: list[str], low: int, high: int, spans: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> list[Key]:
    sql = f"""
        SELECT tenant, trace_id, span_id, rev FROM stream_revs
        WHERE tenant IN ({quoted_all(tenants)})
          AND {between_ns("start_time", low, high)}
          AND reinterpretAsUInt64(span_id) IN ({",".join(map(str, spans.tolist()))})
        SETTINGS max_query_size = 1000000000, max_threads = 1"""
    table = store.select_arrow(sql)
    columns = [table[name].to_pylist() for name in _COLUMNS]
    return [(unquoted(tenant), trace, span, rev) for tenant, trace, span, rev in zip(*columns, strict=True)]


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells the rows of a table that came beside the streams from one another: ``columns`` and the time ``recorded_at``.

    ``rows`` is the batch's name for them. ``asked`` are the columns by which the store is asked, those that its sort key begins with.
    """

    table: str
    rows: str
    columns: tuple[str, ...]
    asked: tuple[str, ...]

    def keys(self, rows: pa.Table) -> list[Any]:
        """The identity of each row."""
        columns = [rows[name].to_pylist() for name in self.columns]
        times = rows["recorded_at"].combine_chunks().cast(pa.int64()).to_pylist()
        return list(zip(*([unquoted(value) for value in column] for column in columns), times, strict=True))

    def known(self, store: Store, rows: pa.Table) -> set[Any]:
        """The identities that the store holds at these rows' moments, of those that share what is asked."""
        times = rows["recorded_at"].combine_chunks().cast(pa.int64()).to_numpy()
        conditions = [f"{name} IN ({_literals(pc.unique(rows[name]))})" for name in self.asked]
        moments = ",".join(map(str, np.unique(times).tolist()))
        found: set[Any] = set()
        for low, high in _ranges(times):
            sql = f"""
                SELECT {", ".join(self.columns)}, recorded_at FROM {self.table}
                WHERE {" AND ".join(conditions)}
                  AND {between_ns("recorded_at", low, high)}
                  AND toUnixTimestamp64Nano(recorded_at) IN ({moments})
                SETTINGS max_query_size = 1000000000, max_threads = 1"""
            found.update(self.keys(store.select_arrow(sql)))
        return found


STEPS = Identity("engine_steps", "steps", ("tenant", "engine_id", "step"), ("tenant", "engine_id"))
REQUESTS = Identity("engine_requests", "requests", ("tenant", "engine_id", "response_id"), ("tenant", "engine_id"))
# A series is a hash of all that names it, its engine and host included.
SAMPLES = Identity("node_samples", "samples", ("tenant", "series"), ("tenant", "metric", "series"))
BESIDE = (STEPS, REQUESTS, SAMPLES)


def _literals(values: pa.Array) -> str:
    return quoted_all(values.to_pylist()) if pa.types.is_string(values.type) else ",".join(map(str, values.to_pylist()))
