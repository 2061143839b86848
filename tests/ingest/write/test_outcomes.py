"""What becomes of batches after an insert: only a store that is away has other requests refused."""

from __future__ import annotations

import pathlib
import threading
import time
from concurrent.futures import Future

import pytest

from legato_ingest.errors import MEMORY_LIMIT_EXCEEDED, StoreRestarting, StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Batch
from legato_ingest.otlp.signals import SPANS
from legato_ingest.storage.wal import ASIDE, WriteAheadLog
from legato_ingest.write.body import Body, Entry
from legato_ingest.write.group_insert import Receipt
from legato_ingest.write.lanes import Lanes
from legato_ingest.write.outcomes import Outcomes
from legato_ingest.write.set_aside import BLAME_MAX, FAULT, count_failure
from legato_ingest.write.waiting import Waiting

BODY = Body(SPANS, b"", "", "", "")
SHORT = StoreUnavailable("Code: 241", MEMORY_LIMIT_EXCEEDED)


def taken(lanes: Lanes, segment: int | None) -> Waiting:
    """Return a batch that was taken from its lane for an insert; ``segment``: that of its body, if it is in the log."""
    waiting = Waiting(Batch(), 10, Future(), is_late=False, entry=Entry(BODY, segment))
    lanes.now.put([waiting])
    return lanes.now.take(1)[0]


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreRestarting("ended"), KeyError("bug")], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("segment", [None, 0])
def test_who_is_refused_after_a_failure(error: Exception, segment: int | None) -> None:
    """The request that waits, and all others only while the store is away and the log holds what is to be inserted."""
    lanes = Lanes(2**20)
    outcomes = Outcomes(threading.Condition(), lanes, None, Metrics())
    waiting = taken(lanes, segment)
    if isinstance(error, StoreUnavailable):
        outcomes.not_stored([waiting], error)
    else:
        assert outcomes.not_stored([waiting], error)
    assert (outcomes.failed is not None) == (type(error) is StoreUnavailable and segment is not None)
    assert waiting.future.done() == (segment is None)
    assert (len(lanes.now), len(lanes.alone)) == ((0, 0) if segment is None else (0, 1) if isinstance(error, KeyError) else (1, 0))
    outcomes.stored([waiting], [Receipt()])
    assert outcomes.failed is None and waiting.future.done()


@pytest.mark.parametrize("works", [False, True])
def test_a_tenant_has_few_requests_that_are_tried_again(works: bool) -> None:
    """Further ones are set aside at their first failure, unless all inserts fail: then the fault may be that of the process."""
    lanes = Lanes(2**20)
    outcomes = Outcomes(threading.Condition(), lanes, None, Metrics())
    if works:
        outcomes.stored([taken(lanes, 0)], [Receipt()])
    failing = [taken(lanes, 0) for _ in range(10)]
    for waiting in failing:
        outcomes.not_stored([waiting], KeyError("bug"))
        lanes.alone._due_s -= 1
    assert lanes.alone.pause_s() < -8, "a new failure postpones no try"
    assert [each.blame for each in failing] == [FAULT] * 8 + [BLAME_MAX if works else FAULT] * 2


def test_requests_are_accepted_again_when_the_store_answers() -> None:
    """Whatever the answer is about: only late rows of a tenant with failures were inserted, and all requests were refused meanwhile."""
    lanes = Lanes(2**30)
    outcomes = Outcomes(threading.Condition(), lanes, None, Metrics())
    late = [Waiting(Batch(), 10, Future(), is_late=True) for _ in range(3)]
    lanes.late.put(late)
    for answer in (lambda: outcomes.stored(late[:1], [Receipt()]), lambda: outcomes.not_stored(late[1:], KeyError("bug"))):
        outcomes.failed = StoreUnavailable("away")
        answer()
        assert outcomes.failed is None


def test_too_little_memory_for_a_group_halves_it() -> None:
    """No request is refused, whether an insert has ended well or not; nothing counts against a batch while nothing else is stored."""
    lanes = Lanes(2**20)
    outcomes = Outcomes(threading.Condition(), lanes, None, Metrics())
    group = [Waiting(Batch(), 10, Future(), is_late=False, whole=taken(lanes, 0)), *(taken(lanes, 0) for _ in range(3))]
    assert outcomes.not_stored(group, SHORT) and outcomes.failed is None
    halves = [lanes.apart.take(), lanes.apart.take()]
    assert halves == [group[:2], group[2:]] and not lanes.apart
    for each in group:
        assert outcomes.not_stored([each], SHORT) and outcomes.failed is None
    for _ in range(99):
        assert outcomes.not_stored(lanes.alone.take(), SHORT) and outcomes.failed is None
    assert len(lanes.alone) == 3 and not lanes._failed_s
    assert [(each.blame, each.is_at_fault) for each in group] == [(0, False)] * 4
    # The early rows are still in their whole batch.
    assert [each.future.done() for each in group] == [True, False, False, False]


def test_what_failed_while_nothing_was_stored_is_queued_again() -> None:
    """In its lane, after the first insert that ends well, and readers wait for it then. What failed by its own fault stays alone."""
    lanes = Lanes(2**20)
    outcomes = Outcomes(threading.Condition(), lanes, None, Metrics())
    first, good = taken(lanes, 0), taken(lanes, 0)
    late, bad = (Waiting(Batch(), 10, Future(), is_late, tenant, Entry(BODY, 0)) for is_late, tenant in ((True, ""), (False, "bad")))
    outcomes.not_stored([bad], KeyError("bug"))
    assert lanes.alone.take() == [bad]
    for each in (first, late, bad):
        outcomes.not_stored([each], SHORT)
    assert len(lanes.alone) == 3
    outcomes.stored([good], [Receipt()])
    assert lanes.alone.drain() == [bad] and lanes.now.is_finished("", 2)
    number = lanes.now.want("")
    assert lanes.now.take(9) == [first] and lanes.late.take(9) == [late] and not (first.is_alone or late.is_alone)
    assert not lanes.now.is_finished("", number)
    outcomes.stored([first], [Receipt()])
    assert lanes.now.is_finished("", number)


