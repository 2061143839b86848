"""The committer with a write-ahead log: acknowledged is what is in the log, inserted is all of it, and once."""

from __future__ import annotations

import pathlib
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import pairwise

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.builders.converted import convert_body
from helpers.builders.spans import native_span, request, scope_of
from helpers.builders.worst_bodies import DAY_NS
from helpers.dashboards.tables import rejected, streams
from helpers.servers.committing import PATIENCE_S, StoreDouble, committing, logging_to, pending, set_pause, span_rows, spread_spans
from helpers.servers.otlp import PROTOBUF
from helpers.servers.waiting import until
from legato_ingest.errors import MEMORY_LIMIT_EXCEEDED, Overloaded, StoreRestarting, StoreUnavailable
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.signals import SPANS
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.storage.wal import ASIDE, Payload, WriteAheadLog
from legato_ingest.write.body import Body, Entry
from legato_ingest.write.committer import Committer, Receipt
from legato_ingest.write.group_insert import GroupInsert
from legato_ingest.write.pacing import _MANY_REQUESTS
from legato_ingest.write.receiver import Receiver
from legato_ingest.write.recovery import recover, trying_aside
from legato_ingest.write.waiting import Waiting

RECEIVED_NS = time.time_ns()
SHORT_OF_MEMORY = StoreUnavailable("Code: 241", MEMORY_LIMIT_EXCEEDED)


def body_of(sent: ExportTraceServiceRequest, tenant: str = "") -> Body:
    """Return a request's body."""
    return Body(SPANS, sent.SerializeToString(), PROTOBUF, "", tenant, RECEIVED_NS)


def submit(committer: Committer, sent: ExportTraceServiceRequest) -> Future[Receipt]:
    """Submit a request with its body."""
    return submit_rows(committer, span_rows(sent), body_of(sent))


def submit_rows(committer: Committer, batch: Batch, body: Body) -> Future[Receipt]:
    """Submit the only batch of a body."""
    entry = Entry(body)
    future = committer.submit(batch, entry)
    committer.finish(entry)
    return future


def count(committer: Committer, name: str, *labels: str) -> float:
    """Return the value of a metric; ``labels``: stage and type of an error."""
    values = dict(zip(("stage", "type"), labels, strict=False))
    return committer._metrics.registry.get_sample_value(f"legato_{name}", values) or 0.0


def test_a_request_is_acknowledged_before_its_insert(store: Store, tmp_path: pathlib.Path) -> None:
    """With what its conversion rejected. The rows are stored when ``settle`` returns, and the log is empty then."""
    double, sent = StoreDouble(store), spread_spans(3)
    native_span(sent, {"legato.stream.timeline": b""})
    with logging_to(tmp_path, double) as committer:
        double.gate.clear()
        assert submit(committer, sent).result(PATIENCE_S) == Receipt(1, ["timeline"])
        assert [payload for _, payload in pending(tmp_path)] == [b"".join(body_of(sent).logged())]
        assert not streams(store)
        double.gate.set()
        committer.settle()
        assert (len(streams(store)), len(rejected(store)), pending(tmp_path)) == (3, 1, [])
        assert count(committer, "queue_bytes") == 0


def test_an_insert_is_asked_for_before_it_is_waited_for(store: Store, tmp_path: pathlib.Path) -> None:
    """It begins at once. Who asked waits for what was acknowledged before, and not for later requests."""
    double = StoreDouble(store)
    with logging_to(tmp_path, double) as committer:
        submit(committer, spread_spans(1)).result(PATIENCE_S)
        wait = committer.begin_settling()
        until(lambda: len(streams(store)) == 1)
        double.gate.clear()
        submit(committer, spread_spans(1, 1)).result(PATIENCE_S)
        wait()
        assert len(streams(store)) == 1
        double.gate.set()


def test_a_reader_of_slightly_old_rows_shares_the_insert_of_another(store: Store, tmp_path: pathlib.Path) -> None:
    """It waits for what was asked for within its time, and asks for no insert of later requests; after that time it asks as others do."""
    double = StoreDouble(store)
    with logging_to(tmp_path, double) as committer:
        submit(committer, spread_spans(1)).result(PATIENCE_S)
        committer.settle()
        double.gate.clear()
        submit(committer, spread_spans(1, 2)).result(PATIENCE_S)
        committer.begin_settling(stale_max_s=60.0)()
        assert len(streams(store)) == 1
        wait = committer.begin_settling(stale_max_s=1e-9)
        double.gate.set()
        wait()
        assert len(streams(store)) == 2


