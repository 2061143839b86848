"""The size of a change: the token rate and the mean shares of two parts of a series, compared by hour of the day."""

from __future__ import annotations

import math

import pytest

from helpers.builders.chunking_minutes import DAY, even, series, steps
from legato_ingest.chunking.effect import means, rate


def test_a_rate_needs_evidence_to_be_flat() -> None:
    """The same means of ln TPS are flat over thousands of streams and not over a few."""
    minutes = series(7, 4, 5.0, steps((0, 0.1)), load=even)
    assert rate(minutes, slice(0, 2 * DAY), slice(2 * DAY, 4 * DAY)).flat
    few = rate(minutes, slice(0, 2 * DAY), slice(2 * DAY, 2 * DAY + 5))
    assert not few.flat and few.streams_after < 60


def test_a_part_of_a_day_is_compared_with_the_same_hours() -> None:
    """A daily cycle is no difference between an afternoon and the days before; parts without a common hour are compared as a whole."""
    minutes = series(8, 3, 20.0, steps((0, 0.10)), load=even)
    same = means(minutes, "share_sum", "streams", slice(0, 2 * DAY), slice(2 * DAY + 780, 2 * DAY + 900))
    assert same.after - same.before == pytest.approx(0, abs=0.005)
    apart = means(minutes, "share_sum", "streams", slice(120, 240), slice(840, 960))
    assert apart.after - apart.before == pytest.approx(0.06, abs=0.01)
    assert math.isnan(means(minutes, "share_sum", "streams", slice(0, 0), slice(0, 10)).before)
