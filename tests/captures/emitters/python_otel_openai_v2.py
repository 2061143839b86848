"""OpenTelemetry contrib's older instrumentation of openai (opentelemetry-instrumentation-openai-v2)."""

from common import chat_request, consume, metering, openai_client, tracing
from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor

tracer, meter = tracing(), metering()
client = openai_client()
OpenAIInstrumentor().instrument()
consume(client.chat.completions.create(**chat_request()))
tracer.shutdown()
meter.shutdown()
