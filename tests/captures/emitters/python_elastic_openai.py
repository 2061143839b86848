"""Elastic's instrumentation of openai."""

from common import consume, metering, open_stream, openai_client, tracing
from opentelemetry.instrumentation.openai import OpenAIInstrumentor

tracer, meter = tracing(), metering()
client = openai_client()
OpenAIInstrumentor().instrument()
consume(open_stream(client))
tracer.shutdown()
meter.shutdown()
