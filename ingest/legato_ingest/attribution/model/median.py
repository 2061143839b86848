"""Median and quantile of short arrays.

NumPy's functions check axes, masks and NaN on each call, which takes longer than the work on some hundred values. The results are the same.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["median", "quantile"]


def median(values: NDArray[Any]) -> float:
    """Return the median of numbers, at least one and none of them NaN."""
    middle = len(values) // 2
    if len(values) % 2:
        return float(np.partition(values, middle)[middle])
    around = np.partition(values, (middle - 1, middle))[middle - 1 : middle + 1]
    return (float(around[0]) + float(around[1])) / 2


def quantile(values: NDArray[Any], share: float) -> float:
    """Return a quantile of numbers, at least one and none of them NaN, by linear interpolation (type 7 of Hyndman and Fan, 1996)."""
    place = (len(values) - 1) * share
    low = math.floor(place)
    high, part = min(low + 1, len(values) - 1), place - low
    ordered = np.partition(values, (low, high))
    first, last = ordered[low], ordered[high]
    # In this order of operations the result never exceeds the two values.
    step = last - first
    return float(last - step * (1 - part) if part >= 0.5 else first + step * part)
