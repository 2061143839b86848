"""A stratum's minutes as stored, and the expected share of multi-token chunks in each hour.

The expectation for an hour uses only earlier data, so a sequential test against it is valid for any expectation; whether the expectation is
right is heuristic. It follows weekly cycles by the same hours of the week before, and daily cycles in the first week by the hours of the
first day. Its sampling error widens the null hypothesis. The module raises no alarms.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["DAY_S", "HOUR_S", "WEEK_S", "Expectation", "Minutes", "expect"]

HOUR_S, DAY_S, WEEK_S = 3600, 86_400, 604_800
# The least number of streams in a reference.
REFERENCE_STREAMS = 200
# Hours to each side that are pooled, and the least number of streams in them. Over ±3 h a daily cycle keeps nine tenths of its amplitude,
# which is closer than the mean of the day, so the last entry needs fewer streams.
_REACHES = ((0, 200), (1, 200), (3, 50))
# By how many standard errors of the reference the null hypothesis is widened.
_ERRORS = 1.0
# The least number of degrees of freedom for an estimated variance; below it the largest variance for a mean in [0, 1] is used.
_VARIANCE_MINUTES = 30
# For each sum: its count column, and the range that one stream can add; a ln(tokens/s) beyond ±50 is not a rate.
_RANGES = {
    "share_sum": ("streams", 0.0, 1.0),
    "tokens_per_chunk_sum": ("chunking_streams", 0.0, 1e9),
    "log_rate_sum": ("rate_streams", -50.0, 50.0),
    "log_rate_sq_sum": ("rate_streams", 0.0, 2500.0),
}
# Rounding error per stream: shares are stored with 24 bits.
_ROUNDING = 1e-6

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Minutes:
    """One stratum's minutes, ascending, without minutes that have no streams. All columns have one entry per minute.

    ``minute_s``: Unix seconds, multiples of 60. ``streams``: number of streams with a known share of multi-token chunks; ``share_sum``: Σ
    of these shares. ``chunking_streams``, ``tokens_per_chunk_sum``: the same for mean tokens per chunk. ``rate_streams``,
    ``log_rate_sum``, ``log_rate_sq_sum``: for y = ln(tokens per second), the number of streams, Σ y and Σ y². Raises ``ValueError`` for
    columns of wrong shape or type and for values out of range.
    """

    minute_s: Ints
    streams: Ints
    share_sum: Floats
    chunking_streams: Ints
    tokens_per_chunk_sum: Floats
    rate_streams: Ints
    log_rate_sum: Floats
    log_rate_sq_sum: Floats

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            column = np.asarray(getattr(self, field.name))
            if column.ndim != 1 or len(column) != len(self.minute_s):
                raise ValueError(f"{field.name} has shape {column.shape}; expected ({len(self.minute_s)},), one entry per minute")
            whole = field.name not in _RANGES
            if whole and len(column) and column.dtype.kind not in "iu":
                raise ValueError(f"{field.name} has type {column.dtype}; expected integers: cast the column in the query")
            object.__setattr__(self, field.name, column.astype(np.int64 if whole else np.float64))
        self._reject(self.minute_s % 60 != 0, "minute_s", "a multiple of 60")
        self._reject(np.diff(self.minute_s, prepend=self.minute_s[:1] - 60) <= 0, "minute_s", "later than the entry before: sort by minute")
        for name, (count, low, high) in _RANGES.items():
            n, total = getattr(self, count), getattr(self, name)
            self._reject(n < 0, count, "0 or more")
            slack = _ROUNDING * n
            fits = (total >= low * n - slack) & (total <= high * n + slack)
            self._reject(~fits, name, f"{low:g} to {high:g} for each of its {count}")

    def _reject(self, bad: NDArray[np.bool_], name: str, expected: str) -> None:
        """Raise ``ValueError`` for the first bad entry of a column, if there is one."""
        if bad.any():
            at = int(np.argmax(bad))
            raise ValueError(f"{name}[{at}] is {getattr(self, name)[at]} (minute {self.minute_s[at]} s); expected {expected}")

    def pick(self, chosen: NDArray[Any]) -> Minutes:
        """Return only these minutes."""
        return Minutes(**{field.name: getattr(self, field.name)[chosen] for field in dataclasses.fields(self)})

    @cached_property
    def shares(self) -> Floats:
        """Each minute's mean share, in [0, 1]. Minutes without a known share must have been removed before."""
        return np.clip(self.share_sum / self.streams, 0.0, 1.0)

    @cached_property
    def running_streams(self) -> Ints:
        """The number of streams before each minute, and the total as the last entry."""
        return np.concatenate([[0], np.cumsum(self.streams)])

    @cached_property
    def hours(self) -> Hours:
        """The same data by hour."""
        return Hours.of(self)


