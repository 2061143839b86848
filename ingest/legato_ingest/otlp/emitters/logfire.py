"""Spans of Logfire's instrumentations of OpenAI and Anthropic: two for one streamed response.

The first is the request and ends at the response's headers. The second has no length: it is a log entry at the end of the stream, with the
time since the headers as ``duration`` in seconds. The second becomes the row, which starts at the headers (flag ``start_at_headers``) until
``with_requests`` finds the first in the same export. Neither has the time of a chunk, the response's id or a finish reason. A stream that
was left early has no second span.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.otlp.attributes import Attributes
from legato_ingest.otlp.emitters.foreign import Loose, foreign_record
from legato_ingest.otlp.model import Ignored, StreamRecord

__all__ = ["FAMILY", "REQUEST", "START_AT_HEADERS", "convert", "with_requests"]

FAMILY = "logfire"
REQUEST = "request of a stream"
START_AT_HEADERS = "start_at_headers"
_LOG_NAME = "streaming response from "
# The request's span ends when the library has read the headers, and the time of the stream starts a moment later.
_APART_NS_MAX = 50_000_000
_COMPARED_MAX = 64


def convert(span: Span, attributes: Attributes) -> StreamRecord | Ignored | None:
    """Return the record of a streamed response; None for a span of another emitter."""
    if not attributes.scope.startswith("logfire."):
        return None
    loose = Loose(attributes)
    if not loose.text("gen_ai.request.model", "gen_ai.response.model") and "request_data" not in attributes.own:
        return Ignored("no LLM call", FAMILY)
    duration_us = loose.micros("duration")
    if duration_us is None or not span.name.startswith(_LOG_NAME):
        has_usage = loose.count("gen_ai.usage.output_tokens") is not None
        return Ignored("not streamed" if has_usage else REQUEST, FAMILY)
    record = foreign_record(span, attributes, loose, FAMILY)
    record.start_ns = max(0, span.end_time_unix_nano - 1000 * duration_us)
    record.flags.append(START_AT_HEADERS)
    return record


def with_requests(records: Sequence[StreamRecord], requests: Sequence[Span]) -> None:
    """Let each record start with its request, if exactly one of these request spans ends where the record's stream begins."""
    ordered = sorted(requests, key=attrgetter("end_time_unix_nano"))
    ends = [span.end_time_unix_nano for span in ordered]
    for record in records:
        if START_AT_HEADERS in record.flags:
            first, last = bisect_left(ends, record.start_ns - _APART_NS_MAX), bisect_right(ends, record.start_ns + _APART_NS_MAX)
            near = ordered[first : min(last, first + _COMPARED_MAX)]
            found = [span for span in near if span.trace_id == record.trace_id] or near
            if len(found) == 1:
                _start_with(found[0], record)


def _start_with(request: Span, record: StreamRecord) -> None:
    record.flags.remove(START_AT_HEADERS)
    record.ttfb_us = max(0, request.end_time_unix_nano - request.start_time_unix_nano) // 1000
    record.start_ns = min(request.start_time_unix_nano, record.end_ns)
