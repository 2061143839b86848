"""How sure each verdict is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.gpu_throttle import CLOCK_DROP_MIN
from legato_ingest.attribution.model.joined_steps import JoinedSteps
from legato_ingest.attribution.model.step_model import WORK_STEPS_MIN
from legato_ingest.attribution.model.verdicts import Verdicts
from legato_ingest.causes import BY_NAME, MIXED, index_of

__all__ = ["confidences"]

_GENERATION, _HOST = index_of("generation"), index_of("host")
# A part of this share of the excess or more, charged to generation, may have another cause in the engine.
_UNEXPLAINED_SHARE = 0.1
# The kernel's count explains the host's part if it is this share of the part or more.
_WAITED_SHARE = 0.5


def confidences(
    causes: Sequence[str],
    verdicts: Verdicts,
    has_server: NDArray[np.bool_],
    steps: JoinedSteps,
    cpu_waits: Sequence[Mapping[str, int]],
    is_open: NDArray[np.bool_],
    was_preempted: NDArray[np.bool_],
) -> list[str]:
    """Return the confidence of each verdict. ``causes``: its name; ``has_server``: the server recorded its gap; ``cpu_waits``: what the
    kernel counted around it; ``was_preempted``: the engine reports that its request was preempted.

    Without engine steps a cause was reached by exclusion, which is weaker. ``strong`` becomes ``likely`` where evidence that may still
    arrive could change the verdict:

    - the gap has not ended (``is_open``);
    - the server was not recorded, so which step produced a chunk is concluded;
    - part of the stall was generated late, and no step shows why;
    - the stream seems to have been preempted, and the engine does not report that of its request;
    - the engine had so few steps with work that their cost is not reliable;
    - a GPU was throttled by the driver's count, and no sample shows a lower clock;
    - the host is what remains, and the kernel did not count that the engine waited for a CPU: the GPU's clock is not known in all steps, or
      another rank had work, and whether the engine waited for that is not known.
    """
    has_few = steps.work_steps < WORK_STEPS_MIN
    out: list[str] = []
    for row, name in enumerate(causes):
        cause = BY_NAME[name]
        confidence = cause.by_exclusion if not verdicts.aligned[row] and cause.by_exclusion else cause.confidence
        is_fit = has_few[row] and (name == "scheduling" or name == "kv_pressure" and verdicts.preempted[row] < 0)
        is_unseen = name == "gpu_clock" and not _has_low_clock(verdicts, row, steps)
        is_unexplained = verdicts.parts[row, _GENERATION] >= max(_UNEXPLAINED_SHARE * verdicts.excess_ns[row], 1)
        is_inferred = name in ("kv_pressure", MIXED) and verdicts.preempted[row] >= 0 and not was_preempted[row]
        is_rest = name == "host" and not _is_explained(verdicts, row, steps, cpu_waits[row])
        is_weak = is_open[row] or not has_server[row] or is_fit or is_unseen or is_unexplained or is_inferred or is_rest
        out.append("likely" if confidence == "strong" and is_weak else confidence)
    return out


def _has_low_clock(verdicts: Verdicts, row: int, steps: JoinedSteps) -> bool:
    """Return whether a sample in the steps of the gap shows a clock below the usual frequency."""
    low_mhz = (1 - CLOCK_DROP_MIN) * steps.usual_mhz[row]
    return bool(verdicts.step_first[row] >= 0 and (steps.throttling.mhz[_steps_of(verdicts, row)] < low_mhz).any())


def _is_explained(verdicts: Verdicts, row: int, steps: JoinedSteps, cpu_wait: Mapping[str, int]) -> bool:
    """Return whether nothing but the host is left in the steps of the gap, or the kernel counted that the engine waited for a CPU."""
    return _is_rest_known(verdicts, row, steps) or _has_waited(verdicts, row, cpu_wait)


def _is_rest_known(verdicts: Verdicts, row: int, steps: JoinedSteps) -> bool:
    """Return whether the GPU's samples surround every step of the gap, and no step may have waited for another rank."""
    if verdicts.step_first[row] < 0:
        return False
    own = _steps_of(verdicts, row)
    return bool((steps.throttling.known[own] & ~steps.unsure[own]).all())


def _steps_of(verdicts: Verdicts, row: int) -> slice:
    return slice(verdicts.step_first[row], verdicts.step_last[row] + 1)


def _has_waited(verdicts: Verdicts, row: int, cpu_wait: Mapping[str, int]) -> bool:
    """Return whether the kernel counted that the engine's threads waited for a CPU, or lost it, for much of the host's part."""
    waited_us = max(cpu_wait.get("cpu_wait_us", 0), cpu_wait.get("cpu_stolen_us", 0))
    return bool(1_000 * waited_us >= _WAITED_SHARE * verdicts.parts[row, _HOST])
