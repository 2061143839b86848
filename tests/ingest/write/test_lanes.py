"""The queues of the committer, and the division of late rows by their days."""

from __future__ import annotations

import pathlib
import random
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields, replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.builders.converted import convert_body
from helpers.builders.points import gauge, metrics_request
from helpers.builders.spans import native_span, request
from helpers.builders.worst_bodies import DAY_NS, finished, spans, steps
from helpers.platform.examples import examples
from helpers.servers.committing import PATIENCE_S, StoreDouble, committing, logging_to
from helpers.servers.waiting import until
from legato_ingest.errors import StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.convert import convert_points
from legato_ingest.otlp.signals import SIGNALS
from legato_ingest.storage import Store
from legato_ingest.write import room
from legato_ingest.write.body import Body, Entry
from legato_ingest.write.by_days import by_day, is_late
from legato_ingest.write.group_insert import Receipt
from legato_ingest.write.lanes import Lane, Lanes, LatePauses
from legato_ingest.write.outcomes import Outcomes
from legato_ingest.write.room import LATE_DAYS_MAX
from legato_ingest.write.waiting import Waiting, size_of

NOW_NS = time.time_ns()
TODAY = NOW_NS // DAY_NS


def batch_of(*ago_days: int, bad: int = 0, tenant: str = "") -> Batch:
    """Return a batch with a stream, two steps and a finished request on each of these days, and rejected spans."""
    rng, body = random.Random(sum(ago_days)), request()
    for ago in ago_days:
        native_span(body, rng=rng, start_ns=NOW_NS - ago * DAY_NS - 5_000, duration_ns=1_000)
    for _ in range(bad):
        native_span(body, {"legato.stream.ttfb": -1.0}, rng=rng, start_ns=NOW_NS)
    engines = spans(each for ago in ago_days for at in [NOW_NS - ago * DAY_NS - 5_000] for each in (steps(at, 2, 1), finished(at, 1)))
    content = body.SerializeToString() + engines
    return convert_body(content, tenant=tenant, now_ns=NOW_NS, limits=Limits(days_max=99), on_fault=print)


def waiting(batch: Batch, **more: float) -> Waiting:
    """Return a batch that waits."""
    return Waiting(batch, 10, Future(), is_late(batch, NOW_NS), **more)  # type: ignore[arg-type]


def test_rows_of_other_days_than_today_and_yesterday_are_late() -> None:
    """Also those of tomorrow; a batch without rows is not late."""
    assert not is_late(batch_of(0, 1), NOW_NS) and not is_late(Batch(), NOW_NS)
    assert is_late(batch_of(0, 2), NOW_NS) and is_late(batch_of(0, 40), NOW_NS)
    body = metrics_request()
    gauge(body, "a", 1, NOW_NS + 86_400 * 10**9 - 1)
    assert is_late(convert_points(body, tenant="", now_ns=NOW_NS, limits=Limits()), NOW_NS)


@given(st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=1, max_size=4))
@examples(20)
def test_the_parts_of_the_days_are_the_whole(given_days: list[list[int]]) -> None:
    """Every row is in the part of its day and of its batch; rejections and senders are in one part; chunks add up."""
    batches = [batch_of(*days, bad=number) for number, days in enumerate(given_days)]
    parts = list(by_day(batches))
    touched = sorted({day for batch in batches for _, day in batch.days})
    assert len(parts) == len(touched)
    for number, batch in enumerate(batches):
        own = [part[number] for part in parts]
        for part, day in zip(own, touched, strict=True):
            assert {each for _, each in _days_of(part)} <= {day}
        joined = Batch.joined(own)
        for each in fields(Batch):
            table = getattr(batch, each.name)
            if isinstance(table, pa.Table) and own:
                assert Counter(map(str, table.to_pylist())) == Counter(map(str, getattr(joined, each.name).to_pylist())), each.name
        if own:
            assert (joined.chunks, joined.unlisted, joined.senders) == (batch.chunks, batch.unlisted, batch.senders)


def test_a_late_batch_counts_with_its_tables() -> None:
    """It waits for seconds, and the tables of one row take fifty times the row."""
    now, late = batch_of(0), batch_of(3)
    assert size_of(now, NOW_NS) == now.nbytes < 16_384 < 65_536 < size_of(late, NOW_NS)


