"""Exponential histograms folded into histograms with explicit bounds (OpenTelemetry metrics data model, "ExponentialHistogram").

Bucket i of scale s counts the values in (base^i, base^(i+1)], with base = 2^(2^-s). Where a point has many buckets, neighbours are merged
in pairs, which is the next lower scale, so every bound is exact and no count moves across a bound. A negative value that equals a bound is
counted one bucket higher than an explicit histogram would count it. The module knows numbers only; ``metric_points`` checks the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from opentelemetry.proto.metrics.v1.metrics_pb2 import ExponentialHistogramDataPoint

__all__ = ["BUCKETS_MAX", "folded"]

# Exporters have at most 160 buckets a sign by default.
BUCKETS_MAX = 160
_EXPONENT_MAX = 1024


@dataclass(slots=True)
class _Buckets:
    """The buckets of one sign from the first to the last that is not empty: ``counts[k]`` is that of the index ``first + k``."""

    first: int
    counts: NDArray[Any]

    @classmethod
    def of(cls, buckets: ExponentialHistogramDataPoint.Buckets) -> _Buckets:
        counts = np.array(buckets.bucket_counts, np.uint64)
        used = np.flatnonzero(counts)
        if not len(used):
            return cls(0, counts[:0])
        return cls(buckets.offset + int(used[0]), counts[used[0] : used[-1] + 1])

    def span(self, shift: int) -> int:
        """The number of buckets after this many merges in pairs."""
        return ((self.first + len(self.counts) - 1) >> shift) - (self.first >> shift) + 1 if len(self.counts) else 0

    def merged(self, shift: int) -> list[tuple[int, int]]:
        """Return index and count of each bucket after this many merges in pairs."""
        if not len(self.counts):
            return []
        lowest = self.first >> shift
        # The position of each old bucket among the new ones.
        owners = ((self.first - (lowest << shift)) + np.arange(len(self.counts), dtype=np.int64)) >> shift
        starts = np.concatenate(([0], np.flatnonzero(np.diff(owners)) + 1))
        # Python's integers do not overflow where counts of hostile points are added.
        sums = np.add.reduceat(self.counts.astype(object), starts) if shift else self.counts
        return [(lowest + int(owner), int(count)) for owner, count in zip(owners[starts].tolist(), sums.tolist(), strict=True)]


@dataclass(slots=True)
class _Explicit:
    """Bounds in rising order, and the count up to each of them; ``beyond`` counts what is above all."""

    bounds: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    beyond: int = 0

    def add(self, bound: float, count: int) -> None:
        """Add a bucket up to a bound. Buckets that do not rise, as below a threshold of zero, belong to the one before."""
        if not math.isfinite(bound):
            self.beyond += count
        elif self.bounds and bound <= self.bounds[-1]:
            self.counts[-1] += count
        else:
            self.bounds.append(bound)
            self.counts.append(count)


def folded(point: ExponentialHistogramDataPoint) -> tuple[list[float], list[int]]:
    """Return the bounds and the bucket counts of a point, one count more than bounds; both are empty for a point without buckets.

    At most ``BUCKETS_MAX`` buckets hold values, besides that of zero.
    """
    positive, negative = _Buckets.of(point.positive), _Buckets.of(point.negative)
    shift = next(shift for shift in range(64) if positive.span(shift) + negative.span(shift) <= BUCKETS_MAX)
    scale, out = point.scale - shift, _Explicit()
    for bound, count in _negative(negative.merged(shift), scale):
        out.add(bound, count)
    if point.zero_count:
        threshold = point.zero_threshold if point.zero_threshold > 0 else 0.0
        if threshold:
            out.add(-threshold, 0)
        out.add(threshold, point.zero_count)
    above = positive.merged(shift)
    for at, (index, count) in enumerate(above):
        if not at:
            out.add(_power(scale, index), 0)
        out.add(_power(scale, index + 1), count)
    return (out.bounds, [*out.counts, out.beyond]) if out.bounds else ([], [out.beyond] if out.beyond else [])


def _negative(buckets: list[tuple[int, int]], scale: int) -> Iterator[tuple[float, int]]:
    """Yield bounds and counts of negative buckets, from the lowest."""
    for at, (index, count) in enumerate(reversed(buckets)):
        lower, upper = -_power(scale, index + 1), -_power(scale, index)
        if not at and math.isfinite(lower):
            yield lower, 0
        # The bound of what lies below every double is that of the largest one.
        yield (upper if math.isfinite(upper) else -np.finfo(np.float64).max), count


def _power(scale: int, index: int) -> float:
    """Return base^index; infinity where no double holds it. Whole powers of two are exact."""
    exponent = index * 2.0**-scale if abs(scale) < _EXPONENT_MAX else math.copysign(math.inf, index)
    if exponent >= _EXPONENT_MAX:
        return math.inf
    if exponent < -2 * _EXPONENT_MAX:
        return 0.0
    whole = math.floor(exponent)
    return math.ldexp(2.0 ** (exponent - whole), whole)
