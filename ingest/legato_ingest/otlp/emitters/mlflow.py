"""Spans of MLflow's automatic logging: one numbered event for each chunk, with the chunk itself.

All values are JSON texts. From the copy of a chunk only the kind, the size of its content, the finish reason and the response's id are
read. A stream that was left early sends no span. Spans of other libraries with MLflow's type are left to their own families.
"""

from __future__ import annotations

import json
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.definitions import REASONING, TEXT, TOOL
from legato_ingest.otlp.attributes import Attributes, attribute_map
from legato_ingest.otlp.emitters.chunk_events import chunk_events
from legato_ingest.otlp.emitters.foreign import Loose, add_chunks, count_of, foreign_record, object_of, outcome_of, plain
from legato_ingest.otlp.model import Ignored, StreamRecord

__all__ = ["content_of", "convert"]

_FAMILY = "mlflow"
_CALLS = ("CHAT_MODEL", "LLM")
_OF_OTHERS = ("gen_ai.", "llm.")
_VALUE = "mlflow.chunk.value"
_ROLE, _USAGE, _DONE = 0, 4, 7
_LAST = 3
# Fields of a chat completion's delta with content, and parts of the types of the Responses API's events.
_DELTAS = {"content": TEXT, "refusal": TEXT, "reasoning_content": REASONING, "reasoning": REASONING}
_EVENTS = {"output_text": TEXT, "refusal": TEXT, "reasoning": REASONING, "arguments": TOOL}


def convert(span: Span, attributes: Attributes) -> StreamRecord | Ignored | None:
    """Return the record of a streamed response; None for a span of another emitter."""
    loose = Loose(attributes)
    kind = loose.text("mlflow.spanType")
    if not kind:
        return None
    if kind not in _CALLS:
        return Ignored("outer span", _FAMILY)
    if not attributes.scope.startswith(_FAMILY) and any(key.startswith(_OF_OTHERS) for key in attributes.own):
        return None
    record = foreign_record(span, attributes, loose, _FAMILY)
    record.model = loose.text("mlflow.llm.model", "model")
    streamed = loose.flag("stream")
    events = chunk_events(span, content_of, streamed=streamed)
    if events is None and not streamed:
        return Ignored("not streamed", _FAMILY)
    add_chunks(record, events)
    _add_response(record, span, loose)
    record.outcome = outcome_of(span, record)
    return record


def _add_response(record: StreamRecord, span: Span, loose: Loose) -> None:
    """Add usage, id and finish reason; the id of a stream that broke is in its chunks only."""
    usage, response = object_of(loose.json("mlflow.chat.tokenUsage")), object_of(loose.json("mlflow.spanOutputs"))
    record.input_tokens, record.output_tokens = (count_of(usage.get(key)) for key in ("input_tokens", "output_tokens"))
    choices = response.get("choices")
    choice = object_of(choices[0]) if isinstance(choices, list) and choices else {}
    # MLflow's copy of the response says `stop` for tool calls, too.
    record.finish_reason = _finish_of(span) or _text(choice.get("finish_reason")) or _text(response.get("status"))
    record.response_id = _text(response.get("id"))
    if not record.response_id and span.events:
        chunk = _chunk(span.events[0])
        record.response_id = _text(chunk.get("id")) or _text(object_of(chunk.get("response")).get("id"))


def _finish_of(span: Span) -> str:
    """Return the finish reason in the last chunks of a chat completion; the usage follows it."""
    for event in reversed(span.events[-_LAST:]):
        choices = _chunk(event).get("choices")
        if isinstance(choices, list) and choices and (found := _text(object_of(choices[0]).get("finish_reason"))):
            return found
    return ""


def content_of(event: Span.Event) -> tuple[int, int] | None:
    """Return the kind of the chunk in an event and the bytes of its content; None for a chunk of another format."""
    chunk = _chunk(event)
    if isinstance(chunk.get("choices"), list):
        return _of_completion(chunk)
    if isinstance(chunk.get("type"), str):
        return _of_response(chunk)
    return None


def _of_completion(chunk: dict[str, Any]) -> tuple[int, int]:
    """The kind and size of a chat completion's chunk."""
    choices = chunk["choices"]
    if not choices:
        return _USAGE, 0
    choice = object_of(choices[0])
    delta = object_of(choice.get("delta"))
    for name, kind in _DELTAS.items():
        if size := _size(delta.get(name)):
            return kind, size
    if isinstance(calls := delta.get("tool_calls"), list) and calls:
        functions = [object_of(object_of(call).get("function")) for call in calls]
        return TOOL, sum(_size(each.get("name")) + _size(each.get("arguments")) for each in functions)
    return (_DONE if choice.get("finish_reason") else _ROLE), 0


def _of_response(chunk: dict[str, Any]) -> tuple[int, int]:
    """The kind and size of an event of the Responses API."""
    if chunk["type"].endswith(".delta"):
        for name, kind in _EVENTS.items():
            if name in chunk["type"]:
                return kind, _size(chunk.get("delta"))
    return (_USAGE if chunk["type"] == "response.completed" else _ROLE), 0


def _chunk(event: Span.Event) -> dict[str, Any]:
    value = attribute_map(event.attributes).get(_VALUE)
    try:
        return object_of(json.loads(value.string_value)) if value is not None else {}
    except (ValueError, RecursionError):
        return {}


def _text(value: Any) -> str:
    return plain(value) if isinstance(value, str) else ""


def _size(value: Any) -> int:
    return len(value.encode(errors="surrogatepass")) if isinstance(value, str) else 0
