"""The spans of a stalled stream: one with the sum of its stalls, and one a stall at the time of the stall, named by its cause.

A trace backend cannot change a span that it has, so these spans are added to the trace. Their ids and their contents follow from the
verdicts alone: a retry, a restart or a second instance sends the same spans, which a backend recognises as one. The module is pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.causes import HEALTHY
from legato_ingest.definitions import VERDICT_SCOPE
from legato_ingest.emitters import OWN_PREFIX

__all__ = ["Stall", "StalledStream", "StreamKey", "request_of", "stream_spans"]

StreamKey = tuple[str, bytes, bytes]
"""Tenant, trace id and span id of a stream."""

Value = str | int | float | Sequence[str]


@dataclass(frozen=True, slots=True)
class Stall:
    """One verdict. ``parts_ns``: the time that was charged to each cause; ``start_us`` counts from the start of the stream."""

    start_us: int
    length_us: int
    excess_us: int
    error_us: int
    cause: str
    confidence: str
    share: float
    parts_ns: Mapping[str, int]
    engine_id: str
    missing: Sequence[str]
    step_first: int | None = None
    step_last: int | None = None
    root_step: int | None = None


@dataclass(frozen=True, slots=True)
class StalledStream:
    """A stream with stalls. ``stalls`` are the longest; ``count``, ``length_us``, ``longest_us`` and ``parts_ns`` are those of all.

    ``part``: the number of the tenant's part of all tenants (``tenant_parts``). ``received_ms``: when its end was received (Unix ms).
    """

    tenant: str
    part: int
    received_ms: int
    trace_id: bytes
    span_id: bytes
    parent_span_id: bytes
    start_ns: int
    duration_ns: int
    vantage: str
    service_name: str
    model: str
    emitter: str
    count: int
    length_us: int
    longest_us: int
    parts_ns: Mapping[str, int]
    stalls: Sequence[Stall] = field(default_factory=tuple)

    @property
    def key(self) -> StreamKey:
        """The stream's identity."""
        return self.tenant, self.trace_id, self.span_id


def stream_spans(stream: StalledStream, web_url: str, *, under_stream: bool) -> list[Span]:
    """Return the stream's span and those of its stalls.

    ``web_url``: the base URL of the web page; empty: no links. ``under_stream``: the spans are children of the stream's span; otherwise, if
    one of Legato's own libraries sent it, of the span around it.
    """
    link: dict[str, Value] = {"legato.url": f"{web_url.rstrip('/')}/stream/{stream.trace_id.hex()}"} if web_url else {}
    whole = _span(stream, "legato stalls", b"stream", stream.start_ns, stream.duration_ns, _parent_of(stream, under_stream))
    whole.attributes.extend(_attributes({**_stream_facts(stream), **link}))
    return [whole, *(_stall_span(stream, stall, whole.span_id, link) for stall in stream.stalls)]


def request_of(tenant: str, spans: Iterable[Span]) -> ExportTraceServiceRequest:
    """Return the OTLP request with these spans of one tenant. The service is `legato`: metrics of the recorded services do not change."""
    body = ExportTraceServiceRequest()
    resource = body.resource_spans.add()
    resource.resource.attributes.extend(_attributes({"service.name": "legato", **({"legato.tenant": tenant} if tenant else {})}))
    scope = resource.scope_spans.add()
    scope.scope.name = VERDICT_SCOPE
    scope.spans.extend(spans)
    return body


def _parent_of(stream: StalledStream, under_stream: bool) -> bytes:
    """Return the span that the stream's spans belong under; empty: they begin the trace.

    Spans of other libraries are in the trace backend, as that is where they are meant to be. Those of Legato's own go to Legato alone
    as a rule, and a child of a span that the backend lacks would be an orphan.
    """
    is_own = stream.emitter.startswith(OWN_PREFIX)
    return stream.parent_span_id.strip(b"\0") and stream.parent_span_id if is_own and not under_stream else stream.span_id


def _stall_span(stream: StalledStream, stall: Stall, parent: bytes, link: Mapping[str, Value]) -> Span:
    # The start, and not the place in the list, because later evidence may withdraw an earlier stall.
    kind = b"stall" + stall.start_us.to_bytes(8, "big")
    span = _span(stream, f"stall: {stall.cause}", kind, stream.start_ns + 1000 * stall.start_us, 1000 * stall.length_us, parent)
    span.attributes.extend(_attributes({**_stall_facts(stall), **link}))
    return span


def _span(stream: StalledStream, name: str, kind: bytes, start_ns: int, length_ns: int, parent: bytes) -> Span:
    digest = hashlib.sha256(b"legato.verdicts\0" + stream.trace_id + stream.span_id + kind).digest()
    return Span(
        trace_id=stream.trace_id,
        span_id=digest[:8],
        parent_span_id=parent,
        name=name,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=start_ns,
        end_time_unix_nano=start_ns + length_ns,
    )


def _stream_facts(stream: StalledStream) -> dict[str, Value]:
    charged = {cause: ns for cause, ns in stream.parts_ns.items() if cause != HEALTHY and ns > 0}
    # Of equal causes the first by name, so that a retry has the same one.
    top = min(charged, key=lambda cause: (-charged[cause], cause), default="")
    return {
        "legato.stall.count": stream.count,
        "legato.stall.time_ms": stream.length_us / 1000,
        "legato.stall.longest_ms": stream.longest_us / 1000,
        **({"legato.stall.cause": top, "legato.stall.share": _rounded(charged[top] / sum(charged.values()))} if top else {}),
        **_parts(stream.parts_ns),
        "legato.stream.vantage": stream.vantage,
        "legato.stream.service": stream.service_name,
        "legato.stream.span_id": stream.span_id.hex(),
        "gen_ai.request.model": stream.model,
    }


def _stall_facts(stall: Stall) -> dict[str, Value]:
    steps = {"step_first": stall.step_first, "step_last": stall.step_last, "root_step": stall.root_step}
    return {
        "legato.stall.cause": stall.cause,
        "legato.stall.confidence": stall.confidence,
        "legato.stall.time_ms": stall.length_us / 1000,
        "legato.stall.excess_ms": stall.excess_us / 1000,
        "legato.stall.error_ms": stall.error_us / 1000,
        "legato.stall.share": _rounded(stall.share),
        **_parts(stall.parts_ns),
        "legato.stall.missing": stall.missing,
        "legato.engine.id": stall.engine_id,
        **{f"legato.stall.{name}": number for name, number in steps.items() if number is not None},
    }


def _parts(parts_ns: Mapping[str, int]) -> dict[str, Value]:
    return {f"legato.stall.part.{cause}_ms": ns / 1_000_000 for cause, ns in sorted(parts_ns.items()) if ns}


def _rounded(share: float) -> float:
    return round(float(share), 4)


def _attributes(values: Mapping[str, Value]) -> Iterator[KeyValue]:
    """Yield attributes without those that are empty: an unknown value is absent."""
    for key, value in values.items():
        attribute = KeyValue(key=key)
        if isinstance(value, str):
            attribute.value.string_value = value
        elif isinstance(value, int):
            attribute.value.int_value = value
        elif isinstance(value, float):
            attribute.value.double_value = value
        else:
            for each in value:
                attribute.value.array_value.values.add(string_value=each)
        if value or isinstance(value, int | float):
            yield attribute
