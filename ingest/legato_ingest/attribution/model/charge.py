"""The stalls of one engine's streams, each charged to its causes.

One idea: a gap is bounded by two chunks. What passed between the same two chunks at the server is the server's; the rest is the way's. What
passed at the server is laid over the engine's steps: whole steps up to the one that made the chunk, then the front end. Every part is
a difference of two times of one clock, in whole ns, and the parts add up to the gap. All gaps are judged at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.step_model import Charges, split

__all__ = ["CAUSES", "LATE_MIN", "MADE_MAX", "Gaps", "Verdicts", "judge"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

CAUSES = (
    "base", "scheduling", "kv_pressure", "gpu_clock", "host", "front_end", "coalescing", "connection", "slow_reader", "consumer",
    "generation", "delivery", "unknown",
)  # fmt: skip
_AT = {name: place for place, name in enumerate(CAUSES)}
# A cause is named when it has this share of what was charged beyond the base; below, the stall is mixed.
_NAMED = 0.5
# A time is of the step whose end it comes just before when it is nearer to that by this than to the end before.
_NEARER_SHARE = 0.25
# A record explains a silence when it was late for more than this share of it.
_LATE_SHARE = 0.5
# From the client alone: chunks were kept when most of the missing came right behind, not yet made when few did. Between, abstain.
LATE_MIN, MADE_MAX = 0.5, 0.25


@dataclass(frozen=True, slots=True)
class Gaps:
    """Gaps between reads of content, one entry each. Client times are of the client's clock, server times of the server's.

    ``has_server``: the two chunks were seen at the server, or concluded from the engine's steps, within ``server_error_ns``. ``shift_ns``:
    engine records' clock minus the server's; it may be ``shift_error_ns`` more. ``hold_ns``: how long the application held the chunk before
    the gap (0 where that is not ``hold_known``). ``buffered``: the stream came in releases of a buffer. ``unread``: the socket held the
    data while nobody read (never where the socket is not ``socket_known``). ``usual_ns``: the stream's usual gap at the server.
    ``pace_ns``: its usual time a chunk at the client. ``caught_up``: how much of what was missing came right behind the gap (NaN: no
    telling).
    """

    start_ns: Ints
    end_ns: Ints
    server_start_ns: Ints
    server_end_ns: Ints
    has_server: Bools
    server_error_ns: Ints
    shift_ns: Ints
    shift_error_ns: Ints
    hold_ns: Ints
    hold_known: Bools
    buffered: Bools
    unread: Bools
    socket_known: Bools
    usual_ns: Ints
    pace_ns: Ints
    caught_up: NDArray[np.float64]

    def at(self, rows: Ints) -> Gaps:
        """These gaps alone."""
        return Gaps(*(getattr(self, field.name)[rows] for field in fields(self)))

    @classmethod
    def joined(cls, several: Sequence[Gaps]) -> Gaps:
        """All of these, end to end."""
        return cls(*(np.concatenate([getattr(each, field.name) for each in several]) for field in fields(cls)))


@dataclass(frozen=True, slots=True)
class Verdicts:
    """One entry a gap. ``parts`` (int64, gaps x ``CAUSES``) add up to the gap exactly; ``cause`` is an index of ``CAUSES``, or -1: mixed.

    ``step_first`` and ``step_last`` are the engine steps that the gap was laid over, by their place in the steps (-1: none). ``laid``: the
    engine's record explains the gap. ``preempted``: the step in which the stream itself was preempted, by its place (-1: it was not).
    ``coincident``: how many other streams' stalls at the same moment the cause was concluded from.
    """

    parts: Ints
    excess_ns: Ints
    cause: Ints
    share: NDArray[np.float64]
    step_first: Ints
    step_last: Ints
    laid: Bools
    preempted: Ints
    coincident: Ints

    def at(self, rows: Ints) -> Verdicts:
        """The verdicts on these gaps alone."""
        return Verdicts(*(getattr(self, field.name)[rows] for field in fields(self)))


def judge(gaps: Gaps, steps: Charges | None) -> Verdicts:
    """Charge every gap. Linear in gaps times the logarithm of steps; no gap is looked at alone."""
    count = len(gaps.start_ns)
    parts = np.zeros((count, len(CAUSES)), np.int64)
    server = np.where(gaps.has_server, gaps.server_end_ns - gaps.server_start_ns, 0)
    over = _Laid.nothing(count)
    if steps is not None and steps.fitted:
        over = _lay(gaps, steps, parts)
    # The server saw it, no engine step explains it: the healthy part, and that the bytes were made late.
    coarse = gaps.has_server & ~over.laid
    usual = np.where(coarse, np.minimum(np.maximum(gaps.usual_ns, 0), server), 0)
    parts[:, _AT["base"]] += usual
    parts[:, _AT["generation"]] += np.where(coarse, server - usual, 0)
    _deliver(gaps, parts, (gaps.end_ns - gaps.start_ns) - server)
    return _named(gaps, parts, over)


@dataclass(frozen=True, slots=True)
class _Laid:
    """Over which steps each gap was laid; as in ``Verdicts``."""

    laid: Bools
    first: Ints
    last: Ints
    preempted: Ints

    @classmethod
    def nothing(cls, count: int) -> _Laid:
        none = np.full(count, -1, np.int64)
        return cls(np.zeros(count, np.bool_), none, none, none)


def _lay(gaps: Gaps, steps: Charges, parts: Ints) -> _Laid:
    """Charge what passed at the server to the engine's steps, where they are known."""
    begin, end = _by_records(gaps, steps.end_ns)
    total = len(steps.end_ns)
    next_step = np.searchsorted(steps.end_ns, begin, "right")
    newest = np.searchsorted(steps.end_ns, end, "right") - 1
    seen = np.concatenate([[0], np.cumsum(steps.preempted)])
    inside = gaps.has_server & (next_step > 0) & (next_step < total)
    at, to = np.minimum(next_step, total - 1), np.clip(newest, 0, total - 1)
    reach = np.maximum(to, at) + 1
    made = inside & (newest >= at)
    silent = made & (to > at) & _awake(steps, at, end)
    robbed = silent & (seen[reach] > seen[np.maximum(at - 1, 0)])
    # A preempted stream is charged time, whatever the steps were made of: it takes an unbroken record. Others need every step's split.
    upto = np.where(silent, to, at)
    laid = inside & np.where(robbed, _unbroken(steps.linked, at, upto), _unbroken(steps.whole, at, upto))
    made, robbed = made & laid, robbed & laid
    took = np.where(made, steps.end_ns[at] - begin, 0)
    split_up = split(took, steps.base_most_ns[at], steps.work_most_ns[at], steps.recompute_share[at], steps.clock_most_ns[at])
    for name, part in zip(("base", "scheduling", "kv_pressure", "gpu_clock", "host"), split_up, strict=True):
        running = np.concatenate([[0], np.cumsum(getattr(steps, name))])
        rest = np.where(made, running[upto + 1] - running[at + 1], 0)
        parts[:, _AT[name]] += np.where(robbed, 0, part + rest)
    until = np.where(made, steps.end_ns[upto], begin)
    parts[:, _AT["kv_pressure"]] += np.where(robbed, until - begin, 0)
    parts[:, _AT["front_end"]] += np.where(laid, end - until, 0)
    robbery = np.searchsorted(seen, seen[np.maximum(at - 1, 0)], "right") - 1
    return _Laid(laid, np.where(made, at, -1), np.where(made, upto, -1), np.where(robbed, robbery, -1))


