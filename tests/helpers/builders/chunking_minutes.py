"""Minutes of a stratum for the chunking detector: generated weeks with changes at known times. Nothing here is random without a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legato_ingest.chunking.series import Minutes

# A Monday, 00:00 UTC.
MONDAY_S = 1_760_313_600
DAY, WEEK = 1440, 10_080
Floats = NDArray[np.float64]
Level = Callable[[NDArray[np.int64]], Floats]


def steps(*levels: tuple[int, float]) -> Level:
    """Return a step function with these (minute, level) pairs."""
    starts, values = (np.array(column) for column in zip(*levels, strict=True))
    return lambda minute: np.asarray(values[np.searchsorted(starts, minute, side="right") - 1], np.float64)


FLAT = steps((0, 1.0))


def office_hours(minute: NDArray[np.int64], busy: float) -> Floats:
    """Return streams per minute: ``busy`` at 15:00 on weekdays, a sixth of that at night, about a third at weekends."""
    day = 0.5 - 0.5 * np.cos(2 * np.pi * (minute / 60 - 3) / 24)
    return np.asarray(busy * (0.15 + 0.85 * day) * np.where(minute // DAY % 7 >= 5, 0.35, 1.0))


def even(minute: NDArray[np.int64], busy: float) -> Floats:
    """Return a constant number of streams per minute."""
    return np.full(len(minute), busy)


def series(
    seed: int, days: int, busy: float, share: Level, *, rate: Level = FLAT, cycle: float = 0.03, load: Any = office_hours
) -> Minutes:
    """Return minutes from Monday on. Shares deviate by 0.1 about ``share`` and a daily cycle, rates by e^±0.3 about 60 × ``rate``."""
    rng = np.random.default_rng(seed)
    minute = np.arange(days * DAY)
    n = rng.poisson(load(minute, busy))
    minute, n = minute[n > 0], n[n > 0]
    mean = np.repeat(np.clip(share(minute) + cycle * np.sin(2 * np.pi * (minute / 60 - 9) / 24), 0.0, 1.0), n)
    inside = np.clip(mean, 0.001, 0.999)
    spread = np.maximum(inside * (1 - inside) / 0.01 - 1, 0.5)
    x = np.where((mean > 0) & (mean < 1), rng.beta(inside * spread, (1 - inside) * spread), mean)
    y = np.log(60 * np.repeat(rate(minute), n)) + rng.normal(0, 0.3, len(mean))
    first = np.concatenate([[0], np.cumsum(n)[:-1]]).astype(np.int64)
    sums = [np.add.reduceat(column, first) if len(first) else column for column in (x, 1 + x, y, y * y)]
    return Minutes(MONDAY_S + 60 * minute, n, sums[0], n, sums[1], n, sums[2], sums[3])
