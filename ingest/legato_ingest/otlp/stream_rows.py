"""Rows of ``stream_revs``, ``stream_sockets`` and ``stream_silences`` from the records and decoded timelines of streams.

The columns are those of ``legato_ingest.columns``. Records give one value a stream; statistics and chunks come from the timelines, computed
for all streams at once. The module does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from legato_ingest.columns import STREAM_REVS, STREAM_SILENCES, STREAM_SOCKETS, Column, Source
from legato_ingest.definitions import OPEN_ENDED
from legato_ingest.otlp.batch import Builders, build_table, record_column
from legato_ingest.otlp.model import SilenceRecord, StreamRecord
from legato_ingest.timeline.codec import IDLE, QUEUED, WINDOW, Timelines
from legato_ingest.timeline.ragged import Segments
from legato_ingest.timeline.statistics import Statistics, describe

__all__ = ["revs_table", "silences_table", "sockets_table", "with_sockets"]

# The last digits of a float are noise of the division. Values with 12 bits of mantissa (1 part in 4,096) compress to half the size.
_FLOAT_MASK = np.uint32(0xFFFFF800)
# The numbers of the packed socket columns (schema/TIMELINE.md), by the names in `stream_sockets`.
_SOCKET_COLUMNS = {"queued_bytes": QUEUED, "window_bytes": WINDOW, "idle_ms": IDLE}
_NO_PARENT = bytes(8)
# Statistics that are unknown where the timeline does not say what chunks carry, and those that are unknown where its first or last chunks
# are missing, or the start of its request.
_NEED_KINDS = frozenset(("ttft_us", "ttfo_us", "tokens_per_chunk", "multi_token_share"))
_NEED_START = frozenset(("ttft_us", "ttfo_us"))
_NEED_HEAD = _NEED_KINDS | {"content_chunks", "content_bytes", "gaps", "gap_sum_us", "head_burst", "burstiness"}
_NEED_TAIL = frozenset(("tail_flush",))


def revs_table(records: Sequence[StreamRecord], tenant: str, timelines: Timelines) -> pa.Table:
    """Build the rows of ``stream_revs``, one for each record. ``timelines`` has one timeline for each; without one, it is empty."""
    timed = np.fromiter((record.timeline is not None for record in records), np.bool_, len(records))
    statistics = _statistics(records, timelines)
    _forget(statistics, records)
    computed = _computed(records, timelines, statistics, timed)
    sources: Builders = {
        Source.RECORD: partial(record_column, records=records),
        Source.STATISTIC: partial(_statistic_column, statistics=statistics, timed=timed),
        Source.TIMELINE: partial(_timeline_column, timelines=timelines),
        Source.COMPUTED: lambda column: computed[column.name],
    }
    return build_table(STREAM_REVS, len(records), tenant, sources)


def sockets_table(records: Sequence[StreamRecord], tenant: str, timelines: Timelines) -> pa.Table:
    """Build the rows of ``stream_sockets``: one for each stream with socket evidence, with the chunks that have any."""
    if not timelines.sockets:
        return STREAM_SOCKETS.empty
    none = np.zeros(timelines.streams.total, np.uint32)
    at = np.flatnonzero(timelines.sockets.get(QUEUED, none))
    owners = timelines.streams.owners()[at]
    having, counts = np.unique(owners, return_counts=True)
    streams = Segments.of_lengths(counts)
    sources: Builders = {
        Source.RECORD: partial(record_column, records=[records[i] for i in having.tolist()]),
        Source.TIMELINE: lambda column: _lists(streams, timelines.sockets.get(_SOCKET_COLUMNS[column.key], none)[at]),
        Source.COMPUTED: lambda column: _lists(streams, (at - timelines.streams.starts[owners]).astype(np.uint32)),
    }
    return build_table(STREAM_SOCKETS, len(having), tenant, sources)


def with_sockets(timelines: Timelines) -> NDArray[np.int64]:
    """Return the places of the streams that have a row in ``sockets_table``."""
    if QUEUED not in timelines.sockets:
        return np.zeros(0, np.int64)
    return np.unique(timelines.streams.owners()[np.flatnonzero(timelines.sockets[QUEUED])])


def silences_table(records: Sequence[SilenceRecord], tenant: str) -> pa.Table:
    """Build the rows of ``stream_silences``, one for each record."""
    if not records:
        return STREAM_SILENCES.empty
    return build_table(STREAM_SILENCES, len(records), tenant, {Source.RECORD: partial(record_column, records=records)})


def _integers(records: Sequence[Any], name: str) -> NDArray[np.int64]:
    return np.fromiter((getattr(record, name) for record in records), np.int64, len(records))


def _statistics(records: Sequence[StreamRecord], timelines: Timelines) -> Statistics:
    durations_us = (_integers(records, "end_ns") - _integers(records, "start_ns")) // 1000
    open_ended = np.fromiter((each.ended and each.outcome in OPEN_ENDED and _has_tail(each) for each in records), np.bool_, len(records))
    # The tokens of all chunks are no measure of those that were kept.
    whole = (np.nan if each.output_tokens is None or each.chunks_dropped else each.output_tokens for each in records)
    return describe(timelines, durations_us, open_ended, np.fromiter(whole, np.float64, len(records)))


def _has_tail(record: StreamRecord) -> bool:
    """Whether the last chunk of the timeline is that of the stream. Where the first chunks are missing, the last ones were kept."""
    return not record.chunks_dropped or not record.head_known


def _forget(statistics: Statistics, records: Sequence[StreamRecord]) -> None:
    """Make the statistics unknown that a stream's timeline cannot give."""
    for names, known in (
        (_NEED_KINDS, [each.kinds_known for each in records]),
        (_NEED_HEAD, [each.head_known for each in records]),
        (_NEED_START, [each.start_known for each in records]),
        (_NEED_TAIL, [_has_tail(each) for each in records]),
    ):
        if all(known):
            continue
        for name in names:
            statistics.known[name] = statistics.known.get(name, np.ones(len(records), np.bool_)) & np.array(known, np.bool_)


