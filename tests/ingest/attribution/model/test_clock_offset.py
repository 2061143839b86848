"""The offset between clocks: from a few requests, from many, and from none."""

from __future__ import annotations

import numpy as np

from helpers.builders.attribution import ints
from legato_ingest.attribution.model.clock_offset import clock_offset


def test_the_offset_is_the_ninth_of_ten() -> None:
    """A send may wait, which makes its sample smaller, so a large sample is taken. With few requests the error is unknown."""
    sends = ints(*range(0, 100, 10))
    assert clock_offset(sends, sends + ints(5, 1, 5, 4, 5, 0, 5, 5, 9, 5)) == (9_000_000, None)
    assert clock_offset(ints(0), ints(3_600_000)) == (3_600_000_000_000, None)


def test_of_many_requests_the_error_is_the_distance_to_the_largest_hundredth() -> None:
    """200 samples of 0, 1, …, 199 µs: the 90th percentile is 180 µs, the 99th 198 µs. One stray sample of a minute changes nothing."""
    at = np.arange(200) * 1_000
    assert clock_offset(at, 2 * at) == (180_000, 18_000)
    stray = 2 * at
    stray[199] += 60 * 10**9
    assert clock_offset(at, stray) == (180_000, 18_000)


def test_without_requests_there_is_no_offset() -> None:
    """No request finished."""
    assert clock_offset(ints(), ints()) is None
