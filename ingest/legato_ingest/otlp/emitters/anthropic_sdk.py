"""Spans that Anthropic's Python SDK makes itself.

They follow the semantic conventions, with two differences: the time to the first chunk is that of the first content, and the finish reason
has a key of the SDK's. A loop that was left early ends its span without a status and without a finish reason.
"""

from __future__ import annotations

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.otlp.attributes import Attributes
from legato_ingest.otlp.emitters.foreign import Loose, add_ttft, foreign_record
from legato_ingest.otlp.model import Ignored, StreamRecord

__all__ = ["convert"]

_FAMILY = "anthropic-sdk"
_SCOPE = "com.anthropic.sdk."


def convert(span: Span, attributes: Attributes) -> StreamRecord | Ignored | None:
    """Return the record of a streamed response; None for a span of another emitter."""
    if not attributes.scope.startswith(_SCOPE):
        return None
    loose = Loose(attributes)
    if not loose.flag("gen_ai.request.stream"):
        return Ignored("not streamed", _FAMILY)
    record = foreign_record(span, attributes, loose, _FAMILY)
    add_ttft(record, loose.micros("gen_ai.response.time_to_first_chunk"), any_chunk=False)
    return record
