"""Spans by the OpenTelemetry GenAI semantic conventions, and any other LLM span with an event a chunk. The last family: it decides on all
spans that no other family knows. A span that says that its response was not streamed is believed, whatever times and events it has.

They can carry the model, the token usage, how the response ended, and the time to the first chunk. ``gen_ai.response.time_to_first_chunk``
counts a chunk of any kind, a role prelude included, so its TTFT has the flag ``ttft_any_chunk``. Spans without chunk events have no gaps:
every gap statistic of such a row is NULL. A time to first token under ``gen_ai.server.…`` on a client's span is not read, because the
libraries that send it measure different things.
"""

from __future__ import annotations

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.otlp.attributes import Attributes
from legato_ingest.otlp.emitters.chunk_events import ChunkEvents, chunk_events
from legato_ingest.otlp.emitters.foreign import (
    GENAI_SCOPES,
    OUTER_OPERATIONS,
    Loose,
    add_chunks,
    add_ttft,
    foreign_record,
    object_of,
    streamed_of,
)
from legato_ingest.otlp.emitters.spellings import unix_micros
from legato_ingest.otlp.model import Ignored, StreamRecord

__all__ = ["convert"]

_ANY = "semconv"
_LIBRARIES = (*GENAI_SCOPES, "opentelemetry.instrumentation.", "@opentelemetry/instrumentation-")
# Times to the first chunk of any kind, and their units in µs: of the conventions, Claude Code, VS Code's Copilot, and Copilot's CLI.
_ANY_CHUNK = {
    "gen_ai.response.time_to_first_chunk": 1e6,
    "ttft_ms": 1e3,
    "copilot_chat.time_to_first_token": 1e3,
    "github.copilot.time_to_first_chunk": 1e6,
}
# Bifrost's earlier one in ns; only its spans have the number of chunks. Others send seconds by this name.
_BIFROST, _OF_BIFROST = "gen_ai.response.time_to_first_token", "gen_ai.response.total_chunks"
# Seconds to the first chunk with content.
_CONTENT = "gen_ai.client.operation.time_to_first_chunk"
# The same as `_ANY_CHUNK` as ms since 1970 in JSON (LangWatch).
_FIRST_IN_JSON = "langwatch.timestamps"
# The same as `_CONTENT` as a time (Mastra), and as an event (AgentOps; its attributes count from the headers).
_FIRST_AT = "mastra.completion_start_time"
_FIRST_CONTENT_EVENT = "first_token_received"
# Mastra has the time of responses that were not streamed, too: it is that of their end.
_STREAMED_SHARE_MIN = 0.05
_UNIX_MS_MAX = 10**13
# Events that are guessed to be chunks are so only if the first one is this close to the time that the span gives.
_NEAR_US = 50_000
# Genkit's spans of requests have none of the conventions' attributes.
_GENKIT = "genkit:metadata:subtype"
_PREFIXES = ("gen_ai.", "llm.", "ai.", "langfuse.observation.")


def convert(span: Span, attributes: Attributes) -> StreamRecord | Ignored:
    """Return the record of a streamed response, or why the span is ignored."""
    loose = Loose(attributes)
    if not any(key.startswith(_PREFIXES) for key in attributes.own):
        return Ignored("streaming unknown" if loose.text(_GENKIT) == "model" else "no LLM call")
    if loose.text("gen_ai.operation.name") in OUTER_OPERATIONS:
        return Ignored("outer span")
    streamed, family = streamed_of(loose), _family(attributes)
    if streamed is False:
        return Ignored("not streamed")
    any_chunk_us, content_us = _any_chunk_us(span, loose), _content_us(span, loose)
    events = _events(span, streamed, any_chunk_us, content_us)
    if streamed is None and any_chunk_us is None and content_us is None and events is None:
        return Ignored("streaming unknown", family)
    record = foreign_record(span, attributes, loose, family)
    if family == _ANY:
        record.emitter = f"{_ANY}/{attributes.scope} {attributes.scope_version}".rstrip(" /")
    add_chunks(record, events)
    if events is None:
        any_chunk = content_us is None
        add_ttft(record, any_chunk_us if any_chunk else content_us, any_chunk=any_chunk)
    return record


def _events(span: Span, streamed: bool | None, any_chunk_us: int | None, content_us: int | None) -> ChunkEvents | None:
    """Return the chunk events; without those of guessed names, if they contradict the time of the first chunk.

    Log entries and choices that were read together are events of one name, too. A prelude may precede the first content.
    """
    events = chunk_events(span, streamed=streamed)
    if events is None or not events.head_known:
        return events
    early_us, late_us = any_chunk_us, content_us if any_chunk_us is None else any_chunk_us
    is_early = early_us is not None and events.first_us < early_us - _NEAR_US
    is_late = late_us is not None and events.first_us > late_us + _NEAR_US
    return chunk_events(span, streamed=None) if is_early or is_late else events


def _any_chunk_us(span: Span, loose: Loose) -> int | None:
    """Return the time to the first chunk of any kind, in µs; negative for a time before the start."""
    keys = _ANY_CHUNK | ({_BIFROST: 1e-3} if loose.count(_OF_BIFROST) is not None else {})
    for key, unit_us in keys.items():
        if (found := loose.micros(key, unit_us)) is not None:
            return found
    at_ms = object_of(loose.json(_FIRST_IN_JSON)).get("first_token_at")
    at_us = 1000 * at_ms if isinstance(at_ms, int) and 0 < at_ms < _UNIX_MS_MAX else None
    return None if at_us is None else at_us - span.start_time_unix_nano // 1000


def _content_us(span: Span, loose: Loose) -> int | None:
    """Return the time to the first chunk with content, in µs; negative for a time before the start."""
    found, start_us = loose.micros(_CONTENT), span.start_time_unix_nano // 1000
    at_us = unix_micros(loose.text(_FIRST_AT))
    if at_us is not None:
        left_us = span.end_time_unix_nano // 1000 - at_us
        at_us = at_us if left_us > _STREAMED_SHARE_MIN * (at_us + left_us - start_us) else None
    else:
        at_us = next((each.time_unix_nano // 1000 for each in span.events if each.name == _FIRST_CONTENT_EVENT), None)
    return found if found is not None or at_us is None else at_us - start_us


def _family(attributes: Attributes) -> str:
    """Return the family: the instrumentations of the OpenTelemetry project, or spans of any other emitter."""
    return "otel-genai" if attributes.scope.startswith(_LIBRARIES) else _ANY
