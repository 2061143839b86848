"""The worker thread: garbage collection within it, streams that it ends, and what it forgets."""

from __future__ import annotations

import gc
import json
import os
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from legato._body import Body
from legato._recorder import Origin, StreamRecorder
from legato._spans import start_span
from legato._worker import Worker

S = 1_000_000_000

COLLECTS = """
import gc, faulthandler, time
import legato
from legato._worker import worker
faulthandler.dump_traceback_later(10, exit=True)
class Knot: pass
gc.set_threshold(1)
gc.disable()
running = legato.stream(model="m")
time.sleep(0.3)
knot = Knot(); knot.itself = knot; knot.recorder = legato.stream(model="m")
del knot
# Only the worker runs now, so the collection is in its thread.
gc.enable()
time.sleep(0.8)
running.end()
assert worker().flush(5)
print(legato.stats()["started"], legato.stats()["ended"])
"""


def test_a_collection_within_the_worker_does_not_block_it() -> None:
    """Recorders in reference cycles are freed wherever a collection runs, also while the worker takes a stream from its queue."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    done = subprocess.run([sys.executable, "-c", COLLECTS], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["2", "2"], done.stderr


COUNTS = """
import os, legato
from legato._errors import guard
from legato._replies import replies
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
class Provider(TracerProvider):
    def force_flush(self, timeout_millis=30000): raise OSError("gone")
trace.set_tracer_provider(Provider(shutdown_on_exit=False))
class Refused: status_code = 401
replies.note(Refused())
with guard("a place"): raise ValueError
legato.stream(model="m").end()
print(legato.flush(), flush=True)
for ends in (True, False):
    if ends and os.fork():
        os.wait()
    else:
        print(legato.stats()["refused"], legato.stats()["faults"], flush=True)
        if ends: os._exit(0)
"""


def test_a_child_counts_from_zero_and_a_failing_provider_is_a_failed_flush() -> None:
    """The parent's counts stay, and an exception of the application's provider goes no further than the result."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    done = subprocess.run([sys.executable, "-c", COUNTS], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["False", "0", "0", "1", "1"], done.stderr


class Timed:
    """A stream of server-sent events under a worker without a thread, by a clock that the test sets."""

    def __init__(self, vantage: str = "client", transport: str = "http/1.1") -> None:
        self.now = S
        self.worker = Worker(0, lambda: self.now)
        self.worker._start = lambda: None  # type: ignore[method-assign]
        origin = Origin(vantage=vantage, transport=transport)
        self.stream = StreamRecorder(origin, start_span(origin, 0), 0, self.worker._complete, body=Body("text/event-stream"))
        self.worker.watch(self.stream)

    def read(self, *events: dict[str, Any] | str) -> None:
        """Record a read of each event at this time."""
        for event in events:
            data = event if isinstance(event, str) else json.dumps(event)
            self.stream.read((self.now, f"data: {data}\n\n".encode()))

    def wait(self, seconds: float) -> bool:
        """Let the time pass; return whether the worker has ended the stream."""
        self.now += int(seconds * S)
        self.worker.tick()
        return self.stream.ended


@pytest.fixture
def timed() -> Iterator[list[Timed]]:
    """Keep the streams of a test, and end them after it."""
    kept: list[Timed] = []
    yield kept
    for each in kept:
        each.stream.end()


def chat(content: str = "", finish: str | None = None, index: int = 0) -> dict[str, Any]:
    """Return a chunk of OpenAI's format."""
    delta = {"content": content} if content else {}
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "choices": [choice]}


def claude(finish: str) -> list[dict[str, Any] | str]:
    """Return a round of Anthropic's format."""
    text = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}
    return [
        {"type": "message_start", "message": {}},
        text,
        {"type": "message_delta", "delta": {"stop_reason": finish}},
        {"type": "message_stop"},
    ]


