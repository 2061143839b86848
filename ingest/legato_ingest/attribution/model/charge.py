"""Charge every gap of one engine's streams to its causes.

A gap lies between two chunks. The time between the same two chunks at the server is the server's part; the rest is the part of the network
path and the client. The server's part is aligned with the engine's steps: complete steps up to the one that produced the chunk, then the
front end. Every part is a difference of two times by one clock in whole ns, and the parts add up to the gap. All gaps are charged at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.gaps import Gaps
from legato_ingest.attribution.model.steps import ChargedSteps, split_durations
from legato_ingest.attribution.model.verdicts import NO_CAUSE, Verdicts
from legato_ingest.causes import HEALTHY, PARTS, STEP_PARTS, index_of

__all__ = ["ALL_BEHIND_MIN", "NONE_BEHIND_MAX", "charge", "preempted_in"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_BASE, _KV_PRESSURE, _FRONT_END = index_of(HEALTHY), index_of("kv_pressure"), index_of("front_end")
_CONSUMER, _SLOW_READER = index_of("consumer"), index_of("slow_reader")
_COALESCING, _CONNECTION = index_of("coalescing"), index_of("connection")
_GENERATION, _DELIVERY, _UNKNOWN = index_of("generation"), index_of("delivery"), index_of("unknown")

# A verdict names a cause that has this share of the excess or more; else it is mixed.
_NAMED_SHARE = 0.5
# A time that precedes the end of a step by less than this share of the time since the end before it is taken for that end.
_NEARER_SHARE = 0.25
# If the record of a step was late by this share of a silence or more, the front end was frozen during the silence.
_FROZEN_SHARE = 0.5
ALL_BEHIND_MIN, NONE_BEHIND_MAX = 0.5, 0.25
"""From the client alone: chunks were kept if this share or more of the missing ones arrived right behind the gap (``ALL_BEHIND_MIN``),
and did not exist yet if at most this share did (``NONE_BEHIND_MAX``). Between the two no side is named."""


@dataclass(frozen=True, slots=True)
class _Alignment:
    """The steps with which the server's part of each gap is aligned; the fields are as in ``Verdicts``."""

    aligned: Bools
    step_first: Ints
    step_last: Ints
    preempted: Ints

    @classmethod
    def none(cls, count: int) -> _Alignment:
        nothing = np.full(count, -1, np.int64)
        return cls(np.zeros(count, np.bool_), nothing, nothing, nothing)


def charge(gaps: Gaps, steps: ChargedSteps | None) -> Verdicts:
    """Return a verdict on every gap. ``steps``: the engine's steps, if they are known.

    The time is linear in the number of gaps and logarithmic in the number of steps.
    """
    count = len(gaps.start_ns)
    parts = np.zeros((count, len(PARTS)), np.int64)
    at_server = np.where(gaps.has_server, gaps.server_end_ns - gaps.server_start_ns, 0)
    alignment = _Alignment.none(count)
    if steps is not None and steps.fitted:
        alignment = _charge_steps(gaps, steps, parts)
    # The server saw the gap and no step explains it: a usual gap is healthy, the rest is generation.
    unexplained = gaps.has_server & ~alignment.aligned
    usual = np.where(unexplained, np.minimum(np.maximum(gaps.usual_ns, 0), at_server), 0)
    parts[:, _BASE] += usual
    parts[:, _GENERATION] += np.where(unexplained, at_server - usual, 0)
    _charge_delivery(gaps, parts, gaps.length_ns - at_server)
    return _name(gaps, parts, alignment)


def _charge_steps(gaps: Gaps, steps: ChargedSteps, parts: Ints) -> _Alignment:
    """Charge the server's part of the gaps to the engine's steps and to the front end, where the record allows it."""
    begin, end = _by_records(gaps, steps.end_ns)
    passed = _steps_of(begin, end, gaps.has_server, steps, gaps.never_preempted, gaps.is_open)
    first, upto, has_steps, aligned = passed.first, passed.upto, passed.has_steps, passed.aligned
    in_first = np.where(has_steps, steps.end_ns[first] - begin, 0)
    _add_step_parts(parts, steps, in_first, first, upto, has_steps, passed.evicted)
    _charge_idle_steps(parts, steps, gaps.usual_ns, upto, has_steps & (upto > first) & ~passed.evicted)
    until = np.where(has_steps, steps.end_ns[upto], begin)
    parts[:, _KV_PRESSURE] += np.where(passed.evicted, until - begin, 0)
    # The next step of an open gap is not recorded yet, so the time since the last one is the engine's or the front end's.
    parts[:, _FRONT_END] += np.where(aligned & ~gaps.is_open, end - until, 0)
    parts[:, _GENERATION] += np.where(aligned & gaps.is_open, end - until, 0)
    return _Alignment(aligned, np.where(has_steps, first, -1), np.where(has_steps, upto, -1), passed.preempted)


