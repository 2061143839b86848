"""Spans that a serving engine makes for each request (vLLM's `llm_request`, SGLang's): the keys ``gen_ai.latency.…``, in seconds.

They start when the request arrives at the engine, and have the time to the first token and the numbers of tokens, but no chunk. vLLM's name
neither the model nor a finish reason, and a request that its client left has no span. An engine does not say whether its response was
streamed; the times are right for both.
"""

from __future__ import annotations

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.otlp.attributes import Attributes
from legato_ingest.otlp.emitters.foreign import Loose, add_ttft, foreign_record
from legato_ingest.otlp.model import StreamRecord

__all__ = ["convert"]

_FAMILY = "engine-request"
_TTFT = "gen_ai.latency.time_to_first_token"


def convert(span: Span, attributes: Attributes) -> StreamRecord | None:
    """Return the record of a request at its engine; None for a span of another emitter."""
    if _TTFT not in attributes.own:
        return None
    loose = Loose(attributes)
    record = foreign_record(span, attributes, loose, _FAMILY)
    record.vantage = "engine"
    record.response_id = record.response_id or loose.text("gen_ai.request.id")
    record.model = record.model or record.response_model
    add_ttft(record, loose.micros(_TTFT), any_chunk=False)
    return record
