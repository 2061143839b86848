"""Legato's own tracer provider: every stream, no sampling, no limits of other settings, and one exporter. Needs the extra ``[otlp]``.

`legato.configure()` imports this module; nothing else does. A span's parent is the application's current span, so the trace ids join,
and the ``traceparent`` of a request carries the sampling decision of that parent. The provider is never the global one.
"""

from __future__ import annotations

import random
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from requests import Response

from legato._errors import warn_once
from legato._in_flight import InFlight
from legato._otlp_session import ExportSession
from legato._replies import replies
from legato._sender import Export, Sender
from legato._spans import PARTS
from legato._state import settings
from legato._tally import tally
from legato._worker import worker

__all__ = ["Provider", "resource_of"]

# Environment variables limit the spans of applications. A truncated timeline would be undecodable.
_LIMITS = SpanLimits(
    max_span_attributes=SpanLimits.UNSET, max_attributes=SpanLimits.UNSET, max_span_attribute_length=SpanLimits.UNSET,
    max_attribute_length=SpanLimits.UNSET,
)  # fmt: skip


# A child of a pool may live for one task. If nothing listens at the endpoint, each of them ends this much later.
_ABSENT_S = 0.5
_MESSAGE_CHARS_MAX = 500


class Provider:
    """The provider of the spans, and its exporters to ``base`` (a URL). ``interval_s``: longest time until an ended span is sent."""

    def __init__(self, base: str, headers: dict[str, str] | None, resource: Resource, interval_s: float) -> None:
        self._url, self._headers = f"{base}/v1/traces", headers
        self.provider = _TracerProvider(
            sampler=_Always(), resource=resource, shutdown_on_exit=False, id_generator=_Ids(), span_limits=_LIMITS
        )
        self._sender = Sender(self._make_export, interval_s)
        self._in_flight = InFlight(f"{base}/v1/metrics", headers, resource.attributes)
        self.provider.add_span_processor(_Processor(self._sender, self._in_flight))

    def flush(self, timeout_s: float) -> bool:
        """Export everything that has ended. Return False on time-out and if an export has failed since the previous call."""
        return self._sender.flush(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Export everything before the process ends, and report that no stream is in flight. It waits only briefly for an absent server."""
        patience_s = min(_ABSENT_S, timeout_s)
        if self._sender.flush(patience_s) or (not replies.is_unreachable and self._sender.flush(timeout_s - patience_s)):
            self._in_flight.close()

    def _make_export(self) -> Export:
        session = ExportSession("traces", self._url, self._headers or {})
        session.hooks["response"] += [replies.note, _note_rejected]
        exporter = OTLPSpanExporter(endpoint=self._url, headers=self._headers, compression=Compression.Gzip, session=session)
        return lambda spans: exporter.export(spans) is SpanExportResult.SUCCESS and not replies.is_refused


def _note_rejected(response: Response, *_: object, **__: object) -> None:
    """Count the spans that the endpoint rejected from an accepted export, and log its message once."""
    try:
        found = ExportTraceServiceResponse.FromString(response.content if response.ok else b"").partial_success
    except DecodeError:
        return
    if found.rejected_spans > 0:
        tally.add("rejected", found.rejected_spans)
        warn_once("rejected", "the endpoint rejected spans, and they are lost: %s", found.error_message[:_MESSAGE_CHARS_MAX])


def resource_of(service_name: str | None, service_version: str | None) -> Resource:
    """Return the resource: the given names, else those of the application's provider, else OpenTelemetry's variables, else LEGATO_RUN.

    Resource detectors are not run, because they start threads. The id of an instance is left out: a forked child is another instance.
    """
    named = {"service.name": service_name, "service.version": service_version}
    application = getattr(trace.get_tracer_provider(), "resource", None)
    found: dict[str, Any] = {"service.name": settings().program or "unknown_service"}
    found.update(OTELResourceDetector().detect().attributes)
    if isinstance(application, Resource):
        found.update({key: value for key, value in application.attributes.items() if key != "service.instance.id"})
    return Resource({**found, **{key: value for key, value in named.items() if value}})


class _TracerProvider(TracerProvider):
    """A provider that does nothing at a fork. OpenTelemetry's runs resource detectors in threads in each child, also before an exec."""

    def _handle_fork(self) -> None:
        """Do nothing: the resource is the same in a child, and its tracers have it."""


class _Always(Sampler):
    """Records every span. The flag that is passed on to servers is that of the parent, whether or not the application samples it."""

    def should_sample(
        self, parent_context: Context | None, trace_id: int, name: str, kind: Any = None, attributes: Any = None, *_: Any, **__: Any
    ) -> SamplingResult:
        """Record the span. Without a parent it counts as sampled."""
        parent = trace.get_current_span(parent_context).get_span_context()
        is_sampled = not parent.is_valid or parent.trace_flags.sampled
        decision = Decision.RECORD_AND_SAMPLE if is_sampled else Decision.RECORD_ONLY
        return SamplingResult(decision, attributes, parent.trace_state)

    def get_description(self) -> str:
        """Return the sampler's name."""
        return "LegatoAlways"


class _Ids(IdGenerator):
    """Ids from the system's generator: an application that seeds Python's would give all its processes the same ids."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def generate_span_id(self) -> int:
        """Return a new span id."""
        return self._random.randrange(1, 1 << 64)

    def generate_trace_id(self) -> int:
        """Return a new trace id."""
        return self._random.randrange(1, 1 << 128)

    def is_trace_id_random(self) -> bool:
        """Whether trace ids are random."""
        return True


class _Processor(SpanProcessor):
    """Gives ended spans to the sender, also those that are recorded but not sampled."""

    def __init__(self, sender: Sender, in_flight: InFlight) -> None:
        self._sender, self._in_flight = sender, in_flight

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Start the threads, if they do not run in this process."""
        # The span of a request starts before its recorder, and `worker` makes what a process needs before its first stream.
        worker()
        self._sender.start()
        self._in_flight.start()

    def on_end(self, span: ReadableSpan) -> None:
        """Queue the span."""
        self._sender.put(span, is_stream=span.name not in PARTS)

    def shutdown(self) -> None:
        """End open streams and export everything."""
        worker().close()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Export everything that has ended."""
        timeout_s = timeout_millis / 1000
        return worker().flush(timeout_s) and self._sender.flush(timeout_s)
