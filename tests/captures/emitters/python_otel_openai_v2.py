"""OpenTelemetry contrib's older instrumentation of openai (opentelemetry-instrumentation-openai-v2)."""

from common import consume, metering, open_stream, openai_client, tracing
from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor

tracer, meter = tracing(), metering()
client = openai_client()
OpenAIInstrumentor().instrument()
consume(open_stream(client))
tracer.shutdown()
meter.shutdown()
