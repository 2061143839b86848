"""Every format that the SDK knows: what its events are, in any split of the bytes into reads, whole, cut, compressed and hostile."""

from __future__ import annotations

import gzip
import importlib
import json
import zlib
from typing import Any

import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.builders.bodies import content, outcome, read
from helpers.builders.formats import FORMATS, WORDS, gemini_array
from legato._body import Body
from legato._formats import sniff
from legato._recorder import Origin, StreamRecorder
from legato._spans import start_span
from legato._timeline import Kind

SIZES = [len(word.encode()) for word in WORDS]
NAMES = sorted(FORMATS)
SMALL = settings(deadline=None, max_examples=60)


def split(data: bytes, draw: st.DataObject) -> list[bytes]:
    """Cut bytes anywhere."""
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@pytest.mark.parametrize("name", NAMES)
def test_each_format_is_measured(name: str) -> None:
    """Words, kinds, model, id, finish reason, usage and provider."""
    wire = FORMATS[name]
    body = read(list(wire.events), wire.content_type)
    assert content(body) == SIZES
    assert body.scan.kinds[len(wire.prelude) : len(wire.prelude) + len(WORDS)] == [Kind.TEXT] * len(WORDS)
    info = body.scan.response
    provider = body.scan.format.provider if body.scan.format else ""
    finish = (info.finish_reasons or [""])[-1]
    assert (info.model, info.response_id, finish, info.input_tokens, info.output_tokens, provider) == wire.found
    assert body.scan.is_recognised is not name.startswith("own-")


@pytest.mark.parametrize("name", NAMES)
@given(draw=st.data())
@SMALL
def test_any_split_into_reads_gives_the_same_chunks(name: str, draw: st.DataObject) -> None:
    """Reads may end anywhere: in a line end, in a character, in the first bytes by which the format is recognised."""
    wire = FORMATS[name]
    whole = read(list(wire.events), wire.content_type)
    cut = read(split(b"".join(wire.events), draw), wire.content_type)
    assert (cut.scan.kinds, cut.scan.sizes, cut.scan.yielded) == (whole.scan.kinds, whole.scan.sizes, whole.scan.yielded)
    assert cut.scan.response == whole.scan.response


@given(draw=st.data())
@SMALL
def test_geminis_array_in_any_split(draw: st.DataObject) -> None:
    """The array that grows has the same events as the server-sent events."""
    body = read(split(b"".join(gemini_array()), draw), "application/json", is_array=True)
    assert content(body) == SIZES and body.scan.response.finish_reasons == ["STOP"]


@pytest.mark.parametrize("name", NAMES)
def test_only_a_missing_end_mark_is_a_cut(name: str) -> None:
    """A body without the end of its format was cut; a format without an end mark never is."""
    wire = FORMATS[name]
    assert outcome(list(wire.events), wire.content_type) == ("complete", "")
    expected = ("upstream_error", "stream_truncated") if wire.has_end else ("complete", "")
    assert outcome([*wire.prelude, *wire.words], wire.content_type) == expected
    assert outcome([*wire.events[:-1], wire.events[-1].rstrip()], wire.content_type) == ("complete", "")


ENCODERS = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": importlib.import_module("brotli").compress,
    "zstd": zstd.compress,
}


@pytest.mark.parametrize("encoding", sorted(ENCODERS))
@pytest.mark.parametrize("name", ["anthropic", "ai-sdk-data", "own-text"])
def test_a_compressed_body_is_decompressed(name: str, encoding: str) -> None:
    """Wherever the reads end."""
    wire = FORMATS[name]
    data = ENCODERS[encoding](b"".join(wire.events))
    body = read([data[at : at + 7] for at in range(0, len(data), 7)], wire.content_type, encoding)
    assert content(body) == SIZES


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "deflate", "made-up", "gzip, br"])
def test_what_cannot_be_decompressed_is_bytes(encoding: str) -> None:
    """Each read is content, and nothing is an error, also where an end is expected."""
    reads = [b"\xff" * 9] * 3
    assert content(read(reads, "text/event-stream", encoding, expects_end=True)) == [9, 9, 9]
    assert outcome(reads, "text/event-stream", encoding=encoding, expects_end=True) == ("complete", "")


