"""Which rows of a group the store has already.

One idea: a row's identity is (tenant, trace, span, rev), all of it from the span. One query a group asks the store for the spans of the
minutes that the group touches, by the span ids' integers, which ClickHouse looks up in a set; the exact comparison is made here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from legato_ingest.literals import between_ns, quoted_all, unquoted
from legato_ingest.store import Store

__all__ = ["Key", "engine_keys", "keys_of", "known_engine_keys", "known_keys"]

Key = tuple[str, bytes, bytes, int]
EngineKey = tuple[str, str, int, Any]
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


def engine_keys(rows: pa.Table, number: str) -> list[EngineKey]:
    """The identity of each row of an engine's table; ``number`` is the column that tells rows of one moment apart."""
    columns = [rows[name].to_pylist() for name in ("tenant", "engine_id", number)]
    times = rows["recorded_at"].combine_chunks().cast(pa.int64()).to_pylist()
    return [(unquoted(tenant), unquoted(engine), time, unquoted(key)) for tenant, engine, key, time in zip(*columns, times, strict=True)]


def known_engine_keys(store: Store, table: str, rows: pa.Table, number: str) -> set[EngineKey]:
    """The identities that the store holds of these engines in the minutes that these rows touch."""
    starts = rows["recorded_at"].combine_chunks().cast(pa.int64()).to_numpy()
    engines = quoted_all(pc.unique(rows["engine_id"]).to_pylist())
    found: set[EngineKey] = set()
    for low, high in _ranges(starts):
        sql = f"""
            SELECT tenant, engine_id, recorded_at, {number} FROM {table}
            WHERE engine_id IN ({engines})
              AND {between_ns("recorded_at", low, high)}
            SETTINGS max_query_size = 1000000000, max_threads = 1"""
        found.update(engine_keys(store.select_arrow(sql), number))
    return found
