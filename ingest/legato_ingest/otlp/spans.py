"""From an OTLP request to the facts of its streams, and the spans that had to be refused.

One idea: every span is judged alone, so a poison span never costs its neighbours. A refusal carries names and types, never an
attribute's value. It touches no chunk: a timeline's head is checked here, the rest by ``rows``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.otlp.attributes import AttributeFault, Attributes, attribute_map
from legato_ingest.otlp.emitters import FAMILIES, engine
from legato_ingest.otlp.model import EngineFlush, StreamFacts
from legato_ingest.timeline.codec import KNOWN, TimelineError, TimelineHead, read_head

__all__ = ["DAY_NS", "NS_MAX", "Adapted", "Flush", "Limits", "Rejection", "Stream", "Taken", "adapt", "reject"]

DAY_NS = 86_400_000_000_000
NS_MAX = 2**63 - 1
# A start this far ahead of the receiver's clock is a wrong clock, not the jitter of a right one.
_FUTURE_NS = 60_000_000_000
_NO_HEAD = TimelineHead(0, {})


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may ask for."""

    chunks_per_request_max: int = 8_388_608
    chunks_per_pass_max: int = 262_144
    attribute_bytes_per_request_max: int = 128 * 2**20
    retention_days: int = 90
    future_max_s: int = 86_400


Facts = TypeVar("Facts", StreamFacts, EngineFlush)


@dataclass(slots=True)
class Taken(Generic[Facts]):
    """What a span says and the checked head of its packed columns (no rows where it has none), with the span itself."""

    facts: Facts
    head: TimelineHead
    span: Span
    attributes: Attributes

    def refuse(self, reason: str, detail: str) -> Rejection:
        """The record of its refusal by a later step."""
        return reject(self.span, self.attributes, reason, detail)


Stream = Taken[StreamFacts]
Flush = Taken[EngineFlush]


@dataclass(slots=True)
class Rejection:
    """A span that is not stored, and why: ``detail`` names keys and types, never values."""

    reason: str
    detail: str
    trace_id: bytes
    span_id: bytes
    rev: int
    start_ns: int
    service_name: str
    emitter: str
    otlp_bytes: int
    span_sha256: bytes


@dataclass(slots=True)
class Adapted:
    """What a request held. ``ignored`` spans are no streamed responses: acknowledged and not stored."""

    streams: list[Stream] = field(default_factory=list)
    flushes: list[Flush] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
    ignored: int = 0
    chunks: int = 0


class _Refused(ValueError):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def adapt(request: ExportTraceServiceRequest, received_at_ns: int, limits: Limits) -> Adapted:
    """Judge every span of a request. Pure: the receiver's clock comes in as ns since the epoch."""
    adapted = Adapted()
    for resource_spans in request.resource_spans:
        resource = attribute_map(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            outer = {**resource, **attribute_map(scope_spans.scope.attributes)}
            for span in scope_spans.spans:
                _take(span, Attributes(attribute_map(span.attributes), outer), received_at_ns, limits, adapted)
    return adapted


def _take(span: Span, attributes: Attributes, received_at_ns: int, limits: Limits, adapted: Adapted) -> None:
    try:
        facts = _facts(span, attributes)
        if facts is None:
            adapted.ignored += 1
            return
        _check_identity(facts)
        _check_times(facts, received_at_ns, limits)
        steps = isinstance(facts, EngineFlush)
        head = _check_timeline(facts.timeline, limits.chunks_per_request_max - adapted.chunks, engine.COLUMNS if steps else KNOWN)
    except _Refused as refusal:
        adapted.rejections.append(reject(span, attributes, refusal.reason, str(refusal)))
        return
    adapted.chunks += head.chunks
    if isinstance(facts, EngineFlush):
        adapted.flushes.append(Taken(facts, head, span, attributes))
    else:
        adapted.streams.append(Taken(facts, head, span, attributes))


def _facts(span: Span, attributes: Attributes) -> StreamFacts | EngineFlush | None:
    try:
        flush = engine.adapt(span, attributes)
        if flush is not None:
            return flush
        for family in FAMILIES.values():
            facts = family(span, attributes)
            if facts is not None:
                return facts
    except AttributeFault as fault:
        raise _Refused("attribute", str(fault)) from None
    return None


def _check_identity(facts: StreamFacts | EngineFlush) -> None:
    if len(facts.trace_id) != 16 or not any(facts.trace_id):
        raise _Refused("identity", f"trace id of {len(facts.trace_id)} bytes, expected 16 and not all zero")
    if len(facts.span_id) != 8 or not any(facts.span_id):
        raise _Refused("identity", f"span id of {len(facts.span_id)} bytes, expected 8 and not all zero")
    if len(facts.parent_span_id) not in (0, 8):
        raise _Refused("identity", f"parent span id of {len(facts.parent_span_id)} bytes, expected 0 or 8")


def _check_times(facts: StreamFacts | EngineFlush, received_at_ns: int, limits: Limits) -> None:
    if not 0 < facts.start_ns <= NS_MAX or not 0 < facts.end_ns <= NS_MAX:
        raise _Refused("time", "start or end is zero or beyond the year 2262")
    if facts.end_ns < facts.start_ns:
        raise _Refused("time", "the span ends before it starts")
    ahead = facts.start_ns - received_at_ns
    if ahead > _FUTURE_NS:
        facts.flags.append("future")
    if not limits.retention_days:
        return
    if ahead > limits.future_max_s * 1_000_000_000:
        raise _Refused("retention", f"starts more than {limits.future_max_s} s in the future")
    if -ahead > limits.retention_days * DAY_NS:
        raise _Refused("retention", f"starts before the {limits.retention_days} days that are kept")


def _check_timeline(timeline: bytes | None, budget: int, columns: frozenset[int]) -> TimelineHead:
    if timeline is None:
        return _NO_HEAD
    try:
        head = read_head(timeline, columns)
    except TimelineError as error:
        raise _Refused("timeline", str(error)) from None
    if head.chunks > budget:
        raise _Refused("chunk_budget", f"{head.chunks} chunks, with {max(budget, 0)} left to this request")
    return head


def reject(span: Span, attributes: Attributes, reason: str, detail: str) -> Rejection:
    """The record of a refused span. Its hash tells a retry of it from another span with the same (or no) ids."""
    rev = attributes.own.get("legato.stream.rev")
    service, emitter = attributes.get("service.name"), attributes.get("legato.emitter")
    return Rejection(
        reason=reason,
        detail=detail,
        trace_id=span.trace_id,
        span_id=span.span_id,
        rev=max(0, min(rev.int_value, 2**32 - 1)) if rev is not None else 0,
        start_ns=min(span.start_time_unix_nano, NS_MAX),
        service_name=service.string_value[:256] if service is not None else "",
        emitter=emitter.string_value[:256] if emitter is not None else "",
        otlp_bytes=span.ByteSize(),
        span_sha256=hashlib.sha256(span.SerializeToString(deterministic=True)).digest(),
    )
