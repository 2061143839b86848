"""The steps of one engine: when each of them ended, and what it spent its time on.

A record has the time at which the front end wrote it, which is late when the front end is late. But the record also has the duration of the
step by the engine's own clock. The sum of the durations gives the true ends except for one constant; the record that was written soonest
after its step gives the constant. A duration that the records contradict is not used.

The duration of a step is split by a model that is fitted to the engine's own steps: a base per step and request, and a cost per token of
prefill or recompute. Ranks of a server that wait for each other take as long as the one with the most work (`ranks`). Time that the
model does not explain is charged to GPU throttling as far as the GPU was throttled, and else to the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.gpu_throttle import CLOCK_DROP_MIN, GpuClock, Throttling, throttling_in, throttling_share_ns
from legato_ingest.attribution.model.median import median
from legato_ingest.attribution.model.ranks import Rank, Work, beside
from legato_ingest.attribution.model.steps import ChargedSteps, StepLimits, Steps, or_zero, split_durations

__all__ = ["WORK_STEPS_MIN", "charge_steps", "step_ends"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# The fit leaves out steps that took longer than this multiple of the expected duration, and is repeated so many times (trimmed least
# squares).
_TRIM, _ROUNDS = 1.6, 7
# A step's work may take this multiple of the fitted cost, as its context grows, and this share of a median step in addition. Time beyond
# that is charged to the host.
_WORK_FACTOR, _WORK_SLACK = 1.5, 0.25
# An interval is too long if all records before it would be late by more than this share of a median interval: chunks would be assigned
# to other steps. It still measures its step if it is too long by this share of itself or less. So few records may indeed all be late.
_EXCESS_SHARE, _MEASURED_SHARE, _LATE_RECORDS = 0.4, 0.25, 20
# A fit needs this number of clean steps.
_STEPS_MIN = 20
WORK_STEPS_MIN = 5
"""With fewer steps that have work, the fitted cost of work is not reliable."""


@dataclass(frozen=True, slots=True)
class _Fit:
    """The model: ns per step, per request and per token of work; and the median duration of the steps that it rests on."""

    step_ns: float
    request_ns: float
    token_ns: float
    median_ns: float

    def base_ns(self, work: Work) -> Floats:
        return np.maximum(0, self.step_ns + self.request_ns * work.requests)

    def work_ns(self, work: Work) -> Floats:
        return max(0.0, self.token_ns) * work.tokens

    def work_ns_max(self, work: Work) -> Floats:
        cost = _WORK_FACTOR * max(0.0, self.token_ns) * work.tokens + _WORK_SLACK * self.median_ns
        return np.where(work.tokens > 0, cost, 0)


def charge_steps(steps: Steps, gpus: Sequence[GpuClock] = (), ranks: Sequence[Rank] = (), has_all_ranks: bool = True) -> ChargedSteps:
    """Charge every step of an engine that runs on these GPUs. The time is linear in the number of steps.

    ``ranks``: the other ranks of its server; ``has_all_ranks``: there are no more.
    """
    intervals = _Intervals.of(steps)
    end = _ends(steps, intervals.leads)
    duration = np.diff(end, prepend=end[:1])
    linked = _linked(steps)
    complete = linked & ~np.isnan(steps.decode_requests) & intervals.measures
    own = Work.of(steps)
    others = beside(own, end, linked, ranks, has_all_ranks)
    work = others.work
    throttling = throttling_in(gpus, end - duration, end)
    clean = _clean(throttling, complete, work.tokens)
    fit = _fit(duration.astype(np.float64), work, clean)
    usual_mhz = _median(throttling.mhz[clean])
    model = fit or _Fit(0.0, 0.0, 0.0, 0.0)
    base, work_max = model.base_ns(work), model.work_ns_max(work)
    left = np.maximum(duration - base - work_max, 0.0)
    # The engine may have been idle during a step that is not complete, so such a step demands nothing of throttling.
    demand = np.where(complete, _throttling_demand(throttling, usual_mhz, base + model.work_ns(work), left), 0.0)
    throttled = throttling_share_ns(gpus, end, demand, usual_mhz)
    limits = StepLimits(base.astype(np.int64), work_max.astype(np.int64), throttled.astype(np.int64), work.recompute_share)
    return ChargedSteps(
        number=steps.number,
        recorded_ns=steps.recorded_ns,
        end_ns=end,
        late_ns=steps.recorded_ns - end,
        duration_ns=duration,
        median_ns=int(median(duration)) if len(end) else 0,
        parts=split_durations(duration, limits),
        limits=limits,
        prefill_tokens=own.prefill,
        awaited=others.awaited,
        unsure=others.unsure,
        preempted=_preempted(steps),
        resumed=steps.preempted != 0,
        linked=linked,
        complete=complete,
        fitted=fit is not None,
        work_steps=int((clean & (work.tokens > 0)).sum()),
        throttling=throttling,
        usual_mhz=usual_mhz,
    )


def _throttling_demand(throttling: Throttling, usual_mhz: float, healthy_ns: Floats, left_ns: Floats) -> Floats:
    """Return the most of each step that throttling may explain.

    ``healthy_ns``: the duration of the step's work at the usual clock; ``left_ns``: the duration beyond that. A clock that was seen below
    the usual frequency makes the work longer by that ratio, and by no more.
    """
    slower = np.nan_to_num(usual_mhz / np.maximum(throttling.mhz, 1.0) - 1.0, nan=0.0)
    return np.where(slower > CLOCK_DROP_MIN, np.minimum(slower * healthy_ns, left_ns), left_ns)


def _clean(throttling: Throttling, complete: Bools, work: Floats) -> Bools:
    """Return the steps that show the healthy duration: those without throttling, if there are enough of them, also with work.

    Prompts bring a busy GPU to its power limit. So a power limit excludes a step only if the clock was seen below the usual frequency.
    """
    usual_mhz = _median(throttling.mhz[complete & (throttling.hard_ns == 0)])
    is_low = (throttling.soft_ns > 0) & (np.nan_to_num(throttling.mhz, nan=np.inf) < (1 - CLOCK_DROP_MIN) * usual_mhz)
    clean = complete & (throttling.hard_ns == 0) & ~is_low
    has_work = (work[clean] > 0).sum() >= WORK_STEPS_MIN or not (work[complete] > 0).any()
    return clean if clean.sum() >= _STEPS_MIN and has_work else complete


def _median(values: Floats) -> float:
    """Return the median of the known values; NaN without any."""
    known = values[~np.isnan(values)]
    return median(known) if len(known) else float("nan")


def step_ends(steps: Steps) -> Ints:
    """Return when each step ended, by the clock of the records.

    Within a run of steps with known durations, end = constant + sum of durations; the constant is the largest one with which no record
    precedes the end of its step. A step without a duration begins a new run, and so does one with an interval that is too long.
    """
    return _ends(steps, _Intervals.of(steps).leads)


def _ends(steps: Steps, leads: Bools) -> Ints:
    """Return the ends of steps. ``leads``: the steps that do not begin a new run."""
    run, slack = _slack(steps, leads)
    if not len(slack):
        return slack
    constant = np.minimum.reduceat(slack, np.flatnonzero(~leads))
    return np.maximum.accumulate(steps.recorded_ns - slack + constant[run])


def _slack(steps: Steps, leads: Bools) -> tuple[Ints, Ints]:
    """Return the index of each step's run, and the time of its record less the sum of the intervals."""
    since = np.cumsum(np.where(leads, steps.interval_ns, 0)).astype(np.int64)
    return np.cumsum(~leads) - 1, steps.recorded_ns - since


