"""Checks of a record before its timeline is decoded: the times of its rows, and what it takes from the budget."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.builders.worst_bodies import column, packed
from legato_ingest.otlp.batch import DAY_NS, Limits
from legato_ingest.otlp.budget import Budget, OverBudget
from legato_ingest.otlp.checks import Invalid, check
from legato_ingest.otlp.model import EngineFlush, StreamRecord

NOW_NS = 20_000 * DAY_NS + DAY_NS // 2
FINISHED = {name: ["r", "s"] if name in ("response_id", "reason") else [0, 0] for name in ("response_id", "reason", "step")}
NONE = {name: list[object]() for name in FINISHED}


def budget() -> Budget:
    """Return the budget of a small request."""
    return Budget.of(Limits(), 1_000, "", NOW_NS)


def flush(timeline: bytes, start_ns: int = NOW_NS, end_ns: int = NOW_NS) -> EngineFlush:
    """Return a flush of steps without finished requests."""
    return EngineFlush(
        trace_id=b"t" * 16, span_id=b"s" * 8, parent_span_id=b"", start_ns=start_ns, end_ns=end_ns, emitter="", engine_id="e",
        epoch_ns=0, step_first=0, timeline=timeline, finished=NONE,
    )  # fmt: skip


@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40),
    st.sampled_from([0, 8, 16, 32]),
    st.integers(0, 2**31),
    st.integers(0, 2 * DAY_NS),
)
def test_the_days_of_a_flush_are_those_of_its_steps(values: list[int], width: int, base: int, ago_ns: int) -> None:
    """For any widths, bases and exceptions the first and the last day are exact, and the first distance counts as 0."""
    start_ns, dt = NOW_NS - 3_000 * DAY_NS - ago_ns, list[int]()
    content, exceptions = b"", list[tuple[int, int]]()
    for place, value in enumerate(values):
        if width == 32 or value >= 2**width or place % 3 == 2:
            exceptions.append((place, value))
            dt.append(value)
            value = 0
        else:
            dt.append(base + value)
        content += struct.pack("<I", value)[: width // 8]
    made, spent = flush(packed(len(values), {1: column(width, base, content, exceptions)}), start_ns), budget()
    days = {(start_ns + 1_000 * sum(dt[1:])) // DAY_NS, start_ns // DAY_NS}
    try:
        check(made, 100, NOW_NS, Limits(retention_days=0), spent)
    except OverBudget as error:
        assert error.reason == "partition_budget" and max(days) - min(days) >= 6
        return
    assert {min(spent.days["engine_steps"]), max(spent.days["engine_steps"])} == days


def test_steps_in_the_future_are_rejected() -> None:
    """A flush that starts now and has its last step in two days has a wrong time, as one that starts in two days."""
    late = flush(packed(2, {1: column(0, 2 * 86_400 * 10**6 // 50)}))
    check(late, 100, NOW_NS, Limits(), budget())
    for made in (flush(packed(50, {1: column(0, 2 * 86_400 * 10**6 // 45)})), flush(packed(1, {1: column(0, 0)}), NOW_NS + 2 * DAY_NS)):
        with pytest.raises(Invalid, match="in the future") as error:
            check(replace(made, end_ns=max(made.start_ns, made.end_ns)), 100, NOW_NS, Limits(), budget())
        assert error.value.reason == "retention"
    check(flush(packed(50, {1: column(0, 2 * 86_400 * 10**6 // 45)})), 100, NOW_NS, Limits(retention_days=0), budget())


def test_no_row_lies_beyond_2262() -> None:
    """Its time would be one before 1970 in the store."""
    made = flush(packed(50, {1: column(0, 2**32 - 1)}), 2**63 - 10**12, 2**63 - 1)
    with pytest.raises(Invalid, match="2262") as error:
        check(made, 100, NOW_NS, Limits(retention_days=0), budget())
    assert error.value.reason == "time"


def test_a_rejected_flush_takes_nothing() -> None:
    """Neither days of steps nor days of finished requests, chunks or memory."""
    spent = budget()
    before = spent.pool
    made = replace(flush(packed(4, {1: column(0, 1)}), NOW_NS - 5 * DAY_NS, NOW_NS), finished=FINISHED)
    for day in range(20, 26):
        spent.take([("engine_steps", NOW_NS - day * DAY_NS, NOW_NS - day * DAY_NS)], rows=0, row_bytes=0, item_bytes=0)
    with pytest.raises(OverBudget):
        check(made, 0, NOW_NS, Limits(), spent)
    assert spent.pool == before and "engine_requests" not in spent.days and spent.chunks == Limits().chunks_per_request_max
    check(replace(made, start_ns=NOW_NS), 0, NOW_NS, Limits(), spent)
    assert spent.chunks == Limits().chunks_per_request_max - 4 and spent.pool < before and spent.days["engine_requests"] == {20_000}


def test_a_stream_takes_the_day_of_its_start() -> None:
    """Its end decides on none."""
    spent = budget()
    record = StreamRecord(b"t" * 16, b"s" * 8, b"", NOW_NS - 3 * DAY_NS, NOW_NS, otlp_bytes=100, emitter="")
    assert check(record, 100, NOW_NS, Limits(), spent).chunks == 0
    assert spent.days == {"stream_revs": {20_000 - 3}}
