"""Logfire's instrument_anthropic, which exports by OTEL_EXPORTER_OTLP_ENDPOINT and not to Logfire."""

import logfire
from anthropic import Anthropic
from common import consume, messages_request

logfire.configure(send_to_logfire=False, service_name="capture", console=False, inspect_arguments=False)
logfire.instrument_anthropic()
consume(Anthropic(max_retries=0).messages.create(**messages_request(), stream=True))
logfire.shutdown()
