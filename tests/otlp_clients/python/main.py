"""Sends one streamed response and one histogram with OpenTelemetry's SDK for Python.

The arguments are the times of the chunks in ms after the start. The exporters read their settings from OpenTelemetry's own environment
variables. An export that fails, or that the receiver takes in part only, writes a line to the standard error.
"""

from __future__ import annotations

import importlib
import os
import sys
import time

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind

PROTOCOL = {"grpc": "proto.grpc", "http/protobuf": "proto.http", "http/json": "json.http"}[os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"]]
SPANS = importlib.import_module(f"opentelemetry.exporter.otlp.{PROTOCOL}.trace_exporter").OTLPSpanExporter
METRICS = importlib.import_module(f"opentelemetry.exporter.otlp.{PROTOCOL}.metric_exporter").OTLPMetricExporter


def send_stream(chunks_ms: list[int]) -> None:
    """Send a response that began a minute ago, with an event for each chunk."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(SPANS()))
    began_ns = time.time_ns() - 60 * 10**9
    times_ns = [began_ns + after * 10**6 for after in chunks_ms]
    attributes: dict[str, str | int | list[str]] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "model-a",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.output_tokens": len(chunks_ms),
    }
    span = provider.get_tracer("my.application").start_span(
        "chat model-a", kind=SpanKind.CLIENT, start_time=began_ns, attributes=attributes
    )
    for at_ns in times_ns:
        span.add_event("chunk", timestamp=at_ns)
    span.end(times_ns[-1])
    provider.shutdown()


def send_histogram() -> None:
    """Send four values."""
    provider = MeterProvider([PeriodicExportingMetricReader(METRICS())])
    latency = provider.get_meter("my.application").create_histogram("app.latency", explicit_bucket_boundaries_advisory=[0.1, 1])
    for seconds in (0.05, 0.5, 0.5, 5):
        latency.record(seconds)
    provider.shutdown()


send_stream([int(each) for each in sys.argv[1:]])
send_histogram()