OVER: list[tuple[str, list[dict[str, Any] | str], dict[str, str], bool]] = [
    ("an end mark", [chat("a"), chat("", "stop"), "[DONE]"], {}, True),
    ("an end mark after a tool", [chat("a"), chat("", "tool_calls"), "[DONE]"], {}, True),
    ("a finish reason", [chat("a"), chat("", "stop")], {}, True),
    ("a call of a tool", [chat("a"), chat("", "tool_calls")], {}, False),
    ("a call of a tool in a round", claude("tool_use"), {}, False),
    ("the last round", [*claude("tool_use"), *claude("end_turn")], {}, True),
    ("a round that has only begun", [*claude("end_turn"), *claude("end_turn")[:1]], {}, False),
    ("one of two choices", [chat("a"), chat("b", index=1), chat("", "stop")], {}, False),
    ("a filter's result", [chat("a"), chat("", "stop"), chat()], {}, True),
    ("both choices", [chat("a"), chat("b", index=1), chat("", "stop"), chat("", "stop", 1)], {}, True),
    ("a server", [chat("a"), chat("", "stop"), "[DONE]"], {"vantage": "server"}, False),
    ("a socket with more answers", [chat("a"), chat("", "stop"), "[DONE]"], {"transport": "websocket"}, False),
]


@pytest.mark.parametrize(("events", "origin", "is_over"), [each[1:] for each in OVER], ids=[each[0] for each in OVER])
def test_a_response_is_over_only_if_nothing_can_follow(
    events: list[dict[str, Any] | str], origin: dict[str, str], is_over: bool, timed: list[Timed]
) -> None:
    """Some clients stop at the end mark and keep the response; a response with tools goes on after a pause."""
    stream = Timed(**origin)
    timed.append(stream)
    stream.read(*events)
    assert stream.wait(3) is is_over


@pytest.mark.parametrize(
    "first", [[chat("a"), chat("b"), chat("", "tool_calls")], [chat("a"), chat("b"), chat("", "stop"), "[DONE]"], claude("end_turn")]
)
def test_a_break_in_a_later_round_is_no_complete_response(first: list[dict[str, Any] | str], timed: list[Timed]) -> None:
    """The end of a round counts only until content follows."""
    second = claude("end_turn")[:2] if len(first) == 4 and isinstance(first[0], dict) and "type" in first[0] else [chat("c"), chat("d")]
    for events, expected in (([*first], ("complete", "")), ([*first, *second], ("upstream_error", "stream_truncated"))):
        stream = Timed()
        timed.append(stream)
        stream.read(*events)
        stream.stream.parse()
        stream.stream.end()
        stream.stream.digest()
        end = stream.stream.final_end()
        assert end is not None and (end.outcome, end.error_type) == expected


