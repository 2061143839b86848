"""OpenLLMetry's instrumentation of anthropic, with an SDK that may emit spans of its own beside it."""

from anthropic import Anthropic
from common import consume, messages_request, metering, tracing
from opentelemetry.instrumentation.anthropic import AnthropicInstrumentor

tracer, meter = tracing(), metering()
client = Anthropic(max_retries=0)
AnthropicInstrumentor().instrument()
consume(client.messages.create(**messages_request(), stream=True))
tracer.shutdown()
meter.shutdown()
