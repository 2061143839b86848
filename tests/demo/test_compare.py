"""The comparison of stored with recorded gaps sees what is late, missing or of another length."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from demo.compare import judge
from demo.plan import Plan

PLAN = Plan(("kv",), 1.5, 4.0, "ab12")
SUMMARY = {
    "streams": "3",
    "server_streams": "3",
    "chunks": "77",
    "stalls": "5",
    "goodput": 0.5,
    "stalls_judged": "5",
    "stalls_explained": "4",
}


def _rows() -> list[dict[str, Any]]:
    """What the store would hold if every chunk had come at its recorded time."""
    (recording,) = PLAN.recordings()
    rows = []
    for stream in recording.streams:
        times = [0, *(int(at / PLAN.speed) for at, _ in stream.content), int(stream.tail[-1][0] / PLAN.speed)]
        steps = [times[1], *(later - earlier for earlier, later in itertools.pairwise(times))]
        # The role frame comes with the first text.
        steps[1] = 0
        rows.append({"response_id": PLAN.response_id(stream), "dt_us": steps, "chunk_kind": [0, *[1] * len(stream.content), 7]})
    return rows


def test_what_came_in_time_differs_by_nothing() -> None:
    """A perfect replay has no difference but the rounding of a microsecond, and misses no stall."""
    result = judge(PLAN, _rows(), SUMMARY)
    assert result.gap_diff_max_ms <= 0.001
    assert result.gaps > 500 and result.recorded_stalls_250ms > 10
    assert (result.streams_differ, result.recorded_gaps_250ms_missed) == (0, 0)
    assert (result.streams, result.chunks, result.stalls_250ms, result.goodput) == (3, 77, 5, 0.5)


def test_a_stall_that_is_not_there_is_missed() -> None:
    """A recorded stall that the store has as 30 ms is counted, and shows in the largest difference."""
    rows = _rows()
    steps = rows[0]["dt_us"]
    longest = max(range(2, len(steps) - 1), key=lambda place: steps[place])
    lost_us = steps[longest] - 30_000
    steps[longest] = 30_000
    result = judge(PLAN, rows, SUMMARY)
    assert result.recorded_gaps_250ms_missed == 1
    assert result.gap_diff_max_ms == pytest.approx(lost_us / 1000, abs=0.002)


def test_streams_that_are_missing_or_short_are_counted_with_their_stalls() -> None:
    """What cannot be compared is never passed over."""
    rows = _rows()
    whole = judge(PLAN, rows, SUMMARY)
    nothing = judge(PLAN, [], SUMMARY)
    assert nothing.streams_differ == nothing.recorded_streams == len(rows)
    assert nothing.recorded_gaps_250ms_missed == whole.recorded_stalls_250ms
    rows[0]["dt_us"].pop(2)
    rows[0]["chunk_kind"].pop(2)
    assert judge(PLAN, rows, SUMMARY).streams_differ == 1


def test_chunks_without_content_are_no_end_of_a_gap() -> None:
    """A heartbeat between two texts leaves their gap whole."""
    rows = _rows()
    steps, kinds = rows[0]["dt_us"], rows[0]["chunk_kind"]
    half = steps[5] // 2
    steps[5:6] = [half, steps[5] - half]
    kinds.insert(5, 5)
    assert judge(PLAN, rows, SUMMARY).gap_diff_max_ms <= 0.001
