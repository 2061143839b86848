"""Bodies with several batches of rows: one entry of the log, one answer, and each row once, whatever happens between two batches."""

from __future__ import annotations

import json
import pathlib
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from httpx import Response
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

from helpers.builders.converted import divide_bodies
from helpers.builders.json_otlp import json_of
from helpers.builders.spans import native_span, request
from helpers.builders.worst_bodies import DAY_NS
from helpers.dashboards.tables import rejected, streams
from helpers.servers.committing import PATIENCE_S, StoreDouble, logging_to, pending, set_pause, span_rows, spread_spans
from helpers.servers.otlp import PROTOBUF, Endpoint, endpoint_over
from helpers.servers.waiting import until
from legato_ingest.errors import BadRequest, Overloaded, StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Batch
from legato_ingest.otlp.signals import SPANS
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.storage.wal import ASIDE, WriteAheadLog
from legato_ingest.write import conversion, receiver, recovery
from legato_ingest.write.body import Body, Entry
from legato_ingest.write.body_converter import BodyConverter, OnFault
from legato_ingest.write.committer import Committer
from legato_ingest.write.lanes import Lanes, LatePauses
from legato_ingest.write.receiver import Receiver
from legato_ingest.write.waiting import Waiting, size_of

SENT = spread_spans(20)
for _ in range(3):
    native_span(SENT, {"legato.stream.timeline": b"\xff"})


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a batch of each five spans."""
    divide_bodies(monkeypatch)
    monkeypatch.setattr(conversion, "_LANES", ((0, 1), (None, 4)))
    monkeypatch.setattr(conversion, "_SMALL_BYTES_MAX", 0)


def body_of(sent: ExportTraceServiceRequest) -> Body:
    """Return a request's body."""
    return Body(SPANS, sent.SerializeToString(), PROTOBUF, "", "")


@contextmanager
def endpoint_to(
    folder: pathlib.Path, store: Store | StoreDouble, *, queue_bytes_max: int = 2**28, retry_after_s: int = 1
) -> Iterator[tuple[Endpoint, Committer]]:
    """Yield an endpoint over a committer with a log in this folder."""
    with (
        logging_to(folder, store, queue_bytes_max=queue_bytes_max) as committer,
        endpoint_over(committer, retry_after_s=retry_after_s) as endpoint,
    ):
        yield endpoint, committer


