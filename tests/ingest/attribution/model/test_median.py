"""Median and quantile of short arrays: equal to NumPy's, to the last bit."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from legato_ingest.attribution.model.median import median, quantile

WHOLE = st.lists(st.integers(-(2**50), 2**50), min_size=1, max_size=40)
REAL = st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=40)


@given(WHOLE | REAL, st.floats(0, 1))
def test_they_equal_those_of_numpy(values: list[float], share: float) -> None:
    """For whole and real numbers, any number of them, and any share."""
    numbers = np.array(values)
    assert median(numbers) == np.median(numbers)
    assert quantile(numbers, share) == np.quantile(numbers, share)
    assert numbers.tolist() == values
