"""Validation of the spans of an OTLP request: each span becomes a record, a rejection, or is ignored.

Each span is validated alone, so a bad span never affects the others. A rejection carries names and types, never an attribute's value. The
record is checked in ``checks``; the chunks of its timeline are decoded in ``convert``.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from legato_ingest.columns import NS_MAX
from legato_ingest.otlp.attributes import AttributeFault, Attributes, attribute_map, number_text, outer_map
from legato_ingest.otlp.batch import Limits, Rejection
from legato_ingest.otlp.budget import Budget, OverBudget, TooMany
from legato_ingest.otlp.checks import AnyRecord, Invalid, check
from legato_ingest.otlp.emitters import FAMILIES, around
from legato_ingest.otlp.model import EngineFlush, Ignored, SilenceRecord, StreamRecord
from legato_ingest.timeline.codec import TimelineHead

__all__ = ["ATTRIBUTES_MAX", "Accepted", "Flush", "Sender", "Stream", "Validated", "log_senders", "validate"]

_NAME_CHARACTERS_MAX = 256
# Attributes of a span, a scope or a resource: each takes some 250 bytes while it is read.
ATTRIBUTES_MAX = 16_384

Record = TypeVar("Record", StreamRecord, SilenceRecord, EngineFlush)


class Sender(NamedTuple):
    """Who sent ignored spans, and why they are ignored: the key under which they are counted."""

    service_name: str
    scope: str
    scope_version: str
    emitter: str
    reason: str


_OTHERS = Sender("", "(other)", "", "", "")


@dataclass(frozen=True, slots=True)
class Outside:
    """What spans of one scope share: the attributes outside of them, and the scope. ``fault`` is the reason why none can be read."""

    outer: Mapping[str, AnyValue]
    scope: str = ""
    scope_version: str = ""
    fault: str = ""

    def attributes(self, span: Span) -> Attributes:
        """Return the attributes of a span; those around it alone where it has too many."""
        own = span.attributes
        return Attributes(attribute_map(own) if len(own) <= ATTRIBUTES_MAX else {}, self.outer, self.scope, self.scope_version)


@dataclass(slots=True)
class Accepted(Generic[Record]):
    """The record of a valid span, the checked head of its packed columns (no rows where it has none), and the span itself.

    The attributes are not kept: they take ten times the memory of the span.
    """

    record: Record
    head: TimelineHead
    span: Span
    outside: Outside


Stream = Accepted[StreamRecord]
Flush = Accepted[EngineFlush]


@dataclass(slots=True)
class Validated:
    """The spans of a request, sorted. ``ignored`` spans are not streamed responses: they are acknowledged, counted and not stored.

    ``failed`` are ignored spans with an error: they may be around a response. ``unlisted`` counts rejected spans without a row, by reason.
    """

    budget: Budget
    streams: list[Stream] = field(default_factory=list)
    silences: list[SilenceRecord] = field(default_factory=list)
    flushes: list[Flush] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
    unlisted: Counter[str] = field(default_factory=Counter)
    ignored: Counter[Sender] = field(default_factory=Counter)
    failed: list[around.Failed] = field(default_factory=list)
    chunks: int = 0

    @property
    def spans(self) -> int:
        """The number of the request's spans, of any kind."""
        rejected = len(self.rejections) + self.unlisted.total()
        return len(self.streams) + len(self.silences) + len(self.flushes) + rejected + self.ignored.total()

    def reject(self, span: Span, outside: Outside, reason: str, detail: str) -> None:
        """Reject a span. Beyond the budget of rows it is only counted."""
        if self.budget.lists():
            self.rejections.append(_rejection(span, outside.attributes(span), reason, detail))
        else:
            self.unlisted[reason] += 1


