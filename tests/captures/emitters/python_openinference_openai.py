"""OpenInference's instrumentation of openai (Arize Phoenix)."""

from common import consume, open_stream, openai_client, tracing
from openinference.instrumentation.openai import OpenAIInstrumentor

tracer = tracing()
client = openai_client()
OpenAIInstrumentor().instrument()
consume(open_stream(client))
tracer.shutdown()
