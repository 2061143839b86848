"""Durations of steps split into parts that add up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato_ingest.attribution.model.steps import StepLimits, StepParts, split_durations
from legato_ingest.causes import STEP_PARTS

TIME = st.integers(0, 10**9)


def parts_of(duration: int, base: float, work: float, throttling: float, recompute: float) -> dict[str, int]:
    """Return the parts of one step."""
    base_ns, work_ns, throttling_ns = (np.array([round(value)]) for value in (base, work, throttling))
    limits = StepLimits(base_ns, work_ns, throttling_ns, np.array([recompute]))
    parts = split_durations(np.array([duration]), limits)
    return {name: int(parts.of(name)[0]) for name in STEP_PARTS}


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (8, (8, 0, 0, 0, 0)),
        (30, (10, 15, 5, 0, 0)),
        (70, (10, 30, 10, 20, 0)),
        (100, (10, 30, 10, 30, 20)),
    ],
)
def test_base_comes_first_then_work_then_throttling_and_the_rest_is_the_hosts(duration: int, expected: tuple[int, ...]) -> None:
    """The limits are 10 for the base, 40 for work (a quarter of it recompute), and 30 for throttling."""
    assert tuple(parts_of(duration, 10, 40, 30, 0.25).values()) == expected


def test_the_parts_are_the_causes_of_the_table() -> None:
    """Every field is a cause, in the order of the table."""
    assert tuple(StepParts.__dataclass_fields__) == STEP_PARTS


@given(TIME, TIME, TIME, TIME, st.floats(0, 1))
def test_parts_add_up_to_the_duration(duration: int, base: int, work: int, throttling: int, recompute: float) -> None:
    """Exact in ns, none negative, each within its limit."""
    parts = parts_of(duration, base, work, throttling, recompute)
    assert sum(parts.values()) == duration and min(parts.values()) >= 0
    assert parts["base"] <= base and parts["gpu_clock"] <= throttling and parts["scheduling"] + parts["kv_pressure"] <= work
