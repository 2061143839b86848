"""AgentOps' SDK, which instruments openai; its spans also go to an OTLP exporter."""

import agentops
from common import SINK, consume, open_stream
from openai import OpenAI
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import BatchSpanProcessor

agentops.init("00000000-0000-0000-0000-000000000000", endpoint="http://127.0.0.1:9", log_level="CRITICAL", fail_safe=True)
trace.get_tracer_provider().add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{SINK}/v1/traces")))
consume(open_stream(OpenAI(max_retries=0)))
trace.get_tracer_provider().force_flush()
agentops.end_trace()
trace.get_tracer_provider().force_flush()
