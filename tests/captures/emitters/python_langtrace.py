"""Langtrace's SDK, which instruments openai."""

from common import SINK, consume, open_stream
from langtrace_python_sdk import langtrace
from openai import OpenAI
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

exporter = OTLPSpanExporter(f"{SINK}/v1/traces")
langtrace.init(api_key="none", custom_remote_exporter=exporter, batch=False, disable_logging=True)
consume(open_stream(OpenAI(max_retries=0)))
trace.get_tracer_provider().force_flush()
