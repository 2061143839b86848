"""The result of charging gaps: a verdict on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from legato_ingest.causes import MIXED, PARTS

__all__ = ["NO_CAUSE", "Verdicts"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NO_CAUSE = -1
"""In ``Verdicts.cause``: no cause has half of the time beyond the healthy step."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Verdicts on gaps, one entry a gap.

    ``parts`` (gaps x ``causes.PARTS``, ns) add up to the gap exactly. ``excess_ns``: the gap without its healthy part. ``cause``: the index
    in ``causes.PARTS`` of the cause with the largest part of the excess, or ``NO_CAUSE``; ``share``: the share of that part.

    ``aligned``: the server's part of the gap is aligned with the engine's steps. ``step_first``, ``step_last``: the indices of these steps
    (-1: none). ``preempted``: the index of the step in which the stream itself was preempted (-1: it was not). ``corroborated_by``: the
    number of other streams' simultaneous stalls from which the cause was taken.
    """

    parts: Ints
    excess_ns: Ints
    cause: Ints
    share: NDArray[np.float64]
    aligned: Bools
    step_first: Ints
    step_last: Ints
    preempted: Ints
    corroborated_by: Ints

    def at(self, rows: Ints) -> Verdicts:
        """Return the verdicts on these gaps only."""
        return Verdicts(*(getattr(self, field.name)[rows] for field in fields(self)))

    @classmethod
    def joined(cls, several: Sequence[Verdicts], steps_before: Sequence[int]) -> Verdicts:
        """Concatenate verdicts. ``steps_before``: of each, the number of steps that precede those of its engine."""
        together = cls(*(np.concatenate([getattr(each, field.name) for each in several]) for field in fields(cls)))
        before = np.repeat(np.array(steps_before, np.int64), [len(each.cause) for each in several])
        shifted = (np.where(steps < 0, steps, steps + before) for steps in (together.step_first, together.step_last, together.preempted))
        step_first, step_last, preempted = shifted
        return replace(together, step_first=step_first, step_last=step_last, preempted=preempted)

    def names(self) -> list[str]:
        """Return the name of each verdict's cause."""
        return [MIXED if cause == NO_CAUSE else PARTS[cause] for cause in self.cause]
