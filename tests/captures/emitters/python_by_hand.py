"""Spans by hand with OpenTelemetry's SDK: an event for each chunk, under each of the names that people use.

One stream for each event name in "plain", one stream otherwise. OTEL_EXPORTER_OTLP_PROTOCOL selects the exporter. The events of the
first name carry what semconv drafts put there (an index and a finish reason); the others carry nothing.
"""

import json
import os

import httpx
from common import BREAK_AFTER, SCENARIO, chat_request, report
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

PROTOCOL = os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"]
if PROTOCOL == "grpc":
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
elif PROTOCOL == "http/json":
    from opentelemetry.exporter.otlp.json.http.trace_exporter import OTLPSpanExporter
else:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

NAMES = ("gen_ai.choice", "chunk", "llm.content.completion.chunk")
URL = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"

provider = TracerProvider(resource=Resource.create({"service.name": "capture"}))
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
tracer = provider.get_tracer("my.application", "1.0")


def note(span: trace.Span, name: str, index: int, chunk: dict) -> None:
    """Write what one chunk says into the span."""
    finish = next((each["finish_reason"] for each in chunk["choices"]), None)
    fields = {"index": index} if name == "gen_ai.choice" else {}
    span.add_event(name, {**fields, "finish_reason": finish} if fields and finish else fields)
    if finish:
        span.set_attribute("gen_ai.response.finish_reasons", [finish])
    if usage := chunk.get("usage"):
        span.set_attribute("gen_ai.usage.input_tokens", usage["prompt_tokens"])
        span.set_attribute("gen_ai.usage.output_tokens", usage["completion_tokens"])
    span.set_attribute("gen_ai.response.id", chunk["id"])
    span.set_attribute("gen_ai.response.model", chunk["model"])


def stream(client: httpx.Client, name: str) -> None:
    """Stream one response inside a span."""
    request = chat_request()
    with tracer.start_as_current_span(f"chat {request['model']}", kind=trace.SpanKind.CLIENT) as span:
        span.set_attributes({"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.stream": True})
        span.set_attribute("gen_ai.request.model", str(request["model"]))
        with client.stream("POST", URL, json=request) as response:
            index = 0
            for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                note(span, name, index, json.loads(line[6:]))
                index += 1
                if SCENARIO == "break" and index == BREAK_AFTER:
                    return


with httpx.Client(timeout=60) as client:
    client.get(f"{os.environ['OPENAI_BASE_URL']}/models")
    for name in NAMES if SCENARIO == "plain" else NAMES[1:2]:
        try:
            stream(client, name)
        except Exception as error:
            report(error)
provider.shutdown()
