"""Tenants with much to judge delay no other: they are judged in turns, and nothing of theirs is lost."""

from __future__ import annotations

import tracemalloc
from typing import cast

import pytest

from helpers.builders.greedy_tenants import GREEDY, SLICES, Verified, bound, finish, judge_of, judged, put_stalled, refuse
from helpers.builders.judging import RECEIVED_NS
from helpers.builders.world import MS
from legato_ingest.attribution import turns, worker
from legato_ingest.attribution.load.due import Due
from legato_ingest.attribution.load.streams import Size
from legato_ingest.errors import StoreRefused, StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.storage import Store
from legato_ingest.storage.judged import Progress, judged_until, judged_until_ms


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice is three streams, and each run takes one step."""
    bound(monkeypatch)


@pytest.mark.usefixtures("bounded")
def test_a_tenant_with_much_to_judge_delays_no_other(store: Store) -> None:
    """The others' streams are judged in the first run, also those that arrive while it is aside. Its progress is that of the store."""
    judge, receive = judge_of(store)
    put_stalled(store, "before", 1, RECEIVED_NS)
    receive(RECEIVED_NS + MS)
    judge.step()
    began_ms = judged_until_ms(store)
    put_stalled(store, "greedy", GREEDY, RECEIVED_NS + 50 * MS)
    put_stalled(store, "small", 2, RECEIVED_NS + 50 * MS)
    receive(RECEIVED_NS + 60 * MS)
    judge.step()
    found = judged(store)
    assert found == {"before": 1, "small": 2}, "what is due of the tenant was divided"
    progress = Progress((RECEIVED_NS + 60 * MS) // MS, {"greedy": began_ms})
    assert judged_until(store) == progress, "a restarted process looks at the rows of this tenant again"
    put_stalled(store, "late", 1, RECEIVED_NS + 100 * MS)
    put_stalled(store, "greedy", 1, RECEIVED_NS + 100 * MS, first=GREEDY)
    receive(RECEIVED_NS + 110 * MS)
    judge.step()
    found = judged(store)
    assert found["late"] == 1 and found["greedy"] == GREEDY // SLICES
    assert finish(judge) <= SLICES + 2 and judged(store)["greedy"] == GREEDY + 1
    assert judged_until_ms(store) >= (RECEIVED_NS + 110 * MS) // MS
    verdicts = store.select("SELECT count() FROM verdicts")
    judge.step()
    assert store.select("SELECT count() FROM verdicts") == verdicts, "nothing is judged again"


def test_a_tenant_with_streams_of_many_times_delays_no_other(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stretch of five minutes costs a slice, and is a turn. Without tenants there is no other, and all are judged at once."""
    monkeypatch.setattr(turns, "_SLICES_MAX", 4)
    monkeypatch.setattr(worker, "_TURNS_S", 0.0)
    judge, receive = judge_of(store)
    for tenant, count in (("far", 6), ("", 6), ("near", 4)):
        put_stalled(store, tenant, count, RECEIVED_NS, apart_s=900)
    receive(RECEIVED_NS + MS)
    judge.step()
    assert judged(store) == {"": 6, "near": 4}
    assert finish(judge) <= 6 and judged(store)["far"] == 6


@pytest.mark.usefixtures("bounded")
def test_a_restarted_process_judges_what_was_aside(store: Store) -> None:
    """Also before the first run has ended."""
    put_stalled(store, "greedy", GREEDY, RECEIVED_NS)
    put_stalled(store, "small", 1, RECEIVED_NS)
    for _ in range(3):
        judge, receive = judge_of(store)
        receive(RECEIVED_NS + MS)
        judge.step()
        assert judged(store).get("small") == 1
    finish(judge)
    assert judged(store) == {"greedy": GREEDY, "small": 1}


@pytest.mark.usefixtures("bounded")
def test_streams_of_another_tenant_with_the_same_ids_take_nothing_from_one_that_is_aside(store: Store) -> None:
    """A span id is known to those that a request calls, and two tenants may have the same."""
    judge, receive = judge_of(store)
    put_stalled(store, "before", 1, RECEIVED_NS, first=100)
    receive(RECEIVED_NS + MS)
    judge.step()
    for tenant, first, received_ns in (("victim", 0, RECEIVED_NS + 50 * MS), ("hostile", GREEDY - 4, RECEIVED_NS + 70 * MS)):
        put_stalled(store, tenant, GREEDY - first, received_ns, first)
        receive(received_ns + 10 * MS)
        judge.step()
    finish(judge)
    assert judged(store) == {"before": 1, "victim": GREEDY, "hostile": 4}


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("greedy", [0, GREEDY])
def test_a_run_that_is_not_recorded_is_repeated(store: Store, greedy: int) -> None:
    """Its record verifies the store: what it read may be from a damaged part. It was not repeated while a tenant was aside."""
    double = Verified(store)
    judge, receive = judge_of(cast(Store, double))
    put_stalled(store, "first", 1, RECEIVED_NS)
    judge.step()
    put_stalled(store, "greedy", greedy + 1, RECEIVED_NS + 10 * MS)
    receive(RECEIVED_NS + 20 * MS)
    judge.step()
    assert len(judge._turns) == bool(greedy)
    receive(RECEIVED_NS + 60 * MS)

    def refuse() -> None:
        # The rows were in a part that the run did not see.
        put_stalled(store, "small", 1, RECEIVED_NS + 50 * MS)
        put_stalled(store, "greedy", 1, RECEIVED_NS + 50 * MS, first=90)
        raise StoreUnavailable("a part was truncated")

    double.verified = refuse
    put_stalled(store, "other", 1, RECEIVED_NS + 40 * MS)
    with pytest.raises(StoreUnavailable):
        judge.step()
    double.verified = store.verify
    judge.step()
    assert finish(judge) < 50
    assert judged(store) == {"first": 1, "greedy": greedy + 2, "other": 1, "small": 1}


def test_a_tenant_that_is_aside_keeps_what_it_has_left() -> None:
    """Also where more of it turns out to be due."""
    size = Size(turns.TURN.streams + 1, 1, 1)
    aside, much = turns.Turns(), {"greedy": size, "": size}
    assert aside.put_aside(much, [Due(0, 1)], 1, 2, 2) == ["greedy"]
    assert aside.put_aside(much, [Due(5, 6)], 3, 4, 4) == []
    turn = aside.next()
    assert turn is not None and (turn[1].due[0].low_ns, aside.progress(4)) == (0, Progress(4, {"greedy": 1}))


def test_many_tenants_that_are_aside_share_the_text_of_what_is_due() -> None:
    """It has up to 16,000 span ids of a stretch of time. A copy for each tenant took a gigabyte for a backlog of 16 stretches."""
    due = Due(0, 1, keys=f"span_id IN ({', '.join(map(str, range(100_000)))})")
    aside, names = turns.Turns(), [f"tenant-{number}" for number in range(turns._ASIDE_MAX)]
    tracemalloc.start()
    try:
        assert len(aside.put_aside(dict.fromkeys(names, Size(turns.TURN.streams + 1, 1, 1)), [due], 1, 2, 2)) == len(names)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2 * len(due.keys)
    turn = aside.next()
    assert turn is not None and turn[1].due[0].inside == f"{due.started()} AND {due.keys} AND {turn[1].tenants}"


@pytest.mark.parametrize("refused", ["due_by_receipt", "due_by_evidence", "sizes_of", "open_stalls", "attribute"])
def test_what_the_store_refuses_of_one_tenant_stops_no_other(store: Store, monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    """It is counted, and the progress is recorded: else each run would ask the same."""
    metrics = Metrics()
    judge, receive = judge_of(store, metrics)
    judge.step()
    put_stalled(store, "hostile", 1, RECEIVED_NS + 50 * MS)
    put_stalled(store, "small", 1, RECEIVED_NS + 50 * MS)
    receive(RECEIVED_NS + 60 * MS)
    refuse(store, monkeypatch, refused, StoreRefused("too big"), [True])
    judge.step()
    # What is due without a size, and without evidence, is judged.
    assert judged(store) == ({"small": 1} if refused in ("due_by_receipt", "attribute") else {"hostile": 1, "small": 1})
    assert metrics.errors.labels("attribute", "StoreRefused")._value.get() >= 1
    assert judged_until_ms(store) >= (RECEIVED_NS + 60 * MS) // MS


OUT_OF_MEMORY = StoreUnavailable("(total) memory limit exceeded", 241)
# In which step of a turn the memory is short: the tenant is put aside in the first run, and has its second try in the second.
STEPS = ["due_by_receipt", "due_by_evidence", "attribute"]


class Shortage:
    """A worker that has a stream of the tenant "hostile" to judge, for which there is no memory in one step, and one of another."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
        self.metrics, self.is_short, self._at_ns, self._clock_s = Metrics(), [True], RECEIVED_NS + 60 * MS, 0.0
        self.judge, self._receive = judge_of(store, self.metrics)
        self.judge._turns = turns.Turns(lambda: self._clock_s)
        put_stalled(store, "before", 1, RECEIVED_NS)
        self.judge.step()
        for tenant in ("hostile", "small"):
            put_stalled(store, tenant, 1, RECEIVED_NS + 50 * MS, first=10)
        self.refusals = refuse(store, monkeypatch, step, OUT_OF_MEMORY, self.is_short)

    def run(self, later_s: float = 0.0) -> None:
        """Run once, so many seconds later; 10 ms more are received."""
        self._clock_s += later_s
        self._receive(self._at_ns)
        self.judge.step()
        self._at_ns += 10 * MS


def errors_of(metrics: Metrics) -> float:
    """Return how many errors of attribution are counted."""
    return float(metrics.errors.labels("attribute", "StoreUnavailable")._value.get())


@pytest.mark.parametrize("step", STEPS)
def test_what_the_memory_was_short_for_is_judged_later(store: Store, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The shortage of a moment cost the tenant its verdicts for good. It delays no other tenant, and a restart loses nothing."""
    began_ms, short = RECEIVED_NS // MS, Shortage(store, monkeypatch, step)
    short.run()
    assert judged(store)["small"] == 1 and judged_until_ms(store) <= began_ms
    tried = len(short.refusals)
    put_stalled(store, "late", 1, RECEIVED_NS + 65 * MS, first=20)
    short.run(1.0)
    assert len(short.refusals) == tried, "there is a pause between two tries"
    assert judged(store)["late"] == 1 and judged_until_ms(store) <= began_ms
    short.run(turns._AGAIN_S)
    assert len(short.refusals) > tried
    short.is_short[0] = False
    # Without the search for what evidence is about, a stream is judged once.
    assert ("hostile" in judged(store)) == (step == "due_by_evidence")
    short.run(turns._AGAIN_S)
    short.run()
    assert judged(store) == {"before": 1, "hostile": 1, "small": 1, "late": 1}
    assert judged_until_ms(store) >= (RECEIVED_NS + 90 * MS) // MS and errors_of(short.metrics) == 0


def test_a_restarted_process_judges_what_the_memory_was_short_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded progress does not pass it."""
    short = Shortage(store, monkeypatch, "due_by_receipt")
    short.run()
    short.run()
    short.is_short[0] = False
    judge, receive = judge_of(store)
    receive(RECEIVED_NS + 70 * MS)
    judge.step()
    assert judged(store) == {"before": 1, "hostile": 1, "small": 1}


def test_a_want_of_memory_forgets_no_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slice was put off, so the pause after the next error is longer still."""
    short = Shortage(store, monkeypatch, "attribute")
    short.run()
    ((key, _),) = short.judge._turns._aside.items()
    for _ in range(3):
        short.judge._turns.failed(key)
    short.run(turns._AFTER_ERROR_S_MAX)
    assert short.judge._turns._errors[key][0] == 3


@pytest.mark.parametrize("step", STEPS)
def test_what_the_store_never_has_memory_for_is_left_out(store: Store, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """After three tries, which are counted as an error; then the progress passes it."""
    short = Shortage(store, monkeypatch, step)
    for _ in range(turns._TRIES_MAX):
        assert errors_of(short.metrics) == 0 and judged_until_ms(store) <= RECEIVED_NS // MS
        short.run(turns._AGAIN_S)
    assert errors_of(short.metrics) >= 1 and judged_until_ms(store) >= (RECEIVED_NS + 60 * MS) // MS
    assert judged(store)["small"] == 1
