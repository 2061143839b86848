"""From an OTLP request to the rows of the store, as Arrow tables.

One idea: everything between the bytes and the insert is pure and works on whole batches: spans become facts one by one, chunks become
statistics and columns in passes of bounded size. The column names are those of the schema. It does no I/O and knows no store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from legato_ingest.definitions import OPEN_ENDED
from legato_ingest.otlp.engine_rows import engine_tables
from legato_ingest.otlp.metric_rows import NO_SAMPLES, read_samples
from legato_ingest.otlp.model import StreamFacts
from legato_ingest.otlp.spans import Adapted, Limits, Rejection, Stream, adapt
from legato_ingest.timeline.codec import IDLE, QUEUED, WINDOW, Timelines, decode
from legato_ingest.timeline.ragged import Segments
from legato_ingest.timeline.statistics import Statistics, describe

__all__ = ["Batch", "Limits", "nothing", "rejected_table", "rows_of", "sample_rows_of"]

_TEXTS = (
    "vantage outcome error_type service_name service_version provider model response_model response_id finish_reason route "
    "conversation_id engine_id client_hash emitter transport clock client_address server_address"
).split()
_EMPTY_TIMELINE = b"\x01\x01\x00\x00\x00\x00\x01\x07\x00\x00\x00" + bytes(7)
_TIMESTAMP = pa.timestamp("ns", "UTC")
_RECEIVED = pa.timestamp("ms", "UTC")
# What a chunk takes as a row's part, in bytes.
_CHUNK_BYTES = 16
# A float's last digits are noise of division: 12 bits of mantissa (1 part in 4,096) compress to half.
_FLOAT_MASK = np.uint32(0xFFFFF800)


@dataclass(frozen=True, slots=True)
class Batch:
    """A request's rows by table. A request brings ``spans`` or ``points``; ``ignored`` of them are acknowledged and not stored: spans that
    are neither streamed responses nor engine steps, points that say they have no value. ``chunks`` counts steps too.
    """

    revs: pa.Table
    sockets: pa.Table
    steps: pa.Table
    requests: pa.Table
    samples: pa.Table
    rejected: pa.Table
    spans: int
    points: int
    ignored: int
    chunks: int
    attribute_bytes: int

    @classmethod
    def joined(cls, parts: Iterable[Batch]) -> Batch:
        """One batch of several, or of none."""
        parts = [nothing(), *parts]
        columns = ([getattr(part, each.name) for part in parts] for each in fields(cls))
        return cls(*(sum(column) if isinstance(column[0], int) else pa.concat_tables(column) for column in columns))

    @property
    def nbytes(self) -> int:
        """Memory that the rows hold."""
        tables = (self.revs, self.sockets, self.steps, self.requests, self.samples, self.rejected)
        # Asking a table takes longer than its rows do, so an empty one is not asked.
        return int(sum(table.nbytes for table in tables if table.num_rows))

    @property
    def weight(self) -> int:
        """What it adds to an insert, in chunks: samples weigh as much as chunks of their bytes."""
        return self.chunks + (int(self.samples.nbytes) // _CHUNK_BYTES if self.points else 0)


@cache
def nothing() -> Batch:
    """The batch of an empty request."""
    return rows_of(ExportTraceServiceRequest(), tenant="", received_at_ns=0, limits=Limits())


def rows_of(request: ExportTraceServiceRequest, *, tenant: str, received_at_ns: int, limits: Limits) -> Batch:
    """All rows of a request. Memory beyond the rows themselves is bounded by ``limits.chunks_per_pass_max``."""
    adapted = adapt(request, received_at_ns, limits)
    spans = len(adapted.streams) + len(adapted.flushes) + len(adapted.rejections) + adapted.ignored
    tables = [_pass(streams, adapted, tenant, received_at_ns) for streams in _passes(adapted, limits.chunks_per_pass_max)]
    tables = tables or [_pass([], adapted, tenant, received_at_ns)]
    revs, sockets = (pa.concat_tables(each) for each in zip(*tables, strict=True))
    steps, requests = _engine_tables(adapted, tenant, received_at_ns)
    rejected = rejected_table(adapted.rejections, tenant, received_at_ns)
    return Batch(revs, sockets, steps, requests, NO_SAMPLES, rejected, spans, 0, adapted.ignored, adapted.chunks, 0)


def sample_rows_of(request: ExportMetricsServiceRequest, *, tenant: str, received_at_ns: int, limits: Limits) -> Batch:
    """All rows of a request of metrics."""
    samples = read_samples(request, tenant, received_at_ns, limits)
    return replace(
        nothing(),
        samples=samples.table,
        rejected=rejected_table(samples.rejections, tenant, received_at_ns),
        points=samples.points,
        ignored=samples.ignored,
        attribute_bytes=samples.attribute_bytes,
    )


def _engine_tables(adapted: Adapted, tenant: str, received_at_ns: int) -> tuple[pa.Table, pa.Table]:
    steps, requests, bad = engine_tables(adapted.flushes, tenant, received_at_ns)
    if bad:
        adapted.rejections.extend(adapted.flushes[i].refuse("timeline", reason) for i, reason in bad.items())
        good = [flush for i, flush in enumerate(adapted.flushes) if i not in bad]
        steps, requests, _ = engine_tables(good, tenant, received_at_ns)
    return steps, requests


def _passes(adapted: Adapted, chunks_max: int) -> Iterator[list[Stream]]:
    """The request's streams in groups of at most this many chunks (and at least one stream)."""
    group: list[Stream] = []
    chunks = 0
    for stream in adapted.streams:
        if group and chunks + stream.head.chunks > chunks_max:
            yield group
            group, chunks = [], 0
        group.append(stream)
        chunks += stream.head.chunks
    if group:
        yield group


