"""Validation of the spans of an OTLP request: each span becomes a record, a rejection, or is ignored.

Each span is validated alone, so a bad span never affects the others. A rejection carries names and types, never an attribute's value. The
head of a timeline is checked here; its chunks are decoded in ``convert``.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from legato_ingest.columns import NS_MAX
from legato_ingest.otlp.attributes import AttributeFault, Attributes, attribute_map, outer_map
from legato_ingest.otlp.batch import DAY_NS, Limits, Rejection
from legato_ingest.otlp.emitters import FAMILIES, around
from legato_ingest.otlp.emitters.engine import COLUMNS as STEP_COLUMNS
from legato_ingest.otlp.model import EngineFlush, Ignored, SilenceRecord, StreamRecord
from legato_ingest.timeline.codec import KNOWN, TimelineError, TimelineHead, read_head

__all__ = ["Accepted", "Flush", "Sender", "Stream", "Validated", "log_senders", "validate"]

# A start this far ahead of the receiver's clock is a wrong clock, not the jitter of a right one.
_FUTURE_NS = 60_000_000_000
_NO_HEAD = TimelineHead(0, {})
_NAME_CHARACTERS_MAX = 256

Record = TypeVar("Record", StreamRecord, SilenceRecord, EngineFlush)
AnyRecord = StreamRecord | SilenceRecord | EngineFlush


class Sender(NamedTuple):
    """Who sent ignored spans, and why they are ignored: the key under which they are counted."""

    service_name: str
    scope: str
    scope_version: str
    emitter: str
    reason: str


@dataclass(slots=True)
class Accepted(Generic[Record]):
    """The record of a valid span, the checked head of its packed columns (no rows where it has none), and the span itself."""

    record: Record
    head: TimelineHead
    span: Span
    attributes: Attributes

    def reject(self, reason: str, detail: str) -> Rejection:
        """Return the rejection of this span by a later step."""
        return _rejection(self.span, self.attributes, reason, detail)


Stream = Accepted[StreamRecord]
Flush = Accepted[EngineFlush]


@dataclass(slots=True)
class Validated:
    """The spans of a request, sorted. ``ignored`` spans are not streamed responses: they are acknowledged, counted and not stored.

    ``failed`` are ignored spans with an error: they may be around a response.
    """

    streams: list[Stream] = field(default_factory=list)
    silences: list[SilenceRecord] = field(default_factory=list)
    flushes: list[Flush] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
    ignored: Counter[Sender] = field(default_factory=Counter)
    failed: list[around.Failed] = field(default_factory=list)
    chunks: int = 0

    @property
    def spans(self) -> int:
        """The number of the request's spans, of any kind."""
        return len(self.streams) + len(self.silences) + len(self.flushes) + len(self.rejections) + self.ignored.total()


