"""Rows of ``engine_steps`` and ``engine_requests`` from flushes of engine steps.

Python reads the few header bytes of each flush; numpy decodes the steps of all flushes at once. The columns are those of
``legato_ingest.columns``. Steps are not validated: a row holds what the engine's front end recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from legato_ingest.columns import ENGINE_REQUESTS, ENGINE_STEPS, Column, Source
from legato_ingest.otlp.batch import DAY_NS, Builders, build_table, record_column
from legato_ingest.otlp.emitters.engine import COLUMNS, STEP_COLUMNS
from legato_ingest.otlp.model import EngineFlush
from legato_ingest.otlp.spans import Flush
from legato_ingest.timeline.codec import decode_columns
from legato_ingest.timeline.ragged import Segments

__all__ = ["engine_tables"]

# The packed columns with the time since the step before (µs) and with the distance of the step numbers (schema/STEPS.md).
_DT, _NUMBER = 1, 2


def engine_tables(flushes: Sequence[Flush], tenant: str) -> tuple[pa.Table, pa.Table, dict[int, str]]:
    """Return the rows of ``engine_steps`` and ``engine_requests``, and the flushes that cannot be decoded: their index with the reason.

    Rows of undecodable flushes are meaningless: the caller has to leave these flushes out and call again.
    """
    records = [flush.record for flush in flushes]
    rows, columns, bad = decode_columns([record.timeline or b"" for record in records], [flush.head for flush in flushes], COLUMNS)
    return _steps(records, tenant, rows, columns), _requests(records, tenant), bad


def _steps(records: Sequence[EngineFlush], tenant: str, rows: Segments, columns: dict[int, NDArray[np.uint32]]) -> pa.Table:
    owners = rows.owners()

    def by_step(column: Column) -> pa.Array:
        values = columns[STEP_COLUMNS[column.key]]
        return pa.array(np.maximum(values, 1) - np.uint32(1), mask=values == 0)

    def computed(column: Column) -> pa.Array:
        if column.name == "recorded_at":
            return pa.array(_field(records, "start_ns")[owners] + 1_000 * _running_sum(rows, columns[_DT]), column.type)
        return pa.array((_field(records, "step_first")[owners] + _running_sum(rows, columns[_NUMBER])).astype(np.uint64))

    sources: Builders = {
        Source.RECORD: lambda column: record_column(column, records).take(pa.array(owners)),
        Source.STEP: by_step,
        Source.COMPUTED: computed,
    }
    return build_table(ENGINE_STEPS, len(owners), tenant, sources)


def _requests(records: Sequence[EngineFlush], tenant: str) -> pa.Table:
    counts = np.array([len(record.finished["response_id"]) for record in records], np.int64)
    owners = Segments.of_lengths(counts).owners()
    recorded_ns = _recorded_ns(records, counts, owners)

    def of_record(column: Column) -> pa.Array:
        return pa.array(recorded_ns, column.type) if column.name == "recorded_at" else record_column(column, records).take(pa.array(owners))

    sources: Builders = {
        Source.RECORD: of_record,
        Source.FINISHED: lambda column: pa.array([value for record in records for value in record.finished[column.key]], column.type),
    }
    return build_table(ENGINE_REQUESTS, len(owners), tenant, sources)


def _recorded_ns(records: Sequence[EngineFlush], counts: NDArray[np.int64], owners: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the time of each finished request: the end of its flush, and one ns apart for each earlier request with the same id in it.

    The rows have one key otherwise. Requests with n > 1 have one id for each of their sequences, and some versions of vLLM give no id. The
    times depend on the flush alone, so that a retry has the same keys, and they stay within the day of its end.
    """
    apart = np.zeros(len(owners), np.int64)
    starts = np.cumsum(counts) - counts
    for record, start in zip(records, starts.tolist(), strict=True):
        names = record.finished["response_id"]
        if len(set(names)) < len(names):
            seen = Counter[str]()
            for place, name in enumerate(names, start):
                apart[place] = seen[name]
                seen[name] += 1
    ends_ns = _field(records, "end_ns")[owners]
    return ends_ns + np.where(ends_ns % DAY_NS >= apart, -apart, apart)


def _field(records: Sequence[EngineFlush], name: str) -> NDArray[np.int64]:
    return np.array([getattr(record, name) for record in records], np.int64)


def _running_sum(rows: Segments, values: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the running sum within each flush; the first value of a flush counts as 0 (schema/STEPS.md)."""
    values = values.astype(np.int64)
    values[rows.starts[rows.filled]] = 0
    return rows.cumulate(values)