def _pass(streams: list[Stream], adapted: Adapted, tenant: str, received_at_ns: int) -> tuple[pa.Table, pa.Table]:
    """The rows of ``stream_revs`` and ``stream_sockets`` for some streams; what proves bad now is rejected."""
    timelines, bad = _decode(streams)
    if bad:
        adapted.rejections.extend(streams[i].refuse("timeline", reason) for i, reason in bad.items())
        streams = [stream for i, stream in enumerate(streams) if i not in bad]
        timelines, _ = _decode(streams)
    revs = _revs_table([stream.facts for stream in streams], tenant, received_at_ns, timelines)
    return revs, _sockets_table(revs, timelines)


def _decode(streams: list[Stream]) -> tuple[Timelines, dict[int, str]]:
    return decode([stream.facts.timeline or _EMPTY_TIMELINE for stream in streams], [stream.head for stream in streams])


def _revs_table(facts: list[StreamFacts], tenant: str, received_at_ns: int, timelines: Timelines) -> pa.Table:
    count = len(facts)
    columns: dict[str, pa.Array] = {"tenant": _repeated(tenant, count)}
    columns.update(_identity_columns(facts, received_at_ns))
    columns.update({name: pa.array([getattr(fact, name) for fact in facts], pa.string()) for name in _TEXTS})
    columns.update(_number_columns(facts))
    columns.update(_statistics_columns(facts, timelines))
    columns.update(_timeline_columns(timelines))
    return pa.table(columns)


