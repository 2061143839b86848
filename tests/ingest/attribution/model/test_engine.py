"""An engine from its records: the error of its offset, the steps of first tokens, and of requests that ended."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.builders.attribution import MS, ints, steps, vantage
from helpers.platform.examples import examples
from legato_ingest.attribution.model.engine import Engine, EngineRecords, steps_of_requests
from legato_ingest.attribution.model.vantage import Stream

RECORDS = EngineRecords(steps([20.0] * 30, [20.0 * n for n in range(1, 31)]))


@pytest.mark.parametrize(
    ("offset", "error_ns"),
    [(None, 7 * MS), ((5, None), 7 * MS), ((5, 2 * MS), 2 * MS), ((5, 9 * MS), 7 * MS)],
    ids=["none", "error unknown", "error known", "error too large"],
)
def test_the_error_of_the_offset_is_at_most_a_third_of_a_step(offset: tuple[int, int | None] | None, error_ns: int) -> None:
    """The bound is 35 % of the 20 ms."""
    engine = Engine.of(replace(RECORDS, server_offset=offset))
    assert (engine.offset_ns, engine.offset_error_ns) == (offset and offset[0], error_ns)


def test_the_error_of_the_offset_is_at_most_ten_milliseconds() -> None:
    """Also with steps of 90 ms."""
    slow = EngineRecords(steps([90.0] * 30, [90.0 * n for n in range(1, 31)]))
    assert Engine.of(slow).offset_error_ns == 10 * MS


def test_a_first_token_is_of_the_last_step_that_was_over() -> None:
    """The server's clock is an hour behind the records. A token before the first step has no step."""
    hour = 3_600_000 * MS
    times = {"a": int(ints(41)[0]) - hour, "b": int(ints(40)[0]) - hour, "c": int(ints(19)[0]) - hour}
    records = replace(RECORDS, server_offset=(hour, None), first_token_ns=times)
    assert Engine.of(records).first_token == {"a": 1, "b": 1}
    assert Engine.of(replace(records, server_offset=None)).first_token == {}


def test_a_stream_is_covered_where_its_clock_is_known() -> None:
    """The offset to the server's clock must be known or, without a server, to the client's clock."""
    stream = Stream("", 0, b"", b"", vantage(1), vantage(0), "e", "r", "mine")
    alone = replace(stream, server=None)
    for records, covered in (
        (RECORDS, (False, False)),
        (replace(RECORDS, server_offset=(0, None)), (True, False)),
        (replace(RECORDS, client_offsets={"mine": 0, "other": 0}), (False, True)),
        (replace(RECORDS, client_offsets={"other": 0}), (False, False)),
    ):
        assert (records.covers(stream), records.covers(alone)) == covered


SMALL = st.integers(0, 6)


@given(st.lists(st.tuples(SMALL, SMALL), max_size=12), st.lists(st.tuples(SMALL, SMALL), max_size=12))
@examples(200)
def test_requests_ended_in_the_nearest_step_of_their_number(steps_: list[tuple[int, int]], requests: list[tuple[int, int]]) -> None:
    """Of two that are as near the earlier one, and of two at one time the first."""
    (number, recorded), (last, ended) = (np.array(each, np.int64).reshape(-1, 2).T for each in (steps_, requests))
    expected = []
    for own, at in requests:
        same = [(abs(time_ - at), time_, index) for index, (each, time_) in enumerate(steps_) if each == own]
        expected.append(min(same)[2] if same else -1)
    assert steps_of_requests(last, ended, number, recorded).tolist() == expected


def test_the_time_to_find_the_steps_grows_with_their_number() -> None:
    """Not with its square: 20,000 requests and steps of one number took 1 s."""
    count = 60_000
    started = time.process_time()
    found = steps_of_requests(np.ones(count, np.int64), np.arange(count), np.ones(count, np.int64), np.arange(count))
    assert found.tolist() == list(range(count))
    assert time.process_time() - started < 2


def test_requests_ended_in_the_step_of_their_own_time() -> None:
    """The engine was restarted and counts from one again: of two steps with a number the nearer record is taken."""
    number, recorded = np.array([1, 2, 3, 1, 2]), ints(10, 20, 30, 1000, 1010)
    found = steps_of_requests(np.array([2, 2, 3, 9]), ints(25, 1005, 2000, 10), number, recorded)
    assert found.tolist() == [1, 4, 2, -1]
    assert steps_of_requests(np.zeros(0, np.int64), ints(), number, recorded).tolist() == []
