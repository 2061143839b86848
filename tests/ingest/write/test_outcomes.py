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
from legato_ingest.storage.wal import WriteAheadLog
from legato_ingest.write.body import Body, Entry
from legato_ingest.write.group_insert import Receipt
from legato_ingest.write.lanes import Lanes
from legato_ingest.write.outcomes import Outcomes
from legato_ingest.write.set_aside import FAILURES_MAX, is_set_aside
from legato_ingest.write.waiting import Waiting


def taken(lanes: Lanes, segment: int | None) -> Waiting:
    """Return a batch that was taken from its lane for an insert; ``segment``: that of its body, if it is in the log."""
    waiting = Waiting(Batch(), 10, Future(), is_late=False, entry=Entry(Body(SPANS, b"", "", "", ""), segment))
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
        outcomes.unavailable([waiting], error)
    else:
        assert outcomes.failed_by_fault([waiting], error)
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
        outcomes.failed_by_fault([waiting], KeyError("bug"))
        lanes.alone._due_s -= 1
    assert lanes.alone.pause_s() < -8, "a new failure postpones no try"
    assert [each.failures for each in failing] == [1] * 8 + [FAILURES_MAX if works else 1] * 2


def test_requests_are_accepted_again_when_the_store_answers() -> None:
    """Whatever the answer is about: only late rows of a tenant with failures were inserted, and all requests were refused meanwhile."""
    lanes = Lanes(2**30)
    outcomes = Outcomes(threading.Condition(), lanes, None, Metrics())
    late = [Waiting(Batch(), 10, Future(), is_late=True) for _ in range(3)]
    lanes.late.put(late)
    for answer in (lambda: outcomes.stored(late[:1], [Receipt()]), lambda: outcomes.failed_by_fault(late[1:], KeyError("bug"))):
        outcomes.failed = StoreUnavailable("away")
        answer()
        assert outcomes.failed is None


@pytest.mark.parametrize("is_stored", [True, False])
def test_too_little_memory_for_a_group(is_stored: bool) -> None:
    """The group is halved. A batch alone is tried again behind the others, if others are stored; else the store is away for all."""
    lanes = Lanes(2**20)
    outcomes, error = Outcomes(threading.Condition(), lanes, None, Metrics()), StoreUnavailable("Code: 241", MEMORY_LIMIT_EXCEEDED)
    group = [taken(lanes, 0) for _ in range(2)]
    assert outcomes.unavailable(group, error) and outcomes.failed is None
    halves = [lanes.apart.take(), lanes.apart.take()]
    assert halves == [group[:1], group[1:]] and not lanes.apart
    if is_stored:
        outcomes.stored(halves[0], [Receipt()])
    for _ in range(9):
        assert outcomes.unavailable(halves[1], error) == is_stored
        assert (outcomes.failed is None, len(lanes.alone), len(lanes.now)) == ((True, 1, 0) if is_stored else (False, 0, 1))
        assert (lanes.alone.take() if is_stored else lanes.now.take(1)) == halves[1]
    assert halves[1][0].failures == 0 and not halves[1][0].future.done()


def test_a_try_of_what_failed_alone_refuses_no_request() -> None:
    """It may take long, and the next one comes much later; the inserts of others show whether the store is away."""
    lanes = Lanes(2**20)
    outcomes = Outcomes(threading.Condition(), lanes, None, Metrics())
    bad = taken(lanes, 0)
    outcomes.failed_by_fault([bad], KeyError("bug"))
    assert lanes.alone.take() == [bad] and not outcomes.unavailable([bad], StoreUnavailable("away"))
    assert outcomes.failed is None and len(lanes.alone) == 1
    good = Waiting(Batch(), 10, Future(), is_late=False, tenant="other", entry=Entry(Body(SPANS, b"", "", "", "other"), 0))
    outcomes.unavailable([good], StoreUnavailable("away"))
    assert outcomes.failed is not None
    assert not outcomes.unavailable(lanes.alone.take(), StoreUnavailable("away")) and outcomes.failed is not None


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
    waiting.failures = FAILURES_MAX - 1
    with monkeypatch.context() as patch:
        patch.setattr(Body, "logged", fail)
        assert not is_set_aside(waiting, KeyError("bug"), log, Metrics())
    assert is_set_aside(waiting, KeyError("bug"), log, Metrics())
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
    outcomes.unavailable(group, StoreUnavailable("away"))
    assert time.process_time() - began_s < 5 and len(lanes.now) == 30_000
