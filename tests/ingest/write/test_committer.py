"""The committer: acknowledged rows are stored, the queue and each insert are limited, and failures are reported to every request."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from itertools import pairwise
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from helpers.builders.converted import convert_body
from helpers.builders.spans import native_span, request, scope_of
from helpers.builders.worst_bodies import DAY_NS
from helpers.dashboards.tables import rejected, streams
from helpers.servers.committing import (
    PATIENCE_S,
    StoreDouble,
    committing,
    count,
    point_rows,
    scrapes,
    send,
    span_rows,
    spread_spans,
    stored_samples,
    wait_until_taken,
)
from legato_ingest.errors import Overloaded, StoreRefused, StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.otlp import http
from legato_ingest.otlp.batch import Limits
from legato_ingest.otlp.signals import SPANS
from legato_ingest.storage import Store
from legato_ingest.write.body import Body, Entry
from legato_ingest.write.committer import Committer, Receipt


def test_an_acknowledged_row_is_readable(store: Store) -> None:
    """When the future is done, the view has the rows."""
    with committing(store) as committer:
        for seed in range(5):
            body = spread_spans(3, seed)
            assert send(committer, body) == [Receipt()]
            ids = {span.span_id for span in scope_of(body).spans}
            assert ids <= {row["span_id"] for row in streams(store)}
        assert (count(committer, "stored_spans"), count(committer, "duplicate_spans")) == (15, 0)
        assert count(committer, "stored_chunks") == sum(row["chunks"] for row in streams(store))


def test_the_queue_is_empty_afterwards(store: Store) -> None:
    """After all commits, the gauge of queued bytes is 0."""
    with committing(store) as committer:
        send(committer, *(spread_spans(2, seed) for seed in range(4)))
    assert committer._metrics.registry.get_sample_value("legato_queue_bytes") == 0


@pytest.mark.parametrize("failing", ["stream_revs", "rejected"])
@pytest.mark.parametrize(
    "error", [StoreUnavailable("Code: 243. no space left"), MemoryError(), OSError(28, "No space left")], ids=lambda e: type(e).__name__
)
def test_a_temporary_failure_fails_the_group_and_a_retry_stores_once(store: Store, failing: str, error: Exception) -> None:
    """No request is acknowledged and each gets a temporary error; after the retry each row is stored once."""
    double, bodies = StoreDouble(store), [spread_spans(3, seed=seed) for seed in range(3)]
    native_span(bodies[0], {"legato.stream.timeline": b""})

    def fail(table: str, rows: pa.Table) -> None:
        if table == failing:
            raise error

    double.before = fail
    with committing(double) as committer:
        double.gate.clear()
        futures: list[Future[Receipt]] = [committer.submit(span_rows(body)) for body in bodies]
        double.gate.set()
        for future in futures:
            with pytest.raises(StoreUnavailable):
                future.result(PATIENCE_S)
        double.before = lambda table, rows: None
        assert send(committer, *bodies) == [Receipt(1, ["timeline"]), Receipt(), Receipt()]
    assert store.select("SELECT count() FROM stream_revs") == [(9,)]
    assert len(streams(store)) == 9 and len(rejected(store)) == 1


def test_a_tenant_has_half_of_the_queue(store: Store) -> None:
    """Beyond that it is refused, and the other tenants are not; without tokens, one sender may have all of it."""
    size = span_rows(spread_spans(5)).nbytes

    def accepted(committer: Committer, tenant: str) -> int:
        """Return how many requests of the tenant are accepted."""
        for number in range(20):
            try:
                committer.submit(span_rows(spread_spans(5, number)), Entry(Body(SPANS, b"", http.PROTOBUF, "", tenant)))
            except Overloaded:
                return number
        return 20

    counts = list[list[int]]()
    for tenants in ("a", "b", "c"), ("",):
        double = StoreDouble(store)
        double.gate.clear()
        with committing(double, queue_bytes_max=12 * size) as committer:
            try:
                counts.append([accepted(committer, tenant) for tenant in tenants])
            finally:
                double.gate.set()
    ((first, second, third), (single,)) = counts
    assert 4 <= first <= 6 and 2 <= second < first and 1 <= third <= second and 10 <= single <= 12


def test_the_queue_is_limited(store: Store) -> None:
    """Beyond the limit a request is refused as a whole; those accepted before are stored."""
    double = StoreDouble(store)
    size = span_rows(spread_spans(5)).revs.nbytes
    with committing(double, queue_bytes_max=4 * size) as committer:
        double.gate.clear()
        futures, refused = [], 0
        for seed in range(20):
            try:
                futures.append(committer.submit(span_rows(spread_spans(5, seed=seed))))
            except Overloaded:
                refused += 1
        assert refused >= 14 and committer._lanes.bytes <= 6 * size
        double.gate.set()
        for future in futures:
            future.result(PATIENCE_S)
        assert len(streams(store)) == 5 * len(futures) == 5 * (20 - refused)
        assert send(committer, spread_spans(5, seed=77)) == [Receipt()]


def test_a_batch_over_the_limits_is_committed_alone(store: Store) -> None:
    """A limit smaller than a request must not refuse it for ever."""
    with committing(store, queue_bytes_max=1, chunks_max=1) as committer:
        assert send(committer, spread_spans(3)) == [Receipt()]
    assert len(streams(store)) == 3


@pytest.mark.parametrize("requests_max", [1, 2, 3])
def test_a_group_has_at_most_the_configured_chunks(store: Store, requests_max: int) -> None:
    """The queue is committed in inserts of limited size, and each is as large as the limit allows."""
    double, inserted = StoreDouble(store), list[int]()
    double.before = lambda table, rows: inserted.append(pc.sum(rows["chunks"]).as_py()) if table == "stream_revs" else None
    batches = [span_rows(spread_spans(4, seed=seed)) for seed in range(9)]
    chunks_max = sum(sorted(batch.chunks for batch in batches)[-requests_max:])
    with committing(double, chunks_max=chunks_max) as committer:
        double.gate.clear()
        futures = [committer.submit(batch) for batch in batches]
        double.gate.set()
        for future in futures:
            future.result(PATIENCE_S)
    assert max(inserted) <= chunks_max
    # The first insert may have started with the first request alone.
    assert len(inserted) <= 1 + -(-8 // requests_max)
    assert len(streams(store)) == 36


def test_close_commits_the_queue(store: Store) -> None:
    """Afterwards new batches are refused."""
    double = StoreDouble(store)
    committer = Committer(cast(Store, double), Metrics(), queue_bytes_max=2**28, chunks_max=100)
    double.gate.clear()
    futures = [committer.submit(span_rows(spread_spans(2, seed=seed))) for seed in range(5)]
    closing = threading.Thread(target=committer.close)
    closing.start()
    double.gate.set()
    closing.join(PATIENCE_S)
    assert [future.result(0) for future in futures] == [Receipt()] * 5
    assert len(streams(store)) == 10
    with pytest.raises(StoreUnavailable, match="stopping"):
        committer.submit(span_rows(spread_spans(1)))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_cancelled_request_does_not_stop_the_thread(store: Store) -> None:
    """A future is cancelled when its sender disconnects. Later requests are stored and answered."""
    double = StoreDouble(store)
    committer = Committer(cast(Store, double), Metrics(), queue_bytes_max=2**28, chunks_max=10**6)
    double.gate.clear()
    committer.submit(span_rows(spread_spans(1)))
    cancelled = committer.submit(span_rows(spread_spans(1, seed=2)))
    after = committer.submit(span_rows(spread_spans(1, seed=3)))
    cancelled.cancel()
    double.gate.set()
    assert after.result(PATIENCE_S) == Receipt()
    committer.close()
    assert len(streams(store)) == 3


def test_every_request_is_answered_when_the_thread_ends(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an internal error: the requests of its insert, those that wait, and those that come later."""

    def fail(*_: object) -> None:
        raise MemoryError

    double = StoreDouble(store)
    with committing(double) as committer:
        monkeypatch.setattr(committer._outcomes, "stored", fail)
        double.gate.clear()
        futures = [committer.submit(span_rows(spread_spans(1, seed))) for seed in range(3)]
        double.gate.set()
        for future in futures:
            assert isinstance(future.exception(PATIENCE_S), StoreUnavailable)
        for refused in (committer.expect_accepting, partial(committer.submit, span_rows(spread_spans(1, 4)))):
            with pytest.raises(StoreUnavailable, match="restart `legato serve`"):
                refused()


