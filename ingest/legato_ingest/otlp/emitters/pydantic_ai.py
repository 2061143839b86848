"""Spans of Pydantic AI: one for each request to a model, inside the span of the agent.

The time to the first chunk is that of the first content. It counts from the request, which starts up to some 100 ms after the span, so the
first content is that much later after the span's start. A failed stream has its error on the agent's span only.
"""

from __future__ import annotations

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.otlp.attributes import Attributes
from legato_ingest.otlp.emitters.foreign import Loose, add_ttft, foreign_record
from legato_ingest.otlp.model import Ignored, StreamRecord

__all__ = ["FAMILY", "convert"]

FAMILY = "pydantic-ai"
_TTFT = "gen_ai.client.operation.time_to_first_chunk"


def convert(span: Span, attributes: Attributes) -> StreamRecord | Ignored | None:
    """Return the record of a streamed response; None for a span of another emitter."""
    if not attributes.scope.startswith(FAMILY):
        return None
    loose = Loose(attributes)
    operation = loose.text("gen_ai.operation.name")
    if operation != "chat":
        return Ignored("outer span" if operation else "no LLM call", FAMILY)
    ttft_us = loose.micros(_TTFT)
    if ttft_us is None:
        return Ignored("streaming unknown", FAMILY)
    record = foreign_record(span, attributes, loose, FAMILY)
    add_ttft(record, ttft_us, any_chunk=False)
    return record