def test_readers_of_late_rows_wait_at_the_same_time(store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for which each waits begins when it asks. The queries of a dashboard wait one after another, and would add their times."""
    monkeypatch.setattr("legato_ingest.write.settling._LATE_SETTLE_S", 0.5)
    double, sent = StoreDouble(store), request()
    native_span(sent, start_ns=RECEIVED_NS - 20 * DAY_NS)
    batch = convert_body(sent.SerializeToString(), tenant="", now_ns=RECEIVED_NS, limits=Limits(), on_fault=print)
    with logging_to(tmp_path, double) as committer:
        double.gate.clear()
        submit_rows(committer, batch, body_of(sent)).result(PATIENCE_S)
        waits, began_s = [committer.begin_settling() for _ in range(20)], time.monotonic()
        for wait in waits:
            wait()
        assert 0.4 < time.monotonic() - began_s < 8
        double.gate.set()


def test_inserts_are_seconds_apart_unless_many_requests_or_a_reader_wait(
    store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests after an insert share the next one: a second after its begin if they are many, else later; ``settle`` begins it at once."""
    set_pause(monkeypatch, 3.0)
    began, sent, insert = list[float](), 0, GroupInsert.insert

    def noted(groups: GroupInsert, batches: Sequence[Batch], received_ms: int) -> list[Receipt]:
        began.append(time.monotonic())
        return insert(groups, batches, received_ms)

    monkeypatch.setattr(GroupInsert, "insert", noted)
    with logging_to(tmp_path, store) as committer:
        for requests, is_asked in ((1, False), (2, False), (_MANY_REQUESTS, False), (1, True), (1, True)):
            if requests > 2:
                # So long that a pause of the machine is no reason to take one kind of insert for another.
                set_pause(monkeypatch, 60.0)
            inserts = len(began)
            for _ in range(requests):
                submit(committer, spread_spans(1, sent)).result(PATIENCE_S)
                sent += 1
            if is_asked:
                committer.settle()
                assert len(streams(store)) == sent
            else:
                until(partial(lambda inserts: len(began) > inserts, inserts))
    few, many, *asked = (later - earlier for earlier, later in pairwise(began))
    assert few > 2 and 0.9 < many < 30 and max(asked) < 30


def test_what_an_insert_has_no_room_for_follows_at_once(store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six requests of some hundred chunks, and room for about two: three inserts or more without a pause."""
    bodies = [spread_spans(1, seed) for seed in range(7)]
    set_pause(monkeypatch, 6.0)
    double, began = StoreDouble(store), list[float]()

    def before(table: str, _: object) -> None:
        if table == "stream_revs":
            began.append(time.monotonic())
        if len(began) == 2:
            # So long that a pause of the machine cannot pass for the pause between two inserts.
            set_pause(monkeypatch, 60.0)

    double.before = before
    chunks = span_rows(spread_spans(1, 0)).weight
    with logging_to(tmp_path, double, chunks_max=2 * chunks) as committer:
        submit(committer, bodies[0]).result(PATIENCE_S)
        committer.settle()
        for body in bodies[1:]:
            submit(committer, body).result(PATIENCE_S)
        until(lambda: len(streams(store)) == 7)
    assert len(began) >= 3 and began[1] - began[0] > 5 and began[-1] - began[1] < 30


@pytest.mark.parametrize("was_inserted", [False, True])
def test_the_next_process_inserts_what_is_in_the_log(store: Store, tmp_path: pathlib.Path, was_inserted: bool) -> None:
    """Once, also if the process ended after the insert and before the log was emptied."""
    sent = [spread_spans(4, seed) for seed in range(5)]
    log = WriteAheadLog(tmp_path)
    log.append([body_of(each).logged() for each in sent])
    log.close()
    if was_inserted:
        with logging_to(tmp_path / "other", store) as committer:
            for each in sent[:3]:
                submit(committer, each).result(PATIENCE_S)
    with logging_to(tmp_path, store, recovers=True) as committer:
        committer.settle()
        assert count(committer, "duplicate_spans_total") == (12 if was_inserted else 0)
    assert store.select("SELECT count() FROM stream_revs") == [(20,)] and len(streams(store)) == 20
    assert pending(tmp_path) == []


def test_a_body_keeps_its_tenant_and_encoding() -> None:
    """From the log it is what it was; other bytes are an error."""
    body = Body(SPANS, b"\n\x00{}\n", "application/json; charset=utf-8", "gzip", "a\nb\u2028é")
    assert Body.from_log(b"".join(body.logged())) == body
    for wrong in (b"", b"[]\n", b'["/v1/none","","",""]\n', b"\xff\n", b"{}\nx", b"17\n"):
        with pytest.raises(ValueError, match=r"."):
            Body.from_log(wrong)


def test_a_request_that_no_version_reads_is_set_aside(store: Store, tmp_path: pathlib.Path) -> None:
    """Those before and after it are inserted."""
    log = WriteAheadLog(tmp_path)
    good = [body_of(spread_spans(1, seed)).logged() for seed in range(2)]
    log.append([good[0], b"nonsense", Body(SPANS, b"\xff\xff", "application/x-protobuf", "", "").logged(), good[1]])
    log.close()
    with logging_to(tmp_path, store, recovers=True):
        pass
    assert len(streams(store)) == 2
    assert [segment for segment, _ in pending(tmp_path)] == [ASIDE, ASIDE]


def test_while_inserts_fail_requests_are_refused_and_the_log_keeps_the_acknowledged(store: Store, tmp_path: pathlib.Path) -> None:
    """What was acknowledged before the store failed is stored later, and no request is acknowledged meanwhile."""
    double, away = StoreDouble(store), threading.Event()
    away.set()

    def fail(table: str, rows: pa.Table) -> None:
        if away.is_set():
            raise StoreUnavailable("Code: 243. no space left")

    double.before = fail
    with logging_to(tmp_path, double) as committer:
        submit(committer, spread_spans(2, 1)).result(PATIENCE_S)
        committer.settle()
        with pytest.raises(StoreUnavailable, match="no space left"):
            submit(committer, spread_spans(2, 2))
        assert count(committer, "errors_total", "commit", "StoreUnavailable") >= 1
        assert len(pending(tmp_path)) == 1 and count(committer, "queue_bytes") > 0
        away.clear()
        deadline = time.monotonic() + PATIENCE_S
        while committer._outcomes.failed is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert submit(committer, spread_spans(2, 2)).result(PATIENCE_S) == Receipt()
    assert len(streams(store)) == 4 and pending(tmp_path) == []


def test_requests_are_acknowledged_while_the_store_restarts(store: Store, tmp_path: pathlib.Path) -> None:
    """An insert during which the process of the store ends fails no request, before or after it; all rows are inserted once."""
    double, attempts = StoreDouble(store), list[int]()

    def restart_twice(table: str, rows: pa.Table) -> None:
        if table == "stream_revs":
            attempts.append(rows.num_rows)
            if len(attempts) <= 2:
                raise StoreRestarting("the process ended")

    double.before = restart_twice
    with logging_to(tmp_path, double) as committer:
        submit(committer, spread_spans(2, 1)).result(PATIENCE_S)
        committer.begin_settling()
        until(lambda: attempts)
        submit(committer, spread_spans(2, 2)).result(PATIENCE_S)
        committer.settle()
    assert len(streams(store)) == 4 and pending(tmp_path) == []


def test_a_request_with_which_the_store_crashes_is_set_aside(store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After six crashes; the requests beside it are inserted."""
    monkeypatch.setattr("legato_ingest.write.pacing._LOGGED_APART_S", 0.01)
    set_pause(monkeypatch, 0.01)
    double, crashes = StoreDouble(store), list[int]()

    def crash(table: str, rows: pa.Table) -> None:
        if table == "stream_revs" and rows.num_rows >= 7:
            crashes.append(rows.num_rows)
            raise StoreRestarting("the process ended")

    double.before = crash
    with logging_to(tmp_path, double) as committer:
        double.gate.clear()
        for each in (spread_spans(1, 1), spread_spans(7, 99), spread_spans(2, 2)):
            submit(committer, each).result(PATIENCE_S)
        double.gate.set()
        committer.settle()
        assert count(committer, "errors_total", "set_aside", "StoreRestarting") == 1
        assert len(crashes) == 6 and len(streams(store)) == 3
    assert [segment for segment, _ in pending(tmp_path)] == [ASIDE]


def test_no_reader_can_have_a_request_set_aside(store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the store is ended 20 times during its insert, each time because of a reader's statement."""
    monkeypatch.setattr("legato_ingest.write.outcomes.RETRY_S", 0.01)
    set_pause(monkeypatch, 0.01)
    double, ends = StoreDouble(store), list[int]()

    def end(table: str, rows: pa.Table) -> None:
        if table == "stream_revs" and len(ends) < 20:
            ends.append(rows.num_rows)
            raise StoreRestarting("the process was ended", {"a"})

    double.before = end
    with logging_to(tmp_path, double) as committer:
        submit(committer, spread_spans(2, 1)).result(PATIENCE_S)
        committer.settle()
        assert len(ends) == 20 and len(streams(store)) == 2
        assert count(committer, "errors_total", "set_aside", "StoreRestarting") == 0
    assert pending(tmp_path) == []


@pytest.mark.parametrize("fails", [False, True])
def test_rows_of_now_do_not_wait_for_late_ones_of_their_request(store: Store, tmp_path: pathlib.Path, fails: bool) -> None:
    """They are inserted with those of other requests, and once; if that fails, they are inserted with the late ones."""
    double, sent, days = StoreDouble(store), request(), list[list[int]]()
    for ago in range(20, 23):
        native_span(sent, start_ns=RECEIVED_NS)
        native_span(sent, {"legato.stream.timeline": b""}, start_ns=RECEIVED_NS)
        native_span(sent, start_ns=RECEIVED_NS - ago * DAY_NS)
    batch = convert_body(sent.SerializeToString(), tenant="", now_ns=RECEIVED_NS, limits=Limits(), on_fault=print)

    def note(table: str, rows: pa.Table) -> None:
        if table == "stream_revs":
            days.append((rows["start_time"].cast(pa.int64()).to_numpy() // DAY_NS).tolist())
            if fails and len(days) == 1:
                raise OSError("the first insert fails")

    double.before = note
    with logging_to(tmp_path, double) as committer:
        assert submit_rows(committer, batch, body_of(sent)).result(PATIENCE_S) == Receipt(3, ["timeline"])
        until(lambda: days)
        assert len(days[0]) == 3
        until(lambda: len(streams(store)) == 6)
        until(lambda: count(committer, "queue_bytes") == 0)
        assert (count(committer, "stored_spans_total"), count(committer, "duplicate_spans_total")) == (6, 0)
        assert len(rejected(store)) == 3
        assert committer._late.held.total == committer._now.held.total == 0
    assert [len(each) for each in days] == ([3, 1, 1, 1, 3] if fails else [3, 1, 1, 1]) and pending(tmp_path) == []


def test_a_store_that_stays_away_keeps_the_log_over_the_end(store: Store, tmp_path: pathlib.Path) -> None:
    """The process ends, and the next one inserts."""
    double = StoreDouble(store)

    def fail(table: str, rows: pa.Table) -> None:
        raise StoreUnavailable("away")

    double.before = fail
    with logging_to(tmp_path, double) as committer:
        for seed in range(2):
            submit(committer, spread_spans(1, seed))
    assert pending(tmp_path)
    acknowledged = len(pending(tmp_path))
    with logging_to(tmp_path, store, recovers=True):
        pass
    assert len(streams(store)) == acknowledged and pending(tmp_path) == []


@pytest.mark.parametrize("error", [MemoryError(), KeyError("bug")], ids=lambda error: type(error).__name__)
def test_a_request_that_cannot_be_inserted_delays_the_others_only(
    store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A group with it fails and is halved at once, and the guilty one is set aside after three attempts, counted and logged.

    No request is refused meanwhile, and no reader waits for it.
    """
    monkeypatch.setattr("legato_ingest.write.outcomes.RETRY_S", 0.1)
    set_pause(monkeypatch, 0.5)
    double, bad = StoreDouble(store), spread_spans(7, 99)
    guilty = scope_of(bad).spans[0].span_id

    def fail(table: str, rows: pa.Table) -> None:
        if table == "stream_revs" and guilty in rows["span_id"].to_pylist():
            raise error

    double.before = fail
    with logging_to(tmp_path, double) as committer:
        double.gate.clear()
        for each in (spread_spans(1, 1), bad, spread_spans(2, 2), spread_spans(3, 3)):
            submit(committer, each).result(PATIENCE_S)
        double.gate.set()
        committer.settle()
        assert len(streams(store)) == 6
        sent = 0
        while sent < 5 or (not count(committer, "errors_total", "set_aside", type(error).__name__) and sent < 2_000):
            submit(committer, spread_spans(1, 100 + sent)).result(PATIENCE_S)
            sent += 1
            time.sleep(0.01)
        committer.settle()
        assert len(streams(store)) == 6 + sent
        assert count(committer, "errors_total", "set_aside", type(error).__name__) == 1
        assert count(committer, "errors_total", "commit", type(error).__name__) <= 3 + 2
    assert pending(tmp_path) == [(ASIDE, b"".join(body_of(bad).logged()))]
    with logging_to(tmp_path, store, recovers=True):
        pass
    assert len(streams(store)) == 13 + sent and pending(tmp_path) == []


def test_a_tenant_with_ever_new_requests_that_fail_delays_no_other(
    store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first failure its requests are inserted apart. They are all set aside, though new ones arrive."""
    monkeypatch.setattr("legato_ingest.write.outcomes.RETRY_S", 0.05)
    set_pause(monkeypatch, 0.05)
    double, mixed, most_alone = StoreDouble(store), list[int](), 0

    def fail(table: str, rows: pa.Table) -> None:
        tenants = set(rows["tenant"].to_pylist()) if table == "stream_revs" else set()
        if "bad" in tenants:
            mixed.append(len(tenants))
            raise KeyError("bug")

    double.before = fail
    with logging_to(tmp_path, double) as committer:
        for seed in range(40):
            for tenant in ("good", "bad", "fine"):
                sent = spread_spans(1, seed)
                submit_rows(committer, span_rows(sent, tenant), body_of(sent, tenant)).result(PATIENCE_S)
            time.sleep(0.02)
            most_alone = max(most_alone, len(committer._lanes.alone))
        until(lambda: count(committer, "errors_total", "set_aside", "KeyError") == 40)
        committer.settle()
        assert len(streams(store)) == 80 and most_alone <= 9
        assert sum(tenants > 1 for tenants in mixed) < 20 and len(mixed) > 40
    assert [segment for segment, _ in pending(tmp_path)] == [ASIDE] * 40


def test_a_burst_of_requests_that_fail_stops_no_other_tenant(store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it fills a group and more. Other tenants' rows are stored and read meanwhile; the end leaves it in the log.

    A new process stores all of it.
    """
    monkeypatch.setattr("legato_ingest.write.committer._END_S", 0.1)
    set_pause(monkeypatch, 8.0)
    double, bad, failed = StoreDouble(store), [spread_spans(1, 100 + number) for number in range(120)], list[int]()

    def fail(table: str, rows: pa.Table) -> None:
        if table == "stream_revs" and "bad" in rows["tenant"].to_pylist():
            # The first inserts show that the halving has begun. Then all of it would take minutes.
            time.sleep(0.02 if len(failed) < 20 else 0.5)
            failed.append(rows.num_rows)
            raise KeyError("bug")

    double.before = fail
    with logging_to(tmp_path, double, chunks_max=40 * span_rows(bad[0], "bad").weight) as committer:
        double.gate.clear()
        for each in bad:
            submit_rows(committer, span_rows(each, "bad"), body_of(each, "bad"))
        until(lambda: len(committer._now) + len(committer._inserting) == 120)
        double.gate.set()
        until(lambda: len(failed) > 10)
        for seed in range(3):
            sent = spread_spans(1, seed)
            submit_rows(committer, span_rows(sent, "good"), body_of(sent, "good")).result(PATIENCE_S)
            committer.begin_settling("good")()
        until(lambda: len(streams(store)) == 3)
    assert len(failed) < 200
    # On a busy machine some are set aside by then: these are in their segment as well, until it is emptied.
    assert sum(Body.from_log(payload).tenant == "bad" for payload in {payload for _, payload in pending(tmp_path)}) == 120
    with logging_to(tmp_path, store, recovers=True):
        pass
    assert store.select("SELECT count() FROM stream_revs") == [(123,)] and not pending(tmp_path)


def test_a_request_without_memory_refuses_no_other(store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though no insert has ended well before. It is tried behind the others, and set aside while they are stored."""
    monkeypatch.setattr("legato_ingest.write.outcomes.RETRY_S", 0.01)
    monkeypatch.setattr("legato_ingest.write.set_aside._NOT_TAKEN", 20)
    double, tried, sent = StoreDouble(store), list[int](), 0

    def fail(table: str, rows: pa.Table) -> None:
        if table == "stream_revs" and "bad" in rows["tenant"].to_pylist():
            tried.append(rows.num_rows)
            raise SHORT_OF_MEMORY

    def is_set_aside() -> bool:
        return count(committer, "errors_total", "set_aside", "StoreUnavailable") == 1

    double.before = fail
    with logging_to(tmp_path, double) as committer:
        bad = spread_spans(1, 99)
        submit_rows(committer, span_rows(bad, "bad"), body_of(bad, "bad")).result(PATIENCE_S)
        committer.begin_settling("bad")()
        until(lambda: len(tried) > 5)
        while not is_set_aside():
            good = spread_spans(1, sent)
            assert submit_rows(committer, span_rows(good, "good"), body_of(good, "good")).result(PATIENCE_S) == Receipt()
            committer.begin_settling("good")()
            sent, tries = sent + 1, len(tried)
            assert len(streams(store)) == sent < 30
            until(partial(lambda tries: len(tried) > tries or is_set_aside(), tries))
    assert [segment for segment, _ in pending(tmp_path)] == [ASIDE]


def test_what_failed_in_a_want_of_memory_is_stored_with_the_others(
    store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All inserts fail, until all batches are alone: once one is stored the others follow in one insert, and no tenant is apart."""
    monkeypatch.setattr("legato_ingest.write.outcomes.RETRY_S", 0.01)
    double, is_short, stored = StoreDouble(store), threading.Event(), list[int]()

    def fail(table: str, rows: pa.Table) -> None:
        if table == "stream_revs":
            if is_short.is_set():
                raise SHORT_OF_MEMORY
            stored.append(rows.num_rows)

    double.before = fail
    with logging_to(tmp_path, double) as committer:
        submit(committer, spread_spans(1, 99)).result(PATIENCE_S)
        committer.settle()
        is_short.set()
        for seed in range(20):
            sent = spread_spans(1, seed)
            submit_rows(committer, span_rows(sent, f"t{seed % 5}"), body_of(sent, f"t{seed % 5}")).result(PATIENCE_S)
        committer.begin_settling()
        # One of them may have its next try.
        until(lambda: len(committer._lanes.alone) >= 19)
        is_short.clear()
        until(lambda: len(stored) > 1)
        until(lambda: not committer._lanes.alone)
        committer.settle()
        assert len(streams(store)) == 21 and stored == [1, 1, 19] and not committer._lanes._failed_s
    assert pending(tmp_path) == []


@pytest.mark.parametrize("error", [KeyError("bug"), SHORT_OF_MEMORY], ids=lambda error: type(error).__name__)
def test_at_the_end_what_failed_alone_has_one_try(
    store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It stays in the log."""
    monkeypatch.setattr("legato_ingest.write.outcomes.RETRY_S", 1_000.0)
    double, tried = StoreDouble(store), list[int]()

    def fail(table: str, rows: pa.Table) -> None:
        if table == "stream_revs":
            tried.append(rows.num_rows)
            raise error

    double.before = fail
    with logging_to(tmp_path, double) as committer:
        submit(committer, spread_spans(1)).result(PATIENCE_S)
        committer.begin_settling()
        until(lambda: committer._lanes.alone)
    assert len(tried) == 2 and [segment for segment, _ in pending(tmp_path)] != [ASIDE] and pending(tmp_path)


def test_without_a_log_the_end_refuses_what_is_halved(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its senders retry."""
    monkeypatch.setattr("legato_ingest.write.committer._END_S", 0.0)
    double = StoreDouble(store)

    def fail(table: str, rows: pa.Table) -> None:
        raise KeyError("bug")

    double.before = fail
    double.gate.clear()
    with committing(double) as committer:
        futures = [committer.submit(span_rows(spread_spans(1, seed))) for seed in range(9)]
        threading.Timer(0.2, double.gate.set).start()
    assert all(isinstance(future.exception(0), StoreUnavailable) for future in futures)


@pytest.mark.parametrize("rejects", [False, True])
def test_requests_that_go_on_failing_do_not_let_the_log_grow(
    store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, rejects: bool
) -> None:
    """The store has never enough memory for them. The files have three times the bytes of the queue at most, and one insert's bodies.

    ``rejects``: bodies that wait cannot be appended once more. Then they stay where they are, and all requests are stored.
    """
    monkeypatch.setattr("legato_ingest.write.outcomes.RETRY_S", 0.02)
    monkeypatch.setattr("legato_ingest.write.outcomes._ENDED_WELL_S", 1e9)
    double, append, waiting = StoreDouble(store), WriteAheadLog.append, list[ExportTraceServiceRequest]()

    def fail(table: str, rows: pa.Table) -> None:
        if table == "stream_revs" and "bad" in rows["tenant"].to_pylist():
            raise StoreUnavailable("Code: 241", MEMORY_LIMIT_EXCEEDED)

    def reject(log: WriteAheadLog, payloads: Sequence[Payload]) -> int:
        if threading.current_thread().name == "legato-commit":
            raise StoreUnavailable("the disk is full")
        return append(log, payloads)

    if rejects:
        monkeypatch.setattr(WriteAheadLog, "append", reject)
    double.before = fail
    good, bad = [spread_spans(12, seed) for seed in range(24)], [spread_spans(1, 900 + number) for number in range(6)]
    sizes, body_bytes = list[int](), max(len(each.SerializeToString()) for each in good)
    queue_bytes = 2 * (span_rows(good[0], "good").nbytes + body_bytes)
    with logging_to(tmp_path, double, queue_bytes_max=4 * queue_bytes) as committer:
        # Bodies are smaller than their rows, which fill the queue, too.
        monkeypatch.setattr(type(committer._lanes), "bytes_max", 3 * body_bytes)
        # An insert that has ended well shows that the store is not away.
        submit(committer, spread_spans(1, 800)).result(PATIENCE_S)
        committer.settle()
        for number, each in enumerate(good):
            if number % 4 == 0:
                # A segment with one of these is not emptied.
                submit_rows(committer, span_rows(bad[0], "bad"), body_of(bad[0], "bad")).result(PATIENCE_S)
                waiting.append(bad.pop(0))
                # All but the one that is tried.
                until(lambda: len(committer._lanes.alone) >= len(waiting) - 1)
            assert submit_rows(committer, span_rows(each, "good"), body_of(each, "good")).result(PATIENCE_S) == Receipt()
            committer.begin_settling("good")()
            sizes.append(sum(path.stat().st_size for path in tmp_path.glob("*.wal")))
        most = sum(len(each.SerializeToString()) for each in good)
        assert max(sizes) > 0.8 * most if rejects else max(sizes) < 0.6 * most
    assert {Body.from_log(payload).tenant for _, payload in pending(tmp_path)} >= {"bad"}
    with logging_to(tmp_path, store, recovers=True):
        pass
    rows = store.select("SELECT tenant, count() FROM stream_revs GROUP BY tenant ORDER BY tenant")
    assert rows == [("", 1), ("bad", 6), ("good", 24 * 12)] and pending(tmp_path) == []


def test_a_request_that_cannot_be_set_aside_refuses_no_other(store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again behind all others, stays in its segment at the end, and is inserted by the next process."""
    monkeypatch.setattr("legato_ingest.write.outcomes.RETRY_S", 0.02)
    double, bad = StoreDouble(store), spread_spans(7, 99)

    def fail(table: str, rows: pa.Table) -> None:
        if table == "stream_revs" and rows.num_rows >= 7:
            raise KeyError("bug")

    def rejects(*_: object) -> None:
        raise StoreUnavailable("the disk is full")

    double.before = fail
    monkeypatch.setattr(WriteAheadLog, "set_aside", rejects)
    with logging_to(tmp_path, double) as committer:
        submit(committer, bad).result(PATIENCE_S)
        until(lambda: count(committer, "errors_total", "commit", "KeyError") > 5)
        for seed in range(3):
            assert submit(committer, spread_spans(1, seed)).result(PATIENCE_S) == Receipt()
            committer.settle()
        assert len(streams(store)) == 3 and count(committer, "errors_total", "set_aside", "KeyError") == 0
    assert [payload for _, payload in pending(tmp_path)] == [b"".join(body_of(bad).logged())]
    with logging_to(tmp_path, store, recovers=True):
        pass
    assert len(streams(store)) == 10 and pending(tmp_path) == []


def test_requests_that_were_set_aside_are_tried_behind_new_ones(store: Store, tmp_path: pathlib.Path) -> None:
    """At the next start, one at a time: new requests are inserted meanwhile, none is refused, and the reader waits for these alone."""
    log, bad = WriteAheadLog(tmp_path), [spread_spans(7, 90 + number) for number in range(5)]
    good = spread_spans(2, 80)
    for each in (*bad, good):
        log.set_aside(log.append([body_of(each).logged()]), body_of(each).logged())
    log.close()
    double, tried = StoreDouble(store), list[int]()

    def fail(table: str, rows: pa.Table) -> None:
        if table == "stream_revs":
            tried.append(rows.num_rows)
            if rows.num_rows >= 7:
                time.sleep(0.1)
                raise KeyError("bug")

    double.before = fail
    with logging_to(tmp_path, double) as committer:
        assert committer._log is not None
        receiver, stopping = Receiver(load(), committer, committer._metrics), threading.Event()
        aside = recover(committer._log, committer, receiver, committer._metrics, stopping)
        with trying_aside(aside, stopping):
            until(lambda: tried)
            for seed in range(3):
                assert submit(committer, spread_spans(1, seed)).result(PATIENCE_S) == Receipt()
                committer.settle()
                # The two rows that were set aside may come meanwhile.
                assert len(streams(store)) in (seed + 1, seed + 3)
            until(lambda: len(streams(store)) == 5)
        assert tried.count(7) == 5 == count(committer, "errors_total", "set_aside", "KeyError")
    assert len(pending(tmp_path)) == 6, "the file is emptied with its last request"
    with logging_to(tmp_path, store, recovers=True):
        pass
    assert len(streams(store)) == 40 and pending(tmp_path) == []


def test_a_body_without_memory_stops_no_other_that_was_set_aside(
    store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though nothing else is stored. It is set aside again after four tries."""
    monkeypatch.setattr("legato_ingest.write.outcomes.RETRY_S", 0.01)
    log, double, tried = WriteAheadLog(tmp_path), StoreDouble(store), list[int]()
    for seed, tenant in enumerate(("bad", "good", "good")):
        body = body_of(spread_spans(1, seed), tenant).logged()
        log.set_aside(log.append([body]), body)
    log.close()

    def fail(table: str, rows: pa.Table) -> None:
        if table == "stream_revs" and "bad" in rows["tenant"].to_pylist():
            tried.append(rows.num_rows)
            raise SHORT_OF_MEMORY

    double.before = fail
    with logging_to(tmp_path, double) as committer:
        assert committer._log is not None
        receiver, stopping = Receiver(load(), committer, committer._metrics), threading.Event()
        with trying_aside(recover(committer._log, committer, receiver, committer._metrics, stopping), stopping):
            until(lambda: len(streams(store)) == 2)
    assert len(tried) == 4
    with logging_to(tmp_path, store, recovers=True):
        pass
    assert len(streams(store)) == 3 and pending(tmp_path) == []


def test_what_was_set_aside_waits_for_no_other_tenant(store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request of another one that goes on failing waits for its next try, for longer than the test."""
    monkeypatch.setattr("legato_ingest.write.outcomes.RETRY_S", 0.01)
    monkeypatch.setattr(WriteAheadLog, "set_aside", lambda *_: (_ for _ in ()).throw(StoreUnavailable("the disk is full")))
    double = StoreDouble(store)

    def fail(table: str, rows: pa.Table) -> None:
        if table == "stream_revs" and "bad" in rows["tenant"].to_pylist():
            raise KeyError("bug")

    def aside() -> Iterator[Entry | None]:
        for seed in range(3):
            body = body_of(spread_spans(1, seed), "good")
            committer.recover(span_rows(spread_spans(1, seed), "good"), entry := Entry(body, ASIDE))
            committer.finish(entry)
            yield entry

    double.before = fail
    with logging_to(tmp_path, double) as committer:
        bad = spread_spans(1, 99)
        submit_rows(committer, span_rows(bad, "bad"), body_of(bad, "bad")).result(PATIENCE_S)
        until(lambda: committer._lanes.alone.of_tenant("bad") == 1)
        with trying_aside(aside(), threading.Event()):
            until(lambda: len(streams(store)) == 3)


def test_a_log_that_rejects_writes_refuses_the_request(store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is stored, its bytes leave the queue, and the next request is taken."""
    with logging_to(tmp_path, store) as committer:
        with monkeypatch.context() as patch:
            patch.setattr(WriteAheadLog, "append", lambda self, payloads: (_ for _ in ()).throw(StoreUnavailable("log full")))
            with pytest.raises(StoreUnavailable, match="log full"):
                submit(committer, spread_spans(1, 1)).result(PATIENCE_S)
        assert count(committer, "errors_total", "log", "StoreUnavailable") == 1
        assert count(committer, "queue_bytes") == 0
        submit(committer, spread_spans(1, 2)).result(PATIENCE_S)
    assert len(streams(store)) == 1


def test_a_request_that_cannot_be_packed_for_the_log_is_refused_alone(
    store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of the log goes on."""
    packed = Waiting.logged_form

    def fail_once(waiting: Waiting) -> Payload:
        if waiting.tenant == "large":
            raise MemoryError
        return packed(waiting)

    monkeypatch.setattr(Waiting, "logged_form", fail_once)
    with logging_to(tmp_path, store) as committer:
        with pytest.raises(StoreUnavailable, match="MemoryError while logging"):
            submit_rows(committer, span_rows(spread_spans(1)), body_of(spread_spans(1), "large")).result(PATIENCE_S)
        assert submit(committer, spread_spans(1, 2)).result(PATIENCE_S) == Receipt()
        committer.settle()
        assert count(committer, "queue_bytes") == 0 and len(streams(store)) == 1


@pytest.mark.parametrize("method", ["_commit", "_logged"])
def test_requests_are_refused_once_a_thread_has_ended(
    store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """By an internal error, of either thread. What is in the log stays there, and no request waits for ever."""

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Committer, method, fail)
    with logging_to(tmp_path, store) as committer:
        first = submit(committer, spread_spans(1))
        if method == "_commit":
            assert first.result(PATIENCE_S) == Receipt()
        else:
            with pytest.raises(StoreUnavailable, match="restart `legato serve`"):
                first.result(PATIENCE_S)
        committer.settle()
        with pytest.raises(StoreUnavailable, match="restart `legato serve`"):
            submit(committer, spread_spans(1, 2))
        with pytest.raises(StoreUnavailable, match="restart `legato serve`"):
            committer.expect_accepting()
        assert count(committer, "errors_total", "commit", "MemoryError") == 1
        if method == "_logged":
            # One that came past the check before.
            assert committer._log_writer is not None
            later = Waiting.of(span_rows(spread_spans(1, 3)), RECEIVED_NS, Entry(body_of(spread_spans(1, 3))))
            committer._log_writer.put(later)
            assert isinstance(later.future.exception(PATIENCE_S), StoreUnavailable)
    assert len(pending(tmp_path)) == 1


def test_a_broken_log_stays_known_after_an_insert_that_ran_meanwhile(
    store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The insert that ends well clears the error of inserts, but not that of the thread that has ended."""
    double = StoreDouble(store)
    with logging_to(tmp_path, double) as committer:
        double.gate.clear()
        submit(committer, spread_spans(1)).result(PATIENCE_S)
        until(lambda: committer._inserting)
        committer._break_off(MemoryError(), ())
        double.gate.set()
        until(lambda: len(streams(store)) == 1 and committer._now.is_finished("*", 1))
        committer.settle()
        with pytest.raises(StoreUnavailable, match="restart `legato serve`"):
            committer.expect_accepting()


def test_the_queue_is_limited_by_rows_and_bodies(store: Store, tmp_path: pathlib.Path) -> None:
    """Beyond the limit a request is refused before it reaches the log."""
    double, sent = StoreDouble(store), [spread_spans(5, seed) for seed in range(20)]
    size = span_rows(sent[0]).nbytes + len(sent[0].SerializeToString())
    accepted, refused = [], 0
    with logging_to(tmp_path, double, queue_bytes_max=4 * size) as committer:
        double.gate.clear()
        for each in sent:
            try:
                accepted.append(submit(committer, each))
            except Overloaded:
                refused += 1
        assert refused >= 14 and count(committer, "queue_bytes") <= 4 * size
        for future in accepted:
            assert future.result(PATIENCE_S) == Receipt()
        assert len(pending(tmp_path)) == len(accepted) >= 3
        double.gate.set()
    assert len(streams(store)) == 5 * len(accepted)


def test_many_senders_at_once(store: Store, tmp_path: pathlib.Path) -> None:
    """Threads submit while others settle: all is stored once, nothing is left in the log, and the count of waiting bytes is 0."""
    sent = [spread_spans(1, seed) for seed in range(120)]
    with logging_to(tmp_path, store) as committer:

        def send(part: list[ExportTraceServiceRequest]) -> None:
            for each in part:
                submit(committer, each).result(PATIENCE_S)
                if each is part[-1] or len(each.SerializeToString()) % 5 == 0:
                    committer.settle()

        threads = [threading.Thread(target=send, args=(sent[number::6],)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert len(streams(store)) == 120
        assert count(committer, "queue_bytes") == 0
    assert pending(tmp_path) == []