def test_a_batch_that_alone_gets_no_memory_is_set_aside(tmp_path: pathlib.Path) -> None:
    """It fails a group of others twice. Further failures count only if others were stored since the one before, and twelve are enough."""
    log, lanes = WriteAheadLog(tmp_path), Lanes(2**20)
    outcomes = Outcomes(threading.Condition(), lanes, log, Metrics())
    body = Body(SPANS, b"x", "", "", "bad")
    bad = Waiting(Batch(), 10, Future(), is_late=False, tenant="bad", entry=Entry(body, log.append([b"x"])))
    outcomes.not_stored([bad], SHORT)
    lanes.alone.drain()
    counted = 0
    while bad.entry is not None and not bad.entry.is_set_aside:
        outcomes.stored([taken(lanes, None)], [Receipt()])
        for number in range(3):
            assert outcomes.not_stored([bad], SHORT) and outcomes.failed is None
            counted += not number
            assert bad.blame == 5 * counted and "bad" in lanes._failed_s
            if bad.entry.is_set_aside:
                break
            assert lanes.alone.take() == [bad]
    assert counted == 12
    log.close()


@pytest.mark.parametrize("error", [StoreUnavailable("Code: 241", MEMORY_LIMIT_EXCEEDED), StoreUnavailable("too many parts", 252)], ids=str)
def test_what_was_set_aside_before_has_few_tries(tmp_path: pathlib.Path, error: StoreUnavailable) -> None:
    """Also if nothing else is stored, unless the store is away for all: the next body that was set aside waits for it."""
    log, lanes = WriteAheadLog(tmp_path), Lanes(2**20)
    outcomes = Outcomes(threading.Condition(), lanes, log, Metrics())
    log.set_aside(log.append([b"x"]), b"x")
    bad = Waiting(Batch(), 10, Future(), is_late=False, entry=Entry(Body(SPANS, b"x", "", "", ""), ASIDE))
    bad.blame, bad.is_alone, bad.is_at_fault = BLAME_MAX - FAULT, True, True
    if error.code != MEMORY_LIMIT_EXCEEDED:
        outcomes.failed = error
        outcomes.not_stored([bad], error)
        assert bad.blame == BLAME_MAX - FAULT and outcomes.failed is error
        outcomes.failed = None
    tries = 0
    while bad.entry is not None and not bad.entry.is_set_aside:
        outcomes.not_stored([bad], error)
        tries += 1
    assert tries == 4 and outcomes.failed is None
    log.close()


def test_a_try_of_what_failed_alone_refuses_no_request() -> None:
    """It may take long, and the next one comes much later; the inserts of others show whether the store is away."""
    lanes = Lanes(2**20)
    outcomes = Outcomes(threading.Condition(), lanes, None, Metrics())
    bad = taken(lanes, 0)
    outcomes.not_stored([bad], KeyError("bug"))
    assert lanes.alone.take() == [bad] and outcomes.not_stored([bad], StoreUnavailable("away"))
    assert outcomes.failed is None and len(lanes.alone) == 1
    good = Waiting(Batch(), 10, Future(), is_late=False, tenant="other", entry=Entry(Body(SPANS, b"", "", "", "other"), 0))
    outcomes.not_stored([good], StoreUnavailable("away"))
    assert outcomes.failed is not None
    assert outcomes.not_stored(lanes.alone.take(), StoreUnavailable("away")) and outcomes.failed is not None


def test_without_memory_a_stored_part_stays_in_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Early rows that are stored are left out of their late batch; if that fails, they are found there again."""
    monkeypatch.setattr(Waiting, "stored", fail)
    lanes = Lanes(2**20)
    waiting = taken(lanes, 0)
    Outcomes(threading.Condition(), lanes, None, Metrics()).stored([waiting], [Receipt()])
    assert waiting.future.done()


def test_without_memory_nothing_is_set_aside(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is tried again, and set aside then."""
    log = WriteAheadLog(tmp_path)
    waiting = Waiting(Batch(), 10, Future(), is_late=False, entry=Entry(Body(SPANS, b"x", "", "", ""), log.append([b"x"])))
    waiting.blame = BLAME_MAX - FAULT
    with monkeypatch.context() as patch:
        patch.setattr(Body, "logged", fail)
        assert not count_failure(waiting, KeyError("bug"), log, Metrics())
    assert count_failure(waiting, KeyError("bug"), log, Metrics())
    log.close()


def fail(*_: object) -> None:
    """Raise what Python raises without memory."""
    raise MemoryError


@pytest.mark.parametrize("tenants", [1, 10_000])
def test_a_large_group_is_put_back_in_linear_time(tenants: int) -> None:
    """32,000 small requests took 15 s of Python at each try, and those of 10,000 tenants 12 s."""
    lanes = Lanes(2**30)
    outcomes = Outcomes(threading.Condition(), lanes, None, Metrics())
    bodies = (Body(SPANS, b"", "", "", str(number % tenants)) for number in range(30_000))
    lanes.now.put(Waiting(Batch(), 10, Future(), is_late=False, tenant=body.tenant, entry=Entry(body, 0)) for body in bodies)
    group, began_s = lanes.now.take(10**9), time.process_time()
    assert len(group) == 30_000
    outcomes.not_stored(group, StoreUnavailable("away"))
    assert time.process_time() - began_s < 5 and len(lanes.now) == 30_000
