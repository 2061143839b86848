"""What a request shows of a stream: its model and nothing of its prompt, calls of tools, and event streams that are no model's."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan

from legato._http_route import Address
from legato._records import Origin
from legato._request import SentRequest, asked
from legato._served import ServedStream
from legato._silence import may_report
from legato._worker import Worker

Spans = Callable[[], list[ReadableSpan]]
LONG = "x" * (1 << 16)
SECRET = {"model": "a text of a prompt", "stream": True}
CALL = b'{"method":"tools/call","params":{"name":"search"},"jsonrpc":"2.0","id":1}'
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.text(max_size=8), st.sampled_from(['"model": "m"', '\\"', "model"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["model", "stream", 'x "model', "k"]), inner)),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"messages": [{"content": LONG}, {"input": SECRET}]}, ("", False)),
        ({"messages": [{"input": SECRET}, LONG], "model": "m", "stream": True}, ("m", True)),
        ({'x "model': "a text", "messages": [LONG]}, ("", False)),
        ({"model": "m", "tools": [SECRET, LONG + '\\"']}, ("m", False)),
    ],
)
def test_a_large_body_gives_away_nothing_of_its_prompt(body: object, expected: tuple[str, bool]) -> None:
    """Only the body's own two fields count, not those of what it contains."""
    assert asked("/v1/chat", json.dumps(body).encode()) == expected


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.sampled_from(["model", "stream", 'x "model', "k"]), JSON), st.integers(0, 200))
def test_a_large_body_is_read_as_a_small_one(body: dict[str, object], cut: int) -> None:
    """The search finds what parsing finds, and a body that was cut does not give more."""
    small = asked("/x", json.dumps(body).encode())
    large = json.dumps({**body, "padding": LONG}).encode()
    plain = small[0] if "\\" not in json.dumps(small[0]) else ""
    assert asked("/x", large) == (plain, small[1])
    assert asked("/x", large[: -1 - cut])[0] in (plain, "")


def sent(method: str, content: bytes = b"", accept: str = "text/event-stream") -> SentRequest:
    """Return a request that accepts events."""
    return SentRequest(method, "https", "tools.example", 443, "/mcp", {"accept": accept}, content, 1)


@pytest.mark.parametrize("request_", [("POST", CALL), ("GET",)], ids=["call of a tool", "notifications"])
def test_what_is_no_model_has_no_row(spans: Spans, request_: tuple[str, bytes]) -> None:
    """A call of a tool and an idle stream of notifications: no trace context, no row for a failure, a cancel or an error's status."""
    assert sent(*request_).trace_headers() == {}
    sent(*request_).failed(ConnectionError())
    sent(*request_).answered(503, {})
    recorder = sent(*request_).answered(200, {"content-type": "text/event-stream"})
    assert recorder is not None and not may_report(recorder)
    recorder.end("client_cancel")
    assert spans() == []


def test_a_stream_is_reported_once_it_was_asked_for_or_shows_an_event(spans: Spans) -> None:
    """A comment is no event. At a server a named path asks, too."""
    recorder = sent("POST", b'{"stream":true}').answered(200, {"content-type": "text/event-stream"})
    assert recorder is not None and may_report(recorder)
    recorder.end()
    recorder = sent("POST", accept="").answered(200, {"content-type": "text/event-stream"})
    assert recorder is not None
    for data, expected in ((b"", False), (b": ping\n\n", False), (b"data: word\n\n", True)):
        recorder.read((1, data))
        assert may_report(recorder) is expected
    recorder.end()
    for is_named in (True, False):
        address = Address("/own", ("/own",) if is_named else None, str)
        served = ServedStream(Origin(vantage="server"), dict, "POST", address)
        served.started(lambda name: "text/event-stream" if name == "content-type" else "")
        assert served.recorder is not None and may_report(served.recorder) is is_named
        served.recorder.end()


def test_a_stream_that_was_reported_has_an_end(spans: Spans) -> None:
    """A snapshot without one would be an abandoned stream for ever."""
    worker = Worker(1_000)
    recorder = sent("POST", b'{"stream":true}').answered(200, {"content-type": "text/event-stream"})
    assert recorder is not None
    worker._snapshot(recorder, recorder.start_ns + 1, 1)
    recorder.discard()
    last = spans()[-1].attributes or {}
    assert (last["legato.stream.outcome"], last["legato.stream.rev"]) == ("client_cancel", 2)
