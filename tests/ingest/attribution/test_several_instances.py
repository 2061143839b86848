"""Instances that judge the same shards one after the other: a worker that goes on knows what others have recorded meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from helpers.builders.greedy_tenants import GREEDY, bound, finish, judge_of, judged, put_stalled
from helpers.builders.judging import RECEIVED_NS
from helpers.builders.world import MS
from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.storage import Store
from legato_ingest.storage.judged import ALL_SHARDS, judged_until

EVEN = sum(1 << shard for shard in range(0, 64, 2))


@pytest.fixture(autouse=True)
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice is three streams, and each run takes one step."""
    bound(monkeypatch)


def run_at(judge: tuple[AttributionWorker, Callable[[int], None]], at_ns: int, *, until_all: bool = True) -> None:
    """Run once when everything is received until then; with ``until_all`` until no tenant is aside."""
    worker, receive = judge
    receive(at_ns)
    worker.step()
    if until_all:
        finish(worker)


@pytest.mark.parametrize("shards", [ALL_SHARDS, EVEN])
def test_what_another_instance_put_aside_is_judged(store: Store, shards: int) -> None:
    """One stood still for longer than its claim on the shards holds, with a tenant aside; it passed the tenant that is aside now."""
    one, other = judge_of(store, shards=shards), judge_of(store)
    put_stalled(store, "small", 2, RECEIVED_NS)
    run_at(one, RECEIVED_NS + MS)
    put_stalled(store, "first", 2 * GREEDY, RECEIVED_NS + 5 * MS, first=20)
    run_at(one, RECEIVED_NS + 10 * MS, until_all=False)
    assert one[0]._turns
    run_at(other, RECEIVED_NS + 20 * MS)
    assert judged(store)["first"] == 2 * GREEDY
    put_stalled(store, "late", 2 * GREEDY, RECEIVED_NS + 25 * MS, first=50)
    run_at(other, RECEIVED_NS + 30 * MS, until_all=False)
    assert list(judged_until(store).aside) == ["late"] and judged(store).get("late", 0) == 0
    run_at(one, RECEIVED_NS + 40 * MS)
    if shards != ALL_SHARDS:
        run_at(judge_of(store, shards=ALL_SHARDS - shards), RECEIVED_NS + 40 * MS)
    assert judged(store) == {"small": 2, "first": 2 * GREEDY, "late": 2 * GREEDY} and not judged_until(store).aside


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_instances_that_alternate_judge_every_stream(store: Store, seed: int) -> None:
    """Whichever runs next, with what it remembers from its last run, or without that."""
    rng, count, at_ns = random.Random(seed), Counter[str](), RECEIVED_NS
    instances = {shards: judge_of(store, shards=shards) for shards in (ALL_SHARDS, EVEN, ALL_SHARDS - EVEN)}
    for _ in range(8):
        at_ns += 10 * MS
        for tenant in rng.sample("abcd", 2):
            more = rng.choice([1, 2, 9])
            put_stalled(store, tenant, more, at_ns, first=count.total())
            count[tenant] += more
        for shards in rng.choice([[ALL_SHARDS], [EVEN, ALL_SHARDS - EVEN], [EVEN]]):
            if rng.random() < 0.2:
                instances[shards] = judge_of(store, shards=shards)
            run_at(instances[shards], at_ns, until_all=False)
    for shards in rng.choice([[ALL_SHARDS], [EVEN, ALL_SHARDS - EVEN]]):
        run_at(instances[shards], at_ns + 10 * MS)
    assert judged(store) == count and not judged_until(store).aside
