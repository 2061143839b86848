"""Reads, epochs and gaps of streams, from the chunks of their timelines.

Chunks with content and the same time form one **read**. Reads less than 5 ms after the first of them form one **epoch**. A **gap** is the
time from the last read of an epoch to the first read of the next, so every gap is the distance of two reads. The module computes no
statistics.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from legato_ingest.definitions import REASONING, TEXT, TOOL
from legato_ingest.timeline.codec import Timelines
from legato_ingest.timeline.ragged import Segments

__all__ = ["EPOCH_US", "Reads", "gaps_between_epochs", "find_reads"]

# The larger of 5 ms and twice the resolution of the timer, which is 1 µs here.
EPOCH_US = 5_000


@dataclass(slots=True)
class Reads:
    """The reads of many streams, concatenated: time in µs from the start of the stream, bytes of content, bytes of text of each read."""

    streams: Segments
    times_us: NDArray[np.int64]
    sizes: NDArray[np.int64]
    text_sizes: NDArray[np.int64]
    has_text: NDArray[np.bool_]
    content_chunks: NDArray[np.int64]


def find_reads(timelines: Timelines) -> Reads:
    """Return the reads of timelines. Chunks without content (role, usage, heartbeat, retract, done) are not reads."""
    chunks = timelines.streams
    times = chunks.cumulate(timelines.dt_us)
    is_text = timelines.kinds == TEXT
    content = is_text | (timelines.kinds == REASONING) | (timelines.kinds == TOOL)
    lengths = chunks.sums(content)
    kept = Segments.of_lengths(lengths)
    times, sizes, text = times[content], timelines.sizes[content].astype(np.int64), is_text[content]
    first = np.ones(len(times), np.bool_)
    first[1:] = times[1:] != times[:-1]
    first[kept.starts[kept.filled]] = True
    if first.all():
        return Reads(kept, times, sizes, np.where(text, sizes, 0), text, lengths)
    at = np.flatnonzero(first)
    return Reads(
        Segments.of_lengths(kept.sums(first)),
        times[at],
        np.add.reduceat(sizes, at),
        np.add.reduceat(np.where(text, sizes, 0), at),
        np.logical_or.reduceat(text, at),
        lengths,
    )


def gaps_between_epochs(reads: Reads) -> tuple[Segments, NDArray[np.int64]]:
    """Return the gaps of each stream in µs, in order of time and without its open gap: one fewer than it has epochs."""
    times, streams = reads.times_us, reads.streams
    starts = _epoch_starts(times, streams)
    if starts.all():
        inner = np.ones(len(times), np.bool_)
        inner[streams.starts[streams.filled]] = False
        return Segments.of_lengths(np.maximum(streams.lengths - 1, 0)), np.diff(times)[inner[1:]]
    at = np.flatnonzero(starts)
    epochs = Segments.of_lengths(streams.sums(starts))
    inner = np.ones(len(at), np.bool_)
    inner[epochs.starts[epochs.filled]] = False
    at = at[inner]
    return Segments.of_lengths(np.maximum(epochs.lengths - 1, 0)), times[at] - times[at - 1]


def _epoch_starts(times: NDArray[np.int64], streams: Segments) -> NDArray[np.bool_]:
    """Return which reads begin an epoch: the first of a stream, and each read at least 5 ms after the first read of its previous epoch.

    A read at least 5 ms after the read before it always begins an epoch. Such reads divide a stream into runs; only runs of at least 5 ms
    have to be walked, and all of these are walked together.
    """
    starts = np.ones(len(times), np.bool_)
    starts[1:] = times[1:] - times[:-1] >= EPOCH_US
    starts[streams.starts[streams.filled]] = True
    runs = np.flatnonzero(starts)
    if not len(runs):
        return starts
    lengths = np.diff(np.append(runs, len(times)))
    spans = times[runs + lengths - 1] - times[runs]
    long = spans >= EPOCH_US
    if long.any():
        _walk(times, runs[long], lengths[long], spans[long], starts)
    return starts


def _walk(
    times: NDArray[np.int64],
    runs: NDArray[np.int64],
    lengths: NDArray[np.int64],
    spans: NDArray[np.int64],
    starts: NDArray[np.bool_],
) -> None:
    """Mark the epochs inside long runs: jump from the first read of each epoch to the first read at least 5 ms later."""
    inside = Segments.of_lengths(lengths)
    where = np.repeat(runs, lengths) + inside.ranks()
    # All runs are placed on one ascending axis, so far apart that a jump beyond a run lands on the first read of the next.
    shift = np.cumsum(spans + EPOCH_US) - (spans + EPOCH_US)
    axis = times[where] - np.repeat(times[runs] - shift, lengths)
    jump = np.searchsorted(axis, axis + EPOCH_US)
    ends = inside.ends
    at = inside.starts
    while at.size:
        starts[where[at]] = True
        following = jump[at]
        alive = following < ends
        at, ends = following[alive], ends[alive]
