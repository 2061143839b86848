"""Minutes that wait for their computation: the recent ones first, each other in its turn, and no progress past one that waits."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from helpers.platform.examples import examples
from legato_ingest.rollups.backlog import RECENT_S, Backlog, Progress
from legato_ingest.rollups.compute import passes

NOW_S = 1_700_000_000 // 60 * 60
# Near each other, or far apart.
MINUTES = st.tuples(st.sampled_from((1, 20)), st.lists(st.integers(-300, 300), max_size=300, unique=True)).map(
    lambda drawn: NOW_S + np.array(sorted(drawn[1]), np.int64) * 60 * drawn[0]
)


@given(st.lists(st.tuples(MINUTES, st.integers(0, 3)), max_size=8))
@examples(60)
def test_each_minute_has_its_turn(runs: list[tuple[np.ndarray[Any, np.dtype[np.int64]], int]]) -> None:
    """Each run finds minutes and computes the recent ones and some passes, each with a minute that was found first."""
    backlog, waiting = Backlog(), dict[int, Progress]()
    for number, (found, count) in enumerate(runs):
        backlog.add(found, (number, 2 * number))
        waiting = dict.fromkeys(found.tolist(), (number, 2 * number)) | waiting
        part = backlog.recent(NOW_S)
        assert part.tolist() == sorted(minute for minute in waiting if abs(minute - NOW_S) <= RECENT_S)
        for _ in range(count + 1):
            backlog.remove(part)
            for minute in part.tolist():
                del waiting[minute]
            assert bool(backlog) == bool(waiting)
            least = min(waiting.values(), default=(number + 1, 2 * number + 2))
            assert backlog.progress((number + 1, 2 * number + 2)) == least
            if not waiting:
                break
            part = backlog.first()
            (only,) = passes(part)
            assert only.tolist() == part.tolist() and least in {waiting[minute] for minute in part.tolist()}


def test_minutes_far_apart_are_computed_in_full_passes() -> None:
    """So many small passes do not make the work more: the newest minutes first, in 64 ranges of the primary key each time."""
    minutes_s = NOW_S - 3 * 86_400 - np.arange(200, dtype=np.int64)[::-1] * 1_200
    backlog, parts = Backlog(), list[list[int]]()
    backlog.add(minutes_s, (1, 1))
    while backlog:
        parts.append(backlog.first().tolist())
        backlog.remove(np.array(parts[-1], np.int64))
    assert [len(part) for part in parts] == [64, 64, 64, 8] and [
        minute for part in reversed(parts) for minute in part
    ] == minutes_s.tolist()