def test_a_body_made_to_exhaust_memory_is_not_decompressed() -> None:
    """A read that becomes more than 32 MiB ends the decompression."""
    bomb = gzip.compress(bytes(1 << 26))
    assert content(read([bomb], "text/event-stream", "gzip")) == [len(bomb)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.just("text_delta"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted({
        *("type", "delta", "choices", "message", "content", "content_block", "candidates", "parts", "usageMetadata", "done", "response"),
        *("error", "usage", "output_tokens", "finishReason", "stop_reason", "inlineData", "functionCall", "text", "id", "model"),
    })), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
SIGNS: list[dict[str, Any]] = [
    *(
        {"type": name}
        for name in ("message_start", "content_block_delta", "content_block_start", "message_delta", "text-delta", "response.x")
    ),
    *({"choices": []}, {"candidates": []}, {"done": True, "message": {}}, {"jsonrpc": "2.0"}),
]


@given(st.lists(st.tuples(st.sampled_from(SIGNS), JSON), max_size=6), st.sampled_from(["text/event-stream", "application/x-ndjson"]))
@SMALL
def test_wrong_types_never_raise(events: list[tuple[dict[str, Any], Any]], content_type: str) -> None:
    """Any value under any key of any format: the columns have equal lengths, and sizes are counts."""
    lines = [
        json.dumps({**sign, **(more if isinstance(more, dict) else {"delta": more, "message": more, "usage": more})})
        for sign, more in events
    ]
    frame = b"data: %s\n\n" if content_type == "text/event-stream" else b"%s\n"
    body = read([frame % line.encode() for line in lines], content_type)
    scan = body.scan
    assert len(scan.times) == len(scan.sizes) == len(scan.kinds) == len(events)
    assert all(type(size) is int and size >= 0 for size in scan.sizes)


@given(
    st.lists(st.binary(max_size=60) | st.sampled_from([b'{"', b"[{", b"}", b"data:", b"0:", b"\n\n", b"\\", b'"']), max_size=10),
    st.sampled_from(["text/event-stream", "application/x-ndjson", "text/plain", "application/vnd.amazon.eventstream"]),
    st.sampled_from(["", "gzip", "br", "zstd", "deflate"]),
    st.booleans(),
)
@SMALL
def test_no_bytes_make_it_raise(reads: list[bytes], content_type: str, encoding: str, is_array: bool) -> None:
    """Arbitrary bytes in any framing and encoding."""
    scan = read(reads, content_type, encoding, is_array=is_array).scan
    assert len(scan.times) == len(scan.sizes) == len(scan.kinds)


KINDS: list[tuple[str, dict[str, Any], Kind, int]] = [
    ("anthropic", {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "hm"}}, Kind.REASONING, 2),
    ("anthropic", {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": '{"a"'}}, Kind.TOOL, 4),
    ("anthropic", {"type": "content_block_start", "content_block": {"type": "tool_use", "name": "find"}}, Kind.TOOL, 4),
    ("anthropic", {"type": "error", "error": {"type": "overloaded_error", "message": "m"}}, Kind.DONE, 0),
    ("gemini", {"candidates": [{"content": {"parts": [{"text": "hm", "thought": True}]}}]}, Kind.REASONING, 2),
    ("gemini", {"candidates": [{"content": {"parts": [{"functionCall": {"name": "f", "args": {"a": 1}}}]}}]}, Kind.TOOL, 8),
    ("gemini", {"promptFeedback": {"blockReason": "SAFETY"}}, Kind.DONE, 0),
    ("ollama", {"message": {"content": "", "thinking": "hm"}, "done": False}, Kind.REASONING, 2),
    ("ollama", {"message": {"tool_calls": [{"function": {"name": "f", "arguments": {}}}]}, "done": False}, Kind.TOOL, 3),
    ("ai-sdk-ui", {"type": "reasoning-delta", "delta": "hm"}, Kind.REASONING, 2),
    ("ai-sdk-ui", {"type": "tool-input-available", "toolName": "f", "input": {"a": 1}}, Kind.TOOL, 7),
]


@pytest.mark.parametrize(("name", "event", "kind", "size"), KINDS)
def test_kinds_other_than_text(name: str, event: dict[str, Any], kind: Kind, size: int) -> None:
    """Reasoning and tools are content; ends and errors are not."""
    wire = FORMATS[name]
    line = json.dumps(event).encode()
    body = read([*wire.events[:3], line + b"\n" if name == "ollama" else b"data: " + line + b"\n\n"], wire.content_type)
    assert (body.scan.kinds[-1], body.scan.sizes[-1]) == (kind, size)


@pytest.mark.parametrize(
    ("name", "last", "expected"),
    [
        (
            "anthropic",
            b'data: {"type":"error","error":{"type":"overloaded_error","message":"text"}}\n\n',
            ("upstream_error", "overloaded_error"),
        ),
        ("gemini", b'data: {"error":{"code":503,"status":"UNAVAILABLE","message":"text"}}\n\n', ("upstream_error", "UNAVAILABLE")),
        ("ollama", b'{"error":"an answer of words"}\n', ("upstream_error", "error")),
        # OpenRouter's, with its own codes or those of HTTP.
        (
            "openai-chat",
            b'data: {"id":"c","error":{"code":"server_error","message":"text"},"choices":[{"delta":{},"finish_reason":"error"}]}\n\n',
            ("upstream_error", "server_error"),
        ),
        (
            "openai-chat",
            b'data: {"id":"c","error":{"code":502,"message":"text"},"choices":[{"delta":{},"finish_reason":"error"}]}\n\n',
            ("upstream_error", "502"),
        ),
        ("openai-chat", b'data: {"id":"c","choices":[],"error":"an answer of words"}\n\n', ("upstream_error", "error")),
        ("ai-sdk-ui", b'data: {"type":"error","errorText":"words"}\n\n', ("upstream_error", "error")),
        ("ai-sdk-ui", b'data: {"type":"abort"}\n\n', ("client_cancel", "")),
        ("ai-sdk-data", b'3:"words"\n', ("upstream_error", "error")),
    ],
)
def test_errors_that_the_response_reports(name: str, last: bytes, expected: tuple[str, str]) -> None:
    """With their type, and never with their text."""
    wire = FORMATS[name]
    assert outcome([*wire.prelude, *wire.words, last], wire.content_type) == expected


def test_metadata_before_the_response_is_no_content() -> None:
    """An event of no format counts as content only until the format is known."""
    wire = FORMATS["openai-chat"]
    body = read([b'data: {"conversation":"c"}\n\n', *wire.events], wire.content_type)
    assert body.scan.kinds[0] == Kind.ROLE and content(body) == SIZES


def test_an_empty_text_of_an_unknown_format_is_no_content() -> None:
    """The last event of many formats has its text empty; an event without a usual name counts whole."""
    body = read([b'data: {"text":"ab"}\n\n', b'data: {"text":""}\n\n', b'data: {"x":"y"}\n\n'], "text/event-stream")
    assert (body.scan.kinds, body.scan.sizes) == ([Kind.TEXT, Kind.HEARTBEAT, Kind.TEXT], [2, 0, 9])


def test_what_is_no_response_is_recognised() -> None:
    """Messages of a protocol of procedure calls, as tools servers send them; an error of unknown shape is no error."""
    assert read([b'data: {"jsonrpc":"2.0","id":1,"result":{}}\n\n'], "text/event-stream").scan.is_foreign
    assert sniff({"error": "text"}) is None and outcome([b'data: {"error":"text"}\n\n'], "text/event-stream") == ("complete", "")


OWN_EVENTS: list[dict[str, Any]] = [
    *({"choices": ["a", "b"]}, {"choices": [{"title": "a"}]}, {"choices": 3}, {"choices": []}, {"choices": None}),
    *({"candidates": 12}, {"candidates": []}, {"candidates": ["a"]}, {"candidates": [{"name": "a"}]}, {"usageMetadata": 3}),
    *({"type": "response.chunk"}, {"type": "response.completed"}, {"type": "response.text"}, {"done": False, "message": "text"}),
]


@pytest.mark.parametrize("event", OWN_EVENTS, ids=str)
def test_an_applications_own_events_are_of_no_format(event: dict[str, Any]) -> None:
    """Though a format has the same keys, with values of another shape: no end is missing."""
    assert sniff(event) is None
    assert outcome([b"data: " + json.dumps(event).encode() + b"\n\n"] * 20, "text/event-stream") == ("complete", "")


@pytest.mark.parametrize(
    "event",
    [
        *({"choices": [{"delta": {}}]}, {"choices": [{"text": ""}]}, {"choices": [], "usage": {}}, {"choices": [], "object": ""}),
        *({"candidates": [{"finishReason": "STOP"}]}, {"promptFeedback": {}}, {"done": False, "response": ""}),
        *({"type": f"response.{name}", "response": {}} for name in ("created", "queued", "done", "failed")),
        *({"type": f"response.{name}.delta"} for name in ("output_text", "audio", "function_call_arguments", "reasoning_summary_text")),
        *({"type": f"response.{name}"} for name in ("output_item.added", "image_generation_call.partial_image", "mcp_list_tools.failed")),
        *({"type": f"response.{name}"} for name in ("output_text.annotation.added", "code_interpreter_call_code.done")),
    ],
    ids=str,
)
def test_events_that_show_their_format(event: dict[str, Any]) -> None:
    """One is enough, also an event without content."""
    assert sniff(event) is not None


def test_an_applications_error_after_its_own_events_is_its_own() -> None:
    """It neither is OpenAI's nor makes the content before it none."""
    events = [b'data: {"token":"hello"}\n\n'] * 4 + [b'data: {"error":{"message":"boom"}}\n\n']
    assert outcome(events, "text/event-stream") == ("complete", "")
    assert content(read(events, "text/event-stream"))[:4] == [5] * 4
    assert outcome(events[4:], "text/event-stream") == ("upstream_error", "error")


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ({"status": "completed"}, ("complete", "")),
        ({"status": "failed", "status_details": {"error": {"type": "server_error"}}}, ("upstream_error", "server_error")),
    ],
)
def test_the_end_of_a_realtime_response(response: dict[str, Any], expected: tuple[str, str]) -> None:
    """One event ends it, whatever its outcome."""
    events = [{"type": "response.created", "response": {}}, {"type": "response.done", "response": response}]
    assert outcome([b"data: " + json.dumps(event).encode() + b"\n\n" for event in events], "text/event-stream") == expected


def test_plain_text_is_content() -> None:
    """Each read of it, also where it looks like a format only at first."""
    assert content(read([b"data is", b" a word", b", and 0:1 no part"], "text/plain")) == [7, 7, 17]
    assert content(read([b"", b"a"], "text/plain")) == [1]


def test_a_blocked_loop_is_a_hold_also_without_other_holds() -> None:
    """Lags count where the application's holds are unknown."""
    origin = Origin()
    recorder = StreamRecorder(origin, start_span(origin, 0), 0, lambda _: None, body=Body("text/event-stream"))
    for time_ns in (1_000, 9_000):
        recorder.read((time_ns, FORMATS["anthropic"].words[0]))
    recorder.late(9_000, 5_000)
    assert recorder.digest().holds_ns == [5_000, 0]
    recorder.end()
