"""The division of the shards: complete and without overlap, also while instances start, end, die and freeze."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato_ingest.jobs import leases
from legato_ingest.jobs.leases import WORK, Lease
from legato_ingest.jobs.shard_lease import ShardLease, shards_of
from legato_ingest.metrics import Metrics
from legato_ingest.storage import Store
from legato_ingest.storage.judged import ALL_SHARDS


@given(st.lists(st.text(min_size=1, max_size=3), unique=True, min_size=1, max_size=70))
def test_all_shards_are_divided_evenly(members: list[str]) -> None:
    """Each has one instance; the numbers differ by one at most. An instance that is not among them has none."""
    parts = [shards_of(each, members) for each in members]
    sizes = [part.bit_count() for part in parts]
    assert sum(parts) == ALL_SHARDS and sum(sizes) == 64
    assert max(sizes) - min(sizes) <= 1
    assert shards_of("another", members) == 0


def held(*instances: ShardLease) -> list[int]:
    """Renew all claims twice, so that each has seen all others, and return the number of shards of each."""
    for each in (*instances, *instances):
        each.step()
    parts = [each.held() for each in instances]
    assert sum(parts) in (0, ALL_SHARDS), "no shard is left out, none is judged twice"
    return [part.bit_count() for part in parts]


def test_instances_divide_what_there_is(shared: Store) -> None:
    """One has all; a second takes half, and leaves it when it ends; one that died loses its part when its claim is 30 s old."""
    one, two, three = (ShardLease(shared, name, Metrics()) for name in ("one", "two", "three"))
    assert one.held() == 0
    assert held(one) == [64]
    assert held(one, two) == [32, 32]
    assert held(one, two, three) == [22, 21, 21]
    two.close()
    assert two.held() == 0
    assert held(one, three) == [32, 32]
    shared.command("ALTER TABLE leases DELETE WHERE holder = 'one' SETTINGS mutations_sync = 1")
    assert held(three) == [64]


def test_a_frozen_instance_judges_nothing(shared: Store) -> None:
    """It may have been left out meanwhile; after its next claim it has a part again."""
    one = ShardLease(shared, "one", Metrics())
    one.step()
    one._written_s -= 16
    assert one.held() == 0
    assert held(one) == [64]


def test_an_instance_of_an_earlier_version_judges_alone(shared: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the lease of all work and no part of the shards. The holder of the lease that has a part, too, is no reason to wait."""
    monkeypatch.setattr(leases, "_CONFIRM_S", -1.0)
    earlier, one = Lease(shared, WORK, "earlier", Metrics()), ShardLease(shared, "one", Metrics())
    earlier.step()
    assert earlier.held and held(one) == [0]
    earlier.close()
    assert held(one) == [64]
    own = Lease(shared, WORK, "one", Metrics())
    own.step()
    assert own.held and held(one) == [64]
