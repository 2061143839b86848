"""Bodies of broken and hostile servers: floods of events, what is made to cost time or memory, missing reads, names that cannot be sent."""

from __future__ import annotations

import gzip
import importlib
import json
import time
import types
import zlib
from collections.abc import Callable

import pytest

from helpers.builders.bodies import content, outcome, read
from helpers.builders.formats import FORMATS, WORDS
from legato._body import Body
from legato._decode import decoder_of
from legato._items import Items
from legato._long import LongEvent
from legato._recorder import Origin, StreamRecorder
from legato._spans import start_span
from legato._unparsed import Folded

SIZES = [len(word.encode()) for word in WORDS]
NAMES = sorted(FORMATS)


def test_of_more_events_than_a_timeline_has_room_for_the_last_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are counted without a look at them, also with carriage returns; an end mark is the last."""
    for module in ("_scan", "_sse", "_lines"):
        monkeypatch.setattr(f"legato.{module}.CHUNKS_MAX", 50)
    wire = FORMATS["openai-chat"]
    for line_end in (b"\n", b"\r\n", b"\r"):
        flood = wire.words[0] * 1_000
        reads = [data.replace(b"\n", line_end) for data in (*wire.prelude, flood, flood + b"".join(wire.end))]
        body = read(reads, wire.content_type)
        assert len(body.scan.times) == 50 and body.scan.dropped == 1 + 2_000 + len(wire.end) - 50
        assert body.scan.response.done and body.scan.response.output_tokens == 5


@pytest.mark.parametrize("data", [b"{}", b'""', b"[", b'{"":"'])
def test_a_body_made_to_cost_time_is_not_read(data: bytes) -> None:
    """Eight times the bytes of an array of nothing else take less than four times the time."""

    def seconds(blocks: int) -> float:
        started = time.process_time()
        read([data * (1 << 14)] * blocks, "application/json", is_array=True)
        return time.process_time() - started

    assert seconds(128) < 4 * seconds(16) + 0.5


def test_a_compressed_body_made_to_cost_time_is_not_read() -> None:
    """What grows a thousandfold is no text: the rest of it counts with the bytes that arrived."""
    packed = zlib.compressobj(9, wbits=31)
    bomb = [data for _ in range(200) if (data := packed.compress(bytes(1 << 20)))]
    body = read(bomb, "text/event-stream", "gzip")
    assert sum(content(body)[-3:]) == sum(map(len, bomb[-3:]))


@pytest.mark.parametrize("name", ["brotli", "zstandard"])
def test_a_compressed_body_is_given_in_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a package without a limit for the output. A release without one of a package that may need it is not used."""
    monkeypatch.setattr("legato._decode._first", lambda *names: importlib.import_module(name) if name in names else None)
    package = importlib.import_module(name)
    packed = package.compress(bytes(1 << 23))
    decoder = decoder_of({"brotli": "br", "zstandard": "zstd"}[name])
    assert decoder is not None
    pieces = list(map(len, decoder.decode(packed)))
    assert sum(pieces) == 1 << 23 and max(pieces) < 1 << 20 and not decoder.is_broken

    class Old:
        def process(self, data: bytes) -> bytes:
            raise AssertionError

    monkeypatch.setattr("legato._decode._first", lambda *names: types.SimpleNamespace(Decompressor=Old))
    decoder = decoder_of("br")
    assert decoder is not None and not list(decoder.decode(packed)) and decoder.is_broken


@pytest.mark.parametrize("name", NAMES)
def test_a_read_that_is_missing_costs_only_itself(name: str) -> None:
    """Of a folded read the size is known. The events after it are read, where the framing allows that; a missing end is none."""
    wire = FORMATS[name]
    for lost in (wire.words[1], wire.words[1][:20]):
        body = Body(wire.content_type)
        for time_ns, data in enumerate([*wire.prelude, wire.words[0]]):
            body.feed(time_ns, data)
        body.fold(50, len(lost))
        body.feed(51, wire.words[1][len(lost) :] + wire.words[2])
        for data in wire.words[3:]:
            body.feed(52, data)
        body.finish(53)
        times = dict(zip(body.scan.times, body.scan.sizes, strict=True))
        assert times[50] == len(lost) and content(body)[-2:] == SIZES[3:]
        info = body.scan.response
        assert info.expects_end == wire.has_end and not (info.done or info.finished)
    folded = Body(wire.content_type)
    for data in (*wire.prelude, *wire.words):
        folded.feed(1, data)
    folded.fold(2, 9)
    folded.finish(3)
    assert folded.scan.response.is_incomplete


