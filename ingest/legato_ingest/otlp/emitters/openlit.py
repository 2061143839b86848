"""Spans of OpenLIT.

Their time to first token runs from the response's headers to its first chunk, so it is not read: TTFT is unknown. A stream that was left
early or broke sends no span. OpenLIT also instruments the HTTP client, so spans without attributes of an LLM request come with it.
"""

from __future__ import annotations

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.otlp.attributes import Attributes
from legato_ingest.otlp.emitters.chunk_events import chunk_events
from legato_ingest.otlp.emitters.foreign import Loose, add_chunks, foreign_record
from legato_ingest.otlp.model import Ignored, StreamRecord

__all__ = ["convert"]

_FAMILY = "openlit"
_STREAMED = ("gen_ai.request.stream", "gen_ai.request.is_stream")


def convert(span: Span, attributes: Attributes) -> StreamRecord | Ignored | None:
    """Return the record of a streamed response; None for a span of another emitter."""
    loose = Loose(attributes)
    if not attributes.scope.startswith("openlit") and loose.text("telemetry.sdk.name") != _FAMILY:
        return None
    if not any(key.startswith("gen_ai.") for key in attributes.own):
        return Ignored("no LLM call", _FAMILY)
    if not loose.flag(*_STREAMED):
        return Ignored("not streamed", _FAMILY)
    record = foreign_record(span, attributes, loose, _FAMILY)
    add_chunks(record, chunk_events(span))
    return record
