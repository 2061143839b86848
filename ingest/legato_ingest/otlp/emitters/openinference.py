"""Spans of OpenInference (Phoenix): spans with ``openinference.span.kind`` = LLM.

An event marks the first chunk, which may be the role. Other signs that the response was streamed are the request's parameters and the name
of the span. The response's id is in the copy of the response (``output.value``) only.
"""

from __future__ import annotations

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.otlp.attributes import Attributes
from legato_ingest.otlp.emitters.foreign import Loose, add_ttft, foreign_record, object_of, plain
from legato_ingest.otlp.model import Ignored, StreamRecord

__all__ = ["convert"]

_FAMILY = "openinference"
# Instrumentations of frameworks note the parameters before the framework asks for a stream.
_FRAMEWORKS = ("openinference.instrumentation.langchain", "openinference.instrumentation.llama_index")
# The id that OpenAI's agents library gives to responses of chat completions.
_NO_ID = "__fake_id__"
_FIRST = "First Token Stream Event"


def convert(span: Span, attributes: Attributes) -> StreamRecord | Ignored | None:
    """Return the record of a streamed response; None for a span of another emitter."""
    loose = Loose(attributes)
    kind = loose.text("openinference.span.kind")
    if not kind:
        return None
    if kind != "LLM":
        return Ignored("outer span" if kind in ("CHAIN", "AGENT") else "no LLM call", _FAMILY)
    first_ns = next((event.time_unix_nano for event in span.events if event.name == _FIRST), None)
    streamed = object_of(loose.json("llm.invocation_parameters")).get("stream")
    if streamed is False and attributes.scope.startswith(_FRAMEWORKS):
        streamed = None
    if first_ns is None and streamed is not True and not span.name.endswith("Stream"):
        return Ignored("streaming unknown" if streamed is None else "not streamed", _FAMILY)
    record = foreign_record(span, attributes, loose, _FAMILY)
    record.response_id = record.response_id or _id_of(loose)
    if first_ns is not None:
        add_ttft(record, max(0, first_ns - span.start_time_unix_nano) // 1000, any_chunk=True)
    return record


def _id_of(loose: Loose) -> str:
    """Return the id in the copy of the response."""
    response = object_of(loose.json("output.value"))
    found = next(filter(None, map(response.get, ("id", "response_id", "responseId"))), None)
    return plain(found) if isinstance(found, str) and found != _NO_ID else ""
