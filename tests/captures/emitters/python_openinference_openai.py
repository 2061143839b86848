"""OpenInference's instrumentation of openai (Arize Phoenix)."""

from common import chat_request, consume, openai_client, tracing
from openinference.instrumentation.openai import OpenAIInstrumentor

tracer = tracing()
client = openai_client()
OpenAIInstrumentor().instrument()
consume(client.chat.completions.create(**chat_request()))
tracer.shutdown()
