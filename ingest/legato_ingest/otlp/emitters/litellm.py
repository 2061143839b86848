"""Spans of LiteLLM, of the library and of its proxy: the classic callback and the newer telemetry (LITELLM_OTEL_V2).

The classic callback sends `litellm_request` and a child of the same length with the raw request; the child is ignored. It has no TTFT. The
newer one follows the semantic conventions. The id of a failed request is LiteLLM's own id of the call, and its usage is LiteLLM's own
estimate; neither is read. A stream that was left early sends no span, or, from the proxy, one that looks complete. Spans of the proxy are
of the vantage gateway.
"""

from __future__ import annotations

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.otlp.attributes import Attributes
from legato_ingest.otlp.emitters.foreign import Loose, add_ttft, foreign_record
from legato_ingest.otlp.model import Ignored, StreamRecord

__all__ = ["FAMILY", "convert"]

FAMILY = "litellm"
_STREAMED = ("gen_ai.request.stream", "litellm.request.streaming", "llm.is_streaming")
_TTFT = ("gen_ai.response.time_to_first_chunk", "gen_ai.client.operation.time_to_first_chunk")
# Only requests of the proxy's clients have one of these.
_OF_PROXY = ("metadata.user_api_key_request_route", "metadata.user_api_key_hash", "litellm.api_key.hash")


def convert(span: Span, attributes: Attributes) -> StreamRecord | Ignored | None:
    """Return the record of a streamed response; None for a span of another emitter."""
    loose = Loose(attributes)
    if not attributes.scope.startswith(FAMILY) and loose.text("gen_ai.framework") != FAMILY:
        return None
    if not loose.text("gen_ai.request.model", "gen_ai.response.model"):
        return Ignored("outer span", FAMILY)
    ttft_us = next((found for key in _TTFT if (found := loose.micros(key)) is not None), None)
    if ttft_us is None and not loose.flag(*_STREAMED):
        return Ignored("not streamed", FAMILY)
    record = foreign_record(span, attributes, loose, FAMILY)
    if any(loose.text(key) for key in _OF_PROXY):
        record.vantage = "gateway"
    if record.response_id == loose.text("litellm.call_id"):
        record.response_id = ""
    if record.outcome != "complete" and not record.finish_reason:
        record.input_tokens = record.output_tokens = None
    add_ttft(record, ttft_us, any_chunk=True)
    return record
