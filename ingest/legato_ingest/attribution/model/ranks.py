"""The other data-parallel ranks of an engine's server: the work in their steps, and whether the engine's steps waited for it.

Ranks of a model with experts (MoE) exchange data within each step, so all of them take as long as the slowest, and their steps end
together. Ranks of other models step at separate times and do not wait for each other. The ends of the steps show which of the two it is.
They are by one clock, because one front end records the steps of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.median import median
from legato_ingest.attribution.model.steps import Steps, or_zero

__all__ = ["Beside", "Rank", "Work", "beside"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# The place of another rank's end within the engine's step is an angle. The mean over so many ends shows that the ranks end together (a real
# part of this or more), or at separate times (a length below this). Between the two it is not known.
_ENDS_MIN, _TOGETHER_MIN, _APART_MAX = 100, 0.8, 0.5
# In ranks that end together, two ends nearer than this share of a median step belong to one step.
_NEAR_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Work:
    """What each step had to do: the number of requests, the tokens of prefill, and those of recompute."""

    requests: Floats
    prefill: Floats
    recompute: Floats

    @classmethod
    def of(cls, steps: Steps) -> Work:
        """Return the work of recorded steps; unknown numbers count as 0."""
        # The engine counts the recompute of a preempted request as decode tokens: far more of them than requests and drafts explain.
        beyond = or_zero(steps.decode_tokens - steps.decode_requests) - or_zero(steps.draft_tokens)
        requests = or_zero(steps.prefill_requests) + or_zero(steps.decode_requests)
        return cls(requests, or_zero(steps.prefill_tokens), np.maximum(0, beyond))

    @property
    def tokens(self) -> Floats:
        """The tokens of prefill and recompute."""
        return self.prefill + self.recompute

    @property
    def recompute_share(self) -> Floats:
        """The share of the tokens that is recompute; 0 without tokens."""
        tokens = self.tokens
        return np.divide(self.recompute, tokens, out=np.zeros(len(tokens)), where=tokens > 0)

    def raised(self, at: Ints, prefill: Floats, recompute: Floats) -> Work:
        """Return the work with that of other steps in the steps ``at`` where it is more: the slowest rank sets the duration."""
        order = np.argsort(prefill + recompute, kind="stable")
        order = order[(prefill + recompute)[order] > self.tokens[at[order]]]
        own_prefill, own_recompute = self.prefill.copy(), self.recompute.copy()
        own_prefill[at[order]], own_recompute[at[order]] = prefill[order], recompute[order]
        return replace(self, prefill=own_prefill, recompute=own_recompute)


@dataclass(frozen=True, eq=False, slots=True)
class Rank:
    """The steps of another rank. ``end_ns``: their ends, in order. ``follows``: the record before the step is not missing.

    ``working``: the indices of the steps with prefill or recompute; ``prefill``, ``recompute``: their tokens.
    """

    end_ns: Ints
    follows: Bools
    working: Ints
    prefill: Floats
    recompute: Floats

    @classmethod
    def of(cls, steps: Steps, end_ns: Ints) -> Rank:
        """Return the rank with these steps, which ended at ``end_ns``."""
        work = Work.of(steps)
        working = np.flatnonzero(work.tokens > 0)
        follows = np.diff(steps.number, prepend=steps.number[:1]) <= 1
        return cls(end_ns, follows, working, work.prefill[working], work.recompute[working])


@dataclass(frozen=True, slots=True)
class Beside:
    """What the other ranks mean for the steps of an engine, one entry a step.

    ``work``: the work that set the duration. ``awaited``: another rank had work in the step, and the step waited for it or may have.
    ``unsure``: of these, the steps of which it is not known whether they waited.
    """

    work: Work
    awaited: Bools
    unsure: Bools


def beside(work: Work, end_ns: Ints, linked: Bools, ranks: Sequence[Rank], is_complete: bool = True) -> Beside:
    """Return what other ranks mean for steps with this work that ended at ``end_ns``. The time is linear in the steps of each rank.

    ``linked``: as in ``ChargedSteps``. ``is_complete``: there are no more ranks than these.
    """
    awaited, unsure = np.zeros(len(end_ns), np.bool_), np.full(len(end_ns), not is_complete)
    for rank in ranks:
        is_together = _is_together(end_ns, linked, rank.end_ns)
        if is_together is False or not len(end_ns):
            continue
        at = _same_step(end_ns, rank.end_ns[rank.working])
        has_own = (at >= 0) & bool(is_together)
        work = work.raised(at[has_own], rank.prefill[has_own], rank.recompute[has_own])
        awaited[at[has_own]] = True
        unknown = ~rank.follows
        unknown[rank.working[~has_own]] = True
        unsure |= _at_the_time_of(np.flatnonzero(unknown), rank.end_ns, end_ns)
    return Beside(work, awaited | unsure, unsure)


def _is_together(end_ns: Ints, linked: Bools, other_end_ns: Ints) -> bool | None:
    """Return whether the steps of another rank end with those of the engine; ``None``: not known."""
    at = np.searchsorted(end_ns, other_end_ns)
    is_inside = (at > 0) & (at < len(end_ns))
    is_inside[is_inside] = linked[at[is_inside]]
    at, other = at[is_inside], other_end_ns[is_inside]
    took = end_ns[at] - end_ns[at - 1]
    if (took > 0).sum() < _ENDS_MIN:
        return None
    mean = np.exp(2j * np.pi * (end_ns[at] - other)[took > 0] / took[took > 0]).mean()
    if mean.real >= _TOGETHER_MIN:
        return True
    return False if abs(mean) < _APART_MAX else None


def _same_step(end_ns: Ints, other_end_ns: Ints) -> Ints:
    """Return the index of the step that ended together with each other step; -1: none."""
    near_ns = int(_NEAR_SHARE * median(np.diff(end_ns))) if len(end_ns) > 1 else 0
    at = np.minimum(np.searchsorted(end_ns, other_end_ns - near_ns), len(end_ns) - 1)
    return np.where(np.abs(end_ns[at] - other_end_ns) <= near_ns, at, -1)


def _at_the_time_of(steps: Ints, other_end_ns: Ints, end_ns: Ints) -> Bools:
    """Return which steps ran at the time of these steps of another rank, which began at the end of the step before or later."""
    first = np.searchsorted(end_ns, other_end_ns[np.maximum(steps - 1, 0)], "right")
    last = np.searchsorted(end_ns, other_end_ns[steps])
    begun = np.bincount(first, minlength=len(end_ns) + 2) - np.bincount(last + 1, minlength=len(end_ns) + 2)
    return np.asarray(np.cumsum(begun)[: len(end_ns)] > 0)
