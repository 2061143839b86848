"""What spans of every GenAI family say under the same keys.

One idea: the semantic conventions' own attributes are read in one place; a family adds what it alone knows. It decides nothing.
"""

from __future__ import annotations

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.otlp.attributes import Attributes
from legato_ingest.otlp.model import StreamFacts

__all__ = ["PORT_MAX", "UINT32_MAX", "facts_of"]

PORT_MAX = 65_535
UINT32_MAX = 2**32 - 1


def facts_of(span: Span, attributes: Attributes, *, emitter: str, vantage: str, outcome: str) -> StreamFacts:
    """The span's identity and times, and what the semantic conventions name. Raises ``AttributeFault``."""
    return StreamFacts(
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
