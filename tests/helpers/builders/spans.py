"""Build OTLP trace requests span by span, in the forms that any emitter may send. Only tests and benchmarks use this module."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from legato._timeline import pack

__all__ = ["any_value", "many_spans", "native_span", "request", "scope_of", "steady_timeline"]

SECOND_NS = 1_000_000_000


def any_value(value: Any) -> AnyValue:
    """Convert a Python value to the OTLP value of the matching type."""
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, bytes):
        return AnyValue(bytes_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=value)
    out = AnyValue()
    out.array_value.values.extend(any_value(item) for item in value)
    return out


def request(resource: Mapping[str, Any] | None = None, scope: Mapping[str, Any] | None = None) -> ExportTraceServiceRequest:
    """An empty request with one resource and one scope. The default ``service.name`` is ``test``."""
    out = ExportTraceServiceRequest()
    resource_spans = out.resource_spans.add()
    for key, value in {"service.name": "test", **(resource or {})}.items():
        resource_spans.resource.attributes.add(key=key, value=any_value(value))
    scope_spans = resource_spans.scope_spans.add()
    scope_spans.scope.name = "legato"
    for key, value in (scope or {"legato.emitter": "legato-python/0.1.0"}).items():
        scope_spans.scope.attributes.add(key=key, value=any_value(value))
    return out


def scope_of(body: ExportTraceServiceRequest) -> ScopeSpans:
    """The request's only scope."""
    scope: ScopeSpans = body.resource_spans[0].scope_spans[0]
    return scope


def steady_timeline(chunks: int = 20, dt_us: int = 25_000, first_us: int = 400_000, size: int = 4) -> bytes:
    """A packed timeline: a role chunk, text chunks every ``dt_us`` microseconds, and the end."""
    times = [first_us + i * dt_us for i in range(chunks)]
    kinds = [0, *[1] * (chunks - 2), 7] if chunks > 2 else [1] * chunks
    return pack(times, [size if kind == 1 else 0 for kind in kinds], None, kinds)


def many_spans(count: int, attributes: Mapping[str, Any], rng: random.Random) -> bytes:
    """Return a body of spans that differ in their ids; much faster than to make each."""
    body = request({"service.name": "many"})
    native_span(body, attributes, rng=rng)
    spans = scope_of(body).spans
    for _ in range(count - 1):
        copy = Span()
        copy.CopyFrom(spans[0])
        copy.trace_id, copy.span_id = rng.randbytes(16), rng.randbytes(8)
        spans.append(copy)
    return bytes(body.SerializeToString())


def native_span(
    body: ExportTraceServiceRequest,
    attributes: Mapping[str, Any] | None = None,
    *,
    trace_id: bytes | None = None,
    span_id: bytes | None = None,
    start_ns: int | None = None,
    duration_ns: int = 2 * SECOND_NS,
    name: str = "chat model-a",
    drop: Sequence[str] = (),
    rng: random.Random | None = None,
) -> Span:
    """Add a span as Legato's SDK sends it to the request and return it: a complete, steady stream at a client.

    ``attributes`` override the defaults; the keys in ``drop`` are left out.
    """
    rng = rng or random.Random()
    start = start_ns if start_ns is not None else time.time_ns() - 60 * SECOND_NS
    span: Span = scope_of(body).spans.add(
        trace_id=rng.randbytes(16) if trace_id is None else trace_id,
        span_id=rng.randbytes(8) if span_id is None else span_id,
        name=name,
        kind=Span.SPAN_KIND_CLIENT,
        start_time_unix_nano=start,
        end_time_unix_nano=start + duration_ns,
    )
    defaults: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "model-a",
        "gen_ai.request.stream": True,
        "gen_ai.response.id": f"chatcmpl-{rng.getrandbits(64):016x}",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 18,
        "legato.stream.timeline": steady_timeline(),
        "legato.stream.vantage": "client",
        "legato.stream.outcome": "complete",
        "legato.stream.chunks": 20,
        "legato.stream.ttfb": 0.003,
        "legato.stream.transport": "http/1.1",
        "legato.stream.wire_bytes": 4_400,
    }
    for key, value in {**defaults, **(attributes or {})}.items():
        if key not in drop:
            span.attributes.add(key=key, value=any_value(value))
    return span
