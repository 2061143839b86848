"""`legato.configure()`: exports spans to Legato over OTLP/HTTP. Needs the extra ``[otlp]``.

The number of streams in flight is a gauge (`_in_flight`). For both it uses OpenTelemetry's own components: a bounded batch processor that
exports every second, protobuf and gzip. If the application already has a tracer provider, `configure()` keeps it and adds Legato's
exporter to it. Without `configure()`, Legato's spans go to the exporters of the application's provider.
"""

from __future__ import annotations

from typing import Any

from opentelemetry import trace

from legato import _in_flight as in_flight
from legato._errors import ConfigurationError
from legato._replies import replies
from legato._state import settings
from legato._worker import worker

__all__ = ["configure"]

_configured: list[Any] = []


def configure(endpoint: str | None = None, *, service_name: str | None = None, service_version: str | None = None) -> Any:
    """Export to ``endpoint`` (base URL; default LEGATO_ENDPOINT) and return the tracer provider. Further calls have no effect.

    ``service_name`` and ``service_version`` default to OpenTelemetry's variables (OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES).
    They are ignored if the application already has a provider. Raises ``ConfigurationError`` if the extra is not installed.
    """
    if _configured:
        return _configured[0]
    try:
        from opentelemetry.exporter.otlp.proto.http import Compression
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from requests import Session
    except ImportError as error:
        raise ConfigurationError("legato.configure() needs the OTLP exporter: pip install 'legato[otlp]'") from error

    class Flusher(SpanProcessor):
        """Finishes the worker's streams before the provider flushes or shuts down."""

        def shutdown(self) -> None:
            worker().close()

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return worker().flush(timeout_millis / 1000)

    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        named = {"service.name": service_name, "service.version": service_version}
        provider = TracerProvider(resource=Resource.create({key: value for key, value in named.items() if value}))
        trace.set_tracer_provider(provider)
    base = (endpoint or settings().endpoint).rstrip("/")
    headers = {"Authorization": f"Bearer {settings().token}"} if settings().token else None
    session = Session()
    session.hooks["response"].append(replies.note)
    exporter = OTLPSpanExporter(endpoint=f"{base}/v1/traces", headers=headers, compression=Compression.Gzip, session=session)
    provider.add_span_processor(Flusher())
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=max(1, settings().export_interval_ms)))
    _configured.append(provider)
    if not settings().disabled:
        in_flight.start(base, headers, provider.resource.attributes)
    return provider
