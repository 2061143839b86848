"""What would be left of a stream's stalls had one cause not been: the stream is replayed without it.

One idea: a chunk leaves the engine with its step, and whatever follows can only delay it, in order (a FIFO: chunk j comes at
``max(came[j - 1], made[j] + delay[j])``). Without an engine's cause all later steps end earlier, and a stream that was not preempted is in
the steps that it missed; without a delay that delay is gone, and what it hid shows. What a delay would have done to a chunk that came
earlier nobody knows: it may belong to the chunk (a buffer of so many bytes) or to the moment (an outage), so both are replayed and the
answer is an interval. Counting labels would overstate it. All other traffic is held as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.charge import judge
from legato_ingest.attribution.model.gaps import Vantage, gaps_of, places_of, steps_of
from legato_ingest.attribution.model.step_model import Charges

__all__ = ["DELAYS", "ENGINE", "Delay", "Left", "replay"]

Ints = NDArray[np.int64]
# Causes that make steps longer or keep a stream out of them, and causes that delay a chunk that was made.
ENGINE = ("scheduling", "kv_pressure", "gpu_clock", "host")
DELAYS = ("front_end", "coalescing", "connection", "slow_reader", "consumer")
# The way that the soonest tenth of a stream's chunks took is the usual one: a chunk may wait, but cannot come before it was made.
_USUAL = 0.1
# What the fit leaves over of a step counts as the host's from this share of a usual step on: below, it is the fit's own error.
_HOST_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Delay:
    """A stall after the engine: its cause, and the client's times (ns) of the two reads that bound it."""

    cause: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Left:
    """Without ``cause``: how many stalls would be left, and how much time in them, at least and at most."""

    cause: str
    stalls_min: int
    stalls_max: int
    stalled_min_ns: int
    stalled_max_ns: int


def replay(
    client: Vantage, server: Vantage, shift_ns: int, steps: Charges, causes: Sequence[str], delays: Sequence[Delay], stall_ns: int
) -> tuple[int, int, list[Left]] | None:
    """The stream's gaps of ``stall_ns`` or more, the time in them, and for each of the ``causes`` what would be left without it.

    ``None`` where the stream cannot be laid over the steps chunk by chunk: then nobody knows.
    """
    path = _path(client, server, shift_ns, steps)
    if path is None:
        return None
    out = []
    for cause in causes:
        if cause in ENGINE:
            removed = path.removed(steps, cause)
            others, by_chunk = delays, client.times_ns - removed
        else:
            removed = np.zeros(len(client.times_ns), np.int64)
            others = [delay for delay in delays if delay.cause != cause]
            by_chunk = client.times_ns - path.delayed([delay for delay in delays if delay.cause == cause])
        ways = (by_chunk, _through(path.made_ns - removed + path.usual_ns, others))
        (stalls, stalled), (others_stalls, others_stalled) = (_stalls(way, stall_ns) for way in ways)
        counts, times = sorted((stalls, others_stalls)), sorted((stalled, others_stalled))
        out.append(Left(cause, *counts, *times))
    return *_stalls(client.times_ns, stall_ns), out


@dataclass(frozen=True, slots=True)
class _Path:
    """One stream's chunks: when each came, the end of its step (by the server's clock) and that step's place.

    ``usual_ns``: from a step's end to the client when nothing is amiss. ``late_ns``: by how much each chunk came later than that.
    ``missed``: steps that the stream was kept out of just before each chunk.
    """

    came_ns: Ints
    made_ns: Ints
    place: Ints
    missed: Ints
    late_ns: Ints
    usual_ns: int

    def removed(self, steps: Charges, cause: str) -> Ints:
        """By how much earlier each chunk's step would have ended without a cause of the engine's, since the first chunk's."""
        longer = getattr(steps, cause)
        if cause == "host":
            longer = np.where(longer >= _HOST_SHARE * steps.usual_ns, longer, 0)
        ends = steps.end_ns - np.cumsum(longer)
        place = self.place - np.cumsum(self.missed) if cause == "kv_pressure" else self.place
        return np.asarray((self.made_ns - self.made_ns[0]) - (ends[place] - ends[place[0]]))

    def delayed(self, delays: Sequence[Delay]) -> Ints:
        """By how much each chunk came later for these delays: a delay is over when the stream has caught up."""
        out = np.zeros(len(self.late_ns), np.int64)
        for delay in delays:
            first = int(np.searchsorted(self.came_ns, delay.end_ns))
            kept = np.clip(delay.end_ns - (self.made_ns[first:] + self.usual_ns), 0, self.late_ns[first:])
            out[first:] = np.maximum(out[first:], np.minimum.accumulate(kept))
        return out


def _path(client: Vantage, server: Vantage, shift_ns: int, steps: Charges) -> _Path | None:
    count = len(client.times_ns)
    if count < 2 or not steps.fitted:
        return None
    at = places_of(client, server, np.arange(count))
    if (at < 0).any():
        return None
    none = np.zeros(0, np.int64)
    sends = Vantage(server.times_ns[at], none, none)
    place = steps_of(sends.times_ns + shift_ns, steps.end_ns)
    if place[0] < 0 or not steps.linked[place[0] + 1 : place[-1] + 1].all():
        return None
    verdicts = judge(gaps_of(sends, sends, shift_ns, 1), steps)
    apart = np.flatnonzero(np.diff(sends.times_ns) > 0) + 1
    missed = np.zeros(count, np.int64)
    missed[apart] = np.where(verdicts.preempted >= 0, np.maximum(np.diff(place)[apart - 1] - 1, 0), 0)
    made = steps.end_ns[place] - shift_ns
    late = client.times_ns - made
    usual = int(np.quantile(late, _USUAL))
    return _Path(client.times_ns, made, place, missed, np.maximum(late - usual, 0), usual)


def _through(arrival_ns: Ints, delays: Sequence[Delay]) -> Ints:
    """When chunks that would have come then came, if these delays kept whatever came meanwhile."""
    out = arrival_ns.copy()
    for delay in sorted(delays, key=lambda each: each.start_ns):
        out = np.where((out > delay.start_ns) & (out < delay.end_ns), delay.end_ns, out)
    return np.maximum.accumulate(out)


def _stalls(times_ns: Ints, stall_ns: int) -> tuple[int, int]:
    """How many gaps of this length or more, and the ns in them."""
    gaps = np.diff(np.maximum.accumulate(times_ns))
    stalls = gaps[gaps >= stall_ns]
    return len(stalls), int(stalls.sum())