def test_an_insert_of_now_that_ends_the_thread_within_a_late_one_leaves_no_request(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the late one nor that of now."""

    def fail(*_: object) -> None:
        raise MemoryError

    body, now_ns = request(), time.time_ns()
    for start_ns in (now_ns, now_ns - 20 * DAY_NS):
        native_span(body, start_ns=start_ns)
    late = convert_body(body.SerializeToString(), tenant="", now_ns=now_ns, limits=Limits(), on_fault=print)
    with committing(store) as committer:
        monkeypatch.setattr(committer._outcomes, "stored", fail)
        future = committer.submit(late)
        assert isinstance(future.exception(PATIENCE_S), StoreUnavailable)
        assert not committer._thread.is_alive() or committer._closing
    assert len(streams(store)) == 1, "the rows of now were inserted first"


def test_an_error_that_no_row_causes_rejects_no_row(store: Store) -> None:
    """A missing table is an outage: nothing is acknowledged and nothing is rejected."""
    double = StoreDouble(store)

    def fail(table: str, _: pa.Table) -> None:
        raise StoreRefused("Code: 60. Unknown table", 60)

    double.before = fail
    with committing(double) as committer:
        future = committer.submit(span_rows(spread_spans(2)))
        with pytest.raises(StoreUnavailable):
            future.result(PATIENCE_S)
    assert store.select("SELECT count() FROM rejected") == [(0,)]


@pytest.mark.parametrize("error", [MemoryError(), KeyError("bug")], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("guilty", [[0], [17], [3, 39]])
def test_a_batch_at_fault_fails_its_own_request_only(store: Store, error: Exception, guilty: list[int]) -> None:
    """Of forty in one insert; it is found by halving, without a pause, and no later request is refused for it."""
    double, bodies = StoreDouble(store), [spread_spans(1, seed) for seed in range(41)]
    bad = {scope_of(bodies[number]).spans[0].span_id for number in guilty}

    def fail(table: str, rows: pa.Table) -> None:
        if table == "stream_revs" and bad & set(rows["span_id"].to_pylist()):
            raise error

    double.before = fail
    with committing(double) as committer:
        double.gate.clear()
        first = committer.submit(span_rows(bodies[40]))
        wait_until_taken(committer)
        futures = [committer.submit(span_rows(body)) for body in bodies[:40]]
        double.gate.set()
        assert first.result(PATIENCE_S) == Receipt()
        for number, future in enumerate(futures):
            assert isinstance(future.exception(PATIENCE_S), StoreUnavailable if number in guilty else type(None))
        committer.expect_accepting()
    assert len(streams(store)) == 41 - len(guilty)
    assert sum(table == "stream_revs" for table, _ in double.inserts) <= 1 + 6 * len(guilty)


def test_a_look_up_without_its_table_is_no_fault_of_a_request(store: Store) -> None:
    """It is an outage for all: the error is that of a store that is away."""
    double = StoreDouble(store)
    committer = Committer(cast(Store, double), Metrics(), queue_bytes_max=2**28, chunks_max=100)
    with closing(committer):
        send(committer, spread_spans(1))
        double.select_arrow = partial(refuse_all, StoreRefused("Code: 60. Unknown table", 60))  # type: ignore[attr-defined]
        future = committer.submit(span_rows(spread_spans(2, 1)))
        with pytest.raises(StoreUnavailable, match="ClickHouse error 60"):
            future.result(PATIENCE_S)


def refuse_all(error: StoreRefused, *_: object) -> None:
    """Raise an error for each query."""
    raise error


def test_the_queue_is_limited_for_samples(store: Store) -> None:
    """The queue is limited in bytes, and an insert by the weight of its rows."""
    double, size = StoreDouble(store), point_rows(scrapes(50)).nbytes
    with committing(double, queue_bytes_max=3 * size, chunks_max=point_rows(scrapes(50)).weight) as committer:
        double.gate.clear()
        futures, refused = [], 0
        for seed in range(12):
            try:
                futures.append(committer.submit(point_rows(scrapes(50, seed))))
            except Overloaded:
                refused += 1
        assert refused >= 7
        double.gate.set()
        for future in futures:
            future.result(PATIENCE_S)
    inserted = [rows for table, rows in double.inserts if table == "node_samples"]
    assert max(inserted) <= 400 and sum(inserted) == 200 * (12 - refused) == len(stored_samples(store))


def test_a_temporary_failure_fails_the_samples_and_a_retry_stores_once(store: Store) -> None:
    """Rows that were stored before the failure are duplicates in the retry."""
    double = StoreDouble(store)

    def fail(table: str, rows: pa.Table) -> None:
        if table == "node_samples":
            raise StoreUnavailable("Code: 243. no space left")

    double.before = fail
    with committing(double) as committer:
        with pytest.raises(StoreUnavailable):
            committer.submit(point_rows(scrapes())).result(PATIENCE_S)
        double.before = lambda table, rows: None
        assert committer.submit(point_rows(scrapes())).result(PATIENCE_S) == Receipt()
    assert len(stored_samples(store)) == 20


def test_all_rows_of_a_commit_have_its_receive_time(store: Store) -> None:
    """Converted rows have none. The committer sets one time for all tables, which is later than its watermark before."""
    body = spread_spans(2)
    native_span(body, {"legato.stream.timeline": b""})
    spans, points = span_rows(body), point_rows(scrapes(1))
    assert spans.revs["received_at"].null_count == 2 and points.samples["received_at"].null_count == 4
    double = StoreDouble(store)
    with committing(double) as committer:
        before = committer.watermark_ms()
        double.gate.clear()
        first = committer.submit(span_rows(spread_spans(1, seed=9)))
        wait_until_taken(committer)
        futures = [first, committer.submit(spans), committer.submit(points)]
        double.gate.set()
        for future in futures:
            future.result(PATIENCE_S)
        after = committer.watermark_ms()
    found = {
        table: [int(each) for (each,) in store.select(f"SELECT DISTINCT toUnixTimestamp64Milli(received_at) AS t FROM {table} ORDER BY t")]
        for table in ("stream_revs", "node_samples", "rejected")
    }
    assert found["node_samples"] == found["rejected"] == found["stream_revs"][1:] and len(found["stream_revs"]) == 2
    assert before < found["stream_revs"][0] < found["stream_revs"][1] <= after


def test_inserts_of_many_requests_are_apart(store: Store) -> None:
    """After an insert of many requests the next one waits for more, up to 150 ms after its begin; few requests never wait."""
    double, began = StoreDouble(store), list[float]()
    double.before = lambda table, rows: began.append(time.monotonic()) if table == "stream_revs" else None
    with committing(double) as committer:
        double.gate.clear()
        futures = [committer.submit(span_rows(spread_spans(1)))]
        wait_until_taken(committer)
        futures += [committer.submit(span_rows(spread_spans(1, seed))) for seed in range(2, 10)]
        double.gate.set()
        futures += [committer.submit(span_rows(spread_spans(1, seed))) for seed in range(10, 12)]
        assert [future.result(PATIENCE_S) for future in futures] == [Receipt()] * 11
        send(committer, spread_spans(1, 20))
        send(committer, spread_spans(1, 21))
    # The first insert is of one request, the second of those that waited meanwhile.
    assert len(double.inserts) >= 4 and max(later - earlier for earlier, later in pairwise(began)) > 0.1
