"""Growth of counters over resets."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from legato_ingest.attribution.model.counters import grown


def test_a_reset_takes_nothing_back() -> None:
    """It grew by 2, was reset from 9 to 1, and grew by 3."""
    assert grown(np.array([7.0, 9.0, 1.0, 4.0])).tolist() == [0, 2, 2, 5]
    assert grown(np.array([])).tolist() == []


@given(st.lists(st.floats(0, 1e9), max_size=20))
def test_growth_never_falls(values: list[float]) -> None:
    """It starts at zero and never falls."""
    growth = grown(np.array(values))
    assert len(growth) == len(values) and (np.diff(growth) >= 0).all() and (growth[:1] == 0).all()