class _Invalid(ValueError):
    """A span that has to be rejected for ``reason``."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def validate(request: ExportTraceServiceRequest, now_ns: int, limits: Limits) -> Validated:
    """Validate every span of a request. ``now_ns`` is the receiver's clock, against which spans are too old or in the future."""
    out = Validated()
    for resource_spans in request.resource_spans:
        resource = attribute_map(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            scope = scope_spans.scope
            outer = outer_map(attribute_map(scope.attributes), resource)
            for span in scope_spans.spans:
                _validate(span, Attributes(attribute_map(span.attributes), outer, scope.name, scope.version), now_ns, limits, out)
    if out.failed:
        around.with_failures([stream.record for stream in out.streams], out.failed)
    return out


def log_senders(request: ExportLogsServiceRequest) -> Counter[Sender]:
    """Return the numbers of log records by who sent them. No emitter is known that keeps a stream's times in logs."""
    out = Counter[Sender]()
    for resource_logs in request.resource_logs:
        resource = attribute_map(resource_logs.resource.attributes)
        for scope_logs in resource_logs.scope_logs:
            attributes = Attributes({}, resource, scope_logs.scope.name, scope_logs.scope.version)
            out[_sender(attributes, "", "log record")] += len(scope_logs.log_records)
    return +out


def _validate(span: Span, attributes: Attributes, now_ns: int, limits: Limits, out: Validated) -> None:
    try:
        record = _convert(span, attributes)
        if isinstance(record, Ignored):
            _count_ignored(record, span, attributes, out)
            return
        _check_identity(record)
        _check_times(record, now_ns, limits)
        known = STEP_COLUMNS if isinstance(record, EngineFlush) else KNOWN
        head = _check_timeline(record.timeline, limits.chunks_per_request_max - out.chunks, known)
    except _Invalid as error:
        out.rejections.append(_rejection(span, attributes, error.reason, str(error)))
        return
    out.chunks += head.chunks
    if isinstance(record, EngineFlush):
        out.flushes.append(Accepted(record, head, span, attributes))
    elif isinstance(record, SilenceRecord):
        out.silences.append(record)
    else:
        out.streams.append(Accepted(record, head, span, attributes))


def _count_ignored(ignored: Ignored, span: Span, attributes: Attributes, out: Validated) -> None:
    out.ignored[_sender(attributes, ignored.emitter, ignored.reason)] += 1
    if span.status.code == Status.STATUS_CODE_ERROR:
        out.failed.append(around.Failed(span, attributes.scope))


def _sender(attributes: Attributes, emitter: str, reason: str) -> Sender:
    return Sender(_name(attributes, "service.name"), attributes.scope, attributes.scope_version, emitter, reason)


def _name(attributes: Attributes, key: str) -> str:
    """Return a text of any span, also of one that is rejected; empty for a value of another type."""
    value = attributes.get(key)
    return value.string_value[:_NAME_CHARACTERS_MAX] if value is not None else ""


def _convert(span: Span, attributes: Attributes) -> AnyRecord | Ignored:
    """Return the record by the first family that recognises the span, or why it is ignored."""
    try:
        for convert in FAMILIES.values():
            record = convert(span, attributes)
            if record is not None:
                return record
    except AttributeFault as fault:
        raise _Invalid("attribute", str(fault)) from None
    raise AssertionError("the last family decides on every span")


def _check_identity(record: AnyRecord) -> None:
    if len(record.trace_id) != 16 or not any(record.trace_id):
        raise _Invalid("identity", f"trace id of {len(record.trace_id)} bytes, expected 16 and not all zero")
    if len(record.span_id) != 8 or not any(record.span_id):
        raise _Invalid("identity", f"span id of {len(record.span_id)} bytes, expected 8 and not all zero")
    if len(record.parent_span_id) not in (0, 8):
        raise _Invalid("identity", f"parent span id of {len(record.parent_span_id)} bytes, expected 0 or 8")


def _check_times(record: AnyRecord, now_ns: int, limits: Limits) -> None:
    if not 0 < record.start_ns <= NS_MAX or not 0 < record.end_ns <= NS_MAX:
        raise _Invalid("time", "start or end is zero or beyond the year 2262")
    if record.end_ns < record.start_ns:
        raise _Invalid("time", "the span ends before it starts")
    ahead = record.start_ns - now_ns
    if ahead > _FUTURE_NS:
        record.flags.append("future")
    if not limits.retention_days:
        return
    if ahead > limits.future_max_s * 1_000_000_000:
        raise _Invalid("retention", f"starts more than {limits.future_max_s} s in the future")
    if -ahead > limits.retention_days * DAY_NS:
        raise _Invalid("retention", f"starts before the {limits.retention_days} days that are kept")


def _check_timeline(timeline: bytes | None, budget: int, known: frozenset[int]) -> TimelineHead:
    if timeline is None:
        return _NO_HEAD
    try:
        head = read_head(timeline, known)
    except TimelineError as error:
        raise _Invalid("timeline", str(error)) from None
    if head.chunks > budget:
        raise _Invalid("chunk_budget", f"{head.chunks} chunks, but only {max(budget, 0)} more are allowed in this request")
    return head


def _rejection(span: Span, attributes: Attributes, reason: str, detail: str) -> Rejection:
    """Return the rejection of a span. The hash of the span distinguishes a retry from another span with the same or no ids."""
    rev = attributes.own.get("legato.stream.rev")
    return Rejection(
        reason=reason,
        detail=detail,
        trace_id=span.trace_id,
        span_id=span.span_id,
        rev=max(0, min(rev.int_value, 2**32 - 1)) if rev is not None else 0,
        start_ns=min(span.start_time_unix_nano, NS_MAX),
        service_name=_name(attributes, "service.name"),
        emitter=_name(attributes, "legato.emitter"),
        otlp_bytes=span.ByteSize(),
        span_sha256=hashlib.sha256(span.SerializeToString(deterministic=True)).digest(),
    )
