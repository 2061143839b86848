"""How far around a gap scraped metrics are considered."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.builders.attribution import ints
from legato_ingest.attribution.model.scraped import ScrapedMetrics

MINUTE_S = 60


@pytest.mark.parametrize(
    ("every_s", "before_s", "after_s"), [(1, 2, 5), (10, 20, 23), (50, MINUTE_S, MINUTE_S)], ids=["1 s", "10 s", "50 s"]
)
def test_on_one_clock_it_is_two_scrapes_and_some_seconds(every_s: int, before_s: int, after_s: int) -> None:
    """At most a minute, which is also the length if clocks may differ."""
    scraped = ScrapedMetrics({}, ints(*(1_000 * every_s * n for n in range(5))), ints(), ints(), False)
    before, after = scraped.around_ns(np.array([True, False]))
    assert (before // 10**9).tolist() == [before_s, MINUTE_S] and (after // 10**9).tolist() == [after_s, MINUTE_S]


def test_without_scrapes_it_is_a_minute() -> None:
    """Their distance is not known."""
    before, after = ScrapedMetrics({}, ints(5), ints(), ints(), False).around_ns(np.array([True]))
    assert (before[0], after[0]) == (MINUTE_S * 10**9, MINUTE_S * 10**9)
