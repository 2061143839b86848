"""Spans of Logfire's instrumentations of OpenAI and Anthropic: two for one streamed response.

The first is the request and ends at the response's headers. The second has no length: it is a log entry at the end of the stream, with the
time since the headers as ``duration`` in seconds. The second becomes the row, which starts at the headers (flag ``start_at_headers``). The
first is not used: nothing names the request of a stream, and a start that depends on what else an export holds would make two rows of a
retry. Neither has the time of a chunk, the response's id or a finish reason. A stream that was left early has no second span.
"""

from __future__ import annotations

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.otlp.attributes import Attributes
from legato_ingest.otlp.emitters.foreign import Loose, foreign_record
from legato_ingest.otlp.model import Ignored, StreamRecord

__all__ = ["convert"]

_FAMILY = "logfire"
# The scopes with two spans a stream. Other spans, such as those of OpenAI's Agents SDK, do not say whether they streamed.
_PAIRS = ("logfire.openai", "logfire.anthropic")
_LOG_NAME = "streaming response from "


def convert(span: Span, attributes: Attributes) -> StreamRecord | Ignored | None:
    """Return the record of a streamed response; None for a span of another emitter."""
    if not attributes.scope.startswith("logfire."):
        return None
    loose = Loose(attributes)
    if not loose.text("gen_ai.request.model", "gen_ai.response.model") and "request_data" not in attributes.own:
        return Ignored("no LLM call", _FAMILY)
    if attributes.scope not in _PAIRS:
        return Ignored("streaming unknown", _FAMILY)
    duration_us = loose.micros("duration")
    if duration_us is None or not span.name.startswith(_LOG_NAME):
        has_usage = loose.count("gen_ai.usage.output_tokens") is not None
        return Ignored("not streamed" if has_usage else "request of a stream", _FAMILY)
    record = foreign_record(span, attributes, loose, _FAMILY)
    record.start_ns = max(0, span.end_time_unix_nano - 1000 * duration_us)
    record.flags.append("start_at_headers")
    return record