@pytest.mark.parametrize("text", ["[1,2],", 'a({"b":[]}) \\\\', '\\"{,,,,,'])
def test_code_in_a_text_is_no_dense_event(text: str) -> None:
    """The end of a response repeats its text, which may be 30 KB of brackets. It is read all the same."""
    wire, long = FORMATS["openai-responses"], text * (30_000 // len(text))
    response = {"id": "r", "status": "completed", "output": [{"text": long}], "usage": {"input_tokens": 7, "output_tokens": 5}}
    end = b"data: " + json.dumps({"type": "response.completed", "response": response}).encode() + b"\n\n"
    body = read([*wire.prelude, *wire.words, end], wire.content_type)
    assert body.scan.response.done and body.scan.response.output_tokens == 5
    assert outcome([*wire.prelude, *wire.words, end], wire.content_type) == ("complete", "")
    chunk = {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": long}}]}
    assert content(read([b"data: " + json.dumps(chunk).encode() + b"\n\n"], wire.content_type)) == [len(long)]


@pytest.mark.parametrize("values", [b"[],", b"{},", b'"[",[],'])
def test_an_event_that_is_not_read_may_have_been_the_end(values: bytes) -> None:
    """So a response without an end mark after it is no cut one, until content follows, also content like that before it."""
    wire = FORMATS["openai-chat"]
    dense = b'data: {"x":[%s1]}\n\n' % (values * (60_000 // len(values)))
    for following, expected in (((), "complete"), (wire.words[:1], "upstream_error")):
        events = [*wire.prelude, *[wire.words[0]] * 3, dense, *following]
        assert outcome(events, wire.content_type)[0] == expected
        assert outcome([b"".join(events)], wire.content_type)[0] == expected


@pytest.mark.parametrize("name", NAMES)
def test_blank_lines_cost_little(name: str) -> None:
    """A compressed body may have millions, which are no events: they are looked at once. Those before and after them count."""
    wire = FORMATS[name]
    blank = b"\n" * (1 << 21)
    started = time.process_time()
    body = read([*wire.prelude, *wire.words[:1], blank, blank, *wire.words[1:], *wire.end], wire.content_type)
    assert time.process_time() - started < 0.5
    assert content(body) == content(read([*wire.prelude, *wire.words, *wire.end], wire.content_type))


def test_a_body_of_many_small_members_is_not_read() -> None:
    """The rest of a read is copied after each. A few hundred in a read are read."""
    wire = FORMATS["openai-chat"]
    empty, event = gzip.compress(b"", mtime=0), gzip.compress(wire.words[0])
    assert content(read([event * 500], wire.content_type, "gzip")) == [len(WORDS[0].encode())] * 500
    started = time.process_time()
    assert content(read([empty * 30_000], wire.content_type, "gzip")) == [len(empty) * 30_000]
    assert time.process_time() - started < 0.5


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_compressed_response_is_still_one_after_a_missing_read(encoding: str) -> None:
    """What was recognised before stays known, also where only a model's response counts."""
    wire = FORMATS["openai-chat"]
    packed = zlib.compressobj(wbits=31 if encoding == "gzip" else 15)
    recorder = StreamRecorder(Origin(), start_span(Origin(), 0), 0, lambda _: None, body=Body(wire.content_type, encoding))
    recorder.provisional = True
    recorder.read((1, packed.compress(b"".join([*wire.prelude, *wire.words])) + packed.flush(zlib.Z_SYNC_FLUSH)))
    recorder.unparsed.append((2, Folded(100)))
    recorder.read((3, b"x" * 50))
    recorder.end()
    assert recorder.digest().sizes[-2:] == [100, 50] and recorder.final_end() is not None and recorder.origin.provider == "openai"


@pytest.mark.parametrize("count", [10_000, 30_000])
def test_many_numbers_in_a_short_event_are_left_out(count: int) -> None:
    """The event is read without them: they would take milliseconds, in which no other thread runs."""
    wire = FORMATS["ollama"]
    last = b'{"model":"m","response":"","done":true,"eval_count":5,"context":[%s1]}\n' % (b"1," * count)
    body = read([*wire.words, last], wire.content_type)
    assert content(body) == SIZES and body.scan.response.done and body.scan.response.output_tokens == 5


def test_no_step_over_a_hostile_event_takes_long() -> None:
    """An event with the usage within the usage hundreds of times, one of thousands of lines, and a first item of megabytes."""

    def seconds(work: Callable[[], object]) -> float:
        started = time.process_time()
        work()
        return time.process_time() - started

    long = LongEvent()
    for data in (b'{"type":"response.completed",', b"[]," * 33_000, b'"usage":{' * 455):
        long.feed(data)
    assert seconds(lambda: long.content_of(long.text)) < 0.005
    item = '{"choices":[{"delta":{"content":"' + "a" * 100_000 + '"}}],"x":[' + "{}," * 1_000_000 + "1]}"
    assert seconds(lambda: Items().feed(1, item)) < 0.3
