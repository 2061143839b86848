"""OpenLIT's instrumentation of openai, with its own set-up of traces, metrics and logs."""

import openlit
from common import SINK, chat_request, consume, openai_client
from opentelemetry import metrics, trace

client = openai_client()
openlit.init(otlp_endpoint=SINK, application_name="capture", disable_batch=True)
consume(client.chat.completions.create(**chat_request()))
trace.get_tracer_provider().shutdown()
metrics.get_meter_provider().shutdown()
