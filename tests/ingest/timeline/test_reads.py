"""Reads, epochs and gaps of hand-made timelines."""

from __future__ import annotations

import numpy as np
import pytest

from legato._timeline import pack
from legato_ingest.timeline.codec import Timelines, decode, read_head
from legato_ingest.timeline.reads import find_reads, gaps_between_epochs

TEXT, REASONING, TOOL, USAGE = 1, 2, 3, 5


def timelines(*streams: list[tuple[int, int, int]]) -> Timelines:
    """Return timelines of streams with (µs from the start, bytes, kind) per chunk."""
    blobs = [pack([c[0] for c in chunks], [c[1] for c in chunks], None, [c[2] for c in chunks]) for chunks in streams]
    found, bad = decode(blobs, [read_head(blob) for blob in blobs])
    assert not bad
    return found


def test_chunks_of_one_moment_are_one_read() -> None:
    """Their bytes are added, text counts separately, and chunks without content are no reads."""
    reads = find_reads(timelines([(10, 4, TEXT), (10, 3, TOOL), (10, 0, USAGE), (20, 5, REASONING)], [], [(7, 1, TEXT)]))
    assert reads.streams.lengths.tolist() == [2, 0, 1] and reads.content_chunks.tolist() == [3, 0, 1]
    assert reads.times_us.tolist() == [10, 20, 7] and reads.sizes.tolist() == [7, 5, 1]
    assert reads.text_sizes.tolist() == [4, 0, 1] and reads.has_text.tolist() == [True, False, True]


def test_streams_without_simultaneous_chunks_have_a_read_per_chunk() -> None:
    """This holds for the shortcut that is taken when no chunks coincide in a batch."""
    reads = find_reads(timelines([(0, 1, TEXT), (1, 2, REASONING)], [(1, 3, TEXT)]))
    assert reads.streams.lengths.tolist() == [2, 1]
    assert (reads.times_us.tolist(), reads.sizes.tolist(), reads.text_sizes.tolist()) == ([0, 1, 1], [1, 2, 3], [1, 0, 3])


@pytest.mark.parametrize(
    ("times_ms", "gaps_ms"),
    [
        ([], []),
        ([3], []),
        ([0, 100], [100]),
        ([0, 4, 8], [4]),
        ([0, 5, 10], [5, 5]),
        ([0, 3, 6, 9, 12], [3, 3]),
        ([0, 2, 4, 50, 52], [46]),
    ],
)
def test_a_gap_is_the_distance_of_two_epochs(times_ms: list[int], gaps_ms: list[int]) -> None:
    """From the last read of an epoch to the first of the next; an epoch lasts less than 5 ms. A neighbouring stream changes nothing."""
    stream = [(time * 1000, 1, TEXT) for time in times_ms]
    neighbour = [(0, 1, TEXT), (70_000, 1, TEXT)]
    for streams, expected in (([stream], [gaps_ms]), ([neighbour, stream, neighbour], [[70], gaps_ms, [70]])):
        segments, gaps = gaps_between_epochs(find_reads(timelines(*streams)))
        assert [(gaps[a:b] / 1000).tolist() for a, b in zip(segments.starts, segments.ends, strict=True)] == expected
        assert segments.lengths.dtype == np.int64