@given(st.lists(st.integers(0, 5), max_size=5), st.integers(0, 2))
@examples(20)
def test_the_rows_of_now_of_a_late_batch_are_apart(days: list[int], bad: int) -> None:
    """They and what is left of the batch once they are stored are the whole, and rejections are in what is left."""
    batch = batch_of(*days, bad=bad)
    late = Waiting.of(batch, NOW_NS, None)
    assert (late.early is not None) == (min(days, default=9) < 2 <= max(days, default=0))
    assert [part.is_late for part in late.parts()] == ([True, False] if late.early else [max(days, default=0) > 1])
    if late.early is not None:
        late.stored()
        assert late.batch is batch
        late.early.stored()
        left, early = late.batch, late.early.batch
        assert not is_late(early, NOW_NS) and not left.days & early.days and left.days | early.days == batch.days
        joined = Batch.joined([early, left])
        for name in ("revs", "steps", "requests", "rejected"):
            assert Counter(map(str, getattr(batch, name).to_pylist())) == Counter(map(str, getattr(joined, name).to_pylist())), name
        assert early.rejected.num_rows == 0 and joined.chunks == batch.chunks


def _days_of(batch: Batch) -> set[tuple[str, int]]:
    times = {"revs": "start_time", "steps": "recorded_at", "requests": "recorded_at"}
    return {(name, int(at) // DAY_NS) for name, column in times.items() for at in getattr(batch, name)[column].cast(pa.int64()).to_pylist()}


def test_a_group_of_late_batches_touches_a_limited_number_of_days() -> None:
    """As many batches as touch 64 days of tables; one that touches more is inserted alone. Batches of the same days are one group."""
    lane = Lane(2**30, LATE_DAYS_MAX)
    made = [
        replace(Batch(), days=frozenset((f"t{table}", day) for table in range(8) for day in (number, number + 1))) for number in range(20)
    ]
    lane.put([waiting(batch) for batch in made])
    sizes = list[int]()
    while lane:
        group = lane.take(10**9)
        days = set().union(*(each.batch.days for each in group))
        assert len(days) <= LATE_DAYS_MAX
        sizes.append(len(group))
    assert sizes == [7, 7, 6]
    wide = replace(Batch(), days=frozenset(("t", day) for day in range(100)))
    lane.put([waiting(wide), waiting(wide), waiting(made[0])])
    assert [len(lane.take(10**9)) for _ in range(2)] == [2, 1]


def test_a_lane_without_a_limit_takes_what_fits_by_weight() -> None:
    """What exceeds the chunks of an insert waits for the next one."""
    lane, batch = Lane(2**30), replace(Batch(), chunks=10)
    lane.put([waiting(batch) for _ in range(5)])
    assert [len(lane.take(25)) for _ in range(3)] == [2, 2, 1] and not lane


def test_what_failed_alone_is_tried_one_by_one() -> None:
    """In turns, in a fifth of the time at most. No reader waits for it, also if it is put back because the store is away."""
    lanes, first, second, other = Lanes(2**30), waiting(Batch()), waiting(Batch()), waiting(Batch())
    lanes.now.put([first, second, other])
    assert lanes.now.want("*") == 3
    taken = lanes.now.take(10**9)
    lanes.now.finish([other])
    for each in taken[:2]:
        lanes.alone.put(each, lanes.now)
    assert not lanes.now.is_wanted and not lanes.now and len(lanes.alone) == 2
    assert lanes.alone.pause_s() <= 0 and lanes.alone.take() == [first]
    lanes.alone.tried(10.0)
    assert 39 < lanes.alone.pause_s() <= 40
    lanes.alone.tried(0.0, 1.0)
    assert lanes.alone.pause_s() > 39
    lanes.put_back([first])
    assert lanes.alone.take() == [first] and not lanes.now
    lanes.alone.put(first, lanes.now)
    assert lanes.now.is_finished("*", 3) and lanes.drain() == [second, first] and not lanes.alone


def test_at_the_end_each_batch_that_failed_alone_has_one_try() -> None:
    """At once. What fails then, or failed for the first time, is queued no more."""
    lanes = Lanes(2**30)
    batches = [waiting(Batch()) for _ in range(3)]
    lanes.now.put(batches)
    for each in lanes.now.take(10**9)[:2]:
        lanes.alone.put(each, lanes.now)
    lanes.alone.tried(0.0, 1_000.0)
    lanes.alone.end()
    assert lanes.alone.pause_s() <= 0
    tried = [*lanes.alone.take(), *lanes.alone.take()]
    lanes.alone.put_back(tried[:1])
    for each in (tried[1], batches[2]):
        lanes.alone.put(each, lanes.now)
    assert tried == batches[:2] and not lanes.alone and lanes.now.is_finished("*", 3)


def test_tenants_are_tried_in_turns() -> None:
    """However many batches of one have failed. What is put back is tried next."""
    lanes = Lanes(2**30)
    batches = [Waiting(Batch(), 1, Future(), is_late=False, tenant=tenant) for tenant in "aaabab"]
    for each in batches:
        lanes.alone.put(each, lanes.now)
    assert lanes.alone.of_tenant("a") == 4
    first, second, third = (lanes.alone.take()[0] for _ in range(3))
    assert [first, second, third] == [batches[0], batches[3], batches[1]]
    lanes.alone.put_back([second, third])
    assert [lanes.alone.take()[0] for _ in range(4)] == [second, third, batches[5], batches[2]]
    assert len(lanes.alone) == 1 and not lanes.alone.of_tenant("b")


def test_rows_of_an_insert_are_limited_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in memory several times until they are stored. A batch that is larger is inserted alone."""
    monkeypatch.setattr(room, "_INSERT_BYTES_MAX", 25)
    lane = Lane(2**30)
    lane.put([Waiting(Batch(), size, Future(), is_late=False) for size in (10, 15, 1, 30, 20)])
    assert [[each.size for each in lane.take(10**9)] for _ in range(4)] == [[10, 15], [1], [30], [20]]


def test_late_batches_of_an_insert_are_limited_in_number() -> None:
    """To divide each by its days takes time, in which no rows of now are inserted."""
    late = Lane(2**30, LATE_DAYS_MAX)
    late.put([waiting(Batch()) for _ in range(2_500)])
    assert [len(late.take(10**9)) for _ in range(3)] == [1_000, 1_000, 500]


def test_two_threads_may_answer_at_the_same_time() -> None:
    """The first answer counts, and neither thread fails."""
    batch = batch_of(0)
    asked = [Waiting(batch, 10, Future(), is_late=False) for _ in range(20_000)]

    def answer_all(rejected: int) -> None:
        for each in asked:
            each.answer(Receipt(rejected))

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(answer_all, (1, 2))) == [None, None]
    assert {each.future.result(0).rejected for each in asked} <= {1, 2}


def test_a_reader_waits_for_what_was_queued_before() -> None:
    """What is queued later, or put back after a failure, changes nothing."""
    lane = Lane(2**30)
    assert lane.want("*") == 0 and not lane.is_wanted
    first, second = (waiting(replace(Batch(), chunks=1)) for _ in range(2))
    lane.put([first])
    assert lane.want("*") == 1 and lane.is_wanted
    lane.put([second])
    group = lane.take(1)
    lane.put_back(group)
    assert lane.take(0) == [first] and lane.is_wanted
    lane.finish([first])
    assert not lane.is_wanted and lane.is_finished("*", 1) and not lane.is_finished("*", 2) and len(lane) == 1


def of_tenants(tenants: str) -> list[Waiting]:
    """Return a batch of ten chunks of each tenant."""
    return [Waiting(replace(Batch(), chunks=10), 10, Future(), is_late=False, tenant=tenant) for tenant in tenants]


def test_a_tenant_that_is_set_apart_fills_no_group_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many of its batches stand at the head. It has a group beside each of theirs, and a place among them after a minute."""
    lanes, batches = Lanes(2**30), of_tenants("aaaaaabac")
    lanes.now.put(batches)
    lanes.set_apart("a")
    assert lanes.take(lanes.now, 20) == [batches[6], batches[8]] and not lanes.now.has_trusted and len(lanes.now) == 5
    assert lanes.take(lanes.now, 20) == [] and len(lanes.now) == 3
    assert [*lanes.apart.take(), *lanes.apart.take()] == batches[:4] and not lanes.apart
    lanes.put_back(batches[:4])
    monkeypatch.setattr("legato_ingest.write.lanes._APART_S", 0.0)
    assert lanes.take(lanes.now, 1_000) == [*batches[:6], batches[7]] and not lanes.apart


def test_what_waits_apart_fills_the_queue_too() -> None:
    """Without a log a batch has room if no other waits. Those of a tenant that is set apart left the lane, and any number was accepted."""
    lanes, batches = Lanes(100), of_tenants("a" * 10)
    lanes.hold(batches)
    lanes.now.put(batches)
    lanes.set_apart("a")
    assert lanes.take(lanes.now, 1_000) == [] and not lanes.now
    entry = Entry(Body(SIGNALS[0], b"", "", "", "b"))
    assert lanes.why_full(60, is_late=False, entry=entry, has_log=False)


def test_late_rows_do_not_wait_for_those_of_a_tenant_that_are_halved(store: Store) -> None:
    """Each of the halves began the pause of all late rows anew."""
    double, entries = StoreDouble(store), [Entry(Body(SIGNALS[0], b"", "", "", tenant)) for tenant in ["bad"] * 60 + ["good"]]

    def fail(table: str, rows: pa.Table) -> None:
        if "bad" in rows["tenant"].to_pylist():
            time.sleep(0.05)
            raise KeyError("bug")

    double.before = fail
    with committing(double) as committer:
        futures = [committer.submit(batch_of(5, tenant=entry.body.tenant), entry) for entry in entries[:-1]]
        until(lambda: "bad" in committer._lanes._failed_s)
        committer.submit(batch_of(5, tenant="good"), entries[-1]).result(PATIENCE_S)
        assert not all(each.done() for each in futures)


def test_late_rows_of_a_tenant_that_is_set_apart_have_the_same_pauses(
    store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that does not take them was asked again without a pause."""
    monkeypatch.setattr(LatePauses, "_APART_S", 1_000.0)
    double, tried = StoreDouble(store), list[str]()

    def fail(table: str, rows: pa.Table) -> None:
        if table == "stream_revs" and "bad" in rows["tenant"].to_pylist():
            tried.append(table)
            raise StoreUnavailable("Code: 252. too many parts", 252)

    double.before = fail
    with logging_to(tmp_path, double) as committer:
        committer._lanes.set_apart("bad")
        committer._late_pauses._ended_s = float("-inf")
        bad = Entry(Body(SIGNALS[0], b"", "", "", "bad"))
        committer.submit(batch_of(5, tenant="bad"), bad).result(PATIENCE_S)
        committer.finish(bad)
        until(lambda: tried and committer._late)
        assert committer._late_pause_s() > 100
        good = Entry(Body(SIGNALS[0], b"", "", "", "good"))
        committer.submit(batch_of(0, tenant="good"), good).result(PATIENCE_S)
        committer.finish(good)
        committer.begin_settling("good")()
        assert tried == ["stream_revs"]


def test_a_reader_waits_for_the_batches_of_its_tenant() -> None:
    """In whatever order they leave. Later batches do not count for earlier ones, and those of other tenants do not matter."""
    lane, batches = Lane(2**30), of_tenants("aba")
    lane.put(batches)
    number = lane.want("a")
    lane.put(later := of_tenants("aab"))
    lane.finish([*later, batches[0]])
    assert lane.is_wanted and not lane.is_finished("a", number) and not lane.is_finished("*", number)
    lane.finish([batches[2]])
    assert not lane.is_wanted and lane.is_finished("a", number) and lane.is_finished("c", number) and not lane.is_finished("*", number)
    lane.want("c")
    assert not lane.is_wanted, "nothing of this tenant waits"


@pytest.mark.parametrize("others", [0, 100])
def test_a_burst_of_failing_batches_is_halved_in_two_inserts_each(others: int) -> None:
    """And those of other tenants in the group wait for as many inserts as it takes to find the first."""
    lanes, inserts, stored_after = Lanes(2**30), 0, 0
    outcomes = Outcomes(threading.Condition(), lanes, None, Metrics())
    outcomes.not_stored(of_tenants("a" * 200 + "".join(chr(1_000 + number) for number in range(others))), KeyError("bug"))
    while lanes.apart:
        group, inserts = lanes.apart.take(), inserts + 1
        if any(each.tenant == "a" for each in group):
            outcomes.not_stored(group, KeyError("bug"))
        else:
            stored_after = inserts
    assert inserts <= 2 * 200 + 30 and stored_after <= 40


@pytest.mark.parametrize("late", [False, True])
def test_tenants_take_turns_in_a_lane(late: bool) -> None:
    """However many batches one has: 160 requests with old rows delayed another tenant's by two minutes. Those of each stay in order."""
    lanes = Lanes(2**30)
    lane = lanes.late if late else lanes.now
    many = [Waiting(touching(8 if late else 1), 10, Future(), is_late=late, tenant="many") for _ in range(40)]
    other = [Waiting(touching(1), 10, Future(), is_late=late, tenant="other") for _ in range(2)]
    lane.put([*many, *other])
    group = lane.take(10**9)
    assert [each.tenant for each in group[:2]] == ["many", "other"] and set(other) <= set(group[:4])
    lane.put_back(group)
    taken = list[Waiting]()
    while lane:
        taken += lane.take(10**9)
    assert [each for each in taken if each.tenant == "many"] == many and [each for each in taken if each.tenant == "other"] == other
    assert not lane.drain()


def touching(days: int) -> Batch:
    """Return a batch without rows that touches so many days of a table."""
    return Batch(days=frozenset(("stream_revs", day) for day in range(days)))
