"""The steps of one engine: as recorded, and charged to causes. `step_model` computes the second from the first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.gpu_throttle import Throttling
from legato_ingest.causes import STEP_PARTS

__all__ = ["ChargedSteps", "StepLimits", "StepParts", "Steps", "or_zero", "split_durations"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Time of a step that the model does not explain counts as the host's from this share of a median step; below, it is the error of the fit.
_HOST_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Steps:
    """The recorded steps of one engine in order, one entry a step. Unknown values are NaN.

    ``recorded_ns``: when the front end wrote the record, by its clock. ``interval_ns``: the duration by the engine's clock. ``finished``:
    the number of requests that ended in the step. ``preempted``: the preemptions that the engine reported, each in the step that resumed
    the request.
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
    preempted: Floats
    finished: Floats


@dataclass(frozen=True, slots=True)
class StepParts:
    """The parts of durations of steps in ns, one entry a step. They add up to the duration exactly. The fields are ``STEP_PARTS``."""

    base: Ints
    scheduling: Ints
    kv_pressure: Ints
    gpu_clock: Ints
    host: Ints

    def of(self, cause: str) -> Ints:
        """Return the part of one cause of ``STEP_PARTS``."""
        assert cause in STEP_PARTS
        part: Ints = getattr(self, cause)
        return part


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The most that may be charged of each step, in ns: as base, as work (prefill and recompute), and to throttling.

    ``recompute_share``: the share of the work that is recompute.
    """

    base_ns: Ints
    work_ns: Ints
    throttling_ns: Ints
    recompute_share: Floats

    def at(self, steps: Ints) -> StepLimits:
        """Return the limits of these steps."""
        return StepLimits(self.base_ns[steps], self.work_ns[steps], self.throttling_ns[steps], self.recompute_share[steps])


@dataclass(frozen=True, eq=False)
class ChargedSteps:
    """The steps of an engine with their ends and parts, one entry a step.

    ``end_ns``: the end by the clock of the records; ``late_ns``: how long after its end the step was recorded. ``duration_ns``: the sum of
    ``parts``; ``median_ns``: its median. ``awaited``, ``unsure``: other ranks of the server had work in the step (`ranks.Beside`).
    ``preempted``: a request seems to have been preempted in the step. ``resumed``: a preempted request may have been resumed in it: the
    engine reported that, or does not report it. ``linked``: the previous step was recorded, too, and the engine was busy between them.
    ``complete``: ``linked``, and the record has the duration and the work, so the parts are facts. ``fitted``: there were enough steps for
    the model; ``work_steps``: the number of steps with work that the model rests on. ``throttling``: the state of the GPUs in each step;
    ``usual_mhz``: the clock in the steps that the model rests on (NaN: unknown).
    """

    number: Ints
    recorded_ns: Ints
    end_ns: Ints
    late_ns: Ints
    duration_ns: Ints
    median_ns: int
    parts: StepParts
    limits: StepLimits
    prefill_tokens: Floats
    awaited: Bools
    unsure: Bools
    preempted: Bools
    resumed: Bools
    linked: Bools
    complete: Bools
    fitted: bool
    work_steps: int
    throttling: Throttling
    usual_mhz: float

    # Sums over all steps are computed once for all streams of the engine.
    @cached_property
    def preemptions(self) -> Ints:
        """Number of steps with a preemption before each step, and of all."""
        return _sums(self.preempted)

    @cached_property
    def resumptions(self) -> Ints:
        """Number of ``resumed`` steps before each step, and of all."""
        return _sums(self.resumed)

    @cached_property
    def unlinked(self) -> Ints:
        """Number of steps that are not ``linked`` before each step, and of all."""
        return _sums(~self.linked)

    @cached_property
    def incomplete(self) -> Ints:
        """Number of steps that are not ``complete`` before each step, and of all."""
        return _sums(~self.complete)

    @cached_property
    def parts_before(self) -> Mapping[str, Ints]:
        """Sum of each cause's parts (ns) before each step, and of all."""
        return {cause: _sums(self.parts.of(cause)) for cause in STEP_PARTS}

    @cached_property
    def ends_without(self) -> Mapping[str, Ints]:
        """Ends of the steps (ns) if no step had a part of the cause."""
        longer = {cause: self.parts.of(cause) for cause in STEP_PARTS}
        longer["host"] = np.where(longer["host"] >= _HOST_SHARE * self.median_ns, longer["host"], 0)
        return {cause: self.end_ns - np.cumsum(part) for cause, part in longer.items()}


def or_zero(values: Floats) -> Floats:
    """Return the values, with 0 for unknown ones. ``numpy.nan_to_num`` also replaces infinity, and takes four times as long."""
    return np.where(np.isnan(values), 0.0, values)


def _sums(values: NDArray[np.bool_] | Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(values, dtype=np.int64)])


def split_durations(duration_ns: Ints, limits: StepLimits) -> StepParts:
    """Split durations of steps (or of their last parts) into whole ns that add up exactly."""
    base = np.minimum(duration_ns, limits.base_ns)
    work = np.minimum(duration_ns - base, limits.work_ns)
    throttled = np.minimum(duration_ns - base - work, limits.throttling_ns)
    recompute = (work * limits.recompute_share).astype(np.int64)
    return StepParts(base, work - recompute, recompute, throttled, duration_ns - base - work - throttled)
