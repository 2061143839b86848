"""Spans of OpenInference (Phoenix): spans with ``openinference.span.kind`` = LLM.

An event marks the first chunk, which may be the role. Other signs that the response was streamed are the request's parameters and the name
of the span, which is that of the library's method. The model of the request is in its parameters: ``llm.model_name`` becomes the name by
which the provider answers. The response's id is in the copy of the response (``output.value``) only. Some spans end when the method
returns, before the stream does: their rows end with the last event, and have the flag ``end_unknown``.

OpenInference's span processors add their attributes to the spans of other libraries. Such a span is left to the library's own family, if it
has an event for each chunk or no sign of OpenInference's that the response was streamed. Envoy AI Gateway adds the event of the first chunk
when the stream has ended, so its time is not read.
"""

from __future__ import annotations

import re

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.otlp.attributes import Attributes
from legato_ingest.otlp.emitters.chunk_events import chunk_events
from legato_ingest.otlp.emitters.foreign import END_UNKNOWN, ENVOY, Loose, add_ttft, foreign_record, object_of, plain, streamed_of
from legato_ingest.otlp.emitters.spellings import names_a_stream
from legato_ingest.otlp.model import Ignored, StreamRecord

__all__ = ["convert"]

_FAMILY = "openinference"
_MODEL = "llm.model_name"
_REQUESTED = ("gen_ai.request.model", "llm.request.model", "llm.request.model_name")
# Instrumentations of frameworks, in Python and JavaScript, note the parameters before the framework asks for a stream.
_FRAMEWORKS = re.compile(r"langchain|llama.?index")
# The id that OpenAI's agents library gives to responses of chat completions.
_NO_ID = "__fake_id__"
_FIRST = "First Token Stream Event"
# An event so long after the end has a wrong time.
_LONG_NS = 3_600_000_000_000
# Where the copy of the response is Python's text of the stream itself, the instrumentation did not see the response.
_UNREAD = re.compile(r"<[\w.]+ object at 0x")


def convert(span: Span, attributes: Attributes) -> StreamRecord | Ignored | None:
    """Return the record of a streamed response; None for a span of another emitter."""
    loose = Loose(attributes)
    kind = loose.text("openinference.span.kind")
    if not kind:
        return None
    is_own = _FAMILY in attributes.scope
    if kind != "LLM":
        return Ignored("outer span" if kind in ("CHAIN", "AGENT") else "no LLM call", _FAMILY)
    if not any(key.startswith("llm.") for key in attributes.own):
        return Ignored("no LLM call", _FAMILY) if is_own else None
    if not is_own and chunk_events(span, streamed=streamed_of(loose)) is not None:
        return None
    first_ns = next((event.time_unix_nano for event in span.events if event.name == _FIRST), None)
    parameters = object_of(loose.json("llm.invocation_parameters"))
    streamed = parameters.get("stream")
    if streamed is False and _FRAMEWORKS.search(attributes.scope):
        streamed = None
    if first_ns is None and streamed is not True and not names_a_stream(span.name):
        return Ignored("streaming unknown" if streamed is None else "not streamed", _FAMILY) if is_own else None
    record = foreign_record(span, attributes, loose, _FAMILY)
    record.response_id = record.response_id or _id_of(loose)
    _name_models(record, loose, parameters.get("model"))
    _end(record, span, loose)
    if first_ns is not None and attributes.scope != ENVOY:
        add_ttft(record, (first_ns - span.start_time_unix_nano) // 1000, any_chunk=True)
    return record


def _name_models(record: StreamRecord, loose: Loose, parameter: object) -> None:
    """Set the model to that of the request, which ``llm.model_name`` is only until the provider answers with another name."""
    requested = loose.text(*_REQUESTED) or (plain(parameter) if isinstance(parameter, str) else "")
    named = loose.text(_MODEL)
    record.model = requested or record.model
    if not record.response_model and requested and named != requested:
        record.response_model = named


def _end(record: StreamRecord, span: Span, loose: Loose) -> None:
    """Set the end to the last event if the span ended before, and flag an end that is not the stream's."""
    last_ns = max((at for event in span.events if (at := event.time_unix_nano) - record.end_ns < _LONG_NS), default=0)
    if last_ns > record.end_ns or _UNREAD.match(loose.text("output.value")):
        record.end_ns = max(record.end_ns, last_ns)
        record.flags.append(END_UNKNOWN)


def _id_of(loose: Loose) -> str:
    """Return the id in the copy of the response."""
    response = object_of(loose.json("output.value"))
    response = object_of(response.get("data")) or response
    found = next(filter(None, map(response.get, ("id", "response_id", "responseId"))), None)
    return plain(found) if isinstance(found, str) and found != _NO_ID else ""
