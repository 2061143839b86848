"""Traceloop's SDK: OpenLLMetry with its own set-up, inside a workflow span."""

from common import SINK, consume, open_stream, openai_client
from traceloop.sdk import Traceloop
from traceloop.sdk.decorators import workflow

client = openai_client()
Traceloop.init(app_name="capture", api_endpoint=SINK, telemetry_enabled=False, disable_batch=True)


@workflow(name="count")
def run() -> None:
    """Stream one response inside the workflow."""
    consume(open_stream(client))


run()
