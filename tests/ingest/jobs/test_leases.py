"""Leases: at most one instance acts while instances start, stop, die and freeze."""

from __future__ import annotations

import pytest

from legato_ingest.jobs import leases
from legato_ingest.jobs.leases import Lease
from legato_ingest.metrics import Metrics
from legato_ingest.storage import Store


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting time before a claim is confirmed."""
    monkeypatch.setattr(leases, "_CONFIRM_S", -1.0)


def lease(store: Store, holder: str) -> Lease:
    return Lease(store, "work", holder, Metrics())


def forget(store: Store, holder: str) -> None:
    """Expire this holder's claim, as if 30 s had passed."""
    store.command(f"ALTER TABLE leases DELETE WHERE holder = '{holder}' SETTINGS mutations_sync = 1")


def test_the_first_claim_acts_and_the_others_wait(shared: Store, soon: None) -> None:
    """Also after repeated steps; another lease is independent."""
    one, two, other = lease(shared, "one"), lease(shared, "two"), Lease(shared, "else", "two", Metrics())
    one.step()
    for _ in range(3):
        two.step()
        one.step()
    other.step()
    assert (one.held, two.held, other.held) == (True, False, True)


def test_the_first_step_does_not_act(shared: Store) -> None:
    """Another claim may not be visible yet."""
    one = lease(shared, "one")
    one.step()
    assert not one.held


def test_a_released_lease_passes_on_at_once(shared: Store, soon: None) -> None:
    """To the first waiting instance, before the claim expires."""
    one, two = lease(shared, "one"), lease(shared, "two")
    one.step()
    two.step()
    one.close()
    two.step()
    assert (one.held, two.held) == (False, True)


def test_an_expired_lease_passes_on(shared: Store, soon: None) -> None:
    """An instance that was suspended meanwhile no longer holds it."""
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


def test_the_later_of_two_acting_instances_stops(shared: Store, soon: None) -> None:
    """After a process was suspended between its query and its write."""
    one, two = lease(shared, "one"), lease(shared, "two")
    one.step()
    forget(shared, "one")
    two.step()
    assert one.held and two.held
    one.step()
    two.step()
    assert (one.held, two.held) == (True, False)