def _identity_columns(facts: list[StreamFacts], received_at_ns: int) -> dict[str, pa.Array]:
    start = _integers(facts, "start_ns", np.int64)
    return {
        "start_time": pa.array(start, _TIMESTAMP),
        "trace_id": _fixed([fact.trace_id for fact in facts], 16),
        "span_id": _fixed([fact.span_id for fact in facts], 8),
        "rev": pa.array(_integers(facts, "rev", np.uint32)),
        "parent_span_id": _fixed([fact.parent_span_id or bytes(8) for fact in facts], 8),
        "ended": pa.array([fact.ended for fact in facts], pa.bool_()),
        "duration_ns": pa.array(_integers(facts, "end_ns", np.int64) - start).cast(pa.uint64()),
        "next_due_us": pa.array(_integers(facts, "next_due_us", np.uint64)),
        "received_at": pa.array(np.full(len(facts), received_at_ns // 1_000_000, np.int64), _RECEIVED),
        "flags": pa.array([fact.flags for fact in facts], pa.list_(pa.string())),
    }


def _number_columns(facts: list[StreamFacts]) -> dict[str, pa.Array]:
    columns = {
        name: pa.array(_integers(facts, name, dtype))
        for name, dtype in (
            ("client_port", np.uint16),
            ("server_port", np.uint16),
            ("otlp_bytes", np.uint32),
            ("chunks_dropped", np.uint32),
        )
    }
    for name, kind in (
        ("input_tokens", pa.uint32()),
        ("output_tokens", pa.uint32()),
        ("wire_bytes", pa.uint64()),
        ("ttfb_us", pa.uint64()),
    ):
        columns[name] = pa.array([getattr(fact, name) for fact in facts], kind)
    return columns


def _statistics_columns(facts: list[StreamFacts], timelines: Timelines) -> dict[str, pa.Array]:
    """The statistics of the timelines; where a span brought none, what its summary says."""
    durations = (_integers(facts, "end_ns", np.int64) - _integers(facts, "start_ns", np.int64)) // 1000
    open_ended = np.fromiter((fact.ended and fact.outcome in OPEN_ENDED for fact in facts), np.bool_, len(facts))
    tokens = np.fromiter((np.nan if f.output_tokens is None else f.output_tokens for f in facts), np.float64, len(facts))
    statistics = describe(timelines, durations, open_ended, tokens)
    timed = np.fromiter((fact.timeline is not None for fact in facts), np.bool_, len(facts))
    columns = {name: _masked(name, statistics, timed) for name in statistics.columns}
    if not timed.all():
        ttft = [fact.ttft_us if fact.timeline is None else None for fact in facts]
        columns["ttft_us"] = pa.array([a if b is None else b for a, b in zip(columns["ttft_us"].to_pylist(), ttft, strict=True)])
        columns["ttft_us"] = columns["ttft_us"].cast(pa.uint64())
    columns["chunks"] = pa.array(
        [
            fact.chunks if fact.timeline is None else int(length) + fact.chunks_dropped
            for fact, length in zip(facts, timelines.streams.lengths, strict=True)
        ],
        pa.uint32(),
    )
    streams, top = statistics.top
    columns["gap_top_us"] = _lists(streams, top.astype(np.uint64))
    streams, buckets, counts = statistics.histogram
    columns["gap_bucket"] = _lists(streams, buckets)
    columns["gap_bucket_count"] = _lists(streams, counts.astype(np.uint32))
    return columns


_FLOATS = frozenset(("jitter_ratio", "tokens_per_chunk", "multi_token_share", "head_burst", "tail_flush", "burstiness"))


def _masked(name: str, statistics: Statistics, timed: NDArray[np.bool_]) -> pa.Array:
    values, known = statistics.columns[name], timed
    if name in statistics.known:
        known = timed & statistics.known[name]
    if name in _FLOATS:
        with np.errstate(invalid="ignore", over="ignore"):
            short = (values.astype(np.float32).view(np.uint32) & _FLOAT_MASK).view(np.float32)
        return pa.array(short, mask=~known)
    wide = name.endswith("_us") or name == "content_bytes"
    return pa.array(np.where(known, values, 0).astype(np.uint64 if wide else np.uint32), mask=~known)


def _timeline_columns(timelines: Timelines) -> dict[str, pa.Array]:
    """The chunks as arrays; a column that a stream lacks is an empty array."""
    streams = timelines.streams

    def column(values: NDArray[Any], has: NDArray[np.bool_] | None) -> pa.Array:
        if has is None or has.all():
            return _lists(streams, values)
        return _lists(Segments.of_lengths(streams.lengths * has), values[np.repeat(has, streams.lengths)])

    return {
        "dt_us": column(timelines.dt_us, None),
        "chunk_bytes": column(timelines.sizes, timelines.has_sizes),
        "chunk_tokens": column(timelines.tokens, timelines.has_tokens),
        "chunk_kind": column(timelines.kinds, None),
        "chunk_hold_64us": column(timelines.holds, timelines.has_holds),
    }


def _sockets_table(revs: pa.Table, timelines: Timelines) -> pa.Table:
    """A row for each stream with evidence of its socket, with the reads that have any."""
    none = np.zeros(timelines.streams.total, np.uint32)
    at = np.flatnonzero(timelines.sockets.get(QUEUED, none))
    owners = timelines.streams.owners()[at]
    having, counts = np.unique(owners, return_counts=True)
    streams = Segments.of_lengths(counts)
    columns = {name: revs[name].take(pa.array(having)) for name in ("tenant", "start_time", "trace_id", "span_id", "rev")}
    columns["at"] = _lists(streams, (at - timelines.streams.starts[owners]).astype(np.uint32))
    for name, number in (("queued_bytes", QUEUED), ("window_bytes", WINDOW), ("idle_ms", IDLE)):
        columns[name] = _lists(streams, timelines.sockets.get(number, none)[at])
    return pa.table(columns)


def rejected_table(rejections: Sequence[Rejection], tenant: str, received_at_ns: int) -> pa.Table:
    """The rows of ``rejected``."""
    columns: dict[str, pa.Array] = {
        "tenant": _repeated(tenant, len(rejections)),
        "received_at": pa.array(np.full(len(rejections), received_at_ns // 1_000_000, np.int64), _RECEIVED),
    }
    for name in ("reason", "detail", "service_name", "emitter"):
        columns[name] = pa.array([getattr(rejection, name) for rejection in rejections], pa.string())
    columns["trace_id"] = _fixed([rejection.trace_id[:16].ljust(16, b"\0") for rejection in rejections], 16)
    columns["span_id"] = _fixed([rejection.span_id[:8].ljust(8, b"\0") for rejection in rejections], 8)
    columns["rev"] = pa.array(_integers(rejections, "rev", np.uint32))
    columns["start_time"] = pa.array(_integers(rejections, "start_ns", np.int64), _TIMESTAMP)
    columns["otlp_bytes"] = pa.array(_integers(rejections, "otlp_bytes", np.uint32))
    columns["span_sha256"] = _fixed([rejection.span_sha256 for rejection in rejections], 32)
    return pa.table(columns)


def _integers(items: Sequence[Any], name: str, dtype: Any) -> NDArray[Any]:
    return np.fromiter((getattr(item, name) for item in items), dtype, len(items))


def _repeated(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def _fixed(values: Sequence[bytes], width: int) -> pa.Array:
    """A column of ids, all of the same width."""
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(values), [None, pa.py_buffer(b"".join(values))])


def _lists(streams: Segments, values: NDArray[Any]) -> pa.Array:
    offsets = np.zeros(len(streams.lengths) + 1, np.int32)
    offsets[1:] = streams.ends
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.ascontiguousarray(values)))
