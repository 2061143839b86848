"""What a response reports about itself: only what can be sent, and what is a possible value."""

from __future__ import annotations

import json

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider

from legato._body import Body
from legato._recorder import Origin, StreamRecorder
from legato._response import ResponseInfo, count_of, encodable
from legato._spans import attributes_of, start_span


def test_what_a_server_names_can_be_exported() -> None:
    """Half of a pair of surrogates, a name of any length or a count without end would make the export of all other streams fail."""
    choice, usage = {"delta": {"content": "a"}, "finish_reason": "\udfff"}, {"prompt_tokens": 10**30, "completion_tokens": 2**40}
    event = {"id": "\ud800" + "i" * 999, "object": "x", "model": "\ud800", "choices": [choice], "usage": usage}
    recorder = StreamRecorder(Origin(), start_span(Origin(), 0), 0, lambda _: None, body=Body("text/event-stream"))
    recorder.read((1, b"data: " + json.dumps(event).encode() + b"\n\n"))
    recorder.end()
    attributes = attributes_of(recorder, recorder.digest(), recorder.final_end(), 1)
    for value in attributes.values():
        for each in value if isinstance(value, list) else [value]:
            assert not isinstance(each, str) or len(each.encode("utf-8")) < 1_000
            assert not isinstance(each, int) or abs(each) < 2**63
    assert start_span(Origin(model="\ud800"), 0) is not None and attributes["gen_ai.request.model"] == "?"
    span = TracerProvider().get_tracer("test").start_span("chat", attributes=attributes)
    span.end()
    (sent,) = encode_spans([span]).resource_spans[0].scope_spans[0].spans  # type: ignore[list-item]
    assert len(sent.attributes) == len(attributes)


@pytest.mark.parametrize(
    ("given", "count"),
    [(0, 0), (7, 7), (-3, 0), (2**32 - 1, 2**32 - 1), (2**32, None), (True, None), (1.5, None), ("7", None), (None, None)],
)
def test_counts(given: object, count: int | None) -> None:
    """A count of tokens has 32 bits in the timeline and in the store."""
    assert count_of(given) == count


def test_the_first_id_and_the_newest_model_count() -> None:
    """An empty one changes nothing, and none is longer than a name."""
    info = ResponseInfo()
    info.name("a", "m")
    info.name("b", "n")
    info.name(None, "")
    assert (info.response_id, info.model) == ("a", "n")
    info.name("c", "é" * 999)
    assert len(info.model) == 256 and encodable(info.model) is not None
