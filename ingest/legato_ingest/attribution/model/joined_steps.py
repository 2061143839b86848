"""The steps of several engines in one array a column: the columns that rows about verdicts need.

Steps are charged engine by engine (`step_model`), but rows are made of many engines at once: a function costs as much for the one gap of an
engine as for all gaps of a hundred. The module computes nothing about a verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.gpu_throttle import Throttling
from legato_ingest.attribution.model.median import median
from legato_ingest.attribution.model.steps import ChargedSteps, StepParts
from legato_ingest.causes import STEP_PARTS
from legato_ingest.timeline.ragged import Segments

__all__ = ["JoinedSteps"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class JoinedSteps:
    """One entry a step, as in ``ChargedSteps``; ``group``: the number of the engine. The last fields have one entry a gap.

    ``usual_late_ns``: how long after its end the gap's engine usually records a step (0 without steps). ``usual_mhz``, ``work_steps``: as
    in ``ChargedSteps``, of the gap's engine (NaN and the largest number without one).
    """

    group: Ints
    number: Ints
    recorded_ns: Ints
    late_ns: Ints
    prefill_tokens: Floats
    recompute_share: Floats
    awaited: Bools
    unsure: Bools
    preempted: Bools
    parts: StepParts
    throttling: Throttling
    usual_late_ns: Ints
    usual_mhz: Floats
    work_steps: Ints

    @classmethod
    def of(cls, engines: Sequence[ChargedSteps | None], gaps: Sequence[int]) -> JoinedSteps:
        """Join the steps of these engines (``None``: not known). ``gaps``: the number of gaps of each engine's streams."""
        known = [steps for steps in engines if steps is not None]
        counts = [len(steps.number) if steps is not None else 0 for steps in engines]
        late = [int(median(steps.late_ns)) if steps is not None and len(steps.late_ns) else 0 for steps in engines]
        mhz = [steps.usual_mhz if steps is not None else np.nan for steps in engines]
        work_steps = [steps.work_steps if steps is not None else np.iinfo(np.int64).max for steps in engines]
        return cls(
            group=Segments.of_lengths(np.array(counts)).owners(),
            number=_joined(np.int64, (each.number for each in known)),
            recorded_ns=_joined(np.int64, (each.recorded_ns for each in known)),
            late_ns=_joined(np.int64, (each.late_ns for each in known)),
            prefill_tokens=_joined(np.float64, (each.prefill_tokens for each in known)),
            recompute_share=_joined(np.float64, (each.limits.recompute_share for each in known)),
            awaited=_joined(np.bool_, (each.awaited for each in known)),
            unsure=_joined(np.bool_, (each.unsure for each in known)),
            preempted=_joined(np.bool_, (each.preempted for each in known)),
            parts=StepParts(**{name: _joined(np.int64, (each.parts.of(name) for each in known)) for name in STEP_PARTS}),
            throttling=Throttling(
                known=_joined(np.bool_, (each.throttling.known for each in known)),
                hard_ns=_joined(np.float64, (each.throttling.hard_ns for each in known)),
                soft_ns=_joined(np.float64, (each.throttling.soft_ns for each in known)),
                mhz=_joined(np.float64, (each.throttling.mhz for each in known)),
            ),
            usual_late_ns=np.repeat(np.array(late, np.int64), gaps),
            usual_mhz=np.repeat(np.array(mhz, np.float64), gaps),
            work_steps=np.repeat(np.array(work_steps, np.int64), gaps),
        )

    def at(self, rows: Ints) -> JoinedSteps:
        """Return all steps, with the entries of these gaps only."""
        mine = {name: getattr(self, name)[rows] for name in ("usual_late_ns", "usual_mhz", "work_steps")}
        return replace(self, **mine)


def _joined(kind: type[np.generic], columns: Iterable[NDArray[Any]]) -> NDArray[Any]:
    several = list(columns)
    # A single engine may have a million steps, which need no copy.
    return several[0] if len(several) == 1 else np.concatenate([np.zeros(0, kind), *several])
