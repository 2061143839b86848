"""Recorders and the worker: one end per stream, threads, snapshots, limits, fork and exit, and the SDK's own faults."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan

import legato
from legato._body import Body
from legato._errors import ConfigurationError, faults, guard
from legato._recorder import Origin, StreamRecorder
from legato._settings import Settings
from legato._spans import attributes_of, start_span
from legato._worker import Worker

Spans = Callable[[], list[ReadableSpan]]
Columns = Callable[[ReadableSpan], dict[str, Any]]


def outcomes(spans: list[ReadableSpan]) -> list[str]:
    """Return the outcome of each span."""
    return [str((span.attributes or {})["legato.stream.outcome"]) for span in spans]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "complete"),
        (asyncio.CancelledError(), "client_cancel"),
        (KeyboardInterrupt(), "client_cancel"),
        (GeneratorExit(), "client_cancel"),
        (TimeoutError(), "timeout"),
        (ConnectionResetError(), "upstream_error"),
    ],
)
def test_the_exception_that_leaves_the_block_determines_the_outcome(spans: Spans, error: BaseException | None, outcome: str) -> None:
    """The class of the exception maps to an outcome; no exception is ``complete``."""
    try:
        with legato.stream(model="m") as recorder:
            recorder.record(4)
            if error:
                raise error
    except BaseException as raised:
        assert raised is error
    assert outcomes(spans()) == [outcome]


def test_only_the_first_end_counts(spans: Spans) -> None:
    """Many threads end one stream at once, and it has one span."""
    recorder = legato.stream(model="m")
    threads = [threading.Thread(target=recorder.end, args=(outcome,)) for outcome in ("timeout", "complete") * 8]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(spans()) == 1


def test_threads_may_record_concurrently(spans: Spans, columns: Columns) -> None:
    """Four threads record into one stream and no chunk is lost."""
    with legato.stream(model="m") as recorder:

        def work() -> None:
            for _ in range(500):
                recorder.record(1)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (span,) = spans()
    assert len(columns(span)["sizes"]) == 2_000


def test_a_dropped_recorder_is_a_cancel(spans: Spans) -> None:
    """A recorder that is garbage-collected without an end counts as cancelled."""
    legato.stream(model="m").record(1)
    gc.collect()
    assert outcomes(spans()) == ["client_cancel"]


def test_more_chunks_than_a_timeline_holds_are_counted(spans: Spans, columns: Columns) -> None:
    """The first 65,536 chunks are kept, and the number of dropped ones is sent."""
    with legato.stream(model="m") as recorder:
        for _ in range(65_540):
            recorder.record(1)
    (span,) = spans()
    found = dict(span.attributes or {})
    assert (found["legato.stream.chunks"], found["legato.stream.chunks_dropped"]) == (65_540, 4)
    assert len(columns(span)["sizes"]) == 65_536


@pytest.mark.parametrize("is_scanned", [False, True])
def test_an_open_gap_begins_at_the_last_chunk_of_all(monkeypatch: pytest.MonkeyPatch, is_scanned: bool) -> None:
    """Also where the timeline has no room for it, or the read was only counted: the span names no stall that was none."""
    for module in ("_scan", "_sse", "_recorder"):
        monkeypatch.setattr(f"legato.{module}.CHUNKS_MAX", 20)
    body = Body("text/event-stream") if is_scanned else None
    recorder = StreamRecorder(Origin(), start_span(Origin(), 0), 0, lambda _: None, body=body)
    event = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    now = 0
    monkeypatch.setattr("legato._recorder.now_ns", lambda: now)
    for now in range(100_000_000, 5_000_000_001, 100_000_000):
        if is_scanned:
            recorder.read((now, event))
        else:
            recorder.record(1)
    recorder.end("client_cancel", at_ns=5_300_000_000)
    columns, end = recorder.digest(), recorder.final_end()
    found = attributes_of(recorder, columns, end, 5_300_000_000)
    assert (columns.dropped, found["legato.stream.gap_max"], found["legato.stream.stalls"]) == (30, 0.3, 1)
    recorder.unparsed.lost_ns = 5_200_000_000
    assert attributes_of(recorder, columns, end, 5_300_000_000)["legato.stream.gap_max"] == 0.1


def test_snapshots_contain_everything_so_far(spans: Spans, columns: Columns) -> None:
    """Snapshots follow at 1, 3 and 9 times the interval, each with the next rev; the stream's span has the last rev."""
    now = [0]
    worker = Worker(1_000, lambda: now[0])
    worker._start = lambda: None  # type: ignore[method-assign]
    origin = Origin(model="m")
    recorder = StreamRecorder(origin, start_span(origin, 0), 0, worker._complete)
    worker.watch(recorder)
    for second in range(1, 11):
        now[0] = second * 1_000_000_000
        recorder._chunks.append((now[0], 1, None, 1))
        worker.tick()
    recorder.end(at_ns=11_000_000_000)
    found = [dict(span.attributes or {}) for span in spans()]
    assert [each["legato.stream.chunks"] for each in found] == [1, 3, 9, 10]
    assert [each["legato.stream.rev"] for each in found] == [1, 2, 3, 4]
    assert [each.get("legato.stream.next_due") for each in found] == [3.0, 9.0, 27.0, None]
    assert [each["legato.stream.outcome"] for each in found] == ["running"] * 3 + ["complete"]
    assert {each.get("legato.stream.span_id") for each in found[:3]} == {f"{recorder.span_id:016x}"}


