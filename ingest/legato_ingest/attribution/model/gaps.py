"""From the vantages of streams to gaps: which two chunks bound a gap, and when they were seen at the server.

One idea: a chunk is the same chunk at both ends by its place among the content chunks, or, where the ends cut the content differently, by
the byte at which it begins. Nothing is matched by time. It judges nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.charge import Gaps

__all__ = ["Sockets", "Vantage", "gaps_of", "made_by", "places_of", "steps_of"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
# Kinds of chunks that carry content (schema/TIMELINE.md): text, reasoning, tool.
_CONTENT = (1, 2, 3)
_HOLD_STEP_NS = 64_000
# A stream whose chunks nearly all came in releases of several, three releases or more, came through a buffer.
_BUFFERED_SHARE, _RELEASES_MIN = 0.75, 3
# What comes within this share of a gap after it came right behind it. A gap in which fewer chunks are missing tells nothing.
_BEHIND_SHARE, _MISSING_MIN, _LEFT_MIN = 0.15, 1, 4

# A chunk may seem to come before its step's record by this share of a usual step: the soonest delivery is known no better.
_EARLY_SHARE = 0.35


# Data lay unread when it had arrived this long before the read, as a share of the gap, and by more than the kernel's clock is coarse.
_IDLE_SHARE, _IDLE_MS_MIN = 0.02, 4


@dataclass(frozen=True, slots=True)
class Sockets:
    """What the socket held just before some reads: ``at`` are chunk places, the rest as in TIMELINE.md (plus one; 0 unknown)."""

    at: Ints
    queued_bytes: Ints
    window_bytes: Ints
    idle_ms: Ints

    def unread(self, dt_us: Ints) -> Ints:
        """The places where data had waited for the reader: more of it than the window had left, or for a while.

        After a loss all of it comes at once, so the last of it has only just come, and the window is as wide as ever.
        """
        at = self.at[self.at < len(dt_us)]
        queued, window, idle = (values[: len(at)] for values in (self.queued_bytes, self.window_bytes, self.idle_ms))
        filled = (window > 0) & (queued > window)
        waited = 1000 * (idle - 1) > np.maximum(_IDLE_SHARE * dt_us[at], 1000 * _IDLE_MS_MIN)
        return np.asarray(at[filled | waited])


@dataclass(frozen=True, slots=True)
class Vantage:
    """One stream as one vantage saw it: the content chunks alone. Times in ns since the epoch by that vantage's clock.

    ``sizes`` are bytes of content, empty when unknown; ``holds_ns`` likewise. ``unread``: places of chunks before whose read the socket
    held data that nobody had read, of those (``sampled``) where it was looked at.
    """

    times_ns: Ints
    sizes: Ints
    holds_ns: Ints
    unread: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    sampled: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def of(cls, start_ns: int, dt_us: Ints, kinds: Ints, sizes: Ints, holds: Ints, sockets: Sockets | None = None) -> Vantage:
        """From a row's arrays, all chunks included; ``holds`` in steps of 64 µs."""
        content = np.isin(kinds, _CONTENT)
        times = start_ns + 1000 * np.cumsum(dt_us)
        held = _held(_HOLD_STEP_NS * holds, content) if len(holds) else holds
        nothing = np.zeros(0, np.int64)
        unread, sampled = (sockets.unread(dt_us), sockets.at[sockets.at < len(dt_us)]) if sockets is not None else (nothing, nothing)
        rank = np.cumsum(content) - 1
        return cls(
            times[content],
            sizes[content] if len(sizes) else sizes,
            held,
            rank[unread[content[unread]]],
            rank[sampled[content[sampled]]],
        )


def _held(holds_ns: Ints, content: NDArray[np.bool_]) -> Ints:
    """How long the application held each content chunk and what came behind it without content."""
    places = np.flatnonzero(content)
    return np.add.reduceat(holds_ns, places) if len(places) else holds_ns[:0]


def made_by(client: Vantage, recorded_ns: Ints, shift_ns: int, last_step: int) -> Vantage:
    """When a stream's chunks were handed on, by the records of the engine's steps: for a server that was not recorded.

    ``last_step``: the place of the step that ended the request (-1: unknown). ``shift_ns`` is the records' clock minus the client's, the
    soonest delivery taken for none.
    """
    recorded = np.maximum.accumulate(recorded_ns)
    early = int(_EARLY_SHARE * np.median(np.diff(recorded))) if len(recorded) > 1 else 0
    steps = steps_of(client.times_ns + shift_ns + early, recorded, last_step)
    return Vantage(recorded[np.maximum(steps, 0)], client.sizes, client.holds_ns)


def steps_of(times_ns: Ints, ready_ns: Ints, last_step: int = -1) -> Ints:
    """The places of the steps that made chunks which were there at these times (both of one clock; ``ready_ns`` ascending); below 0: none.

    Each is of the latest step that was ready, no two of one step, the last of ``last_step``. So chunks that were kept and came together are
    of the steps before, one each.
    """
    latest = np.searchsorted(ready_ns, times_ns, "right") - 1
    if last_step >= 0:
        latest = np.minimum(latest, last_step)
    ranks = np.arange(len(latest))
    return np.asarray(np.minimum.accumulate((latest - ranks)[::-1])[::-1] + ranks)


