"""The bound on unparsed reads: for one stream and for all, what is recorded beyond it, and that each page is returned."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan

import legato
from helpers.builders.formats import FORMATS, WORDS
from legato._body import Body
from legato._clock import now_ns
from legato._items import Items
from legato._recorder import StreamRecorder
from legato._records import Origin
from legato._spans import start_span
from legato._stream import begin
from legato._unparsed import OWN_PAGES, PAGE_BYTES, READ_BYTES, UNPARSED_BYTES_MAX, Folded
from legato._worker import Worker

Spans = Callable[[], list[ReadableSpan]]
WIRE = FORMATS["openai-chat"]
PAGES = UNPARSED_BYTES_MAX // PAGE_BYTES


def stream(encoding: str = "", body: Body | Items | None = None) -> StreamRecorder:
    """Return a running stream that no worker knows."""
    origin = Origin()
    return StreamRecorder(origin, start_span(origin, 0), 0, lambda _: None, body=body or Body("text/event-stream", encoding))


def held(recorder: StreamRecorder) -> int:
    """Return the bytes of the unparsed reads of a stream."""
    return sum(READ_BYTES + (len(data) if isinstance(data, bytes) else 0) for _, data in recorder.unparsed.reads)


@pytest.mark.parametrize("size", [1, 200, 65_536, 1 << 20])
@pytest.mark.parametrize("streams", [1, 4, 40])
def test_what_streams_hold_has_a_bound(stock: Callable[[], int], size: int, streams: int) -> None:
    """For all of them together, however many and whatever the size of their reads; each has some."""
    recorders = [stream() for _ in range(streams)]
    data = bytes(size)
    for _ in range(2 * UNPARSED_BYTES_MAX // (size + READ_BYTES) // streams + 1):
        for recorder in recorders:
            recorder.read((1, data))
    assert sum(map(held, recorders)) <= UNPARSED_BYTES_MAX + streams * PAGE_BYTES
    assert stock() >= 0 and all(recorder.unparsed.reads for recorder in recorders)


def test_a_fast_stream_leaves_room_for_others(stock: Callable[[], int]) -> None:
    """One that sends without end takes half, and the reads of another are kept as they are."""
    fast, usual = stream(), stream()
    for _ in range(1_000):
        fast.read((1, bytes(1 << 16)))
    assert held(fast) < UNPARSED_BYTES_MAX * 0.6
    for _ in range(100):
        usual.read((1, WIRE.words[0]))
    assert fast.unparsed.folded and not usual.unparsed.folded


def test_many_usual_streams_are_not_folded(stock: Callable[[], int]) -> None:
    """Nor lose reads: 400 streams of 25 KB a second, which the worker looks at four times a second, need more than the stock."""
    worker = Worker(0, lambda: 0)
    worker._start = lambda: None  # type: ignore[method-assign]
    recorders = [stream() for _ in range(400)]
    for recorder in recorders:
        worker.watch(recorder)
    data, least = WIRE.words[0].ljust(300) + b"\n\n", PAGES
    for _ in range(12):
        for recorder in recorders:
            for _ in range(11):
                recorder.read((1, data))
        least = min(least, stock())
        worker.tick()
    assert least < PAGES // 4
    assert not any(recorder.unparsed.folded or recorder.unparsed.lost for recorder in recorders)
    for recorder in recorders:
        recorder.disown()


@pytest.mark.parametrize("size", [300, 4_000, 65_536])
def test_a_flood_leaves_room_however_long_it_lasts(stock: Callable[[], int], size: int) -> None:
    """Also the times and sizes of its reads, which are kept beyond its share, are bounded; a large read leaves as much as it takes."""
    flood, large = stream(), stream()
    large.read((1, bytes(UNPARSED_BYTES_MAX * 3 // 4)))
    assert stock() >= PAGES - 2 and large.unparsed.folded == 1
    for _ in range(40_000):
        flood.read((1, bytes(size)))
    assert flood.unparsed.folded and stock() >= PAGES // 5
    whole = sum(READ_BYTES + len(data) for _, data in flood.unparsed.reads if type(data) is bytes)
    assert whole <= UNPARSED_BYTES_MAX // 2 + PAGE_BYTES


def test_a_usual_stream_is_not_folded_beside_floods(stock: Callable[[], int]) -> None:
    """However many they are: each stream has pages for itself, which are returned as others are."""
    floods, usual = [stream() for _ in range(12)], stream()
    for flood in floods:
        for _ in range(3_000):
            flood.read((1, bytes(4_000)))
    for _ in range(60):
        usual.read((1, WIRE.words[0]))
    assert stock() < PAGES // 10 and not usual.unparsed.folded and not usual.unparsed.lost
    for each in (usual, *floods, usual):
        each.parse()
    usual.read((1, WIRE.words[0]))
    assert stock() <= PAGES


@pytest.mark.parametrize("size", [10, 5_000, 300_000])
def test_times_and_sizes_are_exact_beyond_the_bound(stock: Callable[[], int], size: int) -> None:
    """Each read counts, with its time and its bytes, whether it was parsed, folded or only counted."""
    recorder, data = stream(), WIRE.words[0] * (size // len(WIRE.words[0]) + 1)
    reads = 2 * UNPARSED_BYTES_MAX // (len(data) + READ_BYTES)
    for time_ns in range(1, reads + 1):
        recorder.read((time_ns, data))
    unparsed = recorder.unparsed
    found = recorder.digest()
    assert unparsed.folded and recorder.wire_bytes == reads * len(data)
    whole = reads - unparsed.folded - unparsed.lost
    assert len(found.times) + found.dropped == whole * data.count(b"\n\n") + unparsed.folded + unparsed.lost
    folded = [size for time_ns, size in zip(found.times, found.sizes, strict=True) if size == len(data)]
    assert len(folded) == min(unparsed.folded, len(folded)) and sorted(found.times) == found.times
    recorder.end()
    recorder.digest()


def test_what_follows_a_gap_is_read(stock: Callable[[], int]) -> None:
    """As soon as reads have been parsed, further ones are kept; the end of the stream is that of its events."""
    recorder = stream()
    recorder.read((1, b"".join(WIRE.prelude)))
    for time_ns in range(2, 2_000):
        recorder.read((time_ns, b"data: " + b"x" * 20_000))
    recorder.parse()
    for event in (b'"}\n\n', *WIRE.words, *WIRE.end):
        recorder.read((5_000, event))
    recorder.end()
    columns, end = recorder.digest(), recorder.final_end()
    assert recorder.unparsed.folded and end is not None and end.outcome == "complete"
    assert recorder.response is not None and recorder.response.output_tokens == 5
    assert [size for time_ns, size in zip(columns.times, columns.sizes, strict=True) if time_ns == 5_000 and size][-5:] == [5, 9, 8, 9, 5]


def test_a_break_after_a_gap_is_known(stock: Callable[[], int]) -> None:
    """Content was read after it, and no end mark; if nothing was read after it, the mark may have been in it."""
    for following, expected in ((WIRE.words, "upstream_error"), ((), "complete")):
        recorder = stream()
        recorder.read((1, b"".join(WIRE.prelude)))
        for time_ns in range(2, 2_000):
            recorder.read((time_ns, WIRE.words[0] * 100))
        recorder.parse()
        for event in following:
            recorder.read((5_000, event))
        recorder.end()
        recorder.digest()
        end = recorder.final_end()
        assert recorder.unparsed.folded and end is not None and end.outcome == expected


def test_what_is_compressed_is_lost_from_a_gap_on(stock: Callable[[], int]) -> None:
    """Its reads then count with the bytes that arrived."""
    recorder = stream("gzip")
    for time_ns in range(1, 2_000):
        recorder.read((time_ns, os.urandom(5_000)))
    recorder.end()
    assert set(recorder.digest().sizes) == {5_000} and recorder.unparsed.folded


def test_pages_are_returned_by_every_end(stock: Callable[[], int]) -> None:
    """By parsing, by the end, when a stream is forgotten, and when it is garbage."""
    for end in ("parse", "end", "discard", "garbage"):
        recorder = stream()
        for _ in range(200):
            recorder.read((1, bytes(PAGE_BYTES)))
        assert stock() < PAGES - 100
        if end == "parse":
            recorder.parse()
        elif end == "end":
            recorder.end()
            recorder.digest()
        elif end == "discard":
            recorder.discard()
            recorder.is_taken = True
            recorder.forget()
        del recorder
        gc.collect()
        assert stock() == PAGES, end


def test_a_reader_that_goes_on_after_the_end_keeps_nothing(stock: Callable[[], int]) -> None:
    """Less than a page, however long it reads."""
    recorder = stream()
    recorder.end()
    recorder.digest()
    for _ in range(10_000):
        recorder.read((1, bytes(500)))
    assert held(recorder) <= PAGE_BYTES and stock() == PAGES


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_has_the_whole_bound(stock: Callable[[], int]) -> None:
    """The reads of its parent are its parent's; garbage in the child adds no pages."""
    recorder = stream()
    for _ in range(300):
        recorder.read((1, bytes(PAGE_BYTES)))
    child = os.fork()
    if not child:
        before = stock()
        del recorder
        gc.collect()
        os._exit(0 if before == stock() == PAGES else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_many_threads_take_no_page_twice(stock: Callable[[], int]) -> None:
    """Reads of many streams in as many threads, while another thread parses; a switch at nearly each instruction."""
    recorders = [stream() for _ in range(6)]

    def work(recorder: StreamRecorder) -> None:
        for _ in range(2_000):
            recorder.read((1, bytes(6_000)))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(7) as pool:
            done = [pool.submit(work, recorder) for recorder in recorders]
            while not all(each.done() for each in done):
                for recorder in recorders:
                    recorder.parse()
                assert stock() <= PAGES
    finally:
        sys.setswitchinterval(interval)
    for recorder in recorders:
        recorder.end()
        recorder.digest()
        assert recorder.wire_bytes == 2_000 * 6_000
    assert stock() == PAGES


def test_a_stream_with_folded_reads_is_counted(spans: Spans, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `legato.stats()`, and once in the log; its span has all reads."""
    monkeypatch.setattr("legato._errors._seen", set())
    before = legato.stats()["folded"]
    for _ in range(2):
        recorder = begin(Origin(model="m"), body=Body("text/event-stream"))
        for _ in range(3_000):
            recorder.read((now_ns(), bytes(10_000)))
        recorder.end()
    found: list[Any] = [dict(span.attributes or {}) for span in spans()]
    assert [each["legato.stream.wire_bytes"] for each in found] == [30_000_000] * 2
    assert legato.stats()["folded"] == before + 2 and caplog.text.count("arrived faster than it could be parsed") == 1


def test_a_read_that_nothing_is_left_for_is_counted(stock: Callable[[], int]) -> None:
    """Its time is that of the last one. The next read that can be kept is folded, so that the gap is known."""
    recorder = stream()
    unparsed = recorder.unparsed
    pages = [unparsed._stock.pop() for _ in range(stock())]
    for time_ns in range(1, 2_001):
        recorder.read((time_ns, WIRE.words[0]))
    assert unparsed.lost and unparsed.lost_ns == 2_000 and len(unparsed.reads) + unparsed.lost == 2_000
    assert recorder.undigested * READ_BYTES <= PAGE_BYTES * (1 + OWN_PAGES)
    unparsed._stock.extend(pages)
    for time_ns in (3_000, 3_001):
        recorder.read((time_ns, WIRE.words[0]))
    assert [type(data) for _, data in unparsed.reads][-2:] == [Folded, bytes]
    found = recorder.digest()
    assert len(found.times) + found.dropped == 2_002 and recorder.wire_bytes == 2_002 * len(WIRE.words[0])


def lose(recorder: StreamRecorder, time_ns: int) -> None:
    """Let a stream read, beginning at this time, until reads of it are lost."""
    unparsed = recorder.unparsed
    pages = [unparsed._stock.pop() for _ in range(len(unparsed._stock))]
    while not unparsed.lost:
        recorder.read((time_ns, WIRE.words[0]))
        time_ns += 1
    unparsed._stock.extend(pages)


def test_a_stream_that_goes_on_after_a_gap_is_not_silent(stock: Callable[[], int]) -> None:
    """It is as long as nothing follows, and the loss counts as content."""
    recorder, second = stream(), 1_000_000_000
    recorder.read((1, b"".join(WIRE.prelude)))
    lose(recorder, second)
    recorder.parse()
    since = recorder.silent_since(10 * second, 2 * second)
    assert since is not None and since == recorder.unparsed.lost_ns and recorder.content_after(1) >= second
    for time_s in range(11, 20):
        recorder.read((time_s * second, WIRE.words[0]))
        recorder.parse()
    assert recorder.silent_since(20 * second, 2 * second) is None


@pytest.mark.parametrize("is_parsed", [False, True])
def test_a_gap_is_where_the_reads_were_lost(stock: Callable[[], int], is_parsed: bool) -> None:
    """What followed it before it was parsed is read as it is: an event in two reads, and that the response was cut then."""
    recorder = stream()
    recorder.read((1, b"".join(WIRE.prelude)))
    lose(recorder, 2)
    lost = recorder.unparsed.lost
    if is_parsed:
        recorder.parse()
    for event in WIRE.words:
        recorder.read((10_000, event))
    recorder.read((10_001, WIRE.words[1][:40]))
    recorder.parse()
    recorder.read((10_002, WIRE.words[1][40:]))
    recorder.end()
    columns, end = recorder.digest(), recorder.final_end()
    assert columns.sizes[-1] == len(WORDS[1].encode()) and columns.times[-1] == 10_002
    assert columns.dropped == lost and end is not None and end.outcome == "upstream_error"


def test_a_stream_that_is_ignored_is_not_counted_as_folded(spans: Spans) -> None:
    """It is in no record."""
    before = legato.stats()["folded"]
    recorder = begin(Origin(model="m"), body=Body("text/event-stream"))
    recorder.provisional = True
    for _ in range(1_000):
        recorder.read((now_ns(), bytes(60_000)))
    recorder.end()
    assert recorder.unparsed.folded and not spans() and legato.stats()["folded"] == before