def test_wrap_records_any_iterator(spans: Spans, columns: Columns) -> None:
    """Sync and async iterators that are exhausted, fail or are dropped have their outcome, and sizes are those of the content."""

    def failing() -> Iterator[str]:
        yield "a"
        raise ConnectionError

    async def texts() -> AsyncIterator[str]:
        yield "é"

    async def run() -> None:
        assert [text async for text in legato.wrap(texts(), model="m")] == ["é"]

    assert list(legato.wrap(["ab", "c"], model="m")) == ["ab", "c"]
    with pytest.raises(ConnectionError):
        list(legato.wrap(failing(), model="m"))
    next(legato.wrap(iter(["x", "y"]), model="m"))
    gc.collect()
    asyncio.run(run())
    found = spans()
    assert outcomes(found) == ["complete", "upstream_error", "client_cancel", "complete"]
    assert columns(found[0])["sizes"] == [2, 1] and columns(found[3])["sizes"] == [2]
    assert (found[0].attributes or {})["legato.stream.transport"] == "iterator" and "legato.stream.ttfb" not in (found[0].attributes or {})
    with pytest.raises(TypeError, match="int"):
        legato.wrap(7)  # type: ignore[call-overload]


EXIT = """
import legato
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
class Printer(SpanExporter):
    def export(self, spans):
        for span in spans: print(span.attributes["legato.stream.outcome"], flush=True)
        return SpanExportResult.SUCCESS
provider = TracerProvider(); provider.add_span_processor(SimpleSpanProcessor(Printer())); trace.set_tracer_provider(provider)
kept = legato.stream(model="m"); kept.record(1)
"""


def test_a_stream_that_is_open_at_exit_is_abandoned() -> None:
    """At interpreter exit the open stream is ended as abandoned and exported, before the provider shuts down."""
    run = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, check=True)
    assert run.stdout == "abandoned\n"


def test_a_forked_child_does_not_send_the_parents_streams(spans: Spans) -> None:
    """The child tracks none of the parent's streams, and the parent's stream is sent once."""
    with legato.stream(model="m") as recorder:
        recorder.record(1)
        child = os.fork()
        if not child:
            os._exit(0 if legato.stats()["live"] == 0 else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert outcomes(spans()) == ["complete"]


def test_chunks_of_two_threads_are_in_order(spans: Spans, columns: Columns, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread may read the clock before another one and append after it, also across a snapshot. Then both chunks have the later time."""
    recorder = legato.stream(model="m")
    times_us = iter((1000, 3000, 2000, 4000, 3500))
    monkeypatch.setattr("legato._recorder.now_ns", lambda: recorder.start_ns + next(times_us, 5000) * 1000)
    for size in range(4):
        recorder.record(size)
    recorder.digest()
    recorder.record(4)
    recorder.end()
    found = columns(spans()[0])
    assert found["times_us"] == [1000, 3000, 3000, 4000, 4000] and found["sizes"] == [0, 1, 2, 3, 4]


def test_a_fault_of_the_sdk_is_suppressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted and suppressed; under pytest it is counted and raised."""
    with pytest.raises(ZeroDivisionError), guard("a test"):
        raise ZeroDivisionError
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    with guard("a test"):
        raise ZeroDivisionError
    assert faults.pop("a test") == 2


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("LEGATO_SNAPSHOT_INTERVAL_MS", "soon", "whole number"),
        ("LEGATO_ENDPOINT", "here", "URL"),
        ("LEGATO_DISABLED", "perhaps", "true or false"),
    ],
)
def test_an_invalid_setting_is_reported(key: str, value: str, wanted: str) -> None:
    """The error has the variable's name, its value and the expected form."""
    with pytest.raises(ConfigurationError) as raised:
        Settings.from_env({key: value})
    assert all(part in str(raised.value) for part in (key, repr(value), wanted))


def test_the_hash_key_is_never_shown() -> None:
    """The repr of the settings does not contain the key."""
    assert "secret" not in repr(Settings.from_env({"LEGATO_CLIENT_HASH_KEY": "secret"}))
