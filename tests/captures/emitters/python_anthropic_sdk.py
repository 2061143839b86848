"""Anthropic's SDK, which emits its own spans as soon as a tracer provider is set."""

from anthropic import Anthropic
from common import SCENARIO, WARM_UP, consume, messages_request, report, tracing

client = Anthropic(max_retries=0)
for _ in client.messages.create(**messages_request(WARM_UP), stream=True):
    pass
tracer = tracing()
consume(client.messages.create(**messages_request(), stream=True))
if SCENARIO == "plain":
    try:
        with client.messages.stream(**messages_request()) as stream:
            consume(stream.text_stream)
    except Exception as error:
        report(error)
tracer.shutdown()
