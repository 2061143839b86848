"""OpenLIT's instrumentation of openai, with its own set-up of traces, metrics and logs."""

import json
import pathlib

import openlit
from common import SINK, consume, open_stream, openai_client
from opentelemetry import metrics, trace

client = openai_client()
# Without a local price list OpenLIT asks the network for one.
prices = pathlib.Path("prices.json")
prices.write_text(json.dumps({"chat": {}}), encoding="utf-8")
openlit.init(pricing_json=str(prices), otlp_endpoint=SINK, application_name="capture", disable_batch=True)
consume(open_stream(client))
trace.get_tracer_provider().shutdown()
metrics.get_meter_provider().shutdown()
