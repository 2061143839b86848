"""Group commit: acknowledged means stored, a retry changes nothing, and one bad row costs nobody else."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.builders.points import gauge, histogram, metrics_request, point_requests, total
from helpers.builders.spans import SECOND_NS, native_span, request, scope_of, steady_timeline
from helpers.dashboards.tables import rejected, requests_of_one_span, streams
from legato_ingest.errors import Overloaded, StoreRefused, StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.convert import convert_points, convert_spans
from legato_ingest.storage import Store
from legato_ingest.write.committer import Committer, Receipt

PATIENCE_S = 20
NOW_NS = time.time_ns() // SECOND_NS * SECOND_NS


class Double:
    """A store that can be told to refuse, to fail and to wait; all else is the real one's."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.inserts: list[tuple[str, int]] = []
        self.before: Callable[[str, pa.Table], None] = lambda table, rows: None
        self.gate = threading.Event()
        self.gate.set()

    def insert(self, table: str, rows: pa.Table) -> None:
        """As the store's, after the gate and ``before``."""
        assert self.gate.wait(PATIENCE_S)
        self.before(table, rows)
        self.inserts.append((table, rows.num_rows))
        self._store.insert(table, rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@contextmanager
def committing(store: Store | Double, *, queue_bytes_max: int = 2**28, chunks_max: int = 10**6) -> Iterator[Committer]:
    """A committer that is closed at the end; its metrics are at ``committer._metrics``."""
    committer = Committer(cast(Store, store), Metrics(), queue_bytes_max=queue_bytes_max, chunks_max=chunks_max)
    try:
        yield committer
    finally:
        committer.close()


def rows(body: ExportTraceServiceRequest, tenant: str = "") -> Batch:
    """The rows of a request that arrives now."""
    return convert_spans(body, tenant=tenant, now_ns=time.time_ns(), limits=Limits())


def send(committer: Committer, *bodies: ExportTraceServiceRequest) -> list[Receipt]:
    """Hand over all, then wait for all."""
    futures = [committer.submit(rows(body)) for body in bodies]
    return [future.result(PATIENCE_S) for future in futures]


def count(committer: Committer, name: str) -> float:
    """The value of a counter."""
    return committer._metrics.registry.get_sample_value(f"legato_{name}_total") or 0.0


def batch_of(spans: int, seed: int = 1) -> ExportTraceServiceRequest:
    """A request of different streams that started over the last hours."""
    rng, body = random.Random(seed), request()
    now = time.time_ns() // SECOND_NS * SECOND_NS
    for i in range(spans):
        timeline = steady_timeline(3 + rng.randrange(60), dt_us=rng.randrange(1_000, 400_000))
        start = now - rng.randrange(60, 8 * 3600) * SECOND_NS
        native_span(
            body,
            {"legato.stream.timeline": timeline, "gen_ai.request.model": f"m{i % 3}"},
            start_ns=start,
            duration_ns=60 * SECOND_NS,
            rng=rng,
        )
    return body


def with_snapshots(body: ExportTraceServiceRequest, revs: int = 3) -> list[ExportTraceServiceRequest]:
    """One request a snapshot of each of the body's streams; the body's spans become the last rev."""
    out = []
    for span in scope_of(body).spans:
        for rev in range(1, revs):
            snapshot = request()
            native_span(
                snapshot,
                {
                    "legato.stream.outcome": "running",
                    "legato.stream.span_id": span.span_id.hex(),
                    "legato.stream.rev": rev,
                    "legato.stream.next_due": 30.0 * rev,
                    "legato.stream.timeline": steady_timeline(4 + rev),
                },
                name="legato.stream.snapshot",
                trace_id=span.trace_id,
                start_ns=span.start_time_unix_nano,
                duration_ns=10 * SECOND_NS,
                rng=random.Random(rev),
            )
            out.append(snapshot)
        span.attributes.add(key="legato.stream.rev").value.int_value = revs
    return out


def test_an_acknowledged_row_can_be_read(store: Store) -> None:
    """When the future is done, the rows are in the view."""
    with committing(store) as committer:
        for seed in range(5):
            body = batch_of(3, seed)
            assert send(committer, body) == [Receipt()]
            ids = {span.span_id for span in scope_of(body).spans}
            assert ids <= {row["span_id"] for row in streams(store)}
        assert (count(committer, "stored_spans"), count(committer, "duplicate_spans")) == (15, 0)
        assert count(committer, "stored_chunks") == sum(row["chunks"] for row in streams(store))


def test_the_queue_is_empty_again(store: Store) -> None:
    """What waits is counted down by what was counted up."""
    with committing(store) as committer:
        send(committer, *(batch_of(2, seed) for seed in range(4)))
    assert committer._metrics.registry.get_sample_value("legato_queue_bytes") == 0


def test_duplicates_within_a_group_are_stored_once(store: Store) -> None:
    """The same span twice in a request, and in two requests of one insert."""
    double, body = Double(store), batch_of(2)
    scope_of(body).spans.append(scope_of(body).spans[0])
    with committing(double) as committer:
        double.gate.clear()
        first = committer.submit(rows(batch_of(1, seed=9)))
        deadline = time.monotonic() + PATIENCE_S
        while committer._queue and time.monotonic() < deadline:
            time.sleep(0.001)
        waiting = [committer.submit(rows(body)) for _ in range(3)]
        double.gate.set()
        assert first.result(PATIENCE_S) == Receipt()
        assert [future.result(PATIENCE_S) for future in waiting] == [Receipt()] * 3
        assert count(committer, "duplicate_spans") == 7
    assert store.select("SELECT count() FROM stream_revs") == [(3,)]
    assert [rows for table, rows in double.inserts if table == "stream_revs"] == [1, 2]


def test_the_same_batch_resent_changes_no_row(store: Store) -> None:
    """Three times over, and once more by a new process's committer: nothing is inserted again."""
    body = batch_of(40)
    with committing(store) as committer:
        send(committer, body)
        before = streams(store)
        for _ in range(3):
            assert send(committer, body) == [Receipt()]
    with committing(store) as committer:
        send(committer, body)
        assert (count(committer, "duplicate_spans"), count(committer, "stored_spans"), count(committer, "stored_chunks")) == (40, 0, 0)
    assert streams(store) == before and len(before) == 40
    assert store.select("SELECT count() FROM stream_revs") == [(40,)]


@pytest.mark.parametrize("seed", range(4))
def test_resent_recut_and_interleaved_with_snapshots_changes_no_row(store: Store, seed: int) -> None:
    """Whole tables are equal: sent once in order, or shuffled with every piece twice and in pieces of any size."""
    body = batch_of(12, seed=100)
    snapshots = with_snapshots(body)
    with committing(store) as committer:
        send(committer, *snapshots)
        send(committer, body)
    expected = streams(store)
    assert len(expected) == 12 and {row["rev"] for row in expected} == {3} and {row["outcome"] for row in expected} == {"complete"}

    store.command("TRUNCATE TABLE stream_revs")
    pieces = [*snapshots, body, *requests_of_one_span(body)] * 2
    random.Random(seed).shuffle(pieces)
    with committing(store, chunks_max=random.Random(seed).choice([1, 100, 10**6])) as committer:
        while pieces:
            now, pieces = pieces[:9], pieces[9:]
            send(committer, *now)
    assert streams(store) == expected


def test_a_late_snapshot_does_not_replace_the_end(store: Store) -> None:
    """The highest rev is the stream, in whatever order the revs arrive."""
    body = batch_of(1)
    snapshots = with_snapshots(body)
    with committing(store) as committer:
        send(committer, body)
        before = streams(store)
        send(committer, *reversed(snapshots))
    assert streams(store) == before


def test_tenants_do_not_meet(store: Store) -> None:
    """The same span of another tenant is another row."""
    body = batch_of(1)
    with committing(store) as committer:
        for tenant in ("", "a", "it's\\ b", "a"):
            committer.submit(rows(body, tenant)).result(PATIENCE_S)
    assert [row["tenant"] for row in streams(store)] == ["", "a", "it's\\ b"]


def refuse(*spans: bytes) -> Callable[[str, pa.Table], None]:
    """A store that takes no insert with one of these spans."""

    def before(table: str, rows: pa.Table) -> None:
        if table == "stream_revs" and set(spans) & set(rows["span_id"].to_pylist()):
            raise StoreRefused("Code: 6. DB::Exception: cannot", 6)

    return before


@pytest.mark.parametrize("at", [0, 1, 6, 12])
def test_a_row_that_the_store_refuses_stands_alone(store: Store, at: int) -> None:
    """It goes to `rejected`; its neighbours in the request and in the group are stored; only its own request hears of it."""
    double, body, other = Double(store), batch_of(13), batch_of(5, seed=2)
    bad = scope_of(body).spans[at]
    double.before = refuse(bad.span_id)
    with committing(double) as committer:
        assert send(committer, other, body, batch_of(2, seed=3)) == [Receipt(), Receipt(1, ["store_refused"]), Receipt()]
        assert count(committer, "stored_spans") == 19
        assert committer._metrics.registry.get_sample_value("legato_rejected_spans_total", {"reason": "store_refused"}) == 1
    assert len(streams(store)) == 19 and bad.span_id not in {row["span_id"] for row in streams(store)}
    (row,) = rejected(store)
    assert (row["span_id"], row["trace_id"], row["reason"], row["detail"]) == (
        bad.span_id,
        bad.trace_id,
        "store_refused",
        "ClickHouse error 6",
    )
    assert row["otlp_bytes"] == bad.ByteSize()


def test_a_refused_row_is_one_row_after_retries(store: Store) -> None:
    """Sent again, also in the same group, it is refused again, and `rejected` has it once."""
    double, body, others, refusal = Double(store), batch_of(4), batch_of(2, seed=7), Receipt(1, ["store_refused"])
    double.before = refuse(scope_of(body).spans[2].span_id)
    with committing(double) as committer:
        for _ in range(3):
            assert send(committer, body, others, body) == [refusal, Receipt(), refusal]
    assert len(streams(store)) == 5 and len(rejected(store)) == 1


def test_a_store_that_refuses_all_rejects_all(store: Store) -> None:
    """Even then every span is accounted for."""
    double, body = Double(store), batch_of(9)
    double.before = refuse(*(span.span_id for span in scope_of(body).spans))
    with committing(double) as committer:
        (receipt,) = send(committer, body)
    assert receipt.rejected == 9 and len(rejected(store)) == 9 and not streams(store)


def test_rejections_of_the_decoder_are_stored_and_told(store: Store) -> None:
    """A bad timeline is a row of `rejected`, its reason in the receipt; its neighbour is stored."""
    body = batch_of(2)
    native_span(body, {"legato.stream.timeline": b"\x09"})
    with committing(store) as committer:
        assert send(committer, body, body) == [Receipt(1, ["timeline"])] * 2
    assert len(streams(store)) == 2 and [row["reason"] for row in rejected(store)] == ["timeline"]


@pytest.mark.parametrize("failing", ["stream_revs", "rejected"])
@pytest.mark.parametrize(
    "error", [StoreUnavailable("Code: 243. no space left"), MemoryError(), OSError(28, "No space left")], ids=lambda e: type(e).__name__
)
def test_a_failure_that_passes_fails_the_group_and_a_retry_stores_once(store: Store, failing: str, error: Exception) -> None:
    """Nobody is acknowledged; everybody is told to retry; afterwards each row is there once."""
    double, bodies = Double(store), [batch_of(3, seed=seed) for seed in range(3)]
    native_span(bodies[0], {"legato.stream.timeline": b""})

    def fail(table: str, rows: pa.Table) -> None:
        if table == failing:
            raise error

    double.before = fail
    with committing(double) as committer:
        double.gate.clear()
        futures: list[Future[Receipt]] = [committer.submit(rows(body)) for body in bodies]
        double.gate.set()
        for future in futures:
            with pytest.raises(StoreUnavailable):
                future.result(PATIENCE_S)
        double.before = lambda table, rows: None
        assert send(committer, *bodies) == [Receipt(1, ["timeline"]), Receipt(), Receipt()]
    assert store.select("SELECT count() FROM stream_revs") == [(9,)]
    assert len(streams(store)) == 9 and len(rejected(store)) == 1


def test_what_waits_is_bounded(store: Store) -> None:
    """Beyond the bound a request is turned away whole; what was taken before is stored."""
    double = Double(store)
    size = rows(batch_of(5)).revs.nbytes
    with committing(double, queue_bytes_max=4 * size) as committer:
        double.gate.clear()
        futures, refused = [], 0
        for seed in range(20):
            try:
                futures.append(committer.submit(rows(batch_of(5, seed=seed))))
            except Overloaded:
                refused += 1
        assert refused >= 14 and committer._queue_bytes <= 6 * size
        double.gate.set()
        for future in futures:
            future.result(PATIENCE_S)
        assert len(streams(store)) == 5 * len(futures) == 5 * (20 - refused)
        assert send(committer, batch_of(5, seed=77)) == [Receipt()]


def test_one_batch_beyond_the_bound_is_taken_alone(store: Store) -> None:
    """A bound smaller than a request must not refuse it for ever."""
    with committing(store, queue_bytes_max=1, chunks_max=1) as committer:
        assert send(committer, batch_of(3)) == [Receipt()]
    assert len(streams(store)) == 3


def test_a_group_has_at_most_so_many_chunks(store: Store) -> None:
    """What waits is cut into inserts of bounded size."""
    double = Double(store)
    bodies = [batch_of(4, seed=seed) for seed in range(6)]
    most = max(rows(body).chunks for body in bodies)
    with committing(double, chunks_max=most) as committer:
        double.gate.clear()
        futures = [committer.submit(rows(body)) for body in bodies]
        double.gate.set()
        for future in futures:
            future.result(PATIENCE_S)
    assert all(rows <= 8 for table, rows in double.inserts if table == "stream_revs")
    assert len(streams(store)) == 24


def test_close_commits_what_waits(store: Store) -> None:
    """And takes nothing new."""
    double = Double(store)
    committer = Committer(cast(Store, double), Metrics(), queue_bytes_max=2**28, chunks_max=100)
    double.gate.clear()
    futures = [committer.submit(rows(batch_of(2, seed=seed))) for seed in range(5)]
    closing = threading.Thread(target=committer.close)
    closing.start()
    double.gate.set()
    closing.join(PATIENCE_S)
    assert [future.result(0) for future in futures] == [Receipt()] * 5
    assert len(streams(store)) == 10
    with pytest.raises(StoreUnavailable, match="stopping"):
        committer.submit(rows(batch_of(1)))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_sender_that_gives_up_does_not_stop_the_writer(store: Store) -> None:
    """A cancelled future is a sender that hung up: those that come after it are stored and answered."""
    double = Double(store)
    committer = Committer(cast(Store, double), Metrics(), queue_bytes_max=2**28, chunks_max=10**6)
    double.gate.clear()
    committer.submit(rows(batch_of(1)))
    gone = committer.submit(rows(batch_of(1, seed=2)))
    after = committer.submit(rows(batch_of(1, seed=3)))
    gone.cancel()
    double.gate.set()
    assert after.result(2) == Receipt()
    committer.close()
    assert len(streams(store)) == 3


def test_a_retry_of_rejected_spans_adds_no_rejection(store: Store) -> None:
    """The same bad span sent three times is one row of `rejected`."""
    body = batch_of(2)
    scope_of(body).spans[0].end_time_unix_nano = 1
    with committing(Double(store)) as committer:
        for _ in range(3):
            assert committer.submit(rows(body)).result(PATIENCE_S).rejected == 1
    assert store.select("SELECT count() FROM rejected") == [(1,)]


def test_a_failure_that_is_not_the_rows_fault_costs_no_row(store: Store) -> None:
    """A table that is gone is an outage: nothing is acknowledged, nothing is rejected."""
    double = Double(store)

    def fail(table: str, _: pa.Table) -> None:
        raise StoreRefused("Code: 60. Unknown table", 60)

    double.before = fail
    with committing(double) as committer:
        future = committer.submit(rows(batch_of(2)))
        with pytest.raises(StoreUnavailable):
            future.result(PATIENCE_S)
    assert store.select("SELECT count() FROM rejected") == [(0,)]


def samples_of(body: ExportMetricsServiceRequest, tenant: str = "") -> Batch:
    """The rows of a request of metrics that arrives now."""
    return convert_points(body, tenant=tenant, now_ns=time.time_ns(), limits=Limits())


def scrapes(count: int = 5, seed: int = 1) -> ExportMetricsServiceRequest:
    """So many scrapes of an engine, over the last hours."""
    rng, body = random.Random(seed), metrics_request()
    for number in range(count):
        at = NOW_NS - number * rng.choice((1, 60, 3_600)) * SECOND_NS - seed
        gauge(body, "vllm:num_requests_running", rng.random(), at, attributes={"engine": "0"})
        gauge(body, "vllm:num_requests_running", rng.random(), at, attributes={"engine": "1"})
        total(body, "vllm:prompt_tokens", rng.random(), at, start_time_unix_nano=NOW_NS - 10**15)
        histogram(body, "vllm:inter_token_latency_seconds", [0.01, 0.1], [1, 2, 3], at)
    return body


def stored_samples(store: Store) -> list[Any]:
    """The whole table without the time of receipt, duplicates and all."""
    return store.select("SELECT * EXCEPT (received_at) FROM node_samples ORDER BY ALL")


@pytest.mark.parametrize("seed", range(3))
def test_samples_resent_or_recut_are_stored_once(store: Store, seed: int) -> None:
    """Whole, in pieces, in any order, in one group or many, by another process: the table is that of one sending."""
    body = scrapes()
    with committing(store) as committer:
        assert committer.submit(samples_of(body)).result(PATIENCE_S) == Receipt()
    expected = stored_samples(store)
    assert len(expected) == 20
    pieces = [body, *point_requests(body)] * 2
    random.Random(seed).shuffle(pieces)
    for truncate in (False, True):
        if truncate:
            store.command("TRUNCATE TABLE node_samples")
        with committing(store, chunks_max=random.Random(seed).choice([1, 10**6])) as committer:
            for future in [committer.submit(samples_of(piece)) for piece in pieces]:
                assert future.result(PATIENCE_S) == Receipt()
            registry = committer._metrics.registry
            stored, doubled = (registry.get_sample_value("legato_points_total", {"outcome": each}) for each in ("stored", "duplicate"))
            assert (stored, doubled) == ((20, 60) if truncate else (0, 80))
        assert stored_samples(store) == expected


def test_samples_of_two_tenants_do_not_meet(store: Store) -> None:
    """The same point of another tenant is another row."""
    with committing(store) as committer:
        for tenant in ("", "a", "it's\\ b", "a"):
            committer.submit(samples_of(scrapes(1), tenant)).result(PATIENCE_S)
    assert store.select("SELECT tenant, count() FROM node_samples GROUP BY tenant ORDER BY tenant") == [("", 4), ("a", 4), ("it's\\ b", 4)]


@pytest.mark.parametrize("at", [0, 9, 19])
def test_a_sample_that_the_store_refuses_stands_alone(store: Store, at: int) -> None:
    """Its neighbours and the streams of the same group are stored; whoever sent it hears of it; a retry is the same row of `rejected`."""
    # Made once: a second later they would be of other times.
    double, body, others, spans = Double(store), scrapes(), scrapes(1, 7), batch_of(2)
    bad = samples_of(body).samples.slice(at, 1)

    def before(table: str, rows: pa.Table) -> None:
        if (
            table == "node_samples"
            and bad.select(["series", "recorded_at"]).to_pylist()[0] in rows.select(["series", "recorded_at"]).to_pylist()
        ):
            raise StoreRefused("Code: 6. DB::Exception: cannot", 6)

    double.before = before
    with committing(double) as committer:
        for _ in range(2):
            double.gate.clear()
            futures = [committer.submit(batch) for batch in (rows(spans), samples_of(body), samples_of(others))]
            double.gate.set()
            assert [future.result(PATIENCE_S) for future in futures] == [Receipt(), Receipt(1, ["store_refused"]), Receipt()]
        assert committer._metrics.registry.get_sample_value("legato_rejected_points_total", {"reason": "store_refused"}) == 2
    assert len(stored_samples(store)) == 23 and len(streams(store)) == 2
    (row,) = rejected(store)
    assert row["reason"] == "store_refused" and row["detail"] == f"metric {bad['metric'][0].as_py()!r}: ClickHouse error 6"


def test_a_failure_that_passes_fails_the_samples_and_a_retry_stores_once(store: Store) -> None:
    """What was stored before the failure is known when it comes again."""
    double = Double(store)

    def fail(table: str, rows: pa.Table) -> None:
        if table == "node_samples":
            raise StoreUnavailable("Code: 243. no space left")

    double.before = fail
    with committing(double) as committer:
        with pytest.raises(StoreUnavailable):
            committer.submit(samples_of(scrapes())).result(PATIENCE_S)
        double.before = lambda table, rows: None
        assert committer.submit(samples_of(scrapes())).result(PATIENCE_S) == Receipt()
    assert len(stored_samples(store)) == 20


def test_samples_that_wait_are_bounded(store: Store) -> None:
    """In bytes, and an insert in what its rows weigh."""
    double, size = Double(store), samples_of(scrapes(50)).nbytes
    with committing(double, queue_bytes_max=3 * size, chunks_max=samples_of(scrapes(50)).weight) as committer:
        double.gate.clear()
        futures, refused = [], 0
        for seed in range(12):
            try:
                futures.append(committer.submit(samples_of(scrapes(50, seed))))
            except Overloaded:
                refused += 1
        assert refused >= 7
        double.gate.set()
        for future in futures:
            future.result(PATIENCE_S)
    inserted = [rows for table, rows in double.inserts if table == "node_samples"]
    assert max(inserted) <= 400 and sum(inserted) == 200 * (12 - refused) == len(stored_samples(store))
