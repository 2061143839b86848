"""One engine's steps: when each really ended, and what it spent its time on.

One idea: a record says when the front end *wrote* it, which is late when the front end is. The intervals in it come from the engine's own
clock, so they add up to the true ends but for one constant; the record that came soonest after its step gives that. What a step took is
split by a model fitted to the engine's own steps: base per step and request, and cost per token of prefill or recompute. What the model
does not explain is the clock's as far as the GPU's clock was lowered then, and else the host's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.load.gpu_clock_samples import SLOWER_MIN, GpuClock, Lowered, charged, lowered

__all__ = ["Charges", "Steps", "charge"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# The fit leaves out steps beyond this multiple of what it expects, and is repeated until they settle (least squares, trimmed).
_TRIM, _ROUNDS = 1.6, 7
# A prefill may cost this multiple of the fit (its context grows), and this share of a usual step more, before the rest is the host's.
_WORK_FACTOR, _WORK_SLACK = 1.5, 0.25
# Fewer clean steps than this fit nothing.
_STEPS_MIN = 20
# And fewer with work say nothing of its cost.
_WORK_MIN = 5


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one engine and epoch in order, one entry a step; unknown values are NaN.

    ``recorded_ns``: the front end's clock. ``interval_ns``: the engine's own duration. ``finished``: requests that ended in the step.
    """

    number: Ints
    recorded_ns: Ints
    interval_ns: Floats
    running: Floats
    waiting: Floats
    prefill_requests: Floats
    prefill_tokens: Floats
    decode_requests: Floats
    decode_tokens: Floats
    draft_tokens: Floats
    finished: Floats


@dataclass(frozen=True, slots=True)
class Charges:
    """What each step took and on what: ns. ``took = base + scheduling + kv_pressure + gpu_clock + host`` exactly, one entry a step.

    ``end_ns`` is on the clock of the records; ``late_ns`` is how long after its end a step was recorded; ``usual_ns`` is the median step.
    ``preempted`` marks steps in which a request was preempted. ``linked``: the record before this one is there, and the engine was busy
    between them. ``whole``: the engine also said how long the step took and what was in it, so that its split is a fact. ``base_most_ns``,
    ``work_most_ns`` and ``clock_most_ns`` bound what a part of the step may be charged as base, as work, and to its clock. ``work_steps``:
    how many steps with work the fit of its cost rests on. ``clocks``: what is known of the GPUs' clocks in each step; ``usual_mhz``: the
    clock at which the fit's steps ran (NaN: unknown).
    """

    number: Ints
    recorded_ns: Ints
    end_ns: Ints
    late_ns: Ints
    took: Ints
    usual_ns: int
    base: Ints
    scheduling: Ints
    kv_pressure: Ints
    gpu_clock: Ints
    host: Ints
    base_most_ns: Ints
    work_most_ns: Ints
    clock_most_ns: Ints
    recompute_share: Floats
    prefill_tokens: Floats
    preempted: NDArray[np.bool_]
    linked: NDArray[np.bool_]
    whole: NDArray[np.bool_]
    fitted: bool
    work_steps: int
    clocks: Lowered
    usual_mhz: float


def charge(steps: Steps, gpus: Sequence[GpuClock] = ()) -> Charges:
    """Charge every step of an engine, on these GPUs. Linear in the number of steps."""
    end = _ends(steps)
    count = len(end)
    took = np.diff(end, prepend=end[:1])
    linked = np.zeros(count, np.bool_)
    busy = np.nan_to_num(steps.running[:-1]) + np.nan_to_num(steps.waiting[:-1]) > 0
    linked[1:] = (np.diff(steps.number) == 1) & busy
    requests = np.nan_to_num(steps.prefill_requests) + np.nan_to_num(steps.decode_requests)
    prefill = np.nan_to_num(steps.prefill_tokens)
    # A preempted request's recompute is counted among the decode tokens: far more of them than requests and drafts explain.
    recompute = np.maximum(0, np.nan_to_num(steps.decode_tokens - steps.decode_requests) - np.nan_to_num(steps.draft_tokens))
    work = prefill + recompute
    known = linked & ~np.isnan(steps.decode_requests) & ~np.isnan(steps.interval_ns)
    clocks = lowered(gpus, end - took, end)
    clean = _clean(clocks, known, work)
    fit = _fit(took.astype(np.float64), requests, work, clean)
    base_most = np.maximum(0, fit[0] + fit[1] * requests) if fit is not None else np.zeros(count)
    usual = float(np.median(took[clean])) if clean.any() else 0.0
    work_most = np.where(work > 0, _WORK_FACTOR * max(0.0, fit[2]) * work + _WORK_SLACK * usual, 0) if fit is not None else np.zeros(count)
    share = np.divide(recompute, work, out=np.zeros(count), where=work > 0)
    usual_mhz = _median(clocks.mhz[clean])
    healthy = base_most + (max(0.0, fit[2]) * work if fit is not None else 0.0)
    # A step that is not known to have been worked on without a break asks for nothing: it may have been idle.
    asked = np.where(known, _clock_asks(clocks, usual_mhz, healthy, np.maximum(took - base_most - work_most, 0.0)), 0.0)
    clock_most = charged(gpus, end, asked, usual_mhz)
    base, scheduling, kv, clock, host = split(took, base_most, work_most, share, clock_most)
    return Charges(
        number=steps.number,
        recorded_ns=steps.recorded_ns,
        end_ns=end,
        late_ns=steps.recorded_ns - end,
        took=took,
        usual_ns=int(np.median(took)) if count else 0,
        base=base,
        scheduling=scheduling,
        kv_pressure=kv,
        gpu_clock=clock,
        host=host,
        base_most_ns=base_most.astype(np.int64),
        work_most_ns=work_most.astype(np.int64),
        clock_most_ns=clock_most.astype(np.int64),
        recompute_share=share,
        prefill_tokens=prefill,
        preempted=_preempted(steps),
        linked=linked,
        whole=known,
        fitted=fit is not None,
        work_steps=int((clean & (work > 0)).sum()),
        clocks=clocks,
        usual_mhz=usual_mhz,
    )


