"""LangWatch's SDK with its own tracing of openai's client."""

import langwatch
from common import SINK, consume, open_stream
from openai import OpenAI
from opentelemetry import trace

langwatch.setup(api_key="none", endpoint_url=SINK)
client = OpenAI(max_retries=0)


@langwatch.trace()
def main() -> None:
    """Stream one answer."""
    langwatch.get_current_trace().autotrack_openai_calls(client)
    consume(open_stream(client))


main()
trace.get_tracer_provider().force_flush()
