"""When the next insert begins: seconds after the last one, sooner for a reader or many requests, and later while nothing is read."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from helpers.dashboards.tables import streams
from helpers.servers.committing import PATIENCE_S, logging_to, point_rows, scrapes, span_rows, spread_spans
from helpers.servers.waiting import until
from legato_ingest.storage import Store
from legato_ingest.write import pacing
from legato_ingest.write.lanes import Lane
from legato_ingest.write.pacing import Pacing
from legato_ingest.write.waiting import Waiting

MANY = pacing._MANY_REQUESTS
FEW_S, UNREAD_S, READER_S = pacing._FEW_APART_S, pacing._UNREAD_APART_S, pacing._READER_S
STREAM, POINT = span_rows(spread_spans(1)), point_rows(scrapes(1))


class Load:
    """A queue of requests and its pauses, at a time that passes only by ``wait``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, has_log: bool = True, is_always_read: bool = False) -> None:
        self.now_s = 1_000.0
        monkeypatch.setattr(pacing, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        self.lane = Lane(2**28)
        self.pacing = Pacing(self.lane, has_log=has_log, is_always_read=is_always_read, queue_bytes_max=2**28)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds

    def send(self, requests: int = 1, *, has_stream: bool = True) -> bool:
        """Queue requests. Return whether the last one brings the insert nearer."""
        is_nearer = False
        for _ in range(requests):
            before = len(self.lane)
            self.lane.put([Waiting.of(STREAM if has_stream else POINT, time.time_ns(), None)])
            is_nearer = self.pacing.arrived(before, has_streams=has_stream)
        return is_nearer

    def insert(self, *, is_rest: bool = False) -> None:
        """Insert all that waits."""
        group = self.lane.take(10**9)
        self.pacing.began(len(group), is_rest=is_rest)
        self.lane.finish(group)

    def pause_s(self) -> float:
        """Return the seconds until the next insert, to a ms."""
        return round(self.pacing.pause_s(), 3)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """A queue with a log, and a stream that was inserted just now."""
    load = Load(monkeypatch)
    load.send()
    load.insert()
    return load


def test_without_readers_streams_that_follow_each_other_wait_longer(load: Load) -> None:
    """Two streams a second, say: an insert takes all of almost a minute."""
    load.wait(1)
    assert load.send() and not load.send()
    assert load.pause_s() == UNREAD_S - 1
    load.wait(UNREAD_S - 1)
    assert load.pause_s() == 0


def test_readers_are_served_at_once_and_for_minutes_as_before(load: Load) -> None:
    """A statement asks for the insert. Until a rule that is evaluated each minute would have come again, the pause is short."""
    load.send()
    load.pacing.read()
    load.lane.want("")
    assert load.pause_s() == 0
    load.insert()
    load.wait(READER_S - FEW_S)
    load.send()
    load.insert()
    load.send()
    assert load.pause_s() == FEW_S
    load.wait(FEW_S + 0.1)
    load.insert()
    load.send()
    assert load.pause_s() == UNREAD_S


def test_a_stream_after_a_pause_is_inserted_soon(load: Load) -> None:
    """A developer's single call, between samples of metrics each 15 s: nothing is to be gained by waiting."""
    for _ in range(4):
        load.wait(15)
        load.send(has_stream=False)
        assert load.pause_s() <= UNREAD_S - 15
    assert load.send()
    assert load.pause_s() == FEW_S - 60
    load.insert()
    load.send()
    assert load.pause_s() == UNREAD_S


def test_an_export_is_a_reader_that_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts go to a backend where someone reads them."""
    load = Load(monkeypatch, is_always_read=True)
    load.wait(10 * READER_S)
    load.insert()
    load.send()
    assert load.pause_s() == FEW_S


@pytest.mark.parametrize("is_read", [True, False])
def test_many_requests_are_inserted_within_a_second(load: Load, is_read: bool) -> None:
    """Many is a rate: of what waits for eight seconds, or for a longer time."""
    if is_read:
        load.pacing.read()
    many = MANY if is_read else int(MANY * UNREAD_S / FEW_S)
    load.send(many - 1)
    assert load.pause_s() == (FEW_S if is_read else UNREAD_S)
    assert load.send() and load.pause_s() == 1


def test_many_bytes_and_what_an_insert_left_follow_at_once(load: Load) -> None:
    """Whatever the rate."""
    load.insert(is_rest=True)
    load.send()
    assert load.pause_s() == 0
    load.insert()
    load.send()
    load.lane.row_bytes = 2**24 + 1
    assert load.pause_s() == 0 and load.send()


def test_large_bodies_with_few_rows_do_not_fill_the_queue(load: Load) -> None:
    """Six bodies of 1 MiB a second with a stream each: the queue was full after 43 s, and refused all until the pause was over."""
    load.send()
    load.lane.held.add("a", load.lane.held.most // 4)
    assert load.pause_s() == UNREAD_S
    load.lane.held.add("a", 1)
    assert load.send() and load.pause_s() == 0


def test_a_report_of_a_stream_that_stands_still_is_inserted_soon(load: Load) -> None:
    """Its silence counts from its insert: the rule on stalled streams showed it 50 s too short."""
    load.send()
    assert load.pause_s() == UNREAD_S
    assert load.pacing.arrived(1, has_streams=False, has_silences=True)
    assert load.pause_s() == FEW_S
    load.insert()
    load.send()
    assert load.pause_s() == UNREAD_S


def test_without_a_log_a_sender_waits_only_after_a_busy_insert(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its acknowledgement waits for the insert, and each request wakes the thread."""
    load = Load(monkeypatch, has_log=False)
    load.send(7)
    load.insert()
    assert load.pause_s() == 0
    load.send(8)
    load.insert()
    assert load.send() and load.pause_s() == 0.15


def test_a_reader_ends_the_long_pause(store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The committer's thread waits for a time that is far away, and inserts for the reader; then the pause is short."""
    monkeypatch.setattr(pacing, "_FEW_APART_S", 0.5)
    monkeypatch.setattr(pacing, "_UNREAD_APART_S", 3_600.0)

    def sent(number: int) -> Callable[[], bool]:
        committer.submit(span_rows(spread_spans(1, number)), None).add_done_callback(lambda _: None)
        return lambda: len(streams(store)) == number

    with logging_to(tmp_path, store) as committer:
        until(sent(1))
        is_stored = sent(2)
        time.sleep(1.5)
        assert not is_stored()
        began_s = time.monotonic()
        committer.settle()
        assert is_stored() and time.monotonic() - began_s < PATIENCE_S
        until(sent(3))