@dataclass(frozen=True, slots=True)
class _Passed:
    """The steps that passed during each gap, from ``first`` to ``upto``, if it ``has_steps``.

    ``aligned``: the record is complete over the gap. ``evicted``: the stream was preempted; ``preempted``: in this step (-1: none).
    """

    first: Ints
    upto: Ints
    has_steps: Bools
    aligned: Bools
    evicted: Bools
    preempted: Ints


def preempted_in(begin_ns: Ints, end_ns: Ints, steps: ChargedSteps) -> Ints:
    """Return the index of the step in which a stream was preempted between each two sends (ns, by the records' clock); -1: it was not."""
    known = np.ones(len(begin_ns), np.bool_)
    return _steps_of(begin_ns, end_ns, known, steps, ~known, ~known).preempted


def _steps_of(begin: Ints, end: Ints, is_known: Bools, steps: ChargedSteps, never_preempted: Bools, is_open: Bools) -> _Passed:
    """Return the steps that passed between two times of each gap, by the records' clock. ``is_known``: the server's times are known."""
    total = len(steps.end_ns)
    next_step = np.searchsorted(steps.end_ns, begin, "right")
    newest = np.searchsorted(steps.end_ns, end, "right") - 1
    inside = is_known & (next_step > 0) & (next_step < total)
    first, last = np.minimum(next_step, total - 1), np.clip(newest, 0, total - 1)
    has_steps = inside & (newest >= first)
    # Several steps passed and the front end was awake, so they produced nothing for the stream. If not, one step produced the chunk, and
    # the rest of the gap is the front end's.
    silent = has_steps & (last > first) & _is_awake(steps, first, end)
    preemptions = steps.preemptions
    before = np.maximum(first - 1, 0)
    evicted = silent & ~never_preempted & (preemptions[np.maximum(last, first) + 1] > preemptions[before])
    upto = np.where(silent, last, first)
    # The step that resumes a request reports its preemption. Without such a report the stream got its next token as a running request.
    # One step more, as the times are not exact.
    evicted &= is_open | (steps.resumptions[np.minimum(upto + 2, total)] > steps.resumptions[before])
    # A preempted stream is charged for time, not for the contents of steps, so an unbroken record suffices.
    faults = np.where(evicted, steps.unlinked[upto + 1] - steps.unlinked[first], steps.incomplete[upto + 1] - steps.incomplete[first])
    aligned = inside & (faults == 0)
    has_steps, evicted = has_steps & aligned, evicted & aligned
    preempted = np.searchsorted(preemptions, preemptions[before], "right") - 1
    return _Passed(first, upto, has_steps, aligned, evicted, np.where(evicted, preempted, -1))


def _add_step_parts(parts: Ints, steps: ChargedSteps, in_first: Ints, first: Ints, upto: Ints, has_steps: Bools, evicted: Bools) -> None:
    """Add the parts of the steps of each gap: of the first step the last ``in_first`` ns, of the others up to ``upto`` all."""
    of_first = split_durations(in_first, steps.limits.at(first))
    for name in STEP_PARTS:
        running = steps.parts_before[name]
        rest = np.where(has_steps, running[upto + 1] - running[first + 1], 0)
        parts[:, index_of(name)] += np.where(evicted, 0, of_first.of(name) + rest)


def _charge_idle_steps(parts: Ints, steps: ChargedSteps, usual_ns: Ints, upto: Ints, silent: Bools) -> None:
    """Charge the bases of steps that gave a stream nothing to generation, beyond those of its usual gap and of one step more.

    Why they gave it nothing is not recorded: it was not scheduled, or its text was held back.
    """
    base = parts[:, _BASE]
    healthy = np.maximum(usual_ns, steps.parts.base[upto]) + steps.parts.base[upto]
    idle = np.where(silent, np.maximum(base - healthy, 0), 0)
    parts[:, _BASE] -= idle
    parts[:, _GENERATION] += idle


