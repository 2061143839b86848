"""How sure each verdict is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.gpu_throttle import CLOCK_DROP_MIN
from legato_ingest.attribution.model.step_model import WORK_STEPS_MIN
from legato_ingest.attribution.model.steps import ChargedSteps
from legato_ingest.attribution.model.verdicts import Verdicts
from legato_ingest.causes import BY_NAME

__all__ = ["confidences"]


def confidences(causes: Sequence[str], verdicts: Verdicts, has_server: NDArray[np.bool_], steps: ChargedSteps | None) -> list[str]:
    """Return the confidence of each verdict. ``causes``: its name; ``has_server``: the server of its stream was recorded.

    Without engine steps a cause was reached by exclusion, which is weaker. ``strong`` becomes ``likely`` in three cases: the server was not
    recorded, so which step produced a chunk is concluded; the engine had so few steps with work that their cost is not reliable; a GPU was
    throttled by the driver's count, and no sample shows a lower clock.
    """
    has_few = steps is not None and steps.work_steps < WORK_STEPS_MIN
    out: list[str] = []
    for row, name in enumerate(causes):
        cause = BY_NAME[name]
        confidence = cause.by_exclusion if steps is None and cause.by_exclusion else cause.confidence
        is_fit = has_few and (name == "scheduling" or name == "kv_pressure" and verdicts.preempted[row] < 0)
        is_unseen = name == "gpu_clock" and not _has_low_clock(verdicts, row, steps)
        is_weak = not has_server[row] or is_fit or is_unseen
        out.append("likely" if confidence == "strong" and is_weak else confidence)
    return out


def _has_low_clock(verdicts: Verdicts, row: int, steps: ChargedSteps | None) -> bool:
    """Return whether a sample in the steps of the gap shows a clock below the usual frequency."""
    if steps is None:
        return False
    own = slice(verdicts.step_first[row], verdicts.step_last[row] + 1)
    return bool((steps.throttling.mhz[own] < (1 - CLOCK_DROP_MIN) * steps.usual_mhz).any())
