"""Match the chunks of a stream between its vantages, and with the engine steps that produced them.

Chunks at two vantages are matched by the bytes of the content that they carry, so the vantages may divide it differently; where the sizes
are unknown or cannot be compared, by their index among the content chunks; never by time. Steps are matched by time on one clock.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.vantage import Vantage

__all__ = ["server_chunks", "server_from_steps", "server_gaps", "steps_of_chunks"]

Ints = NDArray[np.int64]

# A chunk may seem to arrive before the record of its step by this share of a median step, as the shortest delivery time is not known
# better.
_EARLY_SHARE = 0.35


def server_chunks(client: Vantage, server: Vantage | None, chunks: Ints) -> Ints:
    """Return the index at the server of the chunk in which each of the client's ``chunks`` (indices) begins; -1 if it is unknown."""
    return _matched(client, server, chunks, is_end=False)


def server_gaps(client: Vantage, server: Vantage | None, after: Ints) -> tuple[Ints, Ints]:
    """Return the chunks of the server (indices) that bound the gap before each of the client's chunks ``after``; -1 if unknown.

    They are the one with the last byte before the gap and the one with the first byte after it. Both are the same where the gap divides a
    chunk of the server: the server had sent everything when the gap began.
    """
    last, first = _matched(client, server, after - 1, is_end=True), _matched(client, server, after, is_end=False)
    is_known = (last >= 0) & (first >= 0)
    return np.where(is_known, last, -1), np.where(is_known, first, -1)


def _matched(client: Vantage, server: Vantage | None, chunks: Ints, *, is_end: bool) -> Ints:
    """Return the index at the server of the chunk with the first byte of each of the client's ``chunks``, or with the last (``is_end``)."""
    if server is None or not len(server.times_ns):
        return np.full(len(chunks), -1, np.int64)
    if _can_compare_sizes(client, server):
        return _by_byte(client.sizes, server.sizes, chunks, is_end)
    count, server_count = len(client.times_ns), len(server.times_ns)
    is_same_division = count == server_count or (client.is_cut and count < server_count)
    return chunks if is_same_division else np.full(len(chunks), -1, np.int64)


def _can_compare_sizes(client: Vantage, server: Vantage) -> bool:
    """Return whether both vantages recorded the same bytes: equally many, or fewer where the record lacks the stream's end.

    If not, one of them counted something else, such as other channels of the content. Then the sizes are worth nothing.
    """
    at_client, at_server = int(client.sizes.sum()), int(server.sizes.sum())
    if not at_client or not at_server:
        return False
    both = min(len(client.sizes), len(server.sizes))
    if np.array_equal(client.sizes[:both], server.sizes[:both]):
        return True
    return (at_client <= at_server or server.is_cut) and (at_server <= at_client or client.is_cut)


def _by_byte(sizes: Ints, server_sizes: Ints, chunks: Ints, is_end: bool) -> Ints:
    """Return the same as ``_matched``, by bytes alone; of an empty chunk, the empty one at the same byte.

    Several empty chunks at one byte are matched in their order.
    """
    ends, server_ends = np.cumsum(sizes), np.cumsum(server_sizes)
    begins = ends - sizes
    found = np.searchsorted(server_ends, ends[chunks] - 1 if is_end else begins[chunks], "right")
    is_known = found < len(server_ends)
    is_empty = sizes[chunks] == 0
    if is_empty.any():
        server_begins, begin = server_ends - server_sizes, begins[chunks]
        rank = chunks - np.searchsorted(begins, begin)
        empty = np.searchsorted(server_begins, begin) + rank
        at = np.minimum(empty, len(server_ends) - 1)
        is_there = (empty == at) & (server_begins[at] == begin) & (server_sizes[at] == 0)
        found, is_known = np.where(is_empty, empty, found), np.where(is_empty, is_there, is_known)
    return np.asarray(np.where(is_known, found, -1))


def steps_of_chunks(times_ns: Ints, ready_ns: Ints, last_step: int = -1) -> Ints:
    """Return the index of the step that produced each chunk; negative if there is none.

    ``times_ns``: when each chunk was present. ``ready_ns``: when the output of each step was ready, ascending, by the same clock.
    ``last_step``: the index of the step that ended the request (-1: unknown). Each chunk belongs to the latest step that was ready, no two
    chunks to the same step. So chunks that were kept and arrived together belong to consecutive steps, one each.
    """
    latest = np.searchsorted(ready_ns, times_ns, "right") - 1
    if last_step >= 0:
        latest = np.minimum(latest, last_step)
    ranks = np.arange(len(latest))
    return np.asarray(np.minimum.accumulate((latest - ranks)[::-1])[::-1] + ranks)


def server_from_steps(client: Vantage, recorded_ns: Ints, clock_offset_ns: int, last_step: int) -> Vantage:
    """Return the times at which a server that was not recorded sent the chunks, concluded from the records of the engine's steps.

    ``last_step``: the index of the step that ended the request (-1: unknown). ``clock_offset_ns``: the records' clock minus the client's,
    assuming that the fastest delivery took no time.
    """
    recorded = np.maximum.accumulate(recorded_ns)
    early = int(_EARLY_SHARE * np.median(np.diff(recorded))) if len(recorded) > 1 else 0
    steps = steps_of_chunks(client.times_ns + clock_offset_ns + early, recorded, last_step)
    return Vantage(recorded[np.maximum(steps, 0)], client.sizes, client.holds_ns)
