"""OpenTelemetry's own GenAI instrumentation of openai (opentelemetry-instrumentation-genai-openai)."""

from common import chat_request, consume, metering, openai_client, tracing
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor

tracer, meter = tracing(), metering()
client = openai_client()
OpenAIInstrumentor().instrument()
consume(client.chat.completions.create(**chat_request()))
tracer.shutdown()
meter.shutdown()
