"""Chunks matched between vantages by index or byte, and with steps by time; never two chunks of one step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.builders.attribution import ints, vantage
from legato_ingest.attribution.model.matching import server_chunks, server_from_steps, steps_of_chunks


def test_chunks_are_matched_by_index_where_the_counts_allow_it() -> None:
    """Equal counts, or more chunks at the server while the client's sizes are unknown."""
    client = vantage(1, 2, 3)
    assert server_chunks(client, vantage(0, 1, 2), np.array([0, 2])).tolist() == [0, 2]
    assert server_chunks(client, vantage(0, 1, 2, 3), np.array([0, 2])).tolist() == [0, 2]


def test_chunks_are_matched_by_byte_where_the_ends_cut_differently() -> None:
    """The client received chunks of 7, 5 and 13 bytes; the server sent 3, 4, 5, 6 and 7 bytes."""
    server = vantage(0, 10, 20, 500, 510, sizes=(3, 4, 5, 6, 7))
    assert server_chunks(vantage(1, 21, 501, sizes=(7, 5, 13)), server, np.array([0, 1, 2])).tolist() == [0, 2, 3]
    cut = vantage(1, 2, 3, 4, 5, 6, sizes=(1, 2, 4, 5, 6, 7))
    assert server_chunks(cut, server, np.arange(6)).tolist() == [0, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("client_sizes", [(1, 1, 1, 1), ()])
def test_what_cannot_be_matched_is_unknown(client_sizes: tuple[int, ...]) -> None:
    """More chunks at the client with another sum of bytes or without sizes, and no server."""
    client = vantage(1, 2, 3, 4, sizes=client_sizes)
    assert server_chunks(client, vantage(0, 1, sizes=(3, 4)), np.array([0, 3])).tolist() == [-1, -1]
    assert server_chunks(client, None, np.array([0])).tolist() == [-1]
    assert server_chunks(client, vantage(), np.array([0])).tolist() == [-1]


def test_chunks_that_came_together_are_of_consecutive_steps() -> None:
    """Three chunks that arrived together belong to the three latest steps, one each."""
    ready = ints(10, 20, 30, 40, 50)
    assert steps_of_chunks(ints(11, 41, 41, 41), ready).tolist() == [0, 1, 2, 3]
    assert steps_of_chunks(ints(11, 21, 51), ready).tolist() == [0, 1, 4]
    assert steps_of_chunks(ints(11, 51, 52), ready, last_step=3).tolist() == [0, 2, 3]
    assert steps_of_chunks(ints(5, 11), ready).tolist() == [-1, 0]


def test_a_server_is_concluded_from_the_records() -> None:
    """Each chunk was sent with the record of its step. A chunk may precede the record by 35 % of a step."""
    recorded = ints(10, 20, 30, 40)
    made = server_from_steps(vantage(17, 27, 50, sizes=(1, 2, 3)), recorded, clock_offset_ns=int(ints(0)[0]), last_step=-1)
    assert made.times_ns.tolist() == ints(20, 30, 40).tolist() and made.sizes.tolist() == [1, 2, 3]
    shifted = server_from_steps(vantage(1017, 1027, 1050), recorded, clock_offset_ns=-int(ints(1000)[0]), last_step=2)
    assert shifted.times_ns.tolist() == ints(10, 20, 30).tolist()


@given(st.lists(st.integers(0, 500), min_size=1, max_size=20), st.lists(st.integers(0, 500), min_size=1, max_size=30), st.integers(-1, 30))
def test_steps_ascend_and_are_ready(times: list[int], ready: list[int], last: int) -> None:
    """One step per chunk in order, none that was ready later, and none after the request's last step."""
    at, ends = np.sort(np.array(times)), np.sort(np.array(ready))
    found = steps_of_chunks(at, ends, last)
    assert (np.diff(found) >= 1).all()
    known = found >= 0
    assert (ends[found[known]] <= at[known]).all() and (last < 0 or (found <= last).all())
