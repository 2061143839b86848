"""Spans of OpenLLMetry and Traceloop (Python and JavaScript).

The instrumentation of OpenAI's chat completions (and Cohere's) adds an event without attributes for each chunk: role, content, finish and
usage alike. Those of other providers add none, and their rows are summaries. A broken and a cut stream have status OK and no finish reason,
so their outcome is unknown.
"""

from __future__ import annotations

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.otlp.attributes import Attributes
from legato_ingest.otlp.emitters.chunk_events import chunk_events
from legato_ingest.otlp.emitters.foreign import GENAI_SCOPES, OUTER_OPERATIONS, Loose, add_chunks, foreign_record
from legato_ingest.otlp.model import Ignored, StreamRecord

__all__ = ["convert"]

_FAMILY = "openllmetry"
_STREAMED = ("gen_ai.is_streaming", "llm.is_streaming")
_SCOPES = ("opentelemetry.instrumentation.", "@traceloop/", "traceloop.")
# Instrumentations of the OpenTelemetry project, with scopes that begin alike; and attributes that only they have.
_OTHERS = GENAI_SCOPES
# OpenLLMetry's own scope goes on with its version.
_ELASTIC = "opentelemetry.instrumentation.openai"
_OF_OTHERS = ("gen_ai.request.stream", "gen_ai.response.time_to_first_chunk")
# Only spans of workflows, agents, tasks and tools have this attribute.
_OUTER = "traceloop.span.kind"
_PREFIXES = ("gen_ai.", "llm.")


def convert(span: Span, attributes: Attributes) -> StreamRecord | Ignored | None:
    """Return the record of a streamed response; None for a span of another emitter."""
    if not attributes.scope.startswith(_SCOPES) or attributes.scope.startswith(_OTHERS) or attributes.scope == _ELASTIC:
        return None
    if not any(key.startswith(_PREFIXES) for key in attributes.own):
        # Instrumentations of HTTP clients and of many other libraries have scopes that begin alike.
        return Ignored("outer span" if _OUTER in attributes.own else "no LLM call")
    if any(key in attributes.own for key in _OF_OTHERS):
        return None
    loose = Loose(attributes)
    if _OUTER in attributes.own or loose.text("gen_ai.operation.name") in OUTER_OPERATIONS:
        return Ignored("outer span", _FAMILY)
    streamed = loose.flag(*_STREAMED)
    if streamed is False:
        return Ignored("not streamed", _FAMILY)
    events = chunk_events(span, streamed=streamed)
    if streamed is None and events is None:
        return Ignored("streaming unknown", _FAMILY)
    record = foreign_record(span, attributes, loose, _FAMILY)
    add_chunks(record, events)
    return record
