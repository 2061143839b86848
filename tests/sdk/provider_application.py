"""An application with and without an OpenTelemetry set-up: `provider_application.py WAY OTLP`.

It records streams inside and outside of the application's spans, and prints one JSON object: the spans of the application's exporter, what
`legato.flush` returned, Legato's counters, the ids of the application's span, the `traceparent` headers of the streams, and whether the
application's provider is the global one.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler, TraceIdRatioBased

import legato

kept = InMemorySpanExporter()
found: dict[str, Any] = {"headers": []}


class Proxy(trace.TracerProvider):
    """A provider that is none of OpenTelemetry's SDK and delegates to one, as Logfire's."""

    def __init__(self, provider: TracerProvider) -> None:
        self.provider = provider

    def get_tracer(self, *arguments: Any, **named: Any) -> trace.Tracer:
        """Return a tracer of the other provider."""
        return self.provider.get_tracer(*arguments, **named)


def application(sampler: Sampler, wrap: Callable[[TracerProvider], trace.TracerProvider] = lambda provider: provider) -> None:
    """Set the application's provider."""
    made = TracerProvider(sampler=sampler, resource=Resource({"service.name": "application", "service.version": "3"}))
    made.add_span_processor(SimpleSpanProcessor(kept))
    provider = wrap(made)
    trace.set_tracer_provider(provider)
    found["is_global"] = trace.get_tracer_provider() is provider


def streams(number: int, model: str) -> None:
    """Record so many streams."""
    for _ in range(number):
        with legato.stream(model=model) as recorder:
            recorder.record(1)
            headers: dict[str, str] = {}
            propagate.inject(headers, trace.set_span_in_context(recorder.span))
            found["headers"].append(headers.get("traceparent"))


def in_a_span(number: int) -> None:
    """Record streams inside a span of the application, and one outside."""
    with trace.get_tracer("application").start_as_current_span("work") as span:
        context = span.get_span_context()
        found["parent"] = [f"{context.trace_id:032x}", f"{context.span_id:016x}"]
        streams(number, "inside")
    streams(1, "outside")


def first(otlp: str) -> None:
    """The application's provider, which samples nothing, then Legato."""
    application(ALWAYS_OFF)
    legato.configure(otlp, service_name="named")
    in_a_span(4)


def last(otlp: str) -> None:
    """Legato, then the application's provider."""
    legato.configure(otlp)
    application(ALWAYS_ON)
    in_a_span(4)


def proxy(otlp: str) -> None:
    """A provider that is no `TracerProvider` of the SDK, then Legato. All processes of this application seed Python's generator."""
    application(ALWAYS_ON, Proxy)
    random.seed(1)
    legato.configure(otlp)
    in_a_span(4)


def growing(otlp: str) -> None:
    """No provider, then one that samples, then Legato."""
    streams(3, "nowhere")
    found["flushed_before"] = [legato.flush(), legato.flush()]
    application(TraceIdRatioBased(0.5))
    streams(40, "application")
    found["flushed_before"].append(legato.flush())
    legato.configure(otlp)
    legato.configure(otlp, service_name="too late")
    in_a_span(4)


def disabled(otlp: str) -> None:
    """OpenTelemetry or Legato is disabled by the environment."""
    application(ALWAYS_ON)
    legato.configure(otlp)
    streams(5, "disabled")


def unreachable(_: str) -> None:
    """Nothing listens at the endpoint; then nothing new is recorded."""
    legato.configure("http://127.0.0.1:9")
    streams(5, "unreachable")


def waiting(_: str) -> None:
    """A flush that is shorter than the exporter's retries."""
    legato.configure("http://127.0.0.1:9")
    streams(5, "unreachable")
    found["flushed_before"] = [legato.flush(0.2)]
    found["waiting_before"] = legato.stats()["waiting"]


def main() -> None:
    """Run one way and print the findings."""
    globals()[sys.argv[1]](sys.argv[2])
    found["flushed"] = [legato.flush(), legato.flush()]
    found["stats"] = dict(legato.stats())
    found["kept"] = sorted(span.name for span in kept.get_finished_spans())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