def _by_records(gaps: Gaps, end_ns: Ints) -> tuple[Ints, Ints]:
    """When each gap began and ended at the server, by the clock of the steps, which ended at ``end_ns``.

    A chunk that seems to have been sent just before a step's end, and long after the end before that, was made by it and sent then: within
    its error the offset is what that takes. Else half a millisecond would make a long step a front end that slept.
    """
    begin, end = gaps.server_start_ns + gaps.shift_ns, gaps.server_end_ns + gaps.shift_ns
    early = np.maximum(_early(begin, gaps.shift_error_ns, end_ns), _early(end, gaps.shift_error_ns, end_ns))
    return begin + early, end + early


def _early(times: Ints, error_ns: Ints, end_ns: Ints) -> Ints:
    """By how much each time is too early, where it is within the error before a step's end and nearer to that than to the one before."""
    if len(end_ns) < 2:
        return np.zeros(len(times), np.int64)
    after = np.searchsorted(end_ns, times, "right")
    inside, place = (after > 0) & (after < len(end_ns)), np.clip(after, 1, len(end_ns) - 1)
    ahead, behind = end_ns[place] - times, times - end_ns[place - 1]
    return np.asarray(np.where(inside & (ahead <= error_ns) & (ahead <= _NEARER_SHARE * behind), ahead, 0))


def _unbroken(good: Bools, first: Ints, last: Ints) -> Bools:
    """Whether every step from ``first`` to ``last`` is good."""
    faults = np.concatenate([[0], np.cumsum(~good)])
    return np.asarray(faults[last + 1] == faults[first])


def _awake(steps: Charges, at: Ints, end: Ints) -> Bools:
    """Whether the front end recorded step ``at`` and the next while a silence from ``at`` to ``end`` lasted, not only when it was over.

    Then several steps passed and brought the stream nothing. Of the two, as a front end may stop between a step's record and its send.
    """
    after = np.minimum(at + 1, len(steps.end_ns) - 1)
    late = np.maximum(steps.late_ns[at], steps.late_ns[after])
    return np.asarray(late < _LATE_SHARE * (end - steps.end_ns[at]))


def _deliver(gaps: Gaps, parts: Ints, late: Ints) -> None:
    """Charge what the client waited beyond the server: to its own application as far as that held the stream, else to the way."""
    held = np.clip(np.minimum(gaps.hold_ns, late), 0, None)
    parts[:, _AT["consumer"]] += held
    way = late - held
    alone = ~gaps.has_server
    usual = np.where(alone, np.minimum(gaps.pace_ns, way), 0)
    parts[:, _AT["base"]] += usual
    way = way - usual
    to = np.where(gaps.unread, _AT["slow_reader"], np.where(gaps.buffered, _AT["coalescing"], _AT["connection"]))
    to = np.where(alone, _coarse(gaps.caught_up), to)
    parts[np.arange(len(to)), to] += way


def _coarse(caught_up: NDArray[np.float64]) -> Ints:
    """From the client alone: delivered late, generated late, or nobody can say."""
    said = np.where(caught_up >= LATE_MIN, _AT["delivery"], np.where(caught_up <= MADE_MAX, _AT["generation"], _AT["unknown"]))
    return np.where(np.isnan(caught_up), _AT["unknown"], said)


def _named(gaps: Gaps, parts: Ints, over: _Laid) -> Verdicts:
    excess = (gaps.end_ns - gaps.start_ns) - parts[:, _AT["base"]]
    charged = parts.copy()
    charged[:, _AT["base"]] = np.iinfo(np.int64).min
    leading = np.argmax(charged, axis=1) if len(parts) else np.zeros(0, np.int64)
    most = parts[np.arange(len(parts)), leading]
    share = np.divide(most, excess, out=np.zeros(len(parts)), where=excess > 0)
    cause = np.where(share >= _NAMED, leading, -1)
    return Verdicts(parts, excess, cause, share, over.first, over.last, over.laid, over.preempted, np.zeros(len(parts), np.int64))
