"""Spans of Vercel's AI SDK: the telemetry of version 7 (scope `gen_ai`), and the earlier one (scope `ai`).

Each request to a model is a span inside the spans of a step, an agent or `ai.streamText`; only the request is a response. Its time to the
first chunk is that of the first content since version 6; before, any chunk counted. The event `ai.stream.firstChunk` is not read: version 7
adds it at the end. A stream that was aborted has no time and no finish reason. Usage that was not asked for is NaN, that is, unknown.
"""

from __future__ import annotations

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.otlp.attributes import Attributes
from legato_ingest.otlp.emitters.foreign import Loose, add_ttft, foreign_record
from legato_ingest.otlp.model import Ignored, StreamRecord

__all__ = ["convert"]

_FAMILY = "ai-sdk"
_TTFT = "gen_ai.client.operation.time_to_first_chunk"
# Milliseconds: of streamed texts, and of streamed objects.
_LEGACY_TTFT = ("ai.response.msToFirstChunk", "ai.stream.msToFirstChunk")
_STREAMED = (".streamText.doStream", ".streamObject.doStream")
# Only versions with the first content as first chunk send this attribute.
_SINCE_6 = "ai.usage.inputTokenDetails."


def convert(span: Span, attributes: Attributes) -> StreamRecord | Ignored | None:
    """Return the record of a streamed response; None for a span of another emitter."""
    loose = Loose(attributes)
    operation = loose.text("ai.operationId")
    if operation or attributes.scope == "ai":
        return _legacy(span, attributes, loose, operation or span.name)
    if attributes.scope != "gen_ai":
        return None
    if loose.text("gen_ai.operation.name") != "chat":
        return Ignored("outer span", _FAMILY)
    ttft_us = loose.micros(_TTFT)
    if ttft_us is None:
        return Ignored("streaming unknown", _FAMILY)
    record = _record(span, attributes, loose)
    add_ttft(record, ttft_us, any_chunk=False)
    return record


def _legacy(span: Span, attributes: Attributes, loose: Loose, operation: str) -> StreamRecord | Ignored:
    if not operation.endswith(_STREAMED):
        return Ignored("not streamed" if operation.endswith(".doGenerate") else "outer span", _FAMILY)
    record = _record(span, attributes, loose)
    ttft_us = next((found for key in _LEGACY_TTFT if (found := loose.micros(key, 1e3)) is not None), None)
    add_ttft(record, ttft_us, any_chunk=not any(key.startswith(_SINCE_6) for key in attributes.own))
    return record


def _record(span: Span, attributes: Attributes, loose: Loose) -> StreamRecord:
    record = foreign_record(span, attributes, loose, _FAMILY)
    # The name of the provider is followed by that of the interface, as in `openai.chat`.
    record.provider = record.provider.partition(".")[0]
    return record
