"""The attributes that all families with GenAI spans share: those of the OpenTelemetry semantic conventions.

``genai_record`` reads them in one place; a family adds the values that only it has. The module decides nothing.
"""

from __future__ import annotations

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.otlp.attributes import Attributes
from legato_ingest.otlp.model import StreamRecord

__all__ = ["PORT_MAX", "UINT32_MAX", "genai_record"]

PORT_MAX = 65_535
UINT32_MAX = 2**32 - 1


def genai_record(span: Span, attributes: Attributes, *, emitter: str, vantage: str, outcome: str) -> StreamRecord:
    """Return a record with the span's ids and times and its attributes by the semantic conventions. Raises ``AttributeFault``."""
    return StreamRecord(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent_span_id,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        otlp_bytes=span.ByteSize(),
        emitter=emitter,
        vantage=vantage,
        outcome=outcome,
        error_type=attributes.text("error.type"),
        service_name=attributes.text("service.name"),
        service_version=attributes.text("service.version"),
        provider=attributes.text("gen_ai.provider.name"),
        model=attributes.text("gen_ai.request.model"),
        response_model=attributes.text("gen_ai.response.model"),
        response_id=attributes.text("gen_ai.response.id"),
        finish_reason=attributes.first_text("gen_ai.response.finish_reasons"),
        route=attributes.text("http.route"),
        conversation_id=attributes.text("gen_ai.conversation.id"),
        server_address=attributes.text("server.address"),
        server_port=attributes.count("server.port", PORT_MAX) or 0,
        input_tokens=attributes.count("gen_ai.usage.input_tokens", UINT32_MAX),
        output_tokens=attributes.count("gen_ai.usage.output_tokens", UINT32_MAX),
        ttft_us=attributes.micros("gen_ai.response.time_to_first_chunk"),
    )