@dataclass(frozen=True)
class Hours:
    """``hour``: the Unix hours that have streams; ``of_minute``: the index in it of each minute's hour.

    ``streams`` and ``share_sum`` are running sums with one entry more than ``hour``.
    """

    of_minute: Ints
    hour: Ints
    streams: Ints
    share_sum: Floats

    @classmethod
    def of(cls, minutes: Minutes) -> Hours:
        """Return the hours of these minutes, with the running sums before each."""
        hour, starts, of_minute = np.unique(minutes.minute_s // HOUR_S, return_index=True, return_inverse=True)
        sums = [np.add.reduceat(column, starts) if len(starts) else column for column in (minutes.streams, minutes.share_sum)]
        return cls(of_minute.reshape(-1), hour, *(np.concatenate([[0], np.cumsum(column)]) for column in sums))


@dataclass(frozen=True)
class Expectation:
    """For each entry of ``Hours.hour``: the expected mean share, and the error of that mean."""

    mean: Floats
    error: Floats


def expect(minutes: Minutes, start: int, end: int) -> Expectation:
    """Return the expectation for each hour after the reference (the minutes at ``[start, end)``) without a change.

    For each hour it is the first of these with enough streams: the same hour of the week before, alone, with 1 hour or with 3 hours to each
    side; the same hour of the day within the reference, alone, with 1 or with 3 hours to each side; the entire reference. The week before
    counts only from ``start`` on, so data from before a change is never part of the expectation after it.
    """
    hours, part = minutes.hours, slice(start, end)
    n, total = float(minutes.streams[part].sum()), float(minutes.share_sum[part].sum())
    streams, sums = np.full(len(hours.hour), n), np.full(len(hours.hour), total)
    day = hours.hour % 24
    by_day = np.stack([np.bincount(day[hours.of_minute[part]], column[part], 24) for column in (minutes.streams, minutes.share_sum)])
    for reach, least in reversed(_REACHES):
        near = np.sum([np.roll(by_day, shift, axis=1) for shift in range(-reach, reach + 1)], axis=0)
        enough = near[0][day] >= least
        streams, sums = np.where(enough, near[0][day], streams), np.where(enough, near[1][day], sums)
    first = int(np.searchsorted(hours.hour, minutes.minute_s[start] // HOUR_S + 1))
    for reach, least in reversed(_REACHES):
        week_ago = hours.hour - WEEK_S // HOUR_S
        low = np.maximum(np.searchsorted(hours.hour, week_ago - reach), first)
        high = np.maximum(np.searchsorted(hours.hour, week_ago + reach + 1), low)
        near_streams = hours.streams[high] - hours.streams[low]
        enough = near_streams >= least
        streams, sums = np.where(enough, near_streams, streams), np.where(enough, hours.share_sum[high] - hours.share_sum[low], sums)
    return Expectation(np.clip(sums / streams, 0.0, 1.0), _ERRORS * np.sqrt(_variance(minutes, part) / streams))


def _variance(minutes: Minutes, part: slice) -> float:
    """Return the variance of one stream's share about its hour's mean, estimated from the spread of the reference's minutes.

    Correlation between the streams of a minute increases this spread, so the estimate includes it.
    """
    _, hour = np.unique(minutes.hours.of_minute[part], return_inverse=True)
    n = minutes.streams[part]
    means = np.bincount(hour, minutes.share_sum[part]) / np.bincount(hour, n)
    free = len(n) - len(means)
    if free < _VARIANCE_MINUTES:
        mean = min(float(minutes.share_sum[part].sum() / n.sum()), 1.0)
        return mean * (1.0 - mean)
    return float(np.sum(n * (minutes.shares[part] - means[hour]) ** 2) / free)
