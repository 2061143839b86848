"""OpenLLMetry's instrumentation of openai: chat completions, with an event for each chunk."""

from common import SCENARIO, consume, consume_concurrently, metering, open_stream, openai_client, tracing
from opentelemetry.instrumentation.openai import OpenAIInstrumentor

tracer, meter = tracing(), metering()
client = openai_client()
OpenAIInstrumentor().instrument()
if SCENARIO == "concurrent":
    consume_concurrently()
else:
    consume(open_stream(client))
tracer.shutdown()
meter.shutdown()
