"""Counterfactuals: what would be left of a stream's stalls without one cause. All other traffic stays as it was.

A chunk leaves the engine with its step. After that it can only be delayed, and chunks stay in order: a chunk arrives when the chunk before
it has arrived and its own delay after its step is over, whichever is later. Without a cause of the engine's core all later steps end
earlier, and a stream that was not preempted takes part in the steps that it missed. Without a delay, what the delay hid becomes visible.

How a delay would have affected a chunk that arrives earlier is unknown: it may belong to the chunk (a buffer of a given size) or to the
moment (an outage). Both are computed, and the result is an interval. To subtract the stalls with the cause's name would overstate the
effect, because one delay may hide other stalls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.charge import preempted_in
from legato_ingest.attribution.model.matching import server_chunks, steps_of_chunks
from legato_ingest.attribution.model.median import quantile
from legato_ingest.attribution.model.steps import ChargedSteps
from legato_ingest.attribution.model.vantage import Vantage
from legato_ingest.causes import CORE

__all__ = ["Counterfactual", "Delay", "Remaining", "counterfactual"]

Ints = NDArray[np.int64]

# The usual time from the end of a step to the client is that of the fastest tenth of the stream's chunks.
_USUAL_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Delay:
    """A stall after the engine: its cause, and the client's times (ns) of the two reads that bound it."""

    cause: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Remaining:
    """The stalls that would be left without ``cause``, and the time in them, at least and at most."""

    cause: str
    stalls_min: int
    stalls_max: int
    stalled_min_ns: int
    stalled_max_ns: int


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """A stream's stalls as they were, the time in them (ns), and what would be left without each cause."""

    stalls: int
    stalled_ns: int
    remaining: Sequence[Remaining]


def counterfactual(
    client: Vantage,
    server: Vantage,
    clock_offset_ns: int,
    steps: ChargedSteps,
    causes: Sequence[str],
    delays: Sequence[Delay],
    stall_ns: int,
) -> Counterfactual | None:
    """Return the stream's gaps of ``stall_ns`` or more, and what would be left of them without each of the ``causes``.

    ``delays``: the stream's stalls after the engine. ``None`` if the stream cannot be aligned with the steps chunk by chunk.
    """
    path = _path(client, server, clock_offset_ns, steps, was_preempted="kv_pressure" in causes)
    if path is None:
        return None
    remaining = [_without(cause, path, steps, delays, stall_ns) for cause in causes]
    return Counterfactual(*_stalls(path.arrived_ns, stall_ns), remaining)


@dataclass(frozen=True, slots=True)
class _Path:
    """The chunks of one stream: when each arrived, the end of its step by the server's clock, and the index of the step.

    ``usual_ns``: the time from the end of a step to the client without a delay. ``late_ns``: how much later than that each chunk arrived.
    ``missed``: the number of steps just before each chunk in which the stream was preempted.
    """

    arrived_ns: Ints
    produced_ns: Ints
    step: Ints
    missed: Ints
    late_ns: Ints
    usual_ns: int

    def removed_ns(self, steps: ChargedSteps, cause: str) -> Ints:
        """Return how much earlier each chunk's step would have ended without a cause of the core, relative to the first chunk's step."""
        ends = steps.ends_without[cause]
        step = self.step - np.cumsum(self.missed) if cause == "kv_pressure" else self.step
        return np.asarray((self.produced_ns - self.produced_ns[0]) - (ends[step] - ends[step[0]]))

    def delayed_ns(self, delays: Sequence[Delay]) -> Ints:
        """Return how much later each chunk arrived because of these delays. A delay is over when the stream has caught up."""
        out = np.zeros(len(self.late_ns), np.int64)
        for delay in delays:
            first = int(np.searchsorted(self.arrived_ns, delay.end_ns))
            kept = np.clip(delay.end_ns - (self.produced_ns[first:] + self.usual_ns), 0, self.late_ns[first:])
            out[first:] = np.maximum(out[first:], np.minimum.accumulate(kept))
        return out


def _path(client: Vantage, server: Vantage, clock_offset_ns: int, steps: ChargedSteps, *, was_preempted: bool) -> _Path | None:
    """Align every chunk of the stream with its step; ``None`` if that is not possible.

    ``was_preempted``: find the missed steps; else there are none.
    """
    count = len(client.times_ns)
    if count < 2 or not steps.fitted:
        return None
    at_server = server_chunks(client, server, np.arange(count))
    if (at_server < 0).any():
        return None
    sent_ns = server.times_ns[at_server] + clock_offset_ns
    # The client may have received a chunk of the server in pieces, which are of one step.
    distinct, piece_of = np.unique(at_server, return_inverse=True)
    step = steps_of_chunks(server.times_ns[distinct] + clock_offset_ns, steps.end_ns)[piece_of]
    if step[0] < 0 or not steps.linked[step[0] + 1 : step[-1] + 1].all():
        return None
    missed = _missed(sent_ns, step, steps) if was_preempted else np.zeros(count, np.int64)
    produced = steps.end_ns[step] - clock_offset_ns
    late = client.times_ns - produced
    usual = int(quantile(late, _USUAL_SHARE))
    return _Path(client.times_ns, produced, step, missed, np.maximum(late - usual, 0), usual)


def _missed(sent_ns: Ints, step: Ints, steps: ChargedSteps) -> Ints:
    """Return ``_Path.missed``. ``sent_ns``: the server's send of each chunk by the records' clock; ``step``: the index of its step."""
    missed = np.zeros(len(step), np.int64)
    after = np.flatnonzero((sent_ns[1:] > sent_ns[:-1]) & (step[1:] - step[:-1] > 1)) + 1
    was_preempted = preempted_in(sent_ns[after - 1], sent_ns[after], steps) >= 0
    missed[after] = np.where(was_preempted, step[after] - step[after - 1] - 1, 0)
    return missed


def _without(cause: str, path: _Path, steps: ChargedSteps, delays: Sequence[Delay], stall_ns: int) -> Remaining:
    """Remove one cause: each delay that stays belongs to its chunks in one result, to its moment in the other."""
    if cause in CORE:
        removed = path.removed_ns(steps, cause)
        staying, by_chunk = delays, path.arrived_ns - removed
    else:
        removed = np.zeros(len(path.arrived_ns), np.int64)
        staying = [delay for delay in delays if delay.cause != cause]
        by_chunk = path.arrived_ns - path.delayed_ns([delay for delay in delays if delay.cause == cause])
    by_moment = _delayed(path.produced_ns - removed + path.usual_ns, staying)
    (stalls, stalled), (other_stalls, other_stalled) = _stalls(by_chunk, stall_ns), _stalls(by_moment, stall_ns)
    return Remaining(cause, *sorted((stalls, other_stalls)), *sorted((stalled, other_stalled)))


def _delayed(arrival_ns: Ints, delays: Sequence[Delay]) -> Ints:
    """Return when chunks with these arrivals arrive if the delays keep everything that would arrive during them."""
    out = arrival_ns.copy()
    for delay in sorted(delays, key=lambda each: each.start_ns):
        out = np.where((out > delay.start_ns) & (out < delay.end_ns), delay.end_ns, out)
    return np.maximum.accumulate(out)


def _stalls(times_ns: Ints, stall_ns: int) -> tuple[int, int]:
    """Return the number of gaps of at least this length, and the ns in them."""
    latest = np.maximum.accumulate(times_ns)
    gaps = latest[1:] - latest[:-1]
    stalls = gaps[gaps >= stall_ns]
    return len(stalls), int(stalls.sum())
