"""Span events, one a chunk: which events are chunks, and the timeline of their times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from legato_ingest.otlp.emitters import chunk_events as module
from legato_ingest.otlp.emitters.chunk_events import ChunkEvents, chunk_events
from legato_ingest.timeline.codec import KNOWN, Timelines, decode, read_head

START_NS = 1_795_240_000_000_000_000


def events_of(
    times_ns: list[int], name: str = "chunk", dropped: int = 0, others: tuple[str, ...] = (), streamed: bool | None = True
) -> ChunkEvents | None:
    """The chunk events of a span of 10 s with events at these times after its start."""
    span = Span(start_time_unix_nano=START_NS, end_time_unix_nano=START_NS + 10_000_000_000, dropped_events_count=dropped)
    for at in times_ns:
        span.events.add(name=name, time_unix_nano=max(0, START_NS + at))
    for other in others:
        span.events.add(name=other, time_unix_nano=START_NS)
    return chunk_events(span, streamed=streamed)


def decoded(events: ChunkEvents) -> Timelines:
    """The timeline of chunk events."""
    timelines, bad = decode([events.timeline], [read_head(events.timeline, KNOWN)])
    assert not bad
    return timelines


@pytest.mark.parametrize(
    ("name", "times"),
    [
        ("gen_ai.content.completion.chunk", 2),
        ("llm.content.completion.chunk", 2),
        ("chunk", 2),
        ("my.app/token-received", 2),
        ("gen_ai.choice", 8),
    ],
)
def test_events_that_stand_for_chunks(name: str, times: int) -> None:
    """Known names, names with a word for chunks, and any name that is frequent; a single event and rare names are none."""
    found = events_of([each * 1_000_000 for each in range(times)], name, others=("exception", "gen_ai.user.message"))
    assert found is not None and found.chunks == times
    assert events_of([each * 1_000_000 for each in range(times - 1)], name) is None


def named(*names: str, streamed: bool | None = True) -> ChunkEvents | None:
    """The chunk events of a span of 10 s with an event each 100 ms from 0.1 s on."""
    span = Span(start_time_unix_nano=START_NS, end_time_unix_nano=START_NS + 10_000_000_000)
    for number, name in enumerate(names, 1):
        span.events.add(name=name, time_unix_nano=START_NS + number * 100_000_000)
    return chunk_events(span, streamed=streamed)


KNOWN_NAME = "gen_ai.content.completion.chunk"


@pytest.mark.parametrize(
    ("names", "chunks", "first_ms"),
    [
        # Reasoning between two parts of the text.
        (["content.delta"] * 20 + ["thinking.delta"] * 30 + ["content.delta"] * 10, 60, 100),
        (["thinking.delta"] * 9 + [KNOWN_NAME] * 30, 39, 100),
        (["thinking.delta"] * 9 + ["chunk"] * 60, 69, 100),
        # A stray event, and documents that were retrieved.
        (["chunk"] + ["content.delta"] * 40, 40, 200),
        ([KNOWN_NAME] + ["content.delta"] * 40, 40, 200),
        (["chunk"] * 3 + ["content.delta"] * 40, 40, 400),
        # Two moments of each chunk.
        (["chunk.received", "chunk.sent"] * 30, 30, 200),
        ([KNOWN_NAME, "chunk.sent"] * 30, 30, 100),
    ],
)
def test_chunks_may_have_several_names(names: list[str], chunks: int, first_ms: int) -> None:
    """A chunk of another kind is no pause, and one that has two events is one chunk."""
    found = named(*names)
    assert found is not None and (found.chunks, found.first_us) == (chunks, first_ms * 1000)


def test_several_names_are_ordered_by_time() -> None:
    """An application may add the events of one kind at the end."""
    span = Span(start_time_unix_nano=START_NS, end_time_unix_nano=START_NS + 10_000_000_000)
    for name, first in (("content.delta", 5), ("thinking.delta", 1)):
        for number in range(first, first + 4):
            span.events.add(name=name, time_unix_nano=START_NS + number * 1_000_000_000)
    found = chunk_events(span, streamed=True)
    assert found is not None and decoded(found).dt_us.tolist() == [1_000_000] * 8


@pytest.mark.parametrize(("count", "streamed", "chunks"), [(5, None, None), (5, True, 5), (60, None, 60)])
def test_the_plain_word_may_name_a_retrieved_document(count: int, streamed: bool | None, chunks: int | None) -> None:
    """Where the span does not say that it streamed, a response's chunks are those that reach past half of the span."""
    found = named(*["chunk"] * count, streamed=streamed)
    assert (found.chunks if found else None) == chunks


