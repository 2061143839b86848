"""Conversion of a parsed OTLP request to a batch of rows: ``convert_spans``, ``convert_points`` for metrics, ``convert_logs``.

Spans are validated one by one; chunks are then decoded and described with numpy in passes of bounded size. The module does no I/O and has
no access to the store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from legato_ingest.columns import ENGINE_REQUESTS, ENGINE_STEPS, STREAM_REVS, STREAM_SOCKETS
from legato_ingest.otlp.batch import Batch, Limits, Rejection, rejected_table
from legato_ingest.otlp.engine_rows import engine_tables
from legato_ingest.otlp.metric_rows import build_samples
from legato_ingest.otlp.model import StreamRecord
from legato_ingest.otlp.spans import Sender, Stream, Validated, log_senders, validate
from legato_ingest.otlp.stream_rows import revs_table, silences_table, sockets_table
from legato_ingest.timeline.codec import TimelineHead, Timelines, decode

__all__ = ["convert_logs", "convert_points", "convert_spans", "summary_rows"]

_EMPTY_TIMELINE = b"\x01\x01\x00\x00\x00\x00\x01\x07\x00\x00\x00" + bytes(7)
_EMPTY_HEAD = TimelineHead(0, {})


def convert_spans(request: ExportTraceServiceRequest, *, tenant: str, now_ns: int, limits: Limits) -> Batch:
    """Return the rows of a request of spans. ``now_ns`` is the receiver's clock.

    Memory beyond that of the rows is bounded by ``limits.chunks_per_pass_max``.
    """
    validated = validate(request, now_ns, limits)
    ignored = validated.ignored.total()
    spans = len(validated.streams) + len(validated.silences) + len(validated.flushes) + len(validated.rejections) + ignored
    revs, sockets = [], []
    for streams in _passes(validated.streams, limits.chunks_per_pass_max):
        streams, timelines = _decode(streams, validated.rejections)
        records = [stream.record for stream in streams]
        revs.append(revs_table(records, tenant, timelines))
        sockets.append(sockets_table(records, tenant, timelines))
    steps, requests = _engine_tables(validated, tenant) if validated.flushes else (ENGINE_STEPS.empty, ENGINE_REQUESTS.empty)
    return Batch(
        revs=pa.concat_tables(revs) if revs else STREAM_REVS.empty,
        sockets=pa.concat_tables(sockets) if sockets else STREAM_SOCKETS.empty,
        silences=silences_table(validated.silences, tenant),
        steps=steps,
        requests=requests,
        rejected=rejected_table(validated.rejections, tenant),
        spans=spans,
        ignored=ignored,
        senders=_of_tenant(validated.ignored, tenant),
        chunks=validated.chunks,
    )


def convert_points(request: ExportMetricsServiceRequest, *, tenant: str, now_ns: int, limits: Limits) -> Batch:
    """Return the rows of a request of metrics. ``now_ns`` is the receiver's clock."""
    samples = build_samples(request, tenant, now_ns, limits)
    return Batch(
        samples=samples.table,
        rejected=rejected_table(samples.rejections, tenant),
        points=samples.points,
        ignored=samples.ignored,
        attribute_bytes=samples.attribute_bytes,
    )


def convert_logs(request: ExportLogsServiceRequest, *, tenant: str, now_ns: int, limits: Limits) -> Batch:
    """Count the log records of a request: none is stored, because no emitter's streams are read from log records yet."""
    senders = log_senders(request)
    return Batch(logs=senders.total(), ignored=senders.total(), senders=_of_tenant(senders, tenant))


def summary_rows(records: Sequence[StreamRecord], tenant: str) -> pa.Table:
    """Return the rows of ``stream_revs`` of records without timelines."""
    return revs_table(records, tenant, decode([_EMPTY_TIMELINE] * len(records), [_EMPTY_HEAD] * len(records))[0])


def _of_tenant(senders: Counter[Sender], tenant: str) -> Counter[tuple[str, ...]]:
    return Counter({(tenant, *sender): number for sender, number in senders.items()})


def _engine_tables(validated: Validated, tenant: str) -> tuple[pa.Table, pa.Table]:
    """Return the rows of ``engine_steps`` and ``engine_requests``; a flush with undecodable steps is rejected."""
    steps, requests, bad = engine_tables(validated.flushes, tenant)
    if bad:
        validated.rejections.extend(validated.flushes[i].reject("timeline", reason) for i, reason in bad.items())
        steps, requests, _ = engine_tables([flush for i, flush in enumerate(validated.flushes) if i not in bad], tenant)
    return steps, requests


def _passes(streams: Sequence[Stream], chunks_max: int) -> Iterator[list[Stream]]:
    """Yield the streams in groups of at most this many chunks, and of at least one stream."""
    group: list[Stream] = []
    chunks = 0
    for stream in streams:
        if group and chunks + stream.head.chunks > chunks_max:
            yield group
            group, chunks = [], 0
        group.append(stream)
        chunks += stream.head.chunks
    if group:
        yield group


def _decode(streams: list[Stream], rejections: list[Rejection]) -> tuple[list[Stream], Timelines]:
    """Decode the timelines of some streams. Streams with a timeline that cannot be decoded are rejected and left out."""
    timelines, bad = _timelines(streams)
    if bad:
        rejections.extend(streams[i].reject("timeline", reason) for i, reason in bad.items())
        streams = [stream for i, stream in enumerate(streams) if i not in bad]
        timelines, _ = _timelines(streams)
    return streams, timelines


def _timelines(streams: Sequence[Stream]) -> tuple[Timelines, dict[int, str]]:
    return decode([stream.record.timeline or _EMPTY_TIMELINE for stream in streams], [stream.head for stream in streams])
