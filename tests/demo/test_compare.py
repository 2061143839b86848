"""The comparison of stored gaps with recorded ones: late, missing and shortened streams."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from demo.compare import compare_rows
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
    """Return the rows that the store would have if every chunk had arrived at its recorded time."""
    (recording,) = PLAN.recordings()
    rows = []
    for stream in recording.streams:
        times = [0, *(int(at / PLAN.speed) for at, _ in stream.content), int(stream.tail[-1][0] / PLAN.speed)]
        steps = [times[1], *(later - earlier for earlier, later in itertools.pairwise(times))]
        # The role frame arrives together with the first text.
        steps[1] = 0
        rows.append({"response_id": PLAN.response_id(stream), "dt_us": steps, "chunk_kind": [0, *[1] * len(stream.content), 7]})
    return rows


def test_a_perfect_replay_has_no_difference() -> None:
    """Its only difference is the rounding of a microsecond, and no stall is missed."""
    result = compare_rows(PLAN, _rows(), SUMMARY)
    assert result.gap_diff_max_ms <= 0.001
    assert result.gaps > 500 and result.recorded_stalls_250ms > 10
    assert (result.streams_differ, result.recorded_gaps_250ms_missed) == (0, 0)
    assert (result.streams, result.chunks, result.stalls_250ms, result.goodput) == (3, 77, 5, 0.5)


def test_a_shortened_stall_counts_as_missed() -> None:
    """A recorded stall that is stored as a gap of 30 ms is counted as missed and determines the largest difference."""
    rows = _rows()
    steps = rows[0]["dt_us"]
    longest = max(range(2, len(steps) - 1), key=lambda place: steps[place])
    lost_us = steps[longest] - 30_000
    steps[longest] = 30_000
    result = compare_rows(PLAN, rows, SUMMARY)
    assert result.recorded_gaps_250ms_missed == 1
    assert result.gap_diff_max_ms == pytest.approx(lost_us / 1000, abs=0.002)


def test_missing_and_short_streams_are_counted_with_their_stalls() -> None:
    """A stream that cannot be compared counts as different, and all its recorded stalls as missed."""
    rows = _rows()
    whole = compare_rows(PLAN, rows, SUMMARY)
    nothing = compare_rows(PLAN, [], SUMMARY)
    assert nothing.streams_differ == nothing.recorded_streams == len(rows)
    assert nothing.recorded_gaps_250ms_missed == whole.recorded_stalls_250ms
    rows[0]["dt_us"].pop(2)
    rows[0]["chunk_kind"].pop(2)
    assert compare_rows(PLAN, rows, SUMMARY).streams_differ == 1


def test_chunks_without_content_do_not_end_a_gap() -> None:
    """A heartbeat between two texts does not divide their gap."""
    rows = _rows()
    steps, kinds = rows[0]["dt_us"], rows[0]["chunk_kind"]
    half = steps[5] // 2
    steps[5:6] = [half, steps[5] - half]
    kinds.insert(5, 5)
    assert compare_rows(PLAN, rows, SUMMARY).gap_diff_max_ms <= 0.001