@pytest.mark.parametrize("event", [chat("a"), {"text": "a"}, {"choices": [{"delta": {"role": "a", "content": "a"}}]}, ": a"], ids=str)
def test_a_stream_of_days_has_a_bound(event: dict[str, Any] | str, timed: list[Timed], monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks that a timeline has no room for are counted, by each way in which an event is measured; later ends still count."""
    for module in ("_scan", "_sse", "_recorder"):
        monkeypatch.setattr(f"legato.{module}.CHUNKS_MAX", 20)
    stream = Timed()
    timed.append(stream)
    for _ in range(50):
        stream.now += S
        stream.read(event)
        stream.stream.held(1)
        if stream.stream.undigested >= 10:
            stream.stream.parse()
    scan = stream.stream._source.scan
    found = stream.stream.digest()
    assert found.holds_ns is not None
    lengths = {len(found.times), len(found.sizes), len(found.kinds), len(scan.times), len(scan.yielded), len(found.holds_ns)}
    assert (lengths, found.dropped) == ({20}, 30)
    assert stream.stream.silent_since(stream.now, S) is None
    stream.read(chat("", "stop"), "[DONE]")
    stream.stream.parse()
    assert scan.response.done


def test_streams_that_end_while_the_worker_looks_at_all_of_them(timed: list[Timed]) -> None:
    """A collection of garbage may end a stream within any call. It failed the snapshots: a dictionary changed during its iteration."""
    first = Timed()
    timed.append(first)
    streams = []
    for _ in range(3_000):
        origin = Origin()
        streams.append(StreamRecorder(origin, start_span(origin, 0), 0, first.worker.finish))
        first.worker.watch(streams[-1])
    before, collected = gc.get_threshold(), 0
    try:
        # Pairs for 3,000 streams would be 3,000 objects: the collection runs among them.
        for _ in range(3):
            gc.collect()
            gc.disable()
            garbage: list[Any] = [streams.pop()]
            garbage.append(garbage)
            del garbage
            gc.set_threshold(1_000)
            gc.enable()
            first.worker.tick()
            first.worker.in_flight()
            collected += 1
    finally:
        gc.set_threshold(*before)
        gc.enable()
        for each in streams:
            each.disown()
    assert collected == 3


def test_columns_stay_as_they_are(timed: list[Timed]) -> None:
    """The thread of the gauge looks at a stream while the worker packs what it was given: its columns must not change in length."""
    for body in (Body("text/event-stream"), None):
        origin = Origin()
        stream = StreamRecorder(origin, start_span(origin, 0), 0, lambda _: None, body=body)
        found = []
        for _ in range(3):
            if body is None:
                stream.record(1, 1)
            else:
                stream.read((1, b"data: a\n\n"))
            found.append(stream.digest())
        assert [{len(each.times), len(each.sizes), len(each.kinds)} for each in found] == [{1}, {2}, {3}]
        stream.end()


def test_a_stream_that_sends_faster_than_it_is_parsed_does_not_keep_the_worker(timed: list[Timed], monkeypatch: pytest.MonkeyPatch) -> None:
    """What arrives while it is parsed waits for the next look."""
    stream = Timed()
    timed.append(stream)
    reads = 0

    def faster() -> None:
        nonlocal reads
        reads += 1
        stream.read(*[chat("a" * 1_000)] * 20)

    monkeypatch.setattr("legato._recorder.breathe", faster)
    stream.read(*[chat("a" * 1_000)] * 100)
    stream.stream.parse()
    assert 0 < reads <= 100 and stream.stream.undigested


def test_a_format_that_is_recognised_beyond_the_bound_is_no_fault(timed: list[Timed], monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of no format, which are measured again then, may have no chunk."""
    monkeypatch.setattr("legato._scan.CHUNKS_MAX", 2)
    stream = Timed()
    timed.append(stream)
    stream.read(*[{"x": 1}] * 4, chat("a"), chat("", "stop"))
    stream.stream.parse()
    assert stream.stream._source.scan.response.finished


def test_a_stream_of_another_kind_is_forgotten(timed: list[Timed]) -> None:
    """Once it is known as none of a model, nothing of it is kept, though its reader goes on."""
    stream = Timed()
    timed.append(stream)
    stream.stream.provisional = True
    stream.read(*[{"price": 1}] * 20)
    stream.stream.parse()
    assert stream.wait(1) and stream.stream.final_end() is None
    for _ in range(3):
        stream.read({"price": 1})
        stream.wait(1)
    assert not stream.stream.undigested


def test_what_follows_the_end_is_forgotten(timed: list[Timed]) -> None:
    """Reads after the worker ended a stream are kept no longer than to its next look."""
    stream = Timed()
    timed.append(stream)
    stream.read(chat("a"), chat("", "stop"), "[DONE]")
    assert stream.wait(3)
    stream.read(chat("b"))
    stream.wait(1)
    assert not stream.stream.undigested and len(stream.stream.digest().times) == 3


class Late(Exception):
    """A time limit of the application, which the handler of a signal raises."""


class Interrupted(queue.SimpleQueue[Any]):
    """A queue in which the handler runs as soon as something was put."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Put it, and raise."""
        super().put(item, block, timeout)
        raise Late


def late() -> int:
    """Stands in for the clock, which is read just before a stream is queued."""
    raise Late


@pytest.mark.parametrize("way", ["look", "flush", "garbage", "end", "close"])
@pytest.mark.parametrize("place", ["before", "after"])
def test_a_stream_is_queued_once_where_the_handler_of_a_signal_raises(
    place: str, way: str, spans: Callable[[], list[ReadableSpan]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just before its end is queued, or just after. It was lost and not counted."""
    worker = Worker(0)
    worker._start = lambda: None  # type: ignore[method-assign]
    origin = Origin()
    kept = [StreamRecorder(origin, start_span(origin, 0), 0, worker.finish)]
    worker.watch(kept[0])
    kept[0].record(1)
    with monkeypatch.context() as patched, suppress(Late):
        if place == "before":
            patched.setattr("legato._worker.now_ns", late)
        else:
            worker._queue = Interrupted()
        kept[0].end()
    assert kept[0].ended
    if way == "look":
        worker.tick()
        worker.tick()
    elif way == "garbage":
        kept.clear()
    elif way == "end":
        kept[0].end("timeout")
    elif way == "close":
        worker.close(1)
    if way not in ("flush", "close"):
        assert (worker.stats()["live"], worker.stats()["queued"]) == (0, 1)
    assert worker.flush(1)
    assert [worker.stats()[count] for count in ("started", "live", "queued", "ended")] == [1, 0, 0, 1]
    assert [(span.attributes or {})["legato.stream.outcome"] for span in spans()] == ["complete"]
