"""Vantages from stored arrays: content chunks, their holds, and samples of the socket."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from helpers.builders.attribution import MS, ints, vantage
from legato_ingest.attribution.model.vantage import SocketSamples, Stream, Vantage

NONE = np.zeros(0, np.int64)


def test_chunks_without_content_are_left_out() -> None:
    """Text, reasoning and tool chunks stay; the hold of another chunk is added to the content chunk before it."""
    dt_us = np.array([100, 50, 50, 50, 50])
    seen = Vantage.of(10**9, dt_us, np.array([0, 1, 4, 2, 3]), np.array([0, 5, 9, 6, 7]), np.array([1, 1, 2, 0, 3]))
    assert (seen.times_ns - 10**9).tolist() == [150_000, 250_000, 300_000]
    assert seen.sizes.tolist() == [5, 6, 7] and seen.holds_ns.tolist() == [3 * 64_000, 0, 3 * 64_000]
    bare = Vantage.of(0, dt_us, np.array([0, 1, 4, 2, 3]), NONE, NONE)
    assert not len(bare.sizes) and not len(bare.holds_ns) and not len(bare.unread) and len(bare.times_ns) == 3


def test_a_stream_without_content_is_empty() -> None:
    """It has heartbeats only."""
    seen = Vantage.of(0, np.array([10, 10]), np.array([6, 6]), np.array([1, 1]), np.array([5, 5]))
    assert [len(column) for column in (seen.times_ns, seen.sizes, seen.holds_ns)] == [0, 0, 0]


def test_data_lay_unread_by_amount_or_by_age() -> None:
    """More queued than the rest of the window, or older than 2 % of the gap; a sample beyond the stream is left out."""
    columns = ([2, 4, 6, 8, 99], [9_001, 801, 2_001, 0, 5], [2_001, 60_001, 0, 0, 1], [1, 1, 401, 0, 1])
    sockets = SocketSamples(*map(np.array, columns))
    assert sockets.unread(np.full(10, 500_000)).tolist() == [2, 6]
    # Younger than the resolution of the kernel's clock: 4 ms.
    assert SocketSamples(*map(np.array, ([1], [0], [0], [5]))).unread(np.full(3, 1_000)).tolist() == []
    assert SocketSamples(*map(np.array, ([1], [0], [0], [6]))).unread(np.full(3, 1_000)).tolist() == [1]


def test_samples_follow_the_content_chunks() -> None:
    """Indices are those of the content chunks; a sample before a chunk without content is left out."""
    sockets = SocketSamples(*map(np.array, ([0, 1, 3], [9, 9, 9], [2, 2, 0], [0, 0, 0])))
    seen = Vantage.of(0, np.full(4, 500_000), np.array([0, 1, 1, 1]), NONE, NONE, sockets)
    assert seen.unread.tolist() == [0] and seen.sampled.tolist() == [0, 2]


def test_a_stream_begins_and_ends_where_its_server_saw_it() -> None:
    """Without a server the client's times count, and without content the start of the request."""
    stream = Stream("", 5 * MS, b"", b"", vantage(12, 22), vantage(10, 20), "e", "r", "c")
    assert (stream.first_ns, stream.last_ns) == (10 * MS, 20 * MS)
    alone = replace(stream, server=None)
    assert (alone.first_ns, alone.last_ns) == (12 * MS, 22 * MS)
    empty = replace(alone, judged=Vantage(ints(), NONE, NONE))
    assert (empty.first_ns, empty.last_ns) == (5 * MS, 5 * MS)
