"""Spans of OpenLLMetry and Traceloop (Python and JavaScript).

The instrumentation of OpenAI's chat completions (and Cohere's) adds an event without attributes for each chunk: role, content, finish and
usage alike. Those of other providers add none, and their rows are summaries. A broken and a cut stream have status OK and no finish reason,
so their outcome is unknown.
"""

from __future__ import annotations

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.otlp.attributes import Attributes
from legato_ingest.otlp.emitters.foreign import Loose, add_chunks, foreign_record
from legato_ingest.otlp.model import Ignored, StreamRecord

__all__ = ["convert"]

_FAMILY = "openllmetry"
_STREAMED = ("gen_ai.is_streaming", "llm.is_streaming")
_EVENTS = ("gen_ai.content.completion.chunk", "llm.content.completion.chunk")


def convert(span: Span, attributes: Attributes) -> StreamRecord | Ignored | None:
    """Return the record of a streamed response; None for a span of another emitter."""
    loose = Loose(attributes)
    streamed = loose.flag(*_STREAMED)
    if streamed is None and not any(event.name in _EVENTS for event in span.events):
        return None
    if streamed is False:
        return Ignored("not streamed", _FAMILY)
    record = foreign_record(span, attributes, loose, _FAMILY)
    add_chunks(record, span)
    return record