def _by_records(gaps: Gaps, end_ns: Ints) -> tuple[Ints, Ints]:
    """Return the begin and end of each gap at the server, by the clock of the steps, which ended at ``end_ns``.

    A chunk that seems to have been sent just before the end of a step was produced by that step and sent at its end; the difference is the
    error of the clock's offset. Otherwise an error of half a millisecond would turn a long step into a front end that did not send.
    """
    begin, end = gaps.server_start_ns + gaps.clock_offset_ns, gaps.server_end_ns + gaps.clock_offset_ns
    early = np.maximum(_early_ns(begin, gaps.clock_offset_error_ns, end_ns), _early_ns(end, gaps.clock_offset_error_ns, end_ns))
    return begin + early, end + early


def _early_ns(times: Ints, error_ns: Ints, end_ns: Ints) -> Ints:
    """Return by how much each time precedes the end of a step, if that is within the error and much nearer than the end before; else 0."""
    if len(end_ns) < 2:
        return np.zeros(len(times), np.int64)
    after = np.searchsorted(end_ns, times, "right")
    inside, at = (after > 0) & (after < len(end_ns)), np.clip(after, 1, len(end_ns) - 1)
    ahead, behind = end_ns[at] - times, times - end_ns[at - 1]
    return np.asarray(np.where(inside & (ahead <= error_ns) & (ahead <= _NEARER_SHARE * behind), ahead, 0))


def _is_awake(steps: ChargedSteps, first: Ints, end: Ints) -> Bools:
    """Return whether the front end recorded the step ``first`` and the next while a silence up to ``end`` lasted, not after it.

    Both are examined, because a front end may freeze between the record of a step and the send of its output.
    """
    second = np.minimum(first + 1, len(steps.end_ns) - 1)
    late = np.maximum(steps.late_ns[first], steps.late_ns[second])
    return np.asarray(late < _FROZEN_SHARE * (end - steps.end_ns[first]))


def _charge_delivery(gaps: Gaps, parts: Ints, late: Ints) -> None:
    """Charge what the client waited beyond the server: to its application as far as that held the stream, then to the network path.

    Data that lay unread while the application held the stream for most of the time lay there because of the application.
    """
    held = np.clip(np.minimum(gaps.hold_ns, late), 0, None)
    parts[:, _CONSUMER] += held
    rest = late - held
    client_only = ~gaps.has_server
    usual = np.where(client_only, np.minimum(gaps.pace_ns, rest), 0)
    parts[:, _BASE] += usual
    unread = np.where((held > 0) & (2 * held >= late), _CONSUMER, _SLOW_READER)
    on_path = np.where(gaps.unread, unread, np.where(gaps.buffered, _COALESCING, _CONNECTION))
    cause = np.where(client_only, _side(gaps.caught_up), on_path)
    parts[np.arange(len(cause)), cause] += rest - usual


def _side(caught_up: NDArray[np.float64]) -> Ints:
    """Return, from the client alone, whether the bytes were delivered late, generated late, or neither can be concluded."""
    side = np.where(caught_up >= ALL_BEHIND_MIN, _DELIVERY, np.where(caught_up <= NONE_BEHIND_MAX, _GENERATION, _UNKNOWN))
    return np.where(np.isnan(caught_up), _UNKNOWN, side)


def _name(gaps: Gaps, parts: Ints, alignment: _Alignment) -> Verdicts:
    """Name the cause with the largest part of each gap's excess."""
    rows = np.arange(len(parts))
    excess = gaps.length_ns - parts[:, _BASE]
    beyond_base = parts.copy()
    beyond_base[:, _BASE] = np.iinfo(np.int64).min
    leading = np.argmax(beyond_base, axis=1) if len(parts) else np.zeros(0, np.int64)
    share = np.divide(parts[rows, leading], excess, out=np.zeros(len(parts)), where=excess > 0)
    return Verdicts(
        parts=parts,
        excess_ns=excess,
        cause=np.where(share >= _NAMED_SHARE, leading, NO_CAUSE),
        share=share,
        aligned=alignment.aligned,
        step_first=alignment.step_first,
        step_last=alignment.step_last,
        preempted=alignment.preempted,
        corroborated_by=np.zeros(len(parts), np.int64),
    )
