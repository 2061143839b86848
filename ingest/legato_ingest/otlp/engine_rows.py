"""From flushes of engine steps to rows of `engine_steps` and `engine_requests`, as Arrow tables.

One idea: as with streams, Python touches a flush's few header bytes and numpy its steps, all flushes of a request at once. It judges no
step: what a row says is what the engine's front end recorded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from legato_ingest.otlp.emitters.engine import COLUMNS, STEP_COLUMNS
from legato_ingest.otlp.spans import Flush
from legato_ingest.timeline.codec import columns_of
from legato_ingest.timeline.ragged import Segments

__all__ = ["engine_tables"]

_DT, _NUMBER = 1, 2
_TIMESTAMP, _RECEIVED = pa.timestamp("ns", "UTC"), pa.timestamp("ms", "UTC")


def engine_tables(flushes: Sequence[Flush], tenant: str, received_at_ns: int) -> tuple[pa.Table, pa.Table, dict[int, str]]:
    """The rows of ``engine_steps`` and ``engine_requests``, and the flushes that prove bad with the reason: the caller drops those."""
    rows, columns, bad = columns_of([flush.facts.timeline or b"" for flush in flushes], [flush.head for flush in flushes], COLUMNS)
    owners = rows.owners()
    table = {
        **_common(flushes, owners, tenant, received_at_ns),
        "engine_epoch": pa.array(_of(flushes, "epoch_ns")[owners], _TIMESTAMP),
        "recorded_at": pa.array(_of(flushes, "start_ns")[owners] + 1_000 * _since(rows, columns[_DT]), _TIMESTAMP),
        "step": pa.array((_of(flushes, "step_first")[owners] + _since(rows, columns[_NUMBER])).astype(np.uint64)),
    }
    for name, number in STEP_COLUMNS.items():
        values = columns[number]
        table[name] = pa.array(np.maximum(values, 1) - np.uint32(1), mask=values == 0)
    return pa.table(table), _requests(flushes, tenant, received_at_ns), bad


def _requests(flushes: Sequence[Flush], tenant: str, received_at_ns: int) -> pa.Table:
    counts = np.array([len(flush.facts.finished["response_id"]) for flush in flushes], np.int64)
    owners = Segments.of_lengths(counts).owners()
    table = {
        **_common(flushes, owners, tenant, received_at_ns, emitter=False),
        # The key's time comes from the flush, so that a retry is the same row.
        "recorded_at": pa.array(_of(flushes, "end_ns")[owners], _TIMESTAMP),
    }
    kinds = {"response_id": pa.string(), "reason": pa.string(), "step": pa.uint64()}
    kinds |= {name: pa.uint32() for name in ("preemptions", "prompt_tokens", "output_tokens")}
    kinds |= {name: pa.uint64() for name in ("queued_us", "prefill_us", "decode_us")}
    for name, kind in kinds.items():
        table[name] = pa.array([value for flush in flushes for value in flush.facts.finished[name]], kind)
    return pa.table(table)


def _common(
    flushes: Sequence[Flush], owners: NDArray[np.int64], tenant: str, received_at_ns: int, emitter: bool = True
) -> dict[str, pa.Array]:
    count = len(owners)
    out = {
        "tenant": pa.repeat(pa.scalar(tenant, pa.string()), count),
        "engine_id": pa.array([flush.facts.engine_id for flush in flushes], pa.string()).take(pa.array(owners)),
        "received_at": pa.array(np.full(count, received_at_ns // 1_000_000, np.int64), _RECEIVED),
    }
    if emitter:
        out["emitter"] = pa.array([flush.facts.emitter for flush in flushes], pa.string()).take(pa.array(owners))
    return out


def _of(flushes: Sequence[Flush], name: str) -> NDArray[np.int64]:
    return np.array([getattr(flush.facts, name) for flush in flushes], np.int64)


def _since(rows: Segments, values: NDArray[np.uint32]) -> NDArray[np.int64]:
    """The running sum within each flush, whose first value says nothing."""
    values = values.astype(np.int64)
    values[rows.starts[rows.filled]] = 0
    return rows.cumulate(values)
