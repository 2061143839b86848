"""A stratum's minutes as they come from the store, and what its share of multi-token chunks is expected to be in each hour.

One idea: the expectation of an hour uses only what lay before it, so betting against it is valid whatever it is; that it is *right* is
heuristic. The same hours of last week stand for weekly cycles, those of the first day for daily ones in the first week, and what they
leave open (their own sampling error) is given to the null hypothesis. It knows nothing of alarms.
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
# A reference of fewer streams says too little of its mean.
REFERENCE_STREAMS = 200
# Hours to each side that are taken together, and the streams that they must hold: over ±3 h a daily cycle keeps nine tenths of its
# swing, which is nearer than the mean of a day, so the last may be fewer.
_REACHES = ((0, 200), (1, 200), (3, 50))
# The reference's own error that is granted to the null hypothesis, in standard errors.
_ERRORS = 1.0
# Minutes that a variance takes; with fewer, the largest that a mean in [0, 1] allows is taken instead.
_VARIANCE_MINUTES = 30
# What one stream can add to each sum, in its units; ln(tokens/s) beyond ±50 is no rate.
_RANGES = {
    "share_sum": ("streams", 0.0, 1.0),
    "tokens_per_chunk_sum": ("chunking_streams", 0.0, 1e9),
    "log_rate_sum": ("rate_streams", -50.0, 50.0),
    "log_rate_sq_sum": ("rate_streams", 0.0, 2500.0),
}
# Shares are stored with 24 bits.
_ROUNDING = 1e-6

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Minutes:
    """One stratum's minutes, ascending, those without streams absent. All columns have one entry a minute.

    ``minute_s``: Unix seconds, multiples of 60. ``streams``: how many have a known share of multi-token chunks; ``share_sum``: Σ of
    those shares. ``chunking_streams``, ``tokens_per_chunk_sum``: the same for mean tokens a chunk. ``rate_streams``, ``log_rate_sum``,
    ``log_rate_sq_sum``: for y = ln(tokens per second), Σ y and Σ y². Raises ``ValueError`` for what cannot be such sums.
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
                raise ValueError(f"{field.name} has shape {column.shape}; expected ({len(self.minute_s)},), one entry a minute")
            whole = field.name not in _RANGES
            if whole and len(column) and column.dtype.kind not in "iu":
                raise ValueError(f"{field.name} has type {column.dtype}; expected integers: cast the column in the query")
            object.__setattr__(self, field.name, column.astype(np.int64 if whole else np.float64))
        self._refuse(self.minute_s % 60 != 0, "minute_s", "a multiple of 60")
        self._refuse(np.diff(self.minute_s, prepend=self.minute_s[:1] - 60) <= 0, "minute_s", "later than the entry before: sort by minute")
        for name, (count, low, high) in _RANGES.items():
            n, total = getattr(self, count), getattr(self, name)
            self._refuse(n < 0, count, "0 or more")
            slack = _ROUNDING * n
            fits = (total >= low * n - slack) & (total <= high * n + slack)
            self._refuse(~fits, name, f"{low:g} to {high:g} for each of its {count}")

    def _refuse(self, bad: NDArray[np.bool_], name: str, expected: str) -> None:
        """Raise for the first bad entry of a column."""
        if bad.any():
            at = int(np.argmax(bad))
            raise ValueError(f"{name}[{at}] is {getattr(self, name)[at]} (minute {self.minute_s[at]} s); expected {expected}")

    def pick(self, chosen: NDArray[Any]) -> Minutes:
        """These minutes alone."""
        return Minutes(**{field.name: getattr(self, field.name)[chosen] for field in dataclasses.fields(self)})

    @cached_property
    def shares(self) -> Floats:
        """Each minute's mean share, in [0, 1]; minutes without a known share must have been left out."""
        return np.clip(self.share_sum / self.streams, 0.0, 1.0)

    @cached_property
    def running_streams(self) -> Ints:
        """How many streams lie before each minute, and after the last one all."""
        return np.concatenate([[0], np.cumsum(self.streams)])

    @cached_property
    def hours(self) -> Hours:
        """The same by hours."""
        return Hours.of(self)


@dataclass(frozen=True)
class Hours:
    """``of_minute``: the place of each minute's hour in ``hour`` (Unix hours that have streams). Running sums have one entry more."""

    of_minute: Ints
    hour: Ints
    streams: Ints
    share_sum: Floats

    @classmethod
    def of(cls, minutes: Minutes) -> Hours:
        """The hours of these minutes, with running sums before each."""
        hour, starts, of_minute = np.unique(minutes.minute_s // HOUR_S, return_index=True, return_inverse=True)
        sums = [np.add.reduceat(column, starts) if len(starts) else column for column in (minutes.streams, minutes.share_sum)]
        return cls(of_minute.reshape(-1), hour, *(np.concatenate([[0], np.cumsum(column)]) for column in sums))


@dataclass(frozen=True)
class Expectation:
    """By place of the hour: the mean share expected, and the error of that mean."""

    mean: Floats
    error: Floats


def expect(minutes: Minutes, start: int, end: int) -> Expectation:
    """What to expect after the reference, which is the minutes at ``[start, end)``, as long as nothing changes.

    Per hour the first of these that holds enough streams: the same hour of last week, then with 1 and 3 hours to each side; the same hour
    of the day within the reference, likewise; the whole reference. Last week counts only from ``start`` on, so a change never becomes the
    reference of what was before it.
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
    """The variance of one stream's share about its hour's mean, from the scatter of the reference's minutes.

    Streams of a minute that go together scatter their mean more than single ones would, and are counted so.
    """
    _, hour = np.unique(minutes.hours.of_minute[part], return_inverse=True)
    n = minutes.streams[part]
    means = np.bincount(hour, minutes.share_sum[part]) / np.bincount(hour, n)
    free = len(n) - len(means)
    if free < _VARIANCE_MINUTES:
        mean = min(float(minutes.share_sum[part].sum() / n.sum()), 1.0)
        return mean * (1.0 - mean)
    return float(np.sum(n * (minutes.shares[part] - means[hour]) ** 2) / free)
