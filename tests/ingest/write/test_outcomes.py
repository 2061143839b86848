"""What becomes of batches after an insert: only a store that is away has other requests refused."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from legato_ingest.errors import StoreRestarting, StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Batch
from legato_ingest.otlp.signals import SPANS
from legato_ingest.write.body import Body, Entry
from legato_ingest.write.group_insert import Receipt
from legato_ingest.write.lanes import Lanes
from legato_ingest.write.outcomes import Outcomes
from legato_ingest.write.set_aside import FAILURES_MAX
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
        outcomes.store_away([waiting], error)
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
