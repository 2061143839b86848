"""Betting against "the mean has not risen" and "the mean has not fallen", one bet a minute, until one bettor is rich.

One idea: ``1 + f (x / limit - 1)`` is a fair or losing bet as long as the mean of ``x`` in [0, 1], given all that came before, is at most
``limit``. A bettor starts anew each minute and all of them are summed, so their wealth less the minutes gone is a supermartingale: the
e-SR detector of Shin, Ramdas and Rinaldo (2022). Nothing is assumed about the distribution, nor that minutes are independent. Where the
limits come from and what a change means is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FRACTIONS", "THRESHOLD", "Alarm", "first_alarm"]

# A ticket: on average at least as many minutes (a week) between false alarms of one side, however the minutes conspire at the limit.
THRESHOLD = 10_000.0
# The share of its wealth that a bettor stakes each minute. λ of the paper is f / limit. The small ones win where single streams make
# noisy minutes, the last ones where a minute is the mean of many: 1 would lose all at a single zero.
FRACTIONS = (0.05, 0.1, 0.2, 0.4, 0.65, 0.9, 0.98)
# Minutes judged at once: memory is bounded, and little is wasted behind an alarm.
_BLOCK = 4096

Floats = NDArray[np.float64]
_STAKES = np.array(FRACTIONS)[:, None]


@dataclass(frozen=True, slots=True)
class Alarm:
    """``at``: the minute (a place in the input) at which the wealth passed the threshold, ``log_e`` its natural logarithm there.

    ``began``: the place from which on the bets won most up to ``at``, so the change lies near. ``rose``: which side it was.
    """

    at: int
    began: int
    rose: bool
    log_e: float


def first_alarm(x: NDArray[Any], upper: NDArray[Any], lower: NDArray[Any], threshold: float = THRESHOLD) -> Alarm | None:
    """The first minute at which either side's mean wealth reaches ``threshold``; ``None`` where neither does.

    ``x``: one mean a minute, in [0, 1]. ``upper`` and ``lower``: what the mean given the past may be at most and at least, each known
    before its minute; ``upper > 0``, ``lower < 1``. While they hold, each side needs ``threshold`` minutes on average at least to a false
    alarm (Shin, Ramdas & Rinaldo 2022, arXiv:2203.03532, theorem on e-SR). Linear time.
    """
    sides = ((True, x, upper), (False, 1.0 - x, 1.0 - lower))
    wealth = [np.full((len(FRACTIONS), 1), -np.inf) for _ in sides]
    for start in range(0, len(x), _BLOCK):
        block, found = slice(start, start + _BLOCK), []
        for side, (rose, values, limits) in enumerate(sides):
            running = _accumulate(_growth(values[block], limits[block]), wealth[side])
            wealth[side] = running[:, -1:]
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
    """The logarithm of what each bet (a row a fraction) pays each minute."""
    return np.log1p(_STAKES * (x / limits - 1.0))


def _accumulate(growth: Floats, before: Floats) -> Floats:
    """log M of ``M_t = (M_{t-1} + 1) L_t``: the sum over all starts of the product since, as one cumulative log-sum."""
    total = np.cumsum(growth, axis=1)
    starts = np.empty_like(total)
    starts[:, :1] = np.logaddexp(before, 0.0)
    starts[:, 1:] = -total[:, :-1]
    return total + np.logaddexp.accumulate(starts, axis=1)


def _began(x: Floats, limits: Floats) -> int:
    """The start of the richest single bettor: the product of its bets from there to the end is the largest of all."""
    growth = _growth(x, limits)
    since = np.cumsum(growth[:, ::-1], axis=1)[:, ::-1]
    return int(np.unravel_index(np.argmax(since), since.shape)[1])
