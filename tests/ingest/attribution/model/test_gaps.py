"""Gaps of a few chunks: which they are, when they were at the server, and what the client's own record shows."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from helpers.builders.attribution import MS, vantage
from legato_ingest.attribution.model.gaps import Gaps, gaps_of

EVEN = tuple(range(0, 400, 20))


def test_a_gap_is_between_reads_of_content() -> None:
    """Chunks with one time are one read; shorter gaps are left out."""
    gaps = gaps_of(vantage(0, 20, 20, 520, 540), None, 0, 100 * MS)
    assert (gaps.start_ns // MS).tolist() == [20] and (gaps.end_ns // MS).tolist() == [520]
    assert gaps.length_ns.tolist() == [500 * MS] and not gaps.has_server.any()
    assert len(gaps_of(vantage(), None, 0, 1).start_ns) == 0


def test_a_gap_is_compared_at_the_same_byte() -> None:
    """The client received in one chunk what the server sent in two."""
    server = vantage(0, 10, 20, 500, 510, sizes=(3, 4, 5, 6, 7))
    gaps = gaps_of(vantage(1, 21, 501, sizes=(7, 5, 13)), server, 7, 100 * MS, 5, 3)
    assert gaps.has_server.tolist() == [True]
    assert (gaps.server_start_ns[0], gaps.server_end_ns[0]) == (20 * MS, 500 * MS)
    assert (gaps.clock_offset_ns[0], gaps.server_error_ns[0], gaps.clock_offset_error_ns[0]) == (7, 5, 3)
    assert gaps.usual_ns[0] == 10 * MS


def test_a_gap_within_a_chunk_of_the_server_is_none_at_the_server() -> None:
    """The server pauses before its second chunk, which reaches the client in two pieces: the pause is in the first gap alone."""
    server = vantage(0, 500, sizes=(4, 4))
    gaps = gaps_of(vantage(1, 501, 900, sizes=(4, 2, 2)), server, 0, 100 * MS)
    assert gaps.has_server.tolist() == [True, True]
    assert ((gaps.server_end_ns - gaps.server_start_ns) // MS).tolist() == [500, 0]
    alone = gaps_of(vantage(1, 501, sizes=(4, 4)), vantage(0, sizes=(8,)), 0, 100 * MS)
    assert alone.has_server.tolist() == [True] and alone.server_end_ns.tolist() == [0]


def test_chunks_that_cannot_be_matched_show_no_server() -> None:
    """The client received 2 bytes and the server sent 9, or the client has fewer chunks and no sizes."""
    assert gaps_of(vantage(0, 500, sizes=(1, 1)), vantage(0, sizes=(9,)), 0, 100 * MS).has_server.tolist() == [False]
    for is_cut in (True, False):
        assert gaps_of(vantage(0, 500, is_cut=is_cut), vantage(499, 500, 501), 0, 100 * MS).has_server.tolist() == [is_cut]


def test_holds_of_a_read_add_up() -> None:
    """Two chunks arrived in one read, and the application held them 100 and 200 ms."""
    gaps = gaps_of(vantage(0, 20, 20, 520, holds_ms=(5, 100, 200, 7)), None, 0, 100 * MS)
    assert gaps.hold_ns.tolist() == [300 * MS] and gaps.hold_known.all()
    assert not gaps_of(vantage(0, 500), None, 0, 100 * MS).hold_known.any()


def test_the_pace_is_the_median_time_a_chunk() -> None:
    """Most reads have two chunks after 40 ms; one came after 500 ms."""
    gaps = gaps_of(vantage(0, 40, 40, 80, 80, 580, 580, 620, 620), None, 0, 100 * MS)
    assert gaps.pace_ns.tolist() == [20 * MS]


@pytest.mark.parametrize(
    ("releases", "buffered"),
    [((0, 0, 0, 200, 200, 200, 400, 400), True), ((0, 0, 200, 200), False), ((0, 0, 200, 200, 400, 400, 500, 600, 700), False)],
)
def test_a_buffer_releases_nearly_everything_in_several(releases: tuple[int, ...], buffered: bool) -> None:
    """At least three releases, with at least three quarters of the chunks."""
    sent = vantage(*range(0, 20 * len(releases), 20))
    assert gaps_of(vantage(*releases), sent, 0, 100 * MS).buffered.tolist() == [buffered] * (len(set(releases)) - 1)


def test_what_was_sent_together_shows_no_buffer() -> None:
    """Each step gives two tokens, which the server writes 30 µs apart and the client receives in one read."""
    sent = [at + more for at in range(0, 400, 20) for more in (0, 0.03)]
    arrived = [20 * (at // 20) + 300 * (at >= 200) for at in sent]
    assert gaps_of(vantage(*arrived), vantage(*sent), 0, 100 * MS).buffered.tolist() == [False]


@pytest.mark.parametrize(("sent_every", "buffered"), [(20, False), (150, True)])
def test_an_outage_is_no_release_of_a_buffer(sent_every: int, buffered: bool) -> None:
    """A buffer releases five chunks every 100 ms, then 35 at once after 700 ms. Five after a slow server are a release."""
    sent = [20.0 * n for n in range(50)]
    sent += [sent[-1] + sent_every * n for n in range(1, 36 if sent_every == 20 else 6)]
    arrived = [100.0 * (n // 5 + 1) for n in range(50)] + [sent[-1]] * (len(sent) - 50)
    gaps = gaps_of(vantage(*arrived), vantage(*sent), 0, 500 * MS)
    assert gaps.buffered.tolist() == [buffered]


def test_the_socket_is_known_where_it_was_sampled() -> None:
    """Only the first of two gaps has a sample, with unread data."""
    client = vantage(0, 300, 600, 620, unread=np.array([1]), sampled=np.array([1]))
    gaps = gaps_of(client, None, 0, 100 * MS)
    assert gaps.unread.tolist() == [True, False] and gaps.socket_known.tolist() == [True, False]


def after_gap(*behind_ms: float, count: int = 20) -> float:
    """Return the share that caught up after a gap of 400 ms in a stream of a chunk every 20 ms.

    ``behind_ms``: when further chunks arrived, relative to the end of the gap. ``count``: the number of chunks of the stream.
    """
    end = EVEN[9] + 400
    behind = [end, *(end + each for each in behind_ms)]
    rest = [max(behind) + 20 * n for n in range(1, count - 10 - len(behind_ms))]
    (share,) = gaps_of(vantage(*EVEN[:10], *behind, *rest), None, 0, 100 * MS).caught_up
    return float(share)


def test_kept_chunks_arrive_right_behind() -> None:
    """The chunks of a steady stream arrive together at the end of the gap. 19 are missing, and more than that are left."""
    assert after_gap(*[0] * 19, count=60) == pytest.approx(1.0)
    assert after_gap(*[0] * 9, count=60) == pytest.approx(9 / 19)


def test_chunks_that_were_generated_late_arrive_evenly() -> None:
    """Only the chunks that arrive in that time in any case."""
    assert after_gap(count=60) == 0.0


def test_near_the_streams_end_nothing_can_be_concluded() -> None:
    """With few or no chunks left the share is unknown, unless all of them arrived together."""
    assert np.isnan(after_gap(count=11)) and np.isnan(after_gap(count=13))
    assert after_gap(0, 0, count=13) == pytest.approx(1.0)


def test_gaps_can_be_taken_and_joined() -> None:
    """By index, and one after another."""
    gaps = gaps_of(vantage(0, 300, 700), None, 0, 100 * MS)
    both = Gaps.joined([gaps, gaps.at(np.array([1]))])
    assert (both.length_ns // MS).tolist() == [300, 400, 400]


@pytest.mark.parametrize("lengths_ms", [(300, 500, 400, 300, 250), (300, 300, 300, 300, 300), (700, 200)])
def test_of_very_many_gaps_the_longest_are_judged(monkeypatch: pytest.MonkeyPatch, lengths_ms: tuple[int, ...]) -> None:
    """In order of time; of gaps of one length the first ones. What they say about the stream is the same."""
    client = vantage(*np.cumsum((0, *lengths_ms)).tolist(), *range(10_000, 10_400, 20))
    every = gaps_of(client, None, 0, 250 * MS)
    monkeypatch.setattr("legato_ingest.attribution.model.gaps.GAPS_MAX", 3)
    some = gaps_of(client, None, 0, 250 * MS)
    longest = sorted(range(len(every.start_ns)), key=lambda row: (-every.length_ns[row], row))[:3]
    for field in fields(Gaps):
        np.testing.assert_array_equal(getattr(some, field.name), getattr(every.at(np.array(sorted(longest))), field.name))
