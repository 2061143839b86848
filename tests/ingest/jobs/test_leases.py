"""Leases and writers: who may act, until when all have written, with instances that come, go, die and freeze."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from legato_ingest.jobs import leases
from legato_ingest.jobs.leases import Lease
from legato_ingest.jobs.writer_heartbeat import WriterHeartbeat
from legato_ingest.metrics import Metrics
from legato_ingest.storage import Store


@pytest.fixture
def shared(store: Store) -> Store:
    """The store without anybody's claims."""
    for table in ("leases", "writers"):
        store.command(f"TRUNCATE TABLE {table}")
    return store


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody need look twice."""
    monkeypatch.setattr(leases, "_CONFIRM_S", -1.0)


def lease(store: Store, holder: str) -> Lease:
    return Lease(store, "work", holder, Metrics())


def forget(store: Store, holder: str) -> None:
    """What this one said lapses: as if half a minute had passed."""
    store.command(f"ALTER TABLE leases DELETE WHERE holder = '{holder}' SETTINGS mutations_sync = 1")


def test_the_first_to_come_acts_and_the_others_wait(shared: Store, soon: None) -> None:
    """Also when all ask again and again; another lease is another matter."""
    one, two, other = lease(shared, "one"), lease(shared, "two"), Lease(shared, "else", "two", Metrics())
    one.step()
    for _ in range(3):
        two.step()
        one.step()
    other.step()
    assert (one.held, two.held, other.held) == (True, False, True)


def test_nobody_acts_at_the_first_look(shared: Store) -> None:
    """Somebody's claim may be on its way still."""
    one = lease(shared, "one")
    one.step()
    assert not one.held


def test_who_lets_go_is_followed_at_once(shared: Store, soon: None) -> None:
    """By the first of those who wait, without waiting for a lapse."""
    one, two = lease(shared, "one"), lease(shared, "two")
    one.step()
    two.step()
    one.close()
    two.step()
    assert (one.held, two.held) == (False, True)


def test_who_died_is_followed_when_its_word_has_lapsed(shared: Store, soon: None) -> None:
    """And one that wakes up again finds that it is not its turn."""
    one, two = lease(shared, "one"), lease(shared, "two")
    one.step()
    two.step()
    forget(shared, "one")
    two.step()
    assert two.held
    one._written_at -= 100
    assert not one.held
    one.step()
    two.step()
    assert (one.held, two.held) == (False, True)


def test_of_two_that_act_the_later_gives_way(shared: Store, soon: None) -> None:
    """A process that was frozen between its look and its word."""
    one, two = lease(shared, "one"), lease(shared, "two")
    one.step()
    forget(shared, "one")
    two.step()
    assert one.held and two.held
    one.step()
    two.step()
    assert (one.held, two.held) == (True, False)


def writers(store: Store, name: str, own_ms: Callable[[], int]) -> WriterHeartbeat:
    return WriterHeartbeat(store, name, own_ms, Metrics())


def test_all_is_there_until_the_writer_that_is_furthest_behind(shared: Store) -> None:
    """Of those that live; one's own word is as new as it is."""
    times = {"a": 5000, "b": 7000}
    kept = {name: writers(shared, name, lambda name=name: times[name]) for name in times}  # type: ignore[misc]
    for each in kept.values():
        each.beat()
    assert [each.settled_ms() for each in kept.values()] == [5000, 5000]
    times["a"] = 6000
    assert [each.settled_ms() for each in kept.values()] == [5000, 5000]
    kept["a"].beat()
    assert [each.settled_ms() for each in kept.values()] == [6000, 6000]
    times["b"] = 5500
    assert kept["b"].settled_ms() == 5500


def test_who_says_nothing_for_long_is_not_waited_for(shared: Store) -> None:
    """A writer that died would hold up all others for ever; one that was silent for so long counts it as an error."""
    moment = pa.timestamp("ms", "UTC")
    old = {
        "tenant": pa.array([""]),
        "writer": pa.array(["dead"]),
        "settled_at": pa.array([1000], moment),
        "seen_at": pa.array([10**12], moment),
    }
    shared.insert("writers", pa.table(old))
    metrics = Metrics()
    one = WriterHeartbeat(shared, "one", lambda: 9000, metrics)
    one.beat()
    assert one.settled_ms() == 9000
    one._beat_at -= 100
    one.beat()
    assert metrics.errors.labels("writers", "HeartbeatMissed")._value.get() == 1
