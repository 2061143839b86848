"""OpenLLMetry's instrumentation of anthropic, beside the spans that the SDK writes itself."""

from anthropic import Anthropic
from common import WARM_UP, consume, messages_request, metering, tracing
from opentelemetry.instrumentation.anthropic import AnthropicInstrumentor

client = Anthropic(max_retries=0)
for _ in client.messages.create(**messages_request(WARM_UP), stream=True):
    pass
tracer, meter = tracing(), metering()
AnthropicInstrumentor().instrument()
consume(client.messages.create(**messages_request(), stream=True))
tracer.shutdown()
meter.shutdown()
