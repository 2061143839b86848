"""OpenLIT, which instruments LangChain and the client of openai below."""

import json
import pathlib

import openlit
from common import MODEL, SINK, consume
from langchain_openai import ChatOpenAI
from opentelemetry import metrics, trace

# Without a local price list OpenLIT asks the network for one.
prices = pathlib.Path("prices.json")
prices.write_text(json.dumps({"chat": {}}), encoding="utf-8")
openlit.init(pricing_json=str(prices), otlp_endpoint=SINK, application_name="capture", disable_batch=True)
model = ChatOpenAI(model=MODEL, max_retries=0, stream_usage=True, use_responses_api=False)
consume(model.stream("Count."))
trace.get_tracer_provider().shutdown()
metrics.get_meter_provider().shutdown()
