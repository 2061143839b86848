"""Events that are too long to be kept, in each framing: what they say, what is kept of them, and what cannot be known."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.builders.bodies import content, outcome, read
from helpers.builders.formats import FORMATS, WORDS, gemini_array
from legato._body import Body
from legato._long import LONG_BYTES
from legato._timeline import Kind

SIZES = [len(word.encode()) for word in WORDS]
PICTURE = b"A" * (3 << 20)
COMPLETED = b'data: {"type":"response.completed","response":{"usage":{"input_tokens":1,"output_tokens":2},"output":"%s"}}\n\n'


def test_an_event_with_a_picture_is_read() -> None:
    """The end of a response may have some MB."""
    wire = FORMATS["openai-responses"]
    last = COMPLETED % PICTURE
    body = read([*wire.prelude, *wire.words, *(last[at : at + 65_536] for at in range(0, len(last), 65_536))], wire.content_type)
    assert body.scan.response.done and body.scan.response.output_tokens == 2 and content(body) == SIZES


texts = st.text(st.characters(exclude_characters='"\\', exclude_categories=["Cc", "Cs"]), max_size=20)
values = st.recursive(
    texts | st.integers(0, 9) | st.none(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)
)


@given(values, st.integers(0, 3), st.data())
@settings(deadline=None, max_examples=25)
def test_a_long_event_is_measured_as_a_short_one(more: Any, place: int, draw: st.DataObject) -> None:
    """Whatever surrounds its long text and however it is cut, content without escapes has its size, and the names are known."""
    long = "é" * draw.draw(st.integers(LONG_BYTES // 2, LONG_BYTES))
    delta = {key: long for key in ("content", "reasoning_content", "refusal")[: place + 1][-1:]}
    choice = {"delta": delta, "finish_reason": "stop" if place == 3 else None}
    event = {"a": more, "id": "c-1", "model": "m-1", "object": "x", "choices": [choice], "b": more, "usage": {"completion_tokens": 7}}
    data = b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=4)))
    body = read([data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)], "text/event-stream")
    info = body.scan.response
    assert content(body) == [2 * len(long)] and body.scan.kinds == [Kind.REASONING if place == 1 else Kind.TEXT]
    assert (info.response_id, info.model, info.output_tokens, info.finished) == ("c-1", "m-1", 7, place == 3)


def long_event(wire: str, text: bytes) -> bytes:
    """Return an event with this JSON, in the framing of this format."""
    return text + (b"\n" if wire == "ollama" else b",") if wire in ("ollama", "array") else b"data: " + text + b"\n\n"


def bodies_with(name: str, event: bytes, parts_bytes: int) -> tuple[list[bytes], list[bytes], str, dict[str, Any]]:
    """Return the reads of a response up to an event of it, and those after it; the event is cut. With the content type and options."""
    wire = FORMATS["gemini" if name == "array" else name]
    cut = [event[at : at + parts_bytes] for at in range(0, len(event), parts_bytes)]
    if name == "array":
        first, *words = gemini_array()
        return [first, *cut], [b"[", *words], "application/json", {"is_array": True}
    return [*wire.prelude, *cut], list(wire.words), wire.content_type, {}


LONG = ["openai-responses", "ollama", "array", "anthropic"]
# Its long string is left out; the event has a kind without content.
IMAGE = b'{"type":"%s","b64":"%s"}'
IMAGE_TYPES = {"openai-responses": b"response.image_generation_call.partial_image", "anthropic": b"ping"}
# It has nothing that could be left out, and its objects are not closed before its end.
SHORT_STRINGS = b'{"x":{"y":[' + b",".join([b'{"a":"b"}'] * (1 << 15)) + b"]}}"


def image(name: str) -> bytes:
    """Return an event with a picture of a megabyte."""
    return IMAGE % (IMAGE_TYPES.get(name, b"image"), b"{A" * (1 << 19))


@pytest.mark.parametrize("name", LONG)
def test_of_a_long_event_no_more_than_a_bound_is_kept(name: str) -> None:
    """However it is cut: 64 KiB, and a block of the read that is looked at."""
    for text in (image(name), SHORT_STRINGS):
        reads, _, kind, more = bodies_with(name, long_event(name, text), 9_999)
        body = Body(kind, "", **more)
        for time_ns, data in enumerate(reads):
            body.feed(time_ns, data)
            scan = body.scan
            long = scan._long
            assert len(getattr(scan, "_bytes", b"")) + len(scan._pending) + len(long.text if long is not None else b"") <= LONG_BYTES


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("parts_bytes", [9_999, 1 << 21])
def test_a_long_event_is_what_it_says(name: str, parts_bytes: int) -> None:
    """Not content because of its length alone; the events after it are read."""
    before, after, kind, more = bodies_with(name, long_event(name, image(name)), parts_bytes)
    assert content(read([*before, *after], kind, **more))[-4:] == SIZES[-4:]
    assert max(content(read([*before, *after], kind, **more))) == max(SIZES)


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("parts_bytes", [9_999, 1 << 21])
def test_an_event_that_cannot_be_known_is_one_chunk_of_its_bytes(name: str, parts_bytes: int) -> None:
    """An end mark may have been in it, so none is missing, unless content follows."""
    event = long_event(name, SHORT_STRINGS)
    before, after, kind, more = bodies_with(name, event, parts_bytes)
    whole = read([*before, *after], kind, **more)
    assert any(abs(size - len(event)) < 12 for size in content(whole)) and content(whole)[-4:] == SIZES[-4:]
    assert outcome(before, kind, **more) == ("complete", "")
    if name != "array":
        assert outcome([*before, *after], kind, **more) == ("upstream_error", "stream_truncated")


def test_the_end_of_a_response_that_cannot_be_kept_is_its_end() -> None:
    """Its type is at its beginning and its usage at its end; it is no content. A response repeats the tools of its request."""
    wire = FORMATS["openai-responses"]
    tools = b",".join([b'{"type":"function","name":"f","parameters":{"a":{"b":"c"}}}'] * 4_000)
    created = b'data: {"type":"response.created","response":{"id":"resp-1","model":"m-1","tools":[%s]}}\n\n' % tools
    end = b'data: {"type":"response.completed","response":{"tools":[%s],"usage":{"input_tokens":1,"output_tokens":2},"user":"u"}}\n\n'
    for parts_bytes in (9_999, 1 << 21):
        last = end % tools
        cut = [each[at : at + parts_bytes] for each in (created, *wire.words, last) for at in range(0, len(each), parts_bytes)]
        body = read(cut, wire.content_type)
        info = body.scan.response
        assert content(body) == SIZES and body.scan.kinds[-1] == Kind.DONE
        assert info.done and (info.input_tokens, info.output_tokens) == (1, 2)


IDS = [100_000 + number for number in range(14_000)]


@pytest.mark.parametrize("ids", [IDS, [-1.5e-7] * 9_000, [None, True] * 9_000], ids=["tokens", "fractions", "names"])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")], ids=["dense", "spaced"])
@pytest.mark.parametrize("parts_bytes", [997, 1 << 21])
def test_a_long_list_of_numbers_is_left_out(ids: list[Any], separators: tuple[str, str], parts_bytes: int) -> None:
    """As the tokens that Ollama's last event repeats: the event is read, and they are no content, wherever they are."""
    wire = FORMATS["ollama"]
    lists = [ids, [*ids, "a"], ["a", *ids], [{}, *ids, {}], [], [ids, ids]]
    event = {"model": "m-1", "response": "", "context": lists, "done": True, "done_reason": "stop", "eval_count": 5, "n": 7}
    last = json.dumps(event, separators=separators).encode() + b"\n"
    body = read([*wire.words, *(last[at : at + parts_bytes] for at in range(0, len(last), parts_bytes))], wire.content_type)
    info = body.scan.response
    assert content(body) == SIZES and body.scan.kinds[-1] == Kind.DONE
    assert (info.done, info.output_tokens, info.is_incomplete) == (True, 5, False)


