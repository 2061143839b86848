"""Logfire's instrument_openai, which exports by OTEL_EXPORTER_OTLP_ENDPOINT and not to Logfire.

In "nested" and "concurrent" a span of the application is around the calls. Without such a span both spans of a stream are roots of
separate traces.
"""

import contextlib

import logfire
from common import SCENARIO, consume, consume_concurrently, open_stream, openai_client

client = openai_client()
logfire.configure(send_to_logfire=False, service_name="capture", console=False, inspect_arguments=False)
logfire.instrument_openai()
with logfire.span("answer") if SCENARIO in ("nested", "concurrent") else contextlib.nullcontext():
    if SCENARIO == "concurrent":
        consume_concurrently()
    else:
        consume(open_stream(client))
logfire.shutdown()