def pause_late_inserts(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Begin the next insert of late rows so long after the last one."""
    for name in ("_APART_S", "_WANTED_S"):
        monkeypatch.setattr(LatePauses, name, seconds)


@contextmanager
def late_bodies_waiting(
    folder: pathlib.Path, store: Store, monkeypatch: pytest.MonkeyPatch, count: int
) -> Iterator[tuple[Endpoint, Committer, list[Future[Response]]]]:
    """Yield an endpoint at which so many large bodies of the same late rows wait between two batches, and their replies."""
    first, late, now_ns = request(), request(), time.time_ns()
    native_span(first, start_ns=now_ns - 5 * DAY_NS)
    for number in range(20):
        if number == 5:
            size = size_of(span_rows(late), now_ns)
        native_span(late, start_ns=now_ns - 5 * DAY_NS)
    # Half of the queue is for late rows: for the bodies and their first batches, and not for a second one.
    room = 2 * (count * (len(late.SerializeToString()) + size) + size // 2)
    with endpoint_to(folder, store, queue_bytes_max=room) as (endpoint, committer), ThreadPoolExecutor(count) as pool:
        assert endpoint.post(first.SerializeToString()).status_code == 200
        until(lambda: rows_stored(store) == 1)
        pause_late_inserts(monkeypatch, 600.0)
        replies = [pool.submit(endpoint.post, late.SerializeToString()) for _ in range(count)]
        until(lambda: len(committer._late) == count)
        yield endpoint, committer, replies


def logged(folder: pathlib.Path) -> list[int]:
    """Return the segment of each body that a new process would find in the log."""
    return [segment for segment, _ in pending(folder)]


def rows_stored(store: Store) -> int:
    """Return the number of rows of streams; each stream has one, but for the moment of an insert between the two queries."""
    rows = -1

    def is_one_each() -> bool:
        nonlocal rows
        ((rows,),) = store.select("SELECT count() FROM stream_revs")
        return bool(rows == len(streams(store)))

    until(is_one_each)
    return rows


@pytest.mark.parametrize("is_json", [False, True], ids=["protobuf", "JSON"])
def test_a_large_body_is_stored_once_and_has_one_answer(store: Store, tmp_path: pathlib.Path, is_json: bool) -> None:
    """Five batches. The answer counts what all of them rejected; a retry changes nothing; the log is empty afterwards."""
    content, content_type = (json_of(SENT), "application/json") if is_json else (SENT.SerializeToString(), PROTOBUF)
    with endpoint_to(tmp_path, store) as (endpoint, committer):
        for _ in range(2):
            reply = endpoint.post(content, content_type=content_type)
            assert reply.status_code == 200
            if is_json:
                assert json.loads(reply.content)["partialSuccess"]["rejectedSpans"] == "3"
            else:
                assert ExportTraceServiceResponse.FromString(reply.content).partial_success.rejected_spans == 3
        committer.settle()
        assert rows_stored(store) == 20 and len(rejected(store)) == 3
        until(lambda: not logged(tmp_path))
        until(lambda: committer._metrics.registry.get_sample_value("legato_queue_bytes") == 0)


def test_a_body_stays_in_the_log_until_its_last_batch_is_stored(store: Store, tmp_path: pathlib.Path) -> None:
    """Also while no batch is open, because a further one may come."""
    first, second, entry = span_rows(spread_spans(2, 1)), span_rows(spread_spans(2, 2)), Entry(body_of(SENT))
    with logging_to(tmp_path, store) as committer:
        for number, batch in enumerate((first, second)):
            committer.submit(batch, entry).result(PATIENCE_S)
            committer.settle()
            assert rows_stored(store) == 2 * (number + 1) and len(logged(tmp_path)) == 1
        committer.finish(entry)
        until(lambda: not logged(tmp_path))


def test_the_next_process_inserts_all_batches_of_a_body(store: Store, tmp_path: pathlib.Path) -> None:
    """The process ended when one of them was stored: the rows of that one are duplicates."""
    body = body_of(SENT)
    with logging_to(tmp_path, store) as committer:
        first = next(iter(Receiver(load(), committer, Metrics()).recovered(body)))
        committer.submit(first, Entry(body)).result(PATIENCE_S)
    assert rows_stored(store) == 5 and len(logged(tmp_path)) == 1
    with logging_to(tmp_path, store, recovers=True):
        pass
    assert rows_stored(store) == 20 and len(rejected(store)) == 3 and not logged(tmp_path)


def test_a_body_with_a_batch_that_cannot_be_inserted_is_set_aside_once(
    store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its other batches are stored; the next process stores the rest."""
    monkeypatch.setattr("legato_ingest.write.outcomes.RETRY_S", 0.05)
    double, bad = StoreDouble(store), streams_of(SENT)[7]

    def fail(table: str, rows: pa.Table) -> None:
        if table == "stream_revs" and bad in rows["trace_id"].to_pylist():
            raise MemoryError

    double.before = fail
    with endpoint_to(tmp_path, double) as (endpoint, committer):
        assert endpoint.post(SENT.SerializeToString()).status_code == 200

        def is_set_aside() -> bool:
            committer.settle()
            return logged(tmp_path) == [ASIDE]

        until(is_set_aside)
        until(lambda: rows_stored(store) == 15)
        until(lambda: committer._metrics.registry.get_sample_value("legato_queue_bytes") == 0)
    assert logged(tmp_path) == [ASIDE]
    with logging_to(tmp_path, store, recovers=True):
        pass
    assert rows_stored(store) == 20 and not logged(tmp_path)


def streams_of(sent: ExportTraceServiceRequest) -> list[bytes]:
    """Return the trace id of each span."""
    return [span.trace_id for resource in sent.resource_spans for scope in resource.scope_spans for span in scope.spans]


def test_a_further_batch_waits_for_room(store: Store, tmp_path: pathlib.Path) -> None:
    """The queue has room for one batch: each waits until the one before is inserted, and none is refused."""
    size = span_rows(spread_spans(5)).nbytes + len(SENT.SerializeToString())
    with endpoint_to(tmp_path, store, queue_bytes_max=size + 10_000) as (endpoint, _):
        assert endpoint.post(SENT.SerializeToString()).status_code == 200
    assert rows_stored(store) == 20


def test_a_body_without_room_for_its_batches_is_sent_again(store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing is inserted it is refused for now; what was accepted of it is stored, and the retry stores the rest once."""
    monkeypatch.setattr(receiver, "_ROOM_S", 0.3)
    set_pause(monkeypatch, 0.5)
    double = StoreDouble(store)
    double.gate.clear()
    size = span_rows(spread_spans(5)).nbytes + len(SENT.SerializeToString())
    with endpoint_to(tmp_path, double, queue_bytes_max=size + 10_000) as (endpoint, committer):
        reply = endpoint.post(SENT.SerializeToString())
        assert reply.status_code == 429 and reply.headers["retry-after"] == "1"
        double.gate.set()
        until(lambda: not logged(tmp_path))
        assert 0 < rows_stored(store) < 20
        monkeypatch.setattr(receiver, "_ROOM_S", 30.0)
        assert endpoint.post(SENT.SerializeToString()).status_code == 200
        committer.settle()
    assert rows_stored(store) == 20 and not logged(tmp_path)


def test_a_store_that_goes_away_between_two_batches_is_a_retry(store: Store, tmp_path: pathlib.Path) -> None:
    """The body is in the log then, so its rows are stored when the store is back, and the retry is a duplicate."""
    double, away = StoreDouble(store), threading.Event()

    def fail(table: str, rows: pa.Table) -> None:
        if away.is_set():
            raise StoreUnavailable("away")

    double.before = fail
    with endpoint_to(tmp_path, double) as (endpoint, committer):
        entry = Entry(body_of(SENT))
        parts = Receiver(load(), committer, Metrics()).recovered(entry.body)
        committer.submit(next(parts), entry).result(PATIENCE_S)
        away.set()
        committer.settle()
        assert endpoint.post(SENT.SerializeToString()).status_code == 503
        committer.finish(entry)
        away.clear()
        until(lambda: endpoint.post(SENT.SerializeToString()).status_code == 200)
    assert rows_stored(store) == 20 and not logged(tmp_path)


def test_without_a_log_each_batch_is_stored_before_the_next_is_converted(store: Store) -> None:
    """The answer means that all are stored."""
    with closing(Committer(store, Metrics(), queue_bytes_max=2**28, chunks_max=10**6)) as committer, endpoint_over(committer) as endpoint:
        assert endpoint.post(SENT.SerializeToString()).status_code == 200
        assert rows_stored(store) == 20 and len(rejected(store)) == 3


def test_a_body_is_counted_until_its_last_batch_is_stored(store: Store, tmp_path: pathlib.Path) -> None:
    """Its bytes are in memory as long, also while only its late rows wait; then the queue is full for the next body."""
    content, now_ns = bytes(6 * 2**20), time.time_ns()
    late = request()
    native_span(late, start_ns=now_ns - 5 * DAY_NS)
    with logging_to(tmp_path, store, queue_bytes_max=10 * 2**20) as committer:
        first, entry = span_rows(spread_spans(2)), Entry(Body(SPANS, content, PROTOBUF, "", ""))
        # After its insert the late lane pauses.
        committer.submit(span_rows(late)).result(PATIENCE_S)
        native_span(late, start_ns=now_ns - 5 * DAY_NS)
        for batch in (first, span_rows(late)):
            committer.submit(batch, entry).result(PATIENCE_S)
        committer.finish(entry)
        until(lambda: rows_stored(store) == 3)
        assert committer._lanes.bytes > len(content)
        with pytest.raises(Overloaded):
            committer.submit(first, Entry(Body(SPANS, content, PROTOBUF, "", "")))
        committer.settle()
        until(lambda: committer._lanes.bytes == 0)


def test_labels_of_a_body_are_accepted_or_refused_as_a_whole(store: Store, tmp_path: pathlib.Path) -> None:
    """The first body of an hour may have any number; one that exceeds the quota later leaves no row."""
    sent = [request(), request()]
    for number in range(40):
        native_span(sent[number // 20], {"gen_ai.request.model": f"m{number}"})
    with logging_to(tmp_path, store) as committer, endpoint_over(committer, tenant_cardinality_max=10) as endpoint:
        assert [endpoint.post(each.SerializeToString()).status_code for each in (*sent, sent[0])] == [200, 429, 200]
        committer.settle()
    assert rows_stored(store) == 20


def test_a_body_that_waits_for_room_delays_no_other(store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large body of late rows waits between two batches, and one of now is stored meanwhile."""
    with late_bodies_waiting(tmp_path, store, monkeypatch, 1) as (endpoint, committer, (waiting,)):
        assert endpoint.post(spread_spans(10).SerializeToString()).status_code == 200
        assert not waiting.done()
        pause_late_inserts(monkeypatch, 0.0)
        committer.settle()
        assert waiting.result(PATIENCE_S).status_code == 200
        committer.settle()
        until(lambda: rows_stored(store) == 31)


def test_bodies_that_wait_for_room_leave_their_places_to_others(
    store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as there are places wait between two batches. A body of now is stored: a sender of a waiting body has to retry."""
    monkeypatch.setattr(receiver, "_WANTED_ROOM_S", 0.1)
    with late_bodies_waiting(tmp_path, store, monkeypatch, 2) as (endpoint, committer, waiting):
        assert endpoint.post(spread_spans(10).SerializeToString()).status_code == 200
        pause_late_inserts(monkeypatch, 0.0)
        committer.settle()
        replies = [each.result(PATIENCE_S).status_code for each in waiting]
        assert set(replies) == {200, 429}
        committer.settle()
        until(lambda: rows_stored(store) == 31)


def test_the_next_process_inserts_a_body_as_there_is_room(store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the log holds may be many times the queue."""
    log, most = WriteAheadLog(tmp_path), list[int]()
    log.append([body_of(spread_spans(20, seed)).logged() for seed in range(4)])
    log.close()
    counted = Lanes.hold

    def hold(self: Lanes, group: Iterable[Waiting], sign: int = 1) -> None:
        counted(self, group, sign)
        most.append(self.bytes)

    monkeypatch.setattr(Lanes, "hold", hold)
    size = span_rows(spread_spans(5)).nbytes + len(SENT.SerializeToString())
    with logging_to(tmp_path, store, recovers=True, queue_bytes_max=2 * size):
        pass
    assert rows_stored(store) == 80 and not logged(tmp_path) and max(most) <= 2 * size


def test_the_next_process_starts_while_late_rows_cannot_be_inserted(
    store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are queued beyond the limit after some time, and rows of now still wait for room: they matter more."""
    # An insert of rows of now takes less, also on a busy machine.
    monkeypatch.setattr(recovery, "_ROOM_S", 3.0)
    log, double, late, most = WriteAheadLog(tmp_path), StoreDouble(store), request(), list[int]()
    for _ in range(20):
        native_span(late, start_ns=time.time_ns() - 5 * DAY_NS)
    log.append([body_of(each).logged() for each in (late, late, *(spread_spans(4, seed) for seed in range(20)))])
    log.close()
    away, counted = threading.Event(), Lanes.hold
    away.set()

    def fail(table: str, rows: pa.Table) -> None:
        if away.is_set() and table == "stream_revs" and pc.min(rows["start_time"]).cast(pa.int64()).as_py() < time.time_ns() - DAY_NS:
            raise StoreUnavailable("away")

    def hold(self: Lanes, group: Iterable[Waiting], sign: int = 1) -> None:
        counted(self, group, sign)
        most.append(self.now.held.total)

    double.before = fail
    monkeypatch.setattr(Lanes, "hold", hold)
    began_s, size = time.monotonic(), span_rows(spread_spans(4)).nbytes + len(spread_spans(4).SerializeToString())
    with logging_to(tmp_path, double, recovers=True, queue_bytes_max=3 * size) as committer:
        assert time.monotonic() - began_s < 20 and max(most) <= 3 * size
        until(lambda: rows_stored(store) == 80)
        away.clear()
        committer.settle()
    assert rows_stored(store) == 100


def test_an_open_body_makes_no_insert_urgent(store: Store, tmp_path: pathlib.Path) -> None:
    """A body between two batches is in memory and waits for no insert: small requests beside it are inserted together."""
    double, inserts, entry = StoreDouble(store), list[int](), Entry(Body(SPANS, bytes(20 * 2**20), PROTOBUF, "", ""))

    def note(table: str, rows: pa.Table) -> None:
        if table == "stream_revs":
            inserts.append(rows.num_rows)

    double.before = note
    with logging_to(tmp_path, double) as committer:
        committer.submit(span_rows(spread_spans(1)), entry).result(PATIENCE_S)
        committer.settle()
        for seed in range(2, 22):
            small = Entry(body_of(spread_spans(1, seed)))
            committer.submit(span_rows(spread_spans(1, seed)), small).result(PATIENCE_S)
            committer.finish(small)
        assert len(inserts) <= 2
        committer.finish(entry)
    assert rows_stored(store) == 21


def test_a_body_that_can_be_converted_only_in_part_is_set_aside(
    store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another version, for example. The next process that can convert it stores its rows, and those of the other bodies, once."""
    set_pause(monkeypatch, 0.5)
    monkeypatch.setattr("legato_ingest.write.outcomes.RETRY_S", 0.05)
    log, double = WriteAheadLog(tmp_path), StoreDouble(store)
    log.append([body_of(each).logged() for each in (SENT, spread_spans(4, 2))])
    log.close()
    converted, away = BodyConverter.rows_of, threading.Event()
    away.set()

    def fail(table: str, rows: pa.Table) -> None:
        if away.is_set():
            raise MemoryError

    def partly(self: BodyConverter, body: Body, content: bytes, on_fault: OnFault) -> Iterator[Batch]:
        for number, batch in enumerate(converted(self, body, content, on_fault)):
            if number == 2:
                raise BadRequest("of another version")
            yield batch

    double.before = fail
    with monkeypatch.context() as patched:
        patched.setattr(BodyConverter, "rows_of", partly)
        with logging_to(tmp_path, double, recovers=True) as committer:
            until(lambda: committer._metrics.registry.get_sample_value("legato_queue_bytes") == 0)
            away.clear()
    assert sorted(logged(tmp_path)) == [ASIDE, ASIDE]
    with logging_to(tmp_path, store, recovers=True):
        pass
    assert rows_stored(store) == 24 and not logged(tmp_path)