def _clean(clocks: Lowered, known: NDArray[np.bool_], work: Floats) -> NDArray[np.bool_]:
    """The steps that say what a healthy one takes: those of a lowered clock do not, while there are others, with work among them.

    A power limit is near in every busy GPU, and prompts are what brings it there: it counts only where the clock was seen below the usual.
    """
    usual_mhz = _median(clocks.mhz[known & (clocks.hard_ns == 0)])
    low = (clocks.soft_ns > 0) & (np.nan_to_num(clocks.mhz, nan=np.inf) < (1 - SLOWER_MIN) * usual_mhz)
    clean = known & (clocks.hard_ns == 0) & ~low
    enough = clean.sum() >= _STEPS_MIN and ((work[clean] > 0).sum() >= _WORK_MIN or not (work[known] > 0).any())
    return clean if enough else known


def split(
    took: Ints,
    base_most: NDArray[np.number],
    work_most: NDArray[np.number],
    recompute_share: Floats,
    clock_most: NDArray[np.number],
) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Durations as (base, scheduling, kv_pressure, gpu_clock, host), in whole ns that add up exactly."""
    base = np.minimum(took, base_most.astype(np.int64))
    work = np.minimum(took - base, work_most.astype(np.int64))
    clock = np.minimum(took - base - work, clock_most.astype(np.int64))
    kv = (work * recompute_share).astype(np.int64)
    return base, work - kv, kv, clock, took - base - work - clock


def _clock_asks(clocks: Lowered, usual_mhz: float, healthy: Floats, left: Floats) -> Floats:
    """The most of each step that a lowered clock may answer for; ``healthy``: what its work takes at the usual clock, ``left``: what it
    took beyond. A clock that was seen lowered makes work longer by no more than its share.
    """
    slower = np.nan_to_num(usual_mhz / np.maximum(clocks.mhz, 1.0) - 1.0, nan=0.0)
    return np.where(slower > SLOWER_MIN, np.minimum(slower * healthy, left), left)


def _median(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")


def _ends(steps: Steps) -> Ints:
    """When each step ended, on the records' clock.

    Within a run of steps whose intervals are known, end = constant + sum of intervals; the constant is the largest that lets no record
    come before its step's end. A step without an interval begins a new run.
    """
    known = ~np.isnan(steps.interval_ns)
    known[:1] = False
    known[1:] &= np.diff(steps.number) == 1
    run = np.cumsum(~known)
    since = np.cumsum(np.where(known, steps.interval_ns, 0)).astype(np.int64)
    slack = steps.recorded_ns - since
    if not len(slack):
        return slack
    starts = np.flatnonzero(~known)
    constant = np.minimum.reduceat(slack, starts)
    return np.maximum.accumulate(since + constant[run - 1])


def _fit(took: Floats, requests: Floats, work: Floats, known: NDArray[np.bool_]) -> Floats | None:
    """Base ns a step, ns a request, ns a token of work: least squares over usual steps; ``None`` with too few of them."""
    if known.sum() < _STEPS_MIN:
        return None
    terms = np.stack([np.ones(len(took)), requests, work], axis=1)
    kept = known
    fit: Floats = np.zeros(3)
    for _ in range(_ROUNDS):
        fit = np.asarray(np.linalg.lstsq(terms[kept], took[kept], rcond=None)[0], np.float64)
        kept = known & (took < _TRIM * (terms @ fit))
        if kept.sum() < _STEPS_MIN:
            return None
    return fit


def _preempted(steps: Steps) -> NDArray[np.bool_]:
    """Steps in which running fell by more than the requests that ended, while waiting rose."""
    out = np.zeros(len(steps.number), np.bool_)
    fell = -np.diff(np.nan_to_num(steps.running)) - np.nan_to_num(steps.finished[1:])
    out[1:] = (fell > 0) & (np.diff(np.nan_to_num(steps.waiting)) > 0)
    return out
