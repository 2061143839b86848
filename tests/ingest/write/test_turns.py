"""How tenants share the inserts of a lane: none keeps the small requests of others waiting with large ones, with many, or with blame."""

from __future__ import annotations

import pathlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

import pyarrow as pa
import pytest

from helpers.servers.committing import PATIENCE_S, StoreDouble, logging_to, span_rows, spread_spans
from helpers.servers.otlp import PROTOBUF
from legato_ingest.errors import StoreRestarting
from legato_ingest.otlp.batch import Batch
from legato_ingest.otlp.signals import SPANS
from legato_ingest.storage import Store
from legato_ingest.write.body import Body, Entry
from legato_ingest.write.committer import Committer
from legato_ingest.write.lanes import Lane, Lanes
from legato_ingest.write.room import LATE_DAYS_MAX, Room
from legato_ingest.write.set_aside import FAULT
from legato_ingest.write.turns import Turns
from legato_ingest.write.waiting import Waiting

MIB = 2**20
CHUNKS_MAX = 1_000


def of(tenant: str, size: int = 1_000, chunks: int = 1, days: range = range(0), blame: int = 0) -> Waiting:
    """Return a batch of a tenant with so many bytes and chunks; it is late if it touches days."""
    batch = Batch(days=frozenset(("stream_revs", day) for day in days))
    is_late = bool(days)
    return Waiting(replace(batch, chunks=chunks), size + 65_536 * is_late, Future(), is_late, tenant, blame=blame)


def groups_of(lane: Lane) -> Iterator[list[Waiting]]:
    """Yield the groups of a lane until it is empty."""
    while lane:
        yield lane.take(CHUNKS_MAX)


@pytest.mark.parametrize(
    ("lane", "large", "small"),
    [
        (Lane(2**30), [of("large", 12 * MIB) for _ in range(10)], [of("small") for _ in range(100)]),
        (Lane(2**30), [of("large", chunks=800) for _ in range(10)], [of("small") for _ in range(100)]),
        (
            Lane(2**30, LATE_DAYS_MAX),
            [of("large", days=range(10 + 8 * n, 18 + 8 * n)) for n in range(70)],
            [of("small", days=range(5, 6)) for _ in range(100)],
        ),
    ],
    ids=["bytes", "chunks", "days"],
)
def test_a_batch_without_room_ends_the_turns_of_its_tenant_alone(lane: Lane, large: list[Waiting], small: list[Waiting]) -> None:
    """The group ended with it: however many small batches of another tenant waited, each group took one or two of them."""
    lane.put([*small, *large])
    groups = list(groups_of(lane))
    assert {each.tenant for each in groups[0]} == {"large", "small"} and set(small) <= set(groups[0])
    assert [each for group in groups for each in group if each.tenant == "large"] == large and len(groups) <= 10


