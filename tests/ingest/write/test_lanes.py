"""The queues of the committer, and the division of late rows by their days."""

from __future__ import annotations

import random
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
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.convert import convert_points
from legato_ingest.write import lanes
from legato_ingest.write.group_insert import Receipt
from legato_ingest.write.lanes import LATE_DAYS_MAX, Lane, Waiting, by_day, is_late, size_of

NOW_NS = time.time_ns()
TODAY = NOW_NS // DAY_NS


def batch_of(*ago_days: int, bad: int = 0) -> Batch:
    """Return a batch with a stream, two steps and a finished request on each of these days, and rejected spans."""
    rng, body = random.Random(sum(ago_days)), request()
    for ago in ago_days:
        native_span(body, rng=rng, start_ns=NOW_NS - ago * DAY_NS - 5_000, duration_ns=1_000)
    for _ in range(bad):
        native_span(body, {"legato.stream.ttfb": -1.0}, rng=rng, start_ns=NOW_NS)
    engines = spans(each for ago in ago_days for at in [NOW_NS - ago * DAY_NS - 5_000] for each in (steps(at, 2, 1), finished(at, 1)))
    content = body.SerializeToString() + engines
    return convert_body(content, tenant="", now_ns=NOW_NS, limits=Limits(days_max=99), on_fault=print)


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
    """A batch that failed for its own fault, and what stands behind it, waits for the next insert."""
    lane, batch = Lane(2**30), replace(Batch(), chunks=10)
    lane.put([waiting(batch), waiting(batch), waiting(batch), waiting(batch, failures=1), waiting(batch)])
    assert [len(lane.take(25)) for _ in range(4)] == [2, 1, 1, 1] and not lane


def test_rows_of_an_insert_are_limited_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in memory several times until they are stored. A batch that is larger is inserted alone."""
    monkeypatch.setattr(lanes, "_INSERT_BYTES_MAX", 25)
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
    assert lane.want() == 0 and not lane.is_wanted
    first, second = (waiting(replace(Batch(), chunks=1)) for _ in range(2))
    lane.put([first])
    assert lane.want() == 1 and lane.is_wanted
    lane.put([second])
    group = lane.take(1)
    lane.put_back(group)
    assert lane.take(0) == [first] and lane.is_wanted
    lane.finish([first])
    assert not lane.is_wanted and (lane.queued, lane.finished, len(lane)) == (2, 1, 1)