@pytest.mark.parametrize("streamed", [None, False])
@pytest.mark.parametrize("count", [2, 40])
def test_only_a_stream_has_chunks_of_any_name(count: int, streamed: bool | None) -> None:
    """Retrieved chunks, refreshed tokens and look-ups are events, too. Names that libraries use for chunks alone need no flag."""
    times = [each * 1_000_000 for each in range(count)]
    for name in ("retrieved_chunk", "token_refresh", "cache.lookup", "delta"):
        assert events_of(times, name, streamed=streamed) is None
    for name in ("gen_ai.content.completion.chunk", "gen_ai.chunk", "mlflow.chunk.item.7"):
        found = events_of(times, name, streamed=streamed)
        assert found is not None and found.chunks == count


@pytest.mark.parametrize("name", ["exception", "First Token Stream Event", "gen_ai.user.message", "tool_start", "gen_ai.evaluation.result"])
def test_events_that_mark_a_moment_are_no_chunks(name: str) -> None:
    """However often they occur."""
    assert events_of([each * 1_000_000 for each in range(40)], name) is None


@given(times=st.lists(st.integers(-(10**9), 20 * 10**9), min_size=2, max_size=60), dropped=st.integers(0, 3))
def test_the_timeline_has_each_time(times: list[int], dropped: int) -> None:
    """Times in order and within the span are exact to the microsecond; others are moved to the nearest possible time.

    The time of the first one may be negative.
    """
    found = events_of(times, dropped=dropped)
    assert found is not None and found.head_known == (dropped == 0)
    running, expected = 0, []
    for at in times:
        running = max(running, min(max(at, 0), 10_000_000_000) // 1000)
        expected.append(running)
    timelines = decoded(found)
    assert timelines.dt_us.cumsum().tolist() == expected and found.first_us == min(times[0], 10_000_000_000) // 1000
    # The first chunk may be a prelude, so it has no content; after dropped events the first that is left is any chunk.
    assert timelines.kinds.tolist() == [1 if dropped else 0, *[1] * (len(times) - 1)]


def test_a_hostile_name_takes_no_time() -> None:
    """Digits without an end: a pattern that searches for a number at the end would take hours for this name."""
    assert events_of([1, 2], "1" * 2_000_000 + "x") is None


def test_a_span_has_at_most_65_536_chunks() -> None:
    """More events are cut from the front, like those that an SDK drops."""
    found = events_of([each * 1_000 for each in range(70_000)])
    assert found is not None and (found.chunks, found.dropped) == (65_536, 70_000 - 65_536)


NAME = st.sampled_from(["gen_ai.content.completion.chunk", "gen_ai.content.completion.chunk", "chunk", "x" * 130, "step", "exception"])
EVENTS = st.lists(st.tuples(NAME, st.integers(0, 2 * 10**9), st.booleans()), max_size=24)


@given(same=st.booleans(), events=EVENTS, prefix=st.booleans(), streamed=st.booleans())
def test_equal_events_are_read_as_others_are(same: bool, events: list[tuple[str, int, bool]], prefix: bool, streamed: bool) -> None:
    """Events that differ in their times alone are read from the message's bytes, whatever the other attributes hold."""
    span = Span(start_time_unix_nano=START_NS, end_time_unix_nano=START_NS + 10**9)
    for name, at, has_attribute in events:
        event = span.events.add(name=events[0][0] if same else name, time_unix_nano=START_NS + at if at else 0)
        if has_attribute and not same:
            event.attributes.add(key="n").value.int_value = at
    if prefix and events:
        span.attributes.add(key="copy").value.bytes_value = span.events[0].SerializeToString() * 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_EQUAL_MIN", 10**9)
        expected = chunk_events(span, streamed=streamed)
    assert chunk_events(span, streamed=streamed) == expected
