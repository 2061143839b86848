"""Chunks matched between vantages by index or byte, and with steps by time; never two chunks of one step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.builders.attribution import ints, vantage
from legato_ingest.attribution.model.matching import server_chunks, server_from_steps, server_gaps, steps_of_chunks
from legato_ingest.attribution.model.vantage import Vantage


def test_chunks_are_matched_by_index_where_the_counts_allow_it() -> None:
    """Without sizes: equal counts, or a client that was cut off. If it saw the end with fewer chunks, something merged them."""
    client = vantage(1, 2, 3)
    assert server_chunks(client, vantage(0, 1, 2), np.array([0, 2])).tolist() == [0, 2]
    longer = vantage(0, 1, 2, 3)
    assert gaps(vantage(1, 2, 3, is_cut=True), longer, 1, 2) == ([0, 1], [1, 2])
    assert gaps(client, longer, 1, 2) == ([-1, -1], [-1, -1])


def test_chunks_are_matched_by_byte_where_the_ends_cut_differently() -> None:
    """The client received chunks of 7, 5 and 13 bytes; the server sent 3, 4, 5, 6 and 7 bytes."""
    server = vantage(0, 10, 20, 500, 510, sizes=(3, 4, 5, 6, 7))
    assert server_chunks(vantage(1, 21, 501, sizes=(7, 5, 13)), server, np.array([0, 1, 2])).tolist() == [0, 2, 3]
    cut = vantage(1, 2, 3, 4, 5, 6, sizes=(1, 2, 4, 5, 6, 7))
    assert server_chunks(cut, server, np.arange(6)).tolist() == [0, 0, 1, 2, 3, 4]
    assert gaps(cut, server, 1, 2) == ([0, 0], [0, 1]), "the first gap divides a chunk of the server"


def gaps(client: Vantage, server: Vantage, *after: int) -> tuple[list[int], list[int]]:
    """Return the chunks of the server that bound the gaps before these chunks."""
    last, first = server_gaps(client, server, np.array(after, np.int64))
    return last.tolist(), first.tolist()


def test_equal_counts_are_no_proof_of_an_equal_division() -> None:
    """Two chunks were merged and another one was split: the sizes decide."""
    server, client = vantage(*range(5), sizes=(5, 5, 5, 5, 5)), vantage(*range(5), sizes=(10, 5, 5, 2, 3))
    assert gaps(client, server, 1, 2, 3, 4) == ([1, 2, 3, 4], [2, 3, 4, 4])


def test_sizes_that_count_something_else_are_worth_nothing() -> None:
    """The vantages saw the whole stream and counted different sums, or no bytes at all: only equal counts allow a match, by index."""
    server = vantage(*range(4), sizes=(5, 5, 5, 5))
    for sizes in ((9, 8, 9, 7), (1, 2, 1, 1), (0, 0, 0, 0)):
        assert gaps(vantage(*range(4), sizes=sizes), server, 1, 3) == ([0, 2], [1, 3])
        assert gaps(vantage(*range(3), sizes=sizes[:3]), server, 1, 2) == ([-1, -1], [-1, -1])


def test_a_record_without_the_streams_end_is_compared_up_to_its_end() -> None:
    """The client cancelled, or the server's record is a snapshot or was truncated. A record that is not cut must have all bytes."""
    server, client = vantage(*range(4), sizes=(5, 5, 5, 5)), vantage(*range(3), sizes=(2, 8, 4))
    assert gaps(client, server, 1, 2) == ([-1, -1], [-1, -1])
    assert gaps(replace(client, is_cut=True), server, 1, 2) == ([0, 1], [0, 2])
    longer = vantage(*range(4), sizes=(10, 5, 5, 5))
    assert gaps(longer, server, 1, 3) == ([0, 2], [1, 3]), "the sizes cannot be compared, and the counts are equal"
    assert gaps(longer, replace(server, is_cut=True), 1, 2, 3) == ([1, 2, -1], [2, 3, -1])
    assert gaps(vantage(*range(3), sizes=(5, 5, 5)), server, 1, 2) == ([0, 1], [1, 2]), "all its chunks are the server's"


def test_empty_chunks_are_matched_with_empty_ones() -> None:
    """Such as a tool call without arguments: in their order at the same byte. Where the server has none, the gap is unknown."""
    server = vantage(*range(6), sizes=(0, 0, 5, 5, 0, 5))
    assert gaps(server, server, *range(1, 6)) == ([0, 1, 2, 3, 4], [1, 2, 3, 4, 5])
    merged = vantage(*range(4), sizes=(0, 10, 0, 5))
    assert gaps(merged, server, 1, 2, 3) == ([0, 3, 4], [2, 4, 5])
    more = vantage(*range(5), sizes=(0, 10, 0, 0, 5))
    assert gaps(more, server, 2, 3, 4) == ([3, -1, -1], [4, -1, -1])
    assert gaps(vantage(*range(4), sizes=(5, 5, 5, 0)), server, 1, 2, 3) == ([2, 3, -1], [3, 5, -1])


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_a_gap_is_between_the_same_two_bytes_for_any_division(server_sizes: list[int], client_sizes: list[int]) -> None:
    """The server's chunks are those with the bytes on both sides of the client's gap, found byte by byte."""
    total = min(sum(server_sizes), sum(client_sizes))
    ends = [np.unique(np.minimum(np.cumsum(sizes), total)) for sizes in (server_sizes, client_sizes)]
    server, client = (vantage(*range(len(end)), sizes=np.diff(end, prepend=0).tolist()) for end in ends)
    holding = np.repeat(np.arange(len(server.sizes)), server.sizes)
    begins = np.cumsum(client.sizes)[:-1]
    assert gaps(client, server, *range(1, len(client.sizes))) == (holding[begins - 1].tolist(), holding[begins].tolist())


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
