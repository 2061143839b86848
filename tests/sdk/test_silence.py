"""Reports about silent streams: when they are sent, what they contain, and that a stream that flows sends none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from legato._recorder import Origin, StreamRecorder
from legato._silence import Silence
from legato._spans import start_span
from legato._timeline import Kind
from legato._worker import Worker

S = 1_000_000_000
STREAMS: list[StreamRecorder] = []
Spans = Callable[[], list[ReadableSpan]]


class Timed:
    """A stream under a worker without a thread, by a clock that the test sets."""

    def __init__(self, vantage: str = "client") -> None:
        self.now = 0
        self.worker = Worker(3_600_000, lambda: self.now)
        self.worker._start = lambda: None  # type: ignore[method-assign]
        origin = Origin(vantage=vantage, model="m", engine_id="e" if vantage == "server" else "")
        self.stream = StreamRecorder(origin, start_span(origin, 0), 0, self.worker._complete)
        self.worker.watch(self.stream)
        STREAMS.append(self.stream)

    def until(self, second: float, every: float = 0, kind: int = Kind.TEXT) -> None:
        """Let the time pass, with a tick each quarter of a second, and chunks ``every`` so many seconds."""
        due = self.now + every * S
        while self.now < second * S:
            self.now += S // 4
            if every and self.now >= due:
                self.stream._chunks.append((self.now, 1, None, int(kind)))
                due += every * S
            self.worker.tick()


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Spans:
    """Return a function that returns all spans of the process since the test began."""
    exporter.clear()
    return lambda: list(exporter.get_finished_spans())


@pytest.fixture(autouse=True)
def ended(exporter: InMemorySpanExporter) -> Iterator[None]:
    """End the streams of each test, so that none ends as garbage in another one."""
    yield
    while STREAMS:
        STREAMS.pop().end()
    exporter.clear()


def reports(spans: Spans, timed: Timed) -> list[tuple[float, float, bool]]:
    """Return the reports of the stream: the second of the report, the seconds of silence, and whether the stream went on."""
    found = []
    for span in spans():
        if span.name == "legato.stream.silence" and span.parent is not None and span.parent.span_id == timed.stream.span_id:
            attributes: dict[str, Any] = dict(span.attributes or {})
            assert span.start_time is not None and span.end_time is not None
            seconds = (span.end_time - span.start_time) / S
            found.append((seconds, seconds - attributes["legato.stream.silent_since"] / 1e6, bool(attributes.get("legato.stream.resumed"))))
    return found


def test_a_flowing_stream_sends_no_report(spans: Spans) -> None:
    """Gaps below 2 s cost nothing."""
    timed = Timed()
    timed.until(60, every=1.75)
    timed.stream.end(at_ns=timed.now)
    assert reports(spans, timed) == [] and timed.worker.stats()["silences"] == 0


def test_a_silent_stream_is_reported_at_2_8_30_and_90_s(spans: Spans) -> None:
    """Then at three times the length, every five minutes at most, and when it goes on. Each report says when the next one is due."""
    timed = Timed()
    timed.until(1, every=0.5)
    timed.until(901)
    timed.until(902, every=0.5)
    at = (2, 8, 30, 90, 270, 570, 870)
    assert reports(spans, timed) == [*((1 + length, length, False) for length in at), (901.5, 900.5, True)]
    due = [(span.attributes or {}).get("legato.stream.next_due") for span in spans() if span.name == "legato.stream.silence"]
    assert due == [*(1 + length for length in (*at[1:], 1170)), None]
    assert timed.worker.stats()["silences"] == 8
    timed.until(905)
    assert reports(spans, timed)[8:] == [(904, 2, False)], "the next silence begins anew"


def test_a_short_silence_has_no_second_report(spans: Spans) -> None:
    """Its end shows by the report at 8 s that does not follow."""
    timed = Timed()
    timed.until(1, every=1)
    timed.until(5)
    timed.until(20, every=1)
    assert reports(spans, timed) == [(3, 2, False)]


def test_the_wait_for_the_first_content_is_a_silence(spans: Spans) -> None:
    """It counts from the start of the stream, whatever arrives without content."""
    timed = Timed()
    timed.until(9, every=1, kind=Kind.HEARTBEAT)
    assert reports(spans, timed) == [(2, 2, False), (8, 8, False)]


def test_heartbeats_do_not_hide_a_silence(spans: Spans) -> None:
    """A server that stands still may go on sending them."""
    timed = Timed()
    timed.until(1, every=0.5)
    timed.until(10, every=0.5, kind=Kind.HEARTBEAT)
    assert [(at, silence) for at, silence, _ in reports(spans, timed)] == [(3, 2), (9, 8)]


def test_an_ended_stream_is_not_reported(spans: Spans) -> None:
    """The end is the stream's own span."""
    timed = Timed()
    timed.until(9)
    timed.stream.end(at_ns=timed.now)
    timed.until(60)
    assert len(reports(spans, timed)) == 2


@pytest.mark.parametrize(("vantage", "kind"), [("client", SpanKind.CLIENT), ("server", SpanKind.SERVER), ("gateway", SpanKind.SERVER)])
def test_a_report_is_a_small_child_of_its_stream(spans: Spans, vantage: str, kind: SpanKind) -> None:
    """It names the model and the engine, and no more; the kind of the span distinguishes client and server."""
    timed = Timed(vantage)
    timed.until(2)
    (span,) = (each for each in spans() if each.parent is not None and each.parent.span_id == timed.stream.span_id)
    assert span.name == "legato.stream.silence" and span.kind == kind
    named = {"legato.engine.id"} if vantage == "server" else {"legato.stream.vantage"} if vantage == "gateway" else set()
    assert set(span.attributes or {}) == {"gen_ai.request.model", "legato.stream.silent_since", "legato.stream.next_due"} | named


def test_without_snapshots_there_are_no_reports(spans: Spans) -> None:
    """LEGATO_SNAPSHOT_INTERVAL_MS=0 turns off everything that is sent before the end."""
    timed = Timed()
    timed.worker._interval_ns = 0
    timed.until(60)
    assert reports(spans, timed) == []


def test_in_flight_counts_running_streams() -> None:
    """By vantage and model; ended streams and streams without a reference do not count."""
    timed = Timed()
    assert dict(timed.worker.in_flight()) == {("client", "m"): 1}
    timed.stream.end(at_ns=1)
    timed.worker.tick()
    assert dict(timed.worker.in_flight()) == {}


def test_a_silence_knows_when_its_next_report_is_due() -> None:
    """A tick long after several due times makes one report."""
    timed, silence = Timed(), Silence()
    timed.now = 40 * S
    assert silence.tick(timed.stream, timed.now) and not silence.tick(timed.stream, timed.now)
    assert not silence.tick(timed.stream, 89 * S) and silence.tick(timed.stream, 90 * S)