@pytest.mark.parametrize(("size", "chunks"), [(5 * MIB, 1), (1_000, 300)], ids=["bytes", "chunks"])
def test_tenants_have_equal_shares_of_an_insert(size: int, chunks: int) -> None:
    """Of its bytes or its chunks, and not of the number of batches: else that with the larger batches has nearly all of it."""
    lane, small = Lane(2**30), [of("small", size // 50, max(chunks // 50, 1)) for _ in range(400)]
    lane.put([*[of("large", size, chunks) for _ in range(8)], *small])
    group = lane.take(CHUNKS_MAX)
    own = [each for each in group if each.tenant == "small"]
    assert own == small[: len(own)]
    assert sum(each.size for each in own) >= 0.3 * sum(each.size for each in group)
    assert sum(each.batch.chunks for each in own) >= 0.3 * sum(each.batch.chunks for each in group)


def test_large_batches_wait_for_few_groups() -> None:
    """Although small ones of other tenants come all the time and would fill each group: each tenant has its turn at the head."""
    lane, large = Lane(2**30), [of(tenant, 16 * MIB) for tenant in "abc"]
    lane.put([*(of(tenant) for tenant in "de"), *large])
    taken = list[Waiting]()
    for _ in range(5):
        lane.put(of(tenant, 8 * MIB) for tenant in "dde")
        taken += lane.take(CHUNKS_MAX)
    assert [each for each in taken if each.size == 16 * MIB] == large


def test_a_group_costs_no_more_than_it_takes_and_the_tenants_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what stays behind: with 20,000 batches in the queue, each insert would be delayed by a look at all of them."""
    asked, has = list[Waiting](), Room.has

    def counted(self: Room, waiting: Waiting) -> bool:
        asked.append(waiting)
        return has(self, waiting)

    monkeypatch.setattr(Room, "has", counted)
    queue = Turns()
    for number in range(20_000):
        queue.put(of(str(number % 20), size=1 + number % 3))
    group = queue.take_group(Room(100, None))
    assert len(group) == 100 and len(asked) <= 120 and len(queue) == 19_900


@pytest.mark.parametrize("is_late", [False, True])
def test_batches_with_blame_divide_no_group_of_others(is_late: bool) -> None:
    """The process of the store ended twice with them, so each is inserted by itself: tenants took turns batch by batch meanwhile."""
    lanes, days = Lanes(2**30), range(5, 6) if is_late else range(0)
    lane = lanes.late if is_late else lanes.now
    bad, good = [of("bad", days=days, blame=FAULT) for _ in range(5)], [of("good", days=days) for _ in range(50)]
    lane.put([*good[:1], *bad, *good[1:]])
    assert lanes.take(lane, CHUNKS_MAX) == good and not lane
    taken = list[Waiting]()
    while lanes.apart:
        group = lanes.apart.take()
        assert len(group) == 1
        taken += group
    assert taken == bad


def test_what_failed_with_blame_is_put_back_apart() -> None:
    """Its group ended the process of the store once more. It is not lost at the end either."""
    lanes, bad, good = Lanes(2**30), [of("bad") for _ in range(3)], of("good")
    lanes.now.put(bad)
    group = lanes.take(lanes.now, CHUNKS_MAX)
    for each in group:
        each.blame = FAULT
    lanes.put_back(group)
    lanes.now.put([good])
    assert len(lanes.now) == 4 and lanes.now.has_trusted
    assert lanes.take(lanes.now, CHUNKS_MAX) == [good] and lanes.apart.take() == bad[:1]
    lanes.put_back(bad[:1])
    assert lanes.drain() == bad


def test_what_waits_is_inserted_between_two_batches_with_blame(store: Store, tmp_path: pathlib.Path) -> None:
    """All of it in one insert, for which a reader waits: it was one batch of another tenant after each of these."""
    double, inserts, is_first_alone, sent_others = StoreDouble(store), list[list[str]](), threading.Event(), threading.Event()

    def before(table: str, rows: pa.Table) -> None:
        tenants = rows["tenant"].to_pylist()
        if table != "stream_revs":
            return
        if len(tenants) > 1 and "bad" in tenants:
            raise StoreRestarting("killed")
        inserts.append(tenants)
        if len(inserts) == 1:
            is_first_alone.set()
            assert sent_others.wait(PATIENCE_S)

    double.before = before
    with logging_to(tmp_path, double) as committer:
        # Until a reader asks for it, the next insert is not due.
        committer._pacing._last_began_s = time.monotonic() + 1_000
        for seed in range(4):
            send(committer, "bad", seed)
        committer.begin_settling("bad")
        assert is_first_alone.wait(PATIENCE_S)
        for seed in range(10, 15):
            send(committer, "good", seed)
        committer.begin_settling("good")
        sent_others.set()
        committer.settle()
    assert inserts == [["bad"], ["good"] * 5, ["bad"], ["bad"], ["bad"]]


def send(committer: Committer, tenant: str, seed: int) -> None:
    """Send a request with one stream, and wait until it is in the log."""
    sent = spread_spans(1, seed)
    entry = Entry(Body(SPANS, sent.SerializeToString(), PROTOBUF, "", tenant))
    committer.submit(span_rows(sent, tenant), entry).result(PATIENCE_S)
    committer.finish(entry)