@dataclass(frozen=True, slots=True)
class _Intervals:
    """What the intervals of steps are worth.

    ``leads``: the interval leads from the end of the step before to the end of the step. ``measures``: it is nearly the step's duration.

    An interval is longer than its step if no request also got a token in the step before: the only request was preempted meanwhile, or
    several batches take turns in a pipeline. Then the record is too early: all records before it would be late by the excess.
    """

    leads: Bools
    measures: Bools

    @classmethod
    def of(cls, steps: Steps) -> _Intervals:
        """Compare the intervals of these steps with their records."""
        known = ~np.isnan(steps.interval_ns)
        known[:1] = False
        known[1:] &= np.diff(steps.number) == 1
        if not known.any():
            return cls(known, known)
        run, slack = _slack(steps, known)
        starts = np.flatnonzero(~known)
        low, high = np.minimum.reduceat(slack, starts), np.maximum.reduceat(slack, starts)
        # Each run is moved below the runs before it, so that one running minimum serves all of them.
        moved = slack - (high + np.cumsum(high - low) - (high - low))[run]
        excess = np.where(known, -np.diff(np.minimum.accumulate(moved), prepend=moved[:1]), 0)
        excess_max = _EXCESS_SHARE * median(steps.interval_ns[known])
        measures = known & (excess <= np.maximum(excess_max, _MEASURED_SHARE * steps.interval_ns))
        is_early = np.arange(len(run)) - starts[run] <= _LATE_RECORDS
        return cls(measures & (is_early | (excess <= excess_max)), measures)


def _fit(duration: Floats, work: Work, clean: Bools) -> _Fit | None:
    """Fit the model to the clean steps by trimmed least squares; ``None`` with too few of them."""
    if clean.sum() < _STEPS_MIN:
        return None
    terms = np.stack([np.ones(len(duration)), work.requests, work.tokens], axis=1)
    kept, before = clean, np.zeros_like(clean)
    fit: Floats = np.zeros(3)
    for _ in range(_ROUNDS):
        if np.array_equal(kept, before):
            # The same steps give the same fit.
            break
        fit = np.asarray(np.linalg.lstsq(terms[kept], duration[kept], rcond=None)[0], np.float64)
        kept, before = clean & (duration < _TRIM * (terms @ fit)), kept
        if kept.sum() < _STEPS_MIN:
            return None
    step_ns, request_ns, token_ns = fit.tolist()
    return _Fit(step_ns, request_ns, token_ns, median(duration[clean]))


def _linked(steps: Steps) -> Bools:
    """Return the steps that directly follow the step before them in the record, with the engine busy between the two."""
    out = np.zeros(len(steps.number), np.bool_)
    is_busy = or_zero(steps.running[:-1]) + or_zero(steps.waiting[:-1]) > 0
    out[1:] = (np.diff(steps.number) == 1) & is_busy
    return out


def _preempted(steps: Steps) -> Bools:
    """Return the steps in which the running requests fell by more than the requests that ended, while the waiting requests rose.

    An aborted request and a new one look the same: vLLM records no end of an aborted request.
    """
    out = np.zeros(len(steps.number), np.bool_)
    fell = -np.diff(or_zero(steps.running)) - or_zero(steps.finished[1:])
    out[1:] = (fell > 0) & (np.diff(or_zero(steps.waiting)) > 0)
    return out
