"""Tests of the places of engine steps on the time axis."""

from __future__ import annotations

import numpy as np

from legato_ingest.web.stream_lanes import step_ends_us


def ends(recorded: list[int], intervals: list[int]) -> list[int]:
    """The ends of steps."""
    found: list[int] = step_ends_us(np.array(recorded, np.int64), np.array(intervals, np.int64)).tolist()
    return found


def test_steps_end_when_they_are_recorded() -> None:
    """Records in time are not moved, also after a pause of the engine."""
    recorded = [20_000, 40_100, 60_050, 900_000, 920_000]
    assert ends(recorded, [20_000, 20_000, 19_950, -1, 20_000]) == recorded


def test_late_records_are_moved_to_the_ends_of_their_steps() -> None:
    """A front end that froze for 100 ms wrote five records at once: each step keeps its duration, to within 1 % and 0.1 ms."""
    true = np.arange(1, 11) * 20_000
    recorded = true.copy()
    recorded[3:8] = true[8] - 10_000
    found = np.array(ends(recorded.tolist(), [20_000] * 10))
    assert (np.abs(found - true) <= 5 * 300).all() and (found <= recorded).all() and (np.diff(found) > 0).all()


def test_errors_of_intervals_do_not_add_up() -> None:
    """Intervals by a clock that runs 100 ppm faster do not move the ends of 30,000 steps."""
    recorded = (np.arange(1, 30_001) * 20_000).tolist()
    assert ends(recorded, [20_002] * 30_000) == recorded


def test_no_steps() -> None:
    """An empty record has no ends."""
    assert ends([], []) == []
