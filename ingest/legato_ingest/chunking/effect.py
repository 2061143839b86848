"""What is different between two parts of a stratum's minutes: in chunking, and in the rate of tokens.

One idea: both parts are compared hour of the day by hour of the day, weighted by the streams of the later one, so that a change found at
noon is not measured against the night. Whether the rate is flat is a test that has to *show* it (two one-sided tests), never the lack of
a difference. It does not look for changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legato_ingest.chunking.series import HOUR_S, Minutes

__all__ = ["RATE_MARGIN", "Means", "Rate", "means", "rate"]

# Rates that differ by less are the same to a reader.
RATE_MARGIN = 0.05
# Student's t at 95 % with the fewest streams that a side may have: with more it is smaller, so the test errs to "not flat".
_T95 = 1.70
_RATE_STREAMS = 30


@dataclass(frozen=True, slots=True)
class Means:
    """A mean a stream, before and after, and how many streams each is of; NaN where there are none."""

    before: float
    after: float
    streams_before: int
    streams_after: int


@dataclass(frozen=True, slots=True)
class Rate:
    """``ratio``: tokens per second after over before (geometric means; NaN where unknown). ``flat``: shown to be within 5 % of 1."""

    ratio: float
    flat: bool
    streams_before: int
    streams_after: int


@dataclass(frozen=True, slots=True)
class _Hours:
    """The common hours of the day: a row for before and one for after. ``weights`` sum to 1; ``hour`` is each minute's."""

    hour: NDArray[Any]
    streams: NDArray[Any]
    sums: NDArray[Any]
    weights: NDArray[Any]


def means(minutes: Minutes, total: str, count: str, before: slice, after: slice) -> Means:
    """The mean of the column ``total`` over the streams that ``count`` counts, in both parts, over their common hours of the day."""
    hours = _common(minutes, getattr(minutes, total), getattr(minutes, count), before, after)
    if hours is None:
        return Means(math.nan, math.nan, 0, 0)
    each = (hours.weights * hours.sums / hours.streams).sum(axis=1)
    return Means(float(each[0]), float(each[1]), *(int(n) for n in hours.streams.sum(axis=1)))


def rate(minutes: Minutes, before: slice, after: slice) -> Rate:
    """How the rate of tokens changed, and whether it is flat by two one-sided tests of |Δ ln TPS| < ln 1.05 at 5 % (Schuirmann 1987).

    The standard error is the larger of two: as if streams were independent, and as if those of one minute went together.
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
    """Streams and sums of the hours of the day that both parts have; where they share none, of both as a whole. None if one is empty."""
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
    """The squared standard error of one side's weighted mean."""
    inside = hours.hour[part] >= 0
    hour, n = hours.hour[part][inside], minutes.rate_streams[part][inside]
    y, y_sq = minutes.log_rate_sum[part][inside], minutes.log_rate_sq_sum[part][inside]
    mean = (hours.sums[side] / hours.streams[side])[hour]
    weight = (hours.weights / hours.streams[side])[hour] ** 2
    apart = float(np.sum(weight * np.maximum(y_sq - 2.0 * mean * y + n * mean * mean, 0.0)))
    together = float(np.sum(weight * (y - n * mean) ** 2))
    total = float(hours.streams[side].sum())
    return max(apart, together) * total / max(total - len(hours.weights), 1.0)