@pytest.mark.parametrize("length", [1_000, 60_000, 70_000, 300_000])
def test_the_arguments_of_a_tool_count_with_all_their_bytes(length: int) -> None:
    """Also in a long event, of which long strings are left out."""
    args = {"path": "a.txt", "empty": "", "parts": [{"content": "x" * length}]}
    parts = [{"functionCall": {"name": "write", "args": args}}]
    gemini = {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 1}}
    call = {"function": {"name": "write", "arguments": args}}
    ollama = {"model": "m-1", "message": {"role": "assistant", "content": "", "tool_calls": [call]}, "done": False}
    expected = 5 + len(json.dumps(args, separators=(",", ":")))
    assert content(read([b"data: " + json.dumps(gemini).encode() + b"\n\n"], "text/event-stream")) == [expected]
    assert content(read([json.dumps(ollama).encode() + b"\n"], "application/x-ndjson")) == [expected]


@pytest.mark.parametrize("parts_bytes", [9_999, 1 << 21])
def test_a_body_that_is_cut_in_a_long_event_is_no_complete_one(parts_bytes: int) -> None:
    """As one that is cut in a short event. An event that lacks only its line end is whole."""
    wire = FORMATS["openai-responses"]
    tools = [{"type": "function", "name": "f", "parameters": {"a": {"b": "c"}}}] * 3_000
    for more in ({"tools": tools}, {"picture": "A" * 200_000}, {}):
        response = {**more, "id": "r", "usage": {"input_tokens": 1, "output_tokens": 2}}
        last = b"data: " + json.dumps({"type": "response.completed", "response": response}).encode()
        for end, expected in ((last[: len(last) // 2], "upstream_error"), (last[:-1], "upstream_error"), (last, "complete")):
            cut = [end[at : at + parts_bytes] for at in range(0, len(end), parts_bytes)]
            if more == {"tools": tools} and end == last[:-1]:
                continue
            assert outcome([*wire.prelude, *wire.words, *cut], wire.content_type)[0] == expected, (list(more), len(end))


@pytest.mark.parametrize("text", ['a"b\\', "\n\x1b", "\u4e2d\u6587 ", "\U0001f600", "\xe9\x7f", 'print("\u2713")\n'])
@pytest.mark.parametrize("is_ascii", [True, False])
def test_a_long_text_counts_with_the_bytes_of_its_characters(text: str, is_ascii: bool) -> None:
    """Not with those of its escapes, apart from a few at which the event is cut."""
    long = text * (80_000 // len(text))
    chunk = {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": long}}]}
    data = b"data: " + json.dumps(chunk, ensure_ascii=is_ascii).encode() + b"\n\n"
    for parts_bytes in (20_000, 1 << 21):
        (size,) = content(read([data[at : at + parts_bytes] for at in range(0, len(data), parts_bytes)], "text/event-stream"))
        assert abs(size - len(long.encode())) <= 8 * (len(data) // min(parts_bytes, 65_536) + 1)
