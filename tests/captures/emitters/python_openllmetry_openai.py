"""OpenLLMetry's instrumentation of openai: chat completions, with an event for each chunk."""

from common import chat_request, consume, metering, openai_client, tracing
from opentelemetry.instrumentation.openai import OpenAIInstrumentor

tracer, meter = tracing(), metering()
client = openai_client()
OpenAIInstrumentor().instrument()
consume(client.chat.completions.create(**chat_request()))
tracer.shutdown()
meter.shutdown()
