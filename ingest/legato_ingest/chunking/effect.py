"""The size of a change: the difference in chunking and in token rate between two parts of a stratum's minutes.

The parts are compared by hour of the day, weighted by the streams of the later part, so a change found at noon is not compared with the
night. The rate counts as flat only if two one-sided tests show that it is; a difference that was not detected does not suffice. The module
does not search for changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legato_ingest.chunking.series import HOUR_S, Minutes

__all__ = ["RATE_MARGIN", "Means", "Rate", "means", "rate"]

# Relative difference below which an end user does not notice another token rate.
RATE_MARGIN = 0.05
# Student's t at 95 % for the least number of streams per side. It is smaller for more streams, so the test errs towards "not flat".
_T95 = 1.70
_RATE_STREAMS = 30


@dataclass(frozen=True, slots=True)
class Means:
    """The mean per stream before and after, and the number of streams in each; NaN without streams."""

    before: float
    after: float
    streams_before: int
    streams_after: int


@dataclass(frozen=True, slots=True)
class Rate:
    """``ratio``: tokens per second, after divided by before (geometric means; NaN if unknown). ``flat``: shown to be within 5 % of 1."""

    ratio: float
    flat: bool
    streams_before: int
    streams_after: int


@dataclass(frozen=True, slots=True)
class _Hours:
    """The common hours of the day, one row for before and one for after. ``weights`` sum to 1; ``hour`` has the column of each minute."""

    hour: NDArray[Any]
    streams: NDArray[Any]
    sums: NDArray[Any]
    weights: NDArray[Any]


def means(minutes: Minutes, total: str, count: str, before: slice, after: slice) -> Means:
    """Return the means of column ``total`` per stream of column ``count`` in both parts, over their common hours of the day."""
    hours = _common(minutes, getattr(minutes, total), getattr(minutes, count), before, after)
    if hours is None:
        return Means(math.nan, math.nan, 0, 0)
    each = (hours.weights * hours.sums / hours.streams).sum(axis=1)
    return Means(float(each[0]), float(each[1]), *(int(n) for n in hours.streams.sum(axis=1)))


def rate(minutes: Minutes, before: slice, after: slice) -> Rate:
    """Return the change of the token rate, and whether two one-sided tests of |Δ ln TPS| < ln 1.05 at 5 % show it flat (Schuirmann 1987).

    The standard error is the larger of two: for independent streams, and for streams that are fully correlated within a minute.
    """
    hours = _common(minutes, minutes.log_rate_sum, minutes.rate_streams, before, after)
    if hours is None:
        return Rate(math.nan, False, 0, 0)
    each = (hours.weights * hours.sums / hours.streams).sum(axis=1)
    change = float(each[1] - each[0])
    error = math.sqrt(sum(_squared_error(minutes, hours, side, part) for side, part in enumerate((before, after))))
    streams_before, streams_after = (int(n) for n in hours.streams.sum(axis=1))
    enough = min(streams_before, streams_after) >= _RATE_STREAMS
    flat = enough and abs(change) + _T95 * error < math.log1p(RATE_MARGIN)
    return Rate(math.exp(change), flat, streams_before, streams_after)


def _common(minutes: Minutes, total: NDArray[Any], count: NDArray[Any], before: slice, after: slice) -> _Hours | None:
    """Return streams and sums of the hours of the day that both parts have, or of all hours together if they share none.

    None if one part is empty.
    """
    hour = minutes.minute_s // HOUR_S % 24
    streams = np.stack([np.bincount(hour[part], count[part], 24) for part in (before, after)])
    if not streams.any(axis=1).all():
        return None
    if not streams.all(axis=0).any():
        hour = np.zeros_like(hour)
        streams = np.stack([np.bincount(hour[part], count[part], 24) for part in (before, after)])
    common = streams.all(axis=0)
    sums = np.stack([np.bincount(hour[part], total[part], 24) for part in (before, after)])
    place = np.where(common, np.cumsum(common) - 1, -1)
    streams, sums = streams[:, common], sums[:, common]
    return _Hours(place[hour], streams, sums, streams[1] / streams[1].sum())


def _squared_error(minutes: Minutes, hours: _Hours, side: int, part: slice) -> float:
    """Return the squared standard error of one side's weighted mean."""
    inside = hours.hour[part] >= 0
    hour, n = hours.hour[part][inside], minutes.rate_streams[part][inside]
    y, y_sq = minutes.log_rate_sum[part][inside], minutes.log_rate_sq_sum[part][inside]
    mean = (hours.sums[side] / hours.streams[side])[hour]
    weight = (hours.weights / hours.streams[side])[hour] ** 2
    independent = float(np.sum(weight * np.maximum(y_sq - 2.0 * mean * y + n * mean * mean, 0.0)))
    correlated = float(np.sum(weight * (y - n * mean) ** 2))
    total = float(hours.streams[side].sum())
    return max(independent, correlated) * total / max(total - len(hours.weights), 1.0)
