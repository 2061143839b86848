"""Spans of OpenLIT.

Their time to first token runs from the response's headers to its first chunk, so it is not read: TTFT is unknown. A stream that was left
early or broke sends no span (Python), or one that does not say that it streamed (JavaScript). OpenLIT sets the tracer provider of the
process, so the resource of other libraries' spans names OpenLIT's SDK, too.
"""

from __future__ import annotations

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.otlp.attributes import Attributes
from legato_ingest.otlp.emitters.chunk_events import chunk_events
from legato_ingest.otlp.emitters.foreign import OUTER_OPERATIONS, Loose, add_chunks, foreign_record
from legato_ingest.otlp.model import Ignored, StreamRecord

__all__ = ["convert"]

_FAMILY = "openlit"
_SCOPES = ("openlit", "@openlit/")
_SDK = "telemetry.sdk.name"
_STREAMED = ("gen_ai.request.stream", "gen_ai.request.is_stream")


def convert(span: Span, attributes: Attributes) -> StreamRecord | Ignored | None:
    """Return the record of a streamed response; None for a span of another emitter."""
    loose = Loose(attributes)
    if not attributes.scope.startswith(_SCOPES) and not (_SDK in attributes.own and loose.text(_SDK) == _FAMILY):
        return None
    if not any(key.startswith("gen_ai.") for key in attributes.own):
        return Ignored("no LLM call", _FAMILY)
    if loose.text("gen_ai.operation.name") in OUTER_OPERATIONS:
        return Ignored("outer span", _FAMILY)
    streamed = loose.flag(*_STREAMED)
    if not streamed:
        return Ignored("streaming unknown" if streamed is None else "not streamed", _FAMILY)
    record = foreign_record(span, attributes, loose, _FAMILY)
    add_chunks(record, chunk_events(span, streamed=streamed))
    return record
