"""A tenant that is behind delays no other: neither by its turns nor by errors in them, nor after a restart."""

from __future__ import annotations

from typing import Any, cast

import pytest

from helpers.builders.greedy_tenants import GREEDY, Verified, bound, finish, judge_of, judged, put_stalled, refuse
from helpers.builders.judging import RECEIVED_NS
from helpers.builders.world import MS
from legato_ingest.attribution import turns, worker
from legato_ingest.attribution.run import RunResult
from legato_ingest.errors import StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.storage import Store
from legato_ingest.storage.judged import ALL_SHARDS, Progress, judged_until, judged_until_ms

TIMEOUT = StoreUnavailable("timeout exceeded", 159)


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice is three streams, and each run takes one step."""
    bound(monkeypatch)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of streams that the worker judges from now on, those of each statement."""
    real, numbers = getattr(worker, name := "attribute"), list[int]()

    def counting(*args: Any) -> Any:
        result = real(*args)
        numbers.append(result.streams)
        return result

    monkeypatch.setattr(worker, name, counting)
    return numbers


def put_aside(store: Store) -> int:
    """Have the tenant "hostile" put aside. Return its recorded progress (ms)."""
    judge, receive = judge_of(store)
    put_stalled(store, "small", 1, RECEIVED_NS)
    receive(RECEIVED_NS + MS)
    judge.step()
    began_ms = judged_until_ms(store)
    put_stalled(store, "hostile", GREEDY, RECEIVED_NS + 50 * MS, first=20)
    put_stalled(store, "small", 1, RECEIVED_NS + 50 * MS, first=1)
    receive(RECEIVED_NS + 60 * MS)
    judge.step()
    assert judged_until(store) == Progress((RECEIVED_NS + 60 * MS) // MS, {"hostile": began_ms})
    return began_ms


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("error", [TIMEOUT, ValueError("a defect")])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_an_error_in_the_turn_of_a_tenant_costs_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: Exception, is_damaged: bool
) -> None:
    """All began again at the progress of the tenant. It is judged when the error is gone; meanwhile pauses between its turns grow.

    If the turn ends the store's process, its run is not recorded; the next ones must not begin with that turn.
    """
    began_ms = put_aside(store)
    # An error ends the turns of a run.
    monkeypatch.setattr(worker, "_TURNS_S", 600.0)
    numbers, metrics, now_s = counted(monkeypatch), Metrics(), [0.0]
    is_failing = [True]
    failures = refuse(store, monkeypatch, "attribute", error, is_failing)
    double = Verified(store)
    judge, receive = judge_of(cast(Store, double), metrics)
    judge._turns = turns.Turns(lambda: now_s[0])

    def verified() -> None:
        if is_damaged and len(failures) == 1 and not numbers:
            raise StoreUnavailable("the process of the store has ended")

    double.verified = verified
    for run, tried in enumerate([1, 1, 2, 2, 3] if is_damaged else [1, 2, 2, 3, 3]):
        at_ns = RECEIVED_NS + (100 + 10 * run) * MS
        numbers.clear()
        receive(at_ns)
        if is_damaged and not run:
            with pytest.raises(StoreUnavailable, match="has ended"):
                judge.step()
            continue
        put_stalled(store, "small", 1, at_ns - MS, first=100 + run)
        judge.step()
        assert sum(numbers) == 1, "only what is new of the others is judged"
        assert len(failures) == tried and judged_until(store) == Progress(at_ns // MS, {"hostile": began_ms})
        now_s[0] += turns._AGAIN_S
    assert metrics.errors.labels("attribute", type(error).__name__)._value.get() >= 3
    is_failing[0] = False
    now_s[0] += turns._AFTER_ERROR_S_MAX
    assert finish(judge) < 50 and judged(store)["hostile"] == GREEDY and not judged_until(store).aside


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("parts", [[ALL_SHARDS], [2**32 - 1, ALL_SHARDS - 2**32 + 1]])
def test_a_restarted_process_judges_only_who_was_behind(store: Store, monkeypatch: pytest.MonkeyPatch, parts: list[int]) -> None:
    """Nothing of the others is judged again, and nothing of the tenant is left out; also where two instances go on in place of one."""
    put_aside(store)
    numbers = counted(monkeypatch)
    for shards in parts:
        judge, _ = judge_of(store, shards=shards)
        judge.step()
        assert finish(judge) < 50
        assert judged_until(store, shards) == Progress((RECEIVED_NS + 60 * MS) // MS)
    assert sum(numbers) == GREEDY and judged(store) == {"small": 2, "hostile": GREEDY}
    assert not judged_until(store).aside


@pytest.mark.usefixtures("bounded")
def test_a_run_ends_in_time_when_many_are_behind_after_a_restart(store: Store) -> None:
    """The others waited until the worker had looked for what is due of each. None is looked at again because the others have gone on."""
    began_ms, many = RECEIVED_NS // MS, 5
    aside = Progress(began_ms, {f"tenant-{number}": began_ms - 10 for number in range(many)})
    judge_of(store)[0]._record(aside, RunResult(), 0.0)
    judge, receive = judge_of(store)
    for run in range(many):
        at_ns = RECEIVED_NS + 10 * (run + 1) * MS
        put_stalled(store, "small", 1, at_ns - MS, first=run)
        receive(at_ns)
        judge.step()
        assert judged(store) == {"small": run + 1} and len(judge._turns) == many - run - 1
    assert judged_until(store) == Progress(at_ns // MS)


def test_thousands_that_are_aside_are_recorded(store: Store) -> None:
    """Those that are most behind; the progress of the others is that of the next one, so none is left out after a restart."""
    aside, most = turns.Turns(), turns._RECORDED_MAX
    aside.restore({number: 1_000 + number for number in range(most + 10)})
    aside.restore({"ahead": 9_000})
    progress = aside.progress(8_000)
    assert progress == Progress(1_000 + most, {number: 1_000 + number for number in range(most)})
    judge, _ = judge_of(store)
    judge._record(progress, RunResult(), 0.0)
    assert judged_until(store) == progress
    assert store.select(f"SELECT count() FROM stream_revs WHERE {aside.others}") == [(0,)]
