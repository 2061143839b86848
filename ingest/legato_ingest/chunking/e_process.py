"""Sequential tests (e-processes) of "the mean has not risen" and "the mean has not fallen", one observation per minute.

While the mean of ``x`` in [0, 1], given the past, is at most ``limit``, the factor ``1 + f (x / limit - 1)`` has an expectation of 1 or
less. A product of these factors starts at every minute, and the e-process is the sum of all products. Minus the number of minutes it is a
supermartingale: the e-SR detector of Shin, Ramdas and Rinaldo (2022). The test assumes neither a distribution nor independent minutes. The
module computes no limits and does not interpret an alarm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FRACTIONS", "THRESHOLD", "Alarm", "first_alarm"]

# The least mean number of minutes (10,000 are a week) between false alarms of one side, for any dependence between minutes.
THRESHOLD = 10_000.0
# The values of f; λ of the paper is f / limit. Small ones grow fastest where minutes of single streams are noisy, large ones where a
# minute is the mean of many streams. With 1 a single zero would end the product.
FRACTIONS = (0.05, 0.1, 0.2, 0.4, 0.65, 0.9, 0.98)
# Minutes computed at once: bounds the memory, and the work wasted after an alarm.
_BLOCK = 4096

Floats = NDArray[np.float64]
_FRACTIONS_COLUMN = np.array(FRACTIONS)[:, None]


@dataclass(frozen=True, slots=True)
class Alarm:
    """``at``: the index at which the e-process reached the threshold; ``log_e``: its natural logarithm there.

    ``began``: the start of the largest product up to ``at``; the change lies near it. ``rose``: the mean rose (otherwise it fell).
    """

    at: int
    began: int
    rose: bool
    log_e: float


def first_alarm(x: NDArray[Any], upper: NDArray[Any], lower: NDArray[Any], threshold: float = THRESHOLD) -> Alarm | None:
    """Return the first minute at which the e-process of a side reaches ``threshold``, or ``None``. It is the mean over all values of f.

    ``x``: one mean per minute, in [0, 1]. ``upper`` and ``lower``: limits of the mean given the past, each known before its minute;
    ``upper > 0``, ``lower < 1``. While they hold, the mean time to a false alarm of a side is at least ``threshold`` minutes (Shin, Ramdas
    & Rinaldo 2022, arXiv:2203.03532, theorem on e-SR). Linear time.
    """
    sides = ((True, x, upper), (False, 1.0 - x, 1.0 - lower))
    state = [np.full((len(FRACTIONS), 1), -np.inf) for _ in sides]
    for start in range(0, len(x), _BLOCK):
        block, found = slice(start, start + _BLOCK), []
        for side, (rose, values, limits) in enumerate(sides):
            running = _accumulate(_growth(values[block], limits[block]), state[side])
            state[side] = running[:, -1:]
            means = np.logaddexp.reduce(running, axis=0) - np.log(len(FRACTIONS))
            over = np.flatnonzero(means >= np.log(threshold))
            if len(over):
                found.append((int(over[0]) + start, -float(means[over[0]]), rose))
        if found:
            at, minus_log_e, rose = min(found)
            _, values, limits = sides[0 if rose else 1]
            return Alarm(at, _began(values[: at + 1], limits[: at + 1]), rose, -minus_log_e)
    return None


def _growth(x: Floats, limits: Floats) -> Floats:
    """Return the logarithm of each minute's factor, one row per value of f."""
    return np.log1p(_FRACTIONS_COLUMN * (x / limits - 1.0))


def _accumulate(growth: Floats, before: Floats) -> Floats:
    """Return log M of ``M_t = (M_{t-1} + 1) L_t``: the sum over all starts of the product since, as one cumulative log-sum."""
    total = np.cumsum(growth, axis=1)
    starts = np.empty_like(total)
    starts[:, :1] = np.logaddexp(before, 0.0)
    starts[:, 1:] = -total[:, :-1]
    return total + np.logaddexp.accumulate(starts, axis=1)


def _began(x: Floats, limits: Floats) -> int:
    """Return the start of the largest product of factors up to the end, over all starts and all values of f."""
    growth = _growth(x, limits)
    since = np.cumsum(growth[:, ::-1], axis=1)[:, ::-1]
    return int(np.unravel_index(np.argmax(since), since.shape)[1])
