"""OpenLIT's instrumentation of Anthropic's client."""

import json
import pathlib

import openlit
from anthropic import Anthropic
from common import SINK, consume, messages_request
from opentelemetry import metrics, trace

# Without a local price list OpenLIT asks the network for one.
prices = pathlib.Path("prices.json")
prices.write_text(json.dumps({"chat": {}}), encoding="utf-8")
openlit.init(pricing_json=str(prices), otlp_endpoint=SINK, application_name="capture", disable_batch=True)
consume(Anthropic(max_retries=0).messages.create(**messages_request(), stream=True))
trace.get_tracer_provider().shutdown()
metrics.get_meter_provider().shutdown()
