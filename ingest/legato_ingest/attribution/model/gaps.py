"""Gaps of streams: which two chunks bound each gap, when they were at the server, and what the record of the judged vantage shows
about it.

The module charges no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.matching import server_chunks, server_gaps
from legato_ingest.attribution.model.median import median
from legato_ingest.attribution.model.vantage import Vantage
from legato_ingest.timeline.reads import EPOCH_US

__all__ = ["GAPS_MAX", "Gaps", "gaps_of"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

GAPS_MAX = 1_024
"""Of a stream so many gaps are judged at most, the longest. A stream of 65,536 chunks can have half as many stalls, each with a verdict."""
# A stream passed through a buffer if this share of its chunks or more arrived in releases of several, and it had this many releases. Chunks
# that the server sent within so many ns count as one: a step may produce several tokens, each with its event.
_BUFFERED_SHARE, _RELEASES_MIN, _APART_NS = 0.75, 3, 1_000 * EPOCH_US
# A buffer's release may come so many times later than usual, or bring so many times as much. Beyond both it was not the buffer that waited.
_USUAL_MAX = 4
# Chunks within this share of a gap after its end count as right behind it. A gap with fewer missing chunks, or with fewer chunks left in
# the stream, allows no conclusion.
_BEHIND_SHARE, _MISSING_MIN, _LEFT_MIN = 0.15, 1, 4


@dataclass(frozen=True, slots=True)
class Gaps:
    """Gaps between reads of content, one entry each. Client times are by the client's clock, server times by the server's.

    ``has_client``: a client recorded the gap. If not, the gap lies between two sends of the server and nothing is known of the delivery:
    the columns about the client have the server's times, no hold and no socket. ``has_server``: the two chunks were seen at the server,
    or their times there were concluded from the engine's steps within ``server_error_ns``. ``clock_offset_ns``: the clock of the engine's
    records minus the server's clock; the true offset is up to ``clock_offset_error_ns`` larger. ``hold_ns``: how long the application
    held the chunks before the gap (0 unless ``hold_known``). ``buffered``: the gap ended with a usual release of a buffer. ``unread``:
    the socket held unread data before the read that ended the gap (False unless ``socket_known``). ``usual_ns``: the stream's median gap
    at the server. ``pace_ns``: its median time per chunk at the client. ``caught_up``: the share of the missing chunks that arrived right
    behind the gap (NaN: unknown). ``is_open``: the gap has not ended; its end is the time of the last report. ``never_preempted``: the
    engine reported that the stream's request was never preempted.
    """

    start_ns: Ints
    end_ns: Ints
    server_start_ns: Ints
    server_end_ns: Ints
    has_client: Bools
    has_server: Bools
    server_error_ns: Ints
    clock_offset_ns: Ints
    clock_offset_error_ns: Ints
    hold_ns: Ints
    hold_known: Bools
    buffered: Bools
    unread: Bools
    socket_known: Bools
    usual_ns: Ints
    pace_ns: Ints
    caught_up: Floats
    is_open: Bools
    never_preempted: Bools

    def at(self, rows: Ints) -> Gaps:
        """Return these gaps only."""
        return Gaps(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def length_ns(self) -> Ints:
        """The length of each gap at the judged vantage."""
        return self.end_ns - self.start_ns

    @classmethod
    def joined(cls, several: Sequence[Gaps]) -> Gaps:
        """Concatenate gaps."""
        return cls(*(np.concatenate([getattr(each, field.name) for each in several]) for field in fields(cls)))


def gaps_of(
    client: Vantage,
    server: Vantage | None,
    clock_offset_ns: int,
    gap_ns_min: int,
    server_error_ns: int = 0,
    clock_offset_error_ns: int = 0,
    has_client: bool = True,
    is_open: bool = False,
    never_preempted: bool = False,
) -> Gaps:
    """Return the client's gaps of at least ``gap_ns_min`` between reads of content, in order: the longest ``GAPS_MAX``.

    Without a client (``has_client``) both vantages are the server's, and the gaps are those between its sends. ``server_error_ns``: the
    possible error of the server's times if they were concluded (``matching.server_from_steps``) and not recorded.
    """
    times = client.times_ns
    reads = np.concatenate([[0], np.flatnonzero(times[1:] > times[:-1]) + 1])[: len(times)]
    after = _longest(times, reads[1:][times[reads[1:]] - times[reads[1:] - 1] >= gap_ns_min])
    count, pace = len(after), _pace_ns(times, reads)
    last_before, first_after = server_gaps(client, server, after)
    sends = server.times_ns if server is not None and len(server.times_ns) else np.zeros(1, np.int64)
    server_start, server_end = sends[np.maximum(last_before, 0)], sends[np.maximum(first_after, 0)]
    return Gaps(
        start_ns=times[after - 1],
        end_ns=times[after],
        server_start_ns=server_start,
        server_end_ns=server_end,
        has_client=np.full(count, has_client),
        has_server=first_after >= 0,
        server_error_ns=np.full(count, server_error_ns, np.int64),
        clock_offset_ns=np.full(count, clock_offset_ns, np.int64),
        clock_offset_error_ns=np.full(count, clock_offset_error_ns, np.int64),
        hold_ns=_holds_ns(client, after),
        hold_known=np.full(count, len(client.holds_ns) > 0),
        buffered=_ended_by_buffer(times, after, server_end - server_start, _releases(client, server, reads)),
        unread=_is_among(after, client.unread),
        socket_known=_is_among(after, client.sampled),
        usual_ns=np.full(count, int(median(sends[1:] - sends[:-1])) if len(sends) > 2 else 0, np.int64),
        pace_ns=np.full(count, pace, np.int64),
        caught_up=_caught_up(times, after, pace),
        is_open=np.full(count, is_open),
        never_preempted=np.full(count, never_preempted),
    )


def _longest(times: Ints, after: Ints) -> Ints:
    """Return those of these chunks, in order, that have the longest gaps before them; of gaps of one length the earlier ones."""
    if len(after) <= GAPS_MAX:
        return after
    order = np.argsort(times[after - 1] - times[after], kind="stable")
    return after[np.sort(order[:GAPS_MAX])]


def _is_among(chunks: Ints, some: Ints) -> Bools:
    """Return whether each of the chunks is one of these; usually there are none."""
    return np.isin(chunks, some) if len(some) else np.zeros(len(chunks), np.bool_)


def _holds_ns(client: Vantage, after: Ints) -> Ints:
    """Return how long the application held the reads before these chunks: it received all chunks of a read one after another."""
    if not len(client.holds_ns):
        return np.zeros(len(after), np.int64)
    until = np.concatenate([[0], np.cumsum(client.holds_ns)])
    first = np.searchsorted(client.times_ns, client.times_ns[after - 1])
    return np.asarray(until[after] - until[first])


def _pace_ns(times: Ints, reads: Ints) -> int:
    """Return the median time per chunk: for each read the time since the read before, divided by the number of its chunks.

    ``reads``: the index of the first chunk of each read.
    """
    if len(reads) < 2:
        return 0
    counts, at = np.append(reads[2:], len(times)) - reads[1:], times[reads]
    return int(median((at[1:] - at[:-1]) / counts))


def _caught_up(times: Ints, after: Ints, pace_ns: int) -> Floats:
    """Return, for the gap before each of these chunks, the share of the missing chunks that arrived right behind it; NaN if unknown.

    Missing are the chunks that a steady stream would have delivered during the gap. The share is about 1 if the chunks existed and were
    kept somewhere, and about 0 if they did not exist yet. Chunks that a steady stream would have delivered right behind the gap in any case
    are subtracted.
    """
    gap = (times[after] - times[after - 1]).astype(np.float64)
    if not pace_ns or not len(after):
        return np.full(len(after), np.nan)
    window = _BEHIND_SHARE * gap + 2 * pace_ns
    together = np.searchsorted(times, times[after], "right") - after - 1
    behind = np.searchsorted(times, times[after] + window.astype(np.int64), "right") - after - 1 - together
    arrived = together + behind
    left = len(times) - after - 1
    missing = np.maximum(np.minimum(gap / pace_ns - 1, left), 1)
    steady = np.minimum(window / pace_ns, left)
    share = (together + np.maximum(behind - steady, 0)) / missing
    # If all remaining chunks arrived right behind the gap, nothing is subtracted: the end of the stream limits what could arrive.
    share = np.where(arrived == left, arrived / missing, share)
    is_unsure = (gap < (_MISSING_MIN + 1) * pace_ns) | (left < _LEFT_MIN) & (together < left) | (left == 0)
    return np.where(is_unsure, np.nan, share)


def _releases(client: Vantage, server: Vantage | None, reads: Ints) -> tuple[Ints, Ints]:
    """Return the time and the number of chunks of each release, of a stream that passed through a buffer; else none.

    A release is a read of several chunks that the server sent apart. A buffer releases nearly all of a stream. ``reads``: the index of the
    first chunk of each read.
    """
    times = client.times_ns
    counts = np.append(reads[1:], len(times)) - reads
    of_several = np.flatnonzero(counts > 1)
    if server is not None and _are_most(counts[of_several], len(times)):
        first, last = reads[of_several], reads[of_several] + counts[of_several] - 1
        begin, end = server_chunks(client, server, first), server_chunks(client, server, last)
        is_apart = (begin >= 0) & (end >= 0) & (server.times_ns[end] - server.times_ns[begin] >= _APART_NS)
        of_several = of_several[is_apart]
        if _are_most(counts[of_several], len(times)):
            return times[reads[of_several]], counts[of_several]
    return np.zeros(0, np.int64), np.zeros(0, np.int64)


def _are_most(counts: Ints, chunks: int) -> bool:
    """Return whether releases of so many chunks are nearly all of a stream."""
    return len(counts) >= _RELEASES_MIN and bool(counts.sum() >= _BUFFERED_SHARE * chunks)


def _ended_by_buffer(times: Ints, after: Ints, at_server_ns: Ints, releases: tuple[Ints, Ints]) -> Bools:
    """Return whether a usual release of the buffer ended the gap before each of these chunks.

    ``at_server_ns``: the gap at the server, which is not the buffer's.
    """
    released_ns, counts = releases
    if not len(counts):
        return np.zeros(len(after), np.bool_)
    late_ns = times[after] - times[after - 1] - at_server_ns
    arrived = np.searchsorted(times, times[after] + _APART_NS, "left") - after
    is_soon = late_ns <= _USUAL_MAX * median(released_ns[1:] - released_ns[:-1])
    return np.asarray(is_soon | (arrived <= _USUAL_MAX * median(counts)))
