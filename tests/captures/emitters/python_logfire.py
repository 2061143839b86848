"""Logfire's instrument_openai, which exports by OTEL_EXPORTER_OTLP_ENDPOINT and not to Logfire."""

import logfire
from common import chat_request, consume, openai_client

client = openai_client()
logfire.configure(send_to_logfire=False, service_name="capture", inspect_arguments=False)
logfire.instrument_openai()
consume(client.chat.completions.create(**chat_request()))
logfire.shutdown()
