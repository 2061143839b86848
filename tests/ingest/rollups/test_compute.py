"""Passes over minutes, and versions of recomputed rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from helpers.builders.rollup_rows import BATCH, NOW_NS, THEN_NS, forget, judge, rollup_worker
from helpers.builders.spans import SECOND_NS
from helpers.dashboards.minutes import differences, stored
from helpers.platform.examples import examples
from legato_ingest.rollups.compute import MINUTE_S, compute_minutes, computed_columns, passes, within
from legato_ingest.rollups.pieces import Piece
from legato_ingest.rollups.queries import STREAM_ROLLUPS, minutes_sql
from legato_ingest.storage import Store
from legato_ingest.storage.watermark import now_ms


def test_the_last_computation_counts_for_any_clock(store: Store) -> None:
    """A minute with stalls, without, and with one again, the clock set back each time: queries see the last computation."""
    store.insert("stream_revs", BATCH.revs)
    minute = np.array([THEN_NS // SECOND_NS])
    (rollup,) = (each for each in STREAM_ROLLUPS if each.table == "stall_minutes")
    stalls = minutes_sql(rollup, computed_columns(store, rollup))
    for number, cause in enumerate(("host", "base", "host", "base", "base", "host")):
        judge(store, NOW_NS // 10**6 + number, {"cause": cause, "engine_id": "", "confidence": "strong"})
        compute_minutes(store, stalls, "start_time", Piece(minute), NOW_NS // 10**6 - 1000 * number)
        assert len(stored(store, "stall_minutes")) == (cause == "host")


def test_minutes_without_streams_are_emptied(store: Store) -> None:
    """Minutes without streams are empty after they are recomputed."""
    store.insert("stream_revs", BATCH.revs)
    judge(store, now_ms() - 1, {"cause": "host"})
    worker = rollup_worker(store)
    worker.step()
    assert stored(store, "stream_minutes") and stored(store, "stall_minutes")
    forget(store, "stream_revs")
    worker.again(0)
    assert differences(store) == [] and not stored(store, "stream_minutes") and not stored(store, "stall_minutes")


SOME_MINUTES = st.lists(st.tuples(st.integers(0, 30_000), st.integers(1, 400)), max_size=100).map(
    lambda runs: np.array(sorted({minute for first, length in runs for minute in range(first, first + length)}), np.int64) * MINUTE_S
)


@given(SOME_MINUTES)
@examples(50)
def test_passes_have_every_minute_once_and_are_bounded(minutes_s: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    """Passes are in order, have at most 240 minutes and 64 ranges of the primary key, and there are as few as possible."""
    parts = list(passes(minutes_s))
    assert [*np.concatenate([np.zeros(0, np.int64), *parts])] == [*minutes_s]
    ranges = [within("t", each).count("t >= ") for each in parts]
    assert all(1 <= len(each) <= 240 for each in parts) and all(count <= 64 for count in ranges)
    assert all(len(each) == 240 or count == 64 for each, count in zip(parts[:-1], ranges, strict=False))


@given(SOME_MINUTES)
@examples(50)
def test_the_condition_of_a_pass_holds_only_for_its_minutes(minutes_s: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    """It holds for the first and the last nanosecond of each minute, and for none of the minutes around and between."""
    for each in passes(minutes_s):
        inside = set(each.tolist())
        condition = read_as_python(within("t", each))
        # All edges, and a few inner minutes.
        edges = [at for at in inside if not {at - MINUTE_S, at + MINUTE_S} <= inside]
        for minute in {near for at in (*edges, *each[:3].tolist()) for near in (at - MINUTE_S, at, at + MINUTE_S)}:
            assert condition(minute * 10**9) == condition((minute + MINUTE_S) * 10**9 - 1) == (minute in inside)


def read_as_python(condition: str) -> Callable[[int], bool]:
    """Convert a condition on the time ``t`` to a function of ns since the epoch."""
    text = re.sub(r"fromUnixTimestamp64Nano\((\d+), 'UTC'\)", r"\1", condition)
    text = re.sub(r"IN \(([\d, ]+)\)", r"in {\1}", text).replace(" AND ", " and ").replace(" OR ", " or ")
    functions = {"toUnixTimestamp64Second": lambda ns: ns // 10**9, "intDiv": lambda a, b: a // b}
    return cast(Callable[[int], bool], eval(f"lambda t: {text}", functions))