def _computed(
    records: Sequence[StreamRecord], timelines: Timelines, statistics: Statistics, timed: NDArray[np.bool_]
) -> dict[str, pa.Array]:
    """Return the columns that combine several values. For a stream without a timeline they hold the values of its span's summary."""
    top_of, top = statistics.top
    buckets_of, buckets, counts = statistics.histogram
    duration_ns = _integers(records, "end_ns") - _integers(records, "start_ns")
    columns = {
        "parent_span_id": pa.array([record.parent_span_id or _NO_PARENT for record in records], STREAM_REVS["parent_span_id"].type),
        "duration_ns": pa.array(duration_ns.astype(np.uint64)),
        "chunks": pa.array(
            [
                record.chunks if record.timeline is None else length + record.chunks_dropped
                for record, length in zip(records, timelines.streams.lengths.tolist(), strict=True)
            ],
            STREAM_REVS["chunks"].type,
        ),
        "ttft_us": _statistic_column(STREAM_REVS["ttft_us"], statistics, timed),
        "gap_top_us": _lists(top_of, top.astype(np.uint64)),
        "gap_bucket": _lists(buckets_of, buckets),
        "gap_bucket_count": _lists(buckets_of, counts.astype(np.uint32)),
    }
    summaries = [record.ttft_us if record.timeline is None or not record.kinds_known else None for record in records]
    if any(each is not None for each in summaries):
        columns["ttft_us"] = pa.array(summaries, STREAM_REVS["ttft_us"].type).fill_null(columns["ttft_us"])
    return columns


def _statistic_column(column: Column, statistics: Statistics, timed: NDArray[np.bool_]) -> pa.Array:
    """Return one statistic; null where it is unknown or the stream has no timeline."""
    values, known = statistics.columns[column.key], timed
    if column.key in statistics.known:
        known = timed & statistics.known[column.key]
    if pa.types.is_floating(column.type):
        with np.errstate(invalid="ignore", over="ignore"):
            short = (values.astype(np.float32).view(np.uint32) & _FLOAT_MASK).view(np.float32)
        return pa.array(short, mask=~known)
    return pa.array(np.where(known, values, 0).astype(column.type.to_pandas_dtype()), mask=~known)


def _timeline_column(column: Column, timelines: Timelines) -> pa.Array:
    """Return one array of chunk values for each stream; an empty array where the stream lacks the column."""
    streams, values = timelines.streams, getattr(timelines, column.key)
    has = getattr(timelines, f"has_{column.key}", None)
    if has is None or has.all():
        return _lists(streams, values)
    return _lists(Segments.of_lengths(streams.lengths * has), values[np.repeat(has, streams.lengths)])


def _lists(streams: Segments, values: NDArray[Any]) -> pa.Array:
    offsets = np.zeros(len(streams.lengths) + 1, np.int32)
    offsets[1:] = streams.ends
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.ascontiguousarray(values)))
