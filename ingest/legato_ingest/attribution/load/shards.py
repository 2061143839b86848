"""Shards of the streams: instances that share a server each judge those of their own.

A stream belongs to the shard of its engine, because the records of an engine are read and its steps are fitted once for all its streams.
An engine is known from any row of the stream's trace. Without one, the trace decides. All instances must find the same shard for a stream,
whatever else they look at in the same query: so only rows count that started in the same ten minutes, the ten before, and the ten after.
A later row may move a stream to another shard, but that row makes the whole trace due again. The module makes conditions and reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from legato_ingest.storage.judged import ALL_SHARDS, SHARDS
from legato_ingest.storage.sql import between_ns

__all__ = ["CELLS_MAX", "CELL_NS", "is_in_shards", "trace_is_in_shards"]

CELL_NS = 600_000_000_000
CELLS_MAX = 16
"""Streams that started in more stretches of ten minutes are not divided: every instance judges all of them."""


def is_in_shards(shards: int, cells: Iterable[int]) -> str:
    """Return the condition that a row of `stream_revs` is of these shards. ``cells``: the stretches of ``CELL_NS`` in which rows start."""
    if shards == ALL_SHARDS:
        return "1"
    return "(" + " OR ".join(_in_cell(shards, cell) for cell in sorted(set(cells))) + ")"


def trace_is_in_shards(shards: int) -> str:
    """Return the condition that the shard of a trace, without regard to engines, is one of these."""
    return "1" if shards == ALL_SHARDS else _is_one_of(shards, "trace_id")


def _in_cell(shards: int, cell: int) -> str:
    begin, end = cell * CELL_NS, (cell + 1) * CELL_NS - 1
    with_engine = f"SELECT trace_id FROM stream_revs WHERE {between_ns('start_time', begin - CELL_NS, end + CELL_NS)} AND engine_id != ''"
    of_engine = f"trace_id IN ({with_engine} AND {_is_one_of(shards, 'tenant, engine_id')})"
    of_trace = f"{_is_one_of(shards, 'trace_id')} AND trace_id NOT IN ({with_engine})"
    return f"{between_ns('start_time', begin, end)} AND ({of_engine} OR {of_trace})"


def _is_one_of(shards: int, columns: str) -> str:
    return f"bitTest(toUInt64({shards}), cityHash64({columns}) % {SHARDS})"
