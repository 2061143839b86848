"""The scanner of server-sent events: framing, kinds and sizes, for any split of the bytes into reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.builders.bodies import content, read
from legato._sse import Scanner
from legato._timeline import Kind


def scan(*reads: bytes) -> Scanner:
    """Return a scanner that was fed these reads at times 0, 1, 2, … ns."""
    scanner = Scanner()
    for time_ns, data in enumerate(reads):
        scanner.feed(time_ns, data)
    return scanner


def event(content: Any) -> bytes:
    """Return an event with JSON data."""
    return b"data: " + json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a chat completion chunk as engines send it."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {"id": "c-1", "model": "m", "choices": [choice], **more}


CASES: list[tuple[str, bytes, int, int]] = [
    ("role", event(chunk({"role": "assistant", "content": ""})), Kind.ROLE, 0),
    ("text", event(chunk({"content": "é!"})), Kind.TEXT, 3),
    ("escapes", event(chunk({"content": 'a"\n'})), Kind.TEXT, 3),
    ("reasoning", event(chunk({"reasoning_content": "hm"})), Kind.REASONING, 2),
    ("tool", event(chunk({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]})), Kind.TOOL, 3),
    ("refusal", event(chunk({"refusal": "no"})), Kind.TEXT, 2),
    ("usage", event({"id": "c-1", "choices": [], "usage": {"completion_tokens": 4}}), Kind.USAGE, 0),
    ("finish", event(chunk({}, "stop")), Kind.DONE, 0),
    ("done", b"data: [DONE]\n\n", Kind.DONE, 0),
    ("comment", b": keep-alive\n\n", Kind.HEARTBEAT, 0),
    ("ping", b"event: ping\n\n", Kind.HEARTBEAT, 0),
    ("empty delta", event(chunk({"content": ""})), Kind.HEARTBEAT, 0),
    ("malformed", b"data: {oops\n\n", Kind.HEARTBEAT, 0),
    ("no object", b"data: [1,2]\n\n", Kind.HEARTBEAT, 0),
    ("strange types", b'data: {"choices":[{"delta":7}]}\n\n', Kind.HEARTBEAT, 0),
    ("error", event({"error": {"type": "overloaded"}}), Kind.DONE, 0),
    ("error in a chunk", event(chunk({"content": ""}, "error", error={"code": 502, "message": "x"})), Kind.DONE, 0),
    ("error beside a text", event(chunk({"content": "é!"}, error={"code": "server_error"})), Kind.TEXT, 3),
    ("no error beside a text", event(chunk({"content": "é!"}, error=None, usage=None)), Kind.TEXT, 3),
    ("responses text", event({"type": "response.output_text.delta", "delta": "hey"}), Kind.TEXT, 3),
    ("responses reasoning", event({"type": "response.reasoning_summary_text.delta", "delta": "h"}), Kind.REASONING, 1),
    ("responses tool", event({"type": "response.function_call_arguments.delta", "delta": "{}"}), Kind.TOOL, 2),
    ("responses end", event({"type": "response.completed", "response": {"id": "r", "status": "completed"}}), Kind.DONE, 0),
]


@pytest.mark.parametrize(("data", "kind", "size"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_each_event_has_its_kind_and_size(data: bytes, kind: int, size: int) -> None:
    """Role frames, usage, comments and the end have no content; content is measured in UTF-8 bytes."""
    scanner = scan(data)
    assert (scanner.kinds, scanner.sizes) == ([kind], [size])


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@given(
    st.lists(st.one_of(texts.map(lambda text: event(chunk({"content": text}))), st.sampled_from([case[1] for case in CASES])), max_size=12)
)
@settings(deadline=None)
def test_the_fast_path_equals_parsing(events: list[bytes]) -> None:
    """One read per event, which uses the fast path, gives the same sizes and kinds as parsing every event."""
    fast = scan(*events)
    slow = Scanner()
    for each in events:
        payload = each.removesuffix(b"\n\n")
        if payload.startswith(b"data: "):
            slow._payload(0, payload[6:])
        else:
            slow._event(0, payload)
    assert (fast.sizes, fast.kinds, fast.response.error) == (slow.sizes, slow.kinds, slow.response.error)


@given(st.lists(st.sampled_from([case[1] for case in CASES]), min_size=1, max_size=8), st.data(), st.sampled_from([b"\n", b"\r\n", b"\r"]))
@settings(deadline=None)
def test_any_split_into_reads_gives_the_same_chunks(events: list[bytes], data: st.DataObject, line_end: bytes) -> None:
    """Reads may end anywhere, also between CR and LF: kinds, sizes and yielded events do not change."""
    whole = b"".join(events).replace(b"\n", line_end)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    parts = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    uncut, cut = scan(*events), scan(*parts)
    assert (cut.kinds, cut.sizes, cut.yielded) == (uncut.kinds, uncut.sizes, uncut.yielded)


@pytest.mark.parametrize("name", ["error", "usage"])
@pytest.mark.parametrize("is_spaced", [True, False])
def test_what_stands_beside_a_plain_text_is_read(name: str, is_spaced: bool) -> None:
    """An error or a usage before or after the choices, after a chunk that was measured by its length; and a text that names both."""
    value: Any = {"error": {"code": 502, "message": "text"}, "usage": {"completion_tokens": 4}}[name]
    for data in ({**chunk({"content": "ab"}), name: value}, {name: value, **chunk({"content": "ab"})}):
        last = f"data: {json.dumps(data, separators=(', ', ': ') if is_spaced else (',', ':'))}\n\n".encode()
        scanner = scan(event(chunk({"content": "ab"})), event(chunk({"content": "usage: error: {"})), last)
        assert scanner.sizes == [2, 15, 2]
        found = (scanner.response.error, scanner.response.output_tokens)
        assert found == (("502", None) if name == "error" else ("", 4))


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_no_input_makes_it_raise(reads: list[bytes]) -> None:
    """For arbitrary bytes the scanner does not raise, and its columns have equal lengths."""
    scanner = scan(*reads)
    assert len(scanner.times) == len(scanner.sizes) == len(scanner.kinds)


def test_tokens_are_differences_of_the_cumulative_usage() -> None:
    """Engines can send a cumulative usage with every chunk. If one chunk with content has none, all tokens are unknown."""
    running = [event(chunk({"content": "ab"}, usage={"completion_tokens": total})) for total in (1, 2, 5)]
    assert scan(*running).tokens == [1, 1, 3]
    assert scan(*running, event(chunk({"content": "c"}))).tokens is None


def test_comments_and_done_are_not_yielded() -> None:
    """Holds belong to the events that a client library yields, which exclude comments and [DONE]."""
    assert scan(b": hi\n\n", CASES[1][1], b"data: [DONE]\n\n").yielded == [1]


def test_an_empty_read_is_nothing() -> None:
    """Also between the two halves of a line end."""
    event = b'data: {"id":"c-1","object":"chat.completion.chunk","choices":[{"index":0,\r\ndata: "delta":{"content":"hello"}}]}\r\n\r\n'
    at = event.index(b"\r\n") + 1
    assert content(read([event[:at], b"", event[at:]], "text/event-stream")) == content(read([event], "text/event-stream")) == [5]