def validate(request: ExportTraceServiceRequest, now_ns: int, limits: Limits, budget: Budget) -> Validated:
    """Validate every span of a request. ``now_ns`` is the receiver's clock, against which spans are too old or in the future.

    Raises ``TooMany`` for more spans than the budget allows at once.
    """
    out = Validated(budget)
    if sum(len(scope.spans) for each in request.resource_spans for scope in each.scope_spans) > budget.items_max:
        raise TooMany
    for resource_spans in request.resource_spans:
        resource, fault = _bounded_map(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            outside = _outside(resource, fault, scope_spans.scope)
            for span in scope_spans.spans:
                _validate(span, outside, now_ns, limits, out)
    if out.failed:
        around.with_failures([stream.record for stream in out.streams], out.failed)
    return out


def _bounded_map(attributes: Sequence[KeyValue]) -> tuple[dict[str, AnyValue], str]:
    """Return attributes by key, or the fault that there are too many to be read."""
    if len(attributes) > ATTRIBUTES_MAX:
        return {}, f"{len(attributes)} attributes of a span, its scope or its resource, at most {ATTRIBUTES_MAX} are read"
    return attribute_map(attributes), ""


def _outside(resource: dict[str, AnyValue], fault: str, scope: InstrumentationScope) -> Outside:
    own, own_fault = _bounded_map(scope.attributes)
    return Outside(outer_map(own, resource), scope.name, scope.version, fault or own_fault)


def log_senders(request: ExportLogsServiceRequest, budget: Budget) -> Counter[Sender]:
    """Return the numbers of log records by who sent them. No emitter is known that keeps a stream's times in logs. Raises ``TooMany``."""
    out = Counter[Sender]()
    if sum(len(scope.log_records) for each in request.resource_logs for scope in each.scope_logs) > budget.items_max:
        raise TooMany
    for resource_logs in request.resource_logs:
        resource, _ = _bounded_map(resource_logs.resource.attributes)
        for scope_logs in resource_logs.scope_logs:
            attributes = Attributes({}, resource, scope_logs.scope.name, scope_logs.scope.version)
            _count(out, _sender(attributes, "", "log record"), len(scope_logs.log_records), budget)
    return +out


def _validate(span: Span, outside: Outside, now_ns: int, limits: Limits, out: Validated) -> None:
    try:
        own, fault = _bounded_map(span.attributes)
        if fault or outside.fault:
            raise Invalid("attribute", fault or outside.fault)
        attributes = Attributes(own, outside.outer, outside.scope, outside.scope_version)
        record = _convert(span, attributes)
        if isinstance(record, Ignored):
            _count_ignored(record, span, attributes, out)
            return
        size = record.otlp_bytes if isinstance(record, StreamRecord) else span.ByteSize()
        head = check(record, size, now_ns, limits, out.budget)
    except (Invalid, OverBudget) as error:
        out.reject(span, outside, error.reason, str(error))
        return
    out.chunks += head.chunks
    if isinstance(record, EngineFlush):
        out.flushes.append(Accepted(record, head, span, outside))
    elif isinstance(record, SilenceRecord):
        out.silences.append(record)
    else:
        out.streams.append(Accepted(record, head, span, outside))


def _count_ignored(ignored: Ignored, span: Span, attributes: Attributes, out: Validated) -> None:
    _count(out.ignored, _sender(attributes, ignored.emitter, ignored.reason), 1, out.budget)
    if span.status.code == Status.STATUS_CODE_ERROR:
        out.failed.append(around.Failed(span, attributes.scope))


def _count(senders: Counter[Sender], sender: Sender, number: int, budget: Budget) -> None:
    """Count items of a sender. Beyond the budget of senders their names are left out: each scope of a request may have another."""
    if sender not in senders:
        if budget.senders <= 0:
            sender = _OTHERS._replace(emitter=sender.emitter, reason=sender.reason)
        else:
            budget.senders -= 1
    senders[sender] += number


def _sender(attributes: Attributes, emitter: str, reason: str) -> Sender:
    return Sender(_name(attributes, "service.name"), attributes.scope, attributes.scope_version, emitter, reason)


def _name(attributes: Attributes, key: str) -> str:
    """Return a text or a number of any span, also of one that is rejected; empty for a value of another type."""
    value = attributes.get(key)
    return (value.string_value[:_NAME_CHARACTERS_MAX] or number_text(value)) if value is not None else ""


def _convert(span: Span, attributes: Attributes) -> AnyRecord | Ignored:
    """Return the record by the first family that recognises the span, or why it is ignored."""
    try:
        for convert in FAMILIES.values():
            record = convert(span, attributes)
            if record is not None:
                return record
    except AttributeFault as fault:
        raise Invalid("attribute", str(fault)) from None
    raise AssertionError("the last family decides on every span")


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