def gaps_of(
    client: Vantage, server: Vantage | None, shift_ns: int, gap_ns_min: int, server_error_ns: int = 0, shift_error_ns: int = 0
) -> Gaps:
    """The client's gaps of at least ``gap_ns_min`` between reads of content, in order.

    ``server_error_ns``: how far the server's times may be off where they were not recorded but concluded (``made_by``). ``shift_error_ns``:
    by how much ``shift_ns`` may be more.
    """
    times = client.times_ns
    new_read = np.flatnonzero(np.diff(times) > 0) + 1
    gap_ns = times[new_read] - times[new_read - 1]
    after = new_read[gap_ns >= gap_ns_min]
    before = after - 1
    count, pace = len(after), _pace(times)
    places = places_of(client, server, after)
    seen = places > 0
    at = np.where(seen, places, 1) if server is not None and len(server.times_ns) > 1 else np.ones(count, np.int64)
    sends = server.times_ns if server is not None and len(server.times_ns) > 1 else np.zeros(2, np.int64)
    return Gaps(
        start_ns=times[before],
        end_ns=times[after],
        server_start_ns=sends[at - 1],
        server_end_ns=sends[at],
        has_server=seen,
        server_error_ns=np.full(count, server_error_ns, np.int64),
        shift_ns=np.full(count, shift_ns, np.int64),
        shift_error_ns=np.full(count, shift_error_ns, np.int64),
        hold_ns=_holds(client, after),
        hold_known=np.full(count, len(client.holds_ns) > 0),
        buffered=np.full(count, _buffered(times)),
        unread=np.isin(after, client.unread),
        socket_known=np.isin(after, client.sampled),
        usual_ns=np.full(count, int(np.median(np.diff(sends))) if len(sends) > 2 else 0, np.int64),
        pace_ns=np.full(count, pace, np.int64),
        caught_up=_caught_up(times, after, pace),
    )


def _holds(client: Vantage, after: Ints) -> Ints:
    """How long the application held the reads before these chunks: all chunks of a read were handed to it one after another."""
    if not len(client.holds_ns):
        return np.zeros(len(after), np.int64)
    until = np.concatenate([[0], np.cumsum(client.holds_ns)])
    first = np.searchsorted(client.times_ns, client.times_ns[after - 1])
    return np.asarray(until[after] - until[first])


def _pace(times: Ints) -> int:
    """The usual time a chunk, ns: of the reads' times since the read before, each over the chunks that it brought, the median."""
    reads, counts = np.unique(times, return_counts=True)
    return int(np.median(np.diff(reads) / counts[1:])) if len(reads) > 1 else 0


def _caught_up(times: Ints, after: Ints, pace_ns: int) -> Floats:
    """For the gaps before these chunks, how much of what a steady stream would have brought meanwhile came right behind; NaN: no telling.

    About 1 when the chunks existed and were kept somewhere, about 0 when they were yet to be made (the token index as a clock of the
    server's). A share of the gap counts as right behind, less what would have come in it anyway.
    """
    gap = (times[after] - times[after - 1]).astype(np.float64)
    if not pace_ns or not len(after):
        return np.full(len(after), np.nan)
    window = _BEHIND_SHARE * gap + 2 * pace_ns
    together = np.searchsorted(times, times[after], "right") - after - 1
    behind = np.searchsorted(times, times[after] + window.astype(np.int64), "right") - after - 1 - together
    came = together + behind
    left = len(times) - after - 1
    missing = np.minimum(gap / pace_ns - 1, left)
    steady = np.minimum(window / pace_ns, left)
    share = (together + np.maximum(behind - steady, 0)) / np.maximum(missing, 1)
    whole = came / np.maximum(missing, 1)
    # The stream's end came right behind: then all that was left came at once, or it is too little to tell.
    share = np.where(came == left, whole, share)
    unsure = (gap < (_MISSING_MIN + 1) * pace_ns) | (left < _LEFT_MIN) & (together < left) | (left == 0)
    return np.where(unsure, np.nan, share)


def places_of(client: Vantage, server: Vantage | None, after: Ints) -> Ints:
    """For client chunks, by their places, their places at the server; -1 where nobody can say."""
    unknown = np.full(len(after), -1, np.int64)
    if server is None or not len(server.times_ns):
        return unknown
    ours, theirs = len(client.times_ns), len(server.times_ns)
    if ours == theirs or (ours < theirs and not len(client.sizes)):
        return np.where(after < theirs, after, -1)
    if len(client.sizes) and len(server.sizes):
        begins = np.cumsum(client.sizes)[after] - client.sizes[after]
        ends = np.cumsum(server.sizes)
        if ours > theirs and ends[-1] != client.sizes.sum():
            return unknown
        places = np.searchsorted(ends, begins, "right")
        return np.where(places < theirs, places, -1)
    return unknown


def _buffered(times: Ints) -> bool:
    """Whether nearly all of a stream's chunks came several at a time."""
    if len(times) < 2:
        return False
    _, counts = np.unique(times, return_counts=True)
    several = counts > 1
    return bool(several.sum() >= _RELEASES_MIN and counts[several].sum() >= _BUFFERED_SHARE * len(times))
