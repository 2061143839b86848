"""Inserts of groups: deduplication of streams and samples, and rows that the store refuses."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.builders.points import point_requests
from helpers.builders.spans import SECOND_NS, native_span, request, scope_of, steady_timeline
from helpers.dashboards.tables import rejected, requests_of_one_span, streams
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
from legato_ingest.errors import StoreRefused
from legato_ingest.storage import Store
from legato_ingest.write.committer import Receipt


def with_snapshots(body: ExportTraceServiceRequest, revs: int = 3) -> list[ExportTraceServiceRequest]:
    """Return a request for each snapshot of each stream in the body. The spans of the body become the last rev."""
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


def refuse(*spans: bytes) -> Callable[[str, pa.Table], None]:
    """Return a function for ``StoreDouble.before`` that refuses inserts with one of these spans."""

    def before(table: str, rows: pa.Table) -> None:
        if table == "stream_revs" and set(spans) & set(rows["span_id"].to_pylist()):
            raise StoreRefused("Code: 6. DB::Exception: cannot", 6)

    return before


def test_duplicates_within_a_group_are_stored_once(store: Store) -> None:
    """The same span is sent twice in a request, and in several requests of one insert."""
    double, body = StoreDouble(store), spread_spans(2)
    scope_of(body).spans.append(scope_of(body).spans[0])
    with committing(double) as committer:
        double.gate.clear()
        first = committer.submit(span_rows(spread_spans(1, seed=9)))
        wait_until_taken(committer)
        waiting = [committer.submit(span_rows(body)) for _ in range(3)]
        double.gate.set()
        assert first.result(PATIENCE_S) == Receipt()
        assert [future.result(PATIENCE_S) for future in waiting] == [Receipt()] * 3
        assert count(committer, "duplicate_spans") == 7
    assert store.select("SELECT count() FROM stream_revs") == [(3,)]
    assert [rows for table, rows in double.inserts if table == "stream_revs"] == [1, 2]


def test_a_repeated_batch_changes_no_row(store: Store) -> None:
    """It is sent three more times, and once more to a new committer: nothing is inserted again."""
    body = spread_spans(40)
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
def test_repeated_divided_and_shuffled_requests_change_no_row(store: Store, seed: int) -> None:
    """The tables are equal whether spans and snapshots are sent once in order, or shuffled, twice, and in other requests."""
    body = spread_spans(12, seed=100)
    snapshots = with_snapshots(body)
    with committing(store) as committer:
        send(committer, *snapshots)
        send(committer, body)
    expected = streams(store)
    assert len(expected) == 12 and {row["rev"] for row in expected} == {3} and {row["outcome"] for row in expected} == {"complete"}

    store.command("TRUNCATE TABLE stream_revs")
    bodies = [*snapshots, body, *requests_of_one_span(body)] * 2
    random.Random(seed).shuffle(bodies)
    with committing(store, chunks_max=random.Random(seed).choice([1, 100, 10**6])) as committer:
        while bodies:
            now, bodies = bodies[:9], bodies[9:]
            send(committer, *now)
    assert streams(store) == expected


def test_a_late_snapshot_does_not_replace_the_end(store: Store) -> None:
    """The highest rev counts, for any order of arrival."""
    body = spread_spans(1)
    snapshots = with_snapshots(body)
    with committing(store) as committer:
        send(committer, body)
        before = streams(store)
        send(committer, *reversed(snapshots))
    assert streams(store) == before


def test_streams_of_two_tenants_are_separate(store: Store) -> None:
    """The same span of another tenant is another row."""
    body = spread_spans(1)
    with committing(store) as committer:
        for tenant in ("", "a", "it's\\ b", "a"):
            committer.submit(span_rows(body, tenant)).result(PATIENCE_S)
    assert [row["tenant"] for row in streams(store)] == ["", "a", "it's\\ b"]


@pytest.mark.parametrize("at", [0, 1, 6, 12])
def test_a_refused_row_does_not_affect_others(store: Store, at: int) -> None:
    """It is rejected; the other rows of the request and the group are stored; only the receipt of its request has it."""
    double, body, other = StoreDouble(store), spread_spans(13), spread_spans(5, seed=2)
    bad = scope_of(body).spans[at]
    double.before = refuse(bad.span_id)
    with committing(double) as committer:
        assert send(committer, other, body, spread_spans(2, seed=3)) == [Receipt(), Receipt(1, ["store_refused"]), Receipt()]
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


def test_a_refused_row_is_rejected_once(store: Store) -> None:
    """It is refused again in each retry and in the same group, and `rejected` has one row."""
    double, body, others, refusal = StoreDouble(store), spread_spans(4), spread_spans(2, seed=7), Receipt(1, ["store_refused"])
    double.before = refuse(scope_of(body).spans[2].span_id)
    with committing(double) as committer:
        for _ in range(3):
            assert send(committer, body, others, body) == [refusal, Receipt(), refusal]
    assert len(streams(store)) == 5 and len(rejected(store)) == 1


def test_a_request_of_refused_rows_is_rejected_completely(store: Store) -> None:
    """Every span has a row of `rejected`."""
    double, body = StoreDouble(store), spread_spans(9)
    double.before = refuse(*(span.span_id for span in scope_of(body).spans))
    with committing(double) as committer:
        (receipt,) = send(committer, body)
    assert receipt.rejected == 9 and len(rejected(store)) == 9 and not streams(store)


def test_rejections_of_the_decoder_are_stored_and_reported(store: Store) -> None:
    """A bad timeline is a row of `rejected` with its reason in the receipt; the other spans are stored."""
    body = spread_spans(2)
    native_span(body, {"legato.stream.timeline": b"\x09"})
    with committing(store) as committer:
        assert send(committer, body, body) == [Receipt(1, ["timeline"])] * 2
    assert len(streams(store)) == 2 and [row["reason"] for row in rejected(store)] == ["timeline"]


def test_a_retry_of_rejected_spans_adds_no_rejection(store: Store) -> None:
    """The same bad span is sent three times and is one row of `rejected`."""
    body = spread_spans(2)
    scope_of(body).spans[0].end_time_unix_nano = 1
    with committing(StoreDouble(store)) as committer:
        for _ in range(3):
            assert committer.submit(span_rows(body)).result(PATIENCE_S).rejected == 1
    assert store.select("SELECT count() FROM rejected") == [(1,)]


@pytest.mark.parametrize("seed", range(3))
def test_repeated_or_divided_samples_are_stored_once(store: Store, seed: int) -> None:
    """For any division, order and grouping, and with a new committer, the table is that of one request."""
    body = scrapes()
    with committing(store) as committer:
        assert committer.submit(point_rows(body)).result(PATIENCE_S) == Receipt()
    expected = stored_samples(store)
    assert len(expected) == 20
    bodies = [body, *point_requests(body)] * 2
    random.Random(seed).shuffle(bodies)
    for truncate in (False, True):
        if truncate:
            store.command("TRUNCATE TABLE node_samples")
        with committing(store, chunks_max=random.Random(seed).choice([1, 10**6])) as committer:
            for future in [committer.submit(point_rows(each)) for each in bodies]:
                assert future.result(PATIENCE_S) == Receipt()
            registry = committer._metrics.registry
            stored, duplicates = (registry.get_sample_value("legato_points_total", {"outcome": name}) for name in ("stored", "duplicate"))
            assert (stored, duplicates) == ((20, 60) if truncate else (0, 80))
        assert stored_samples(store) == expected


def test_samples_of_two_tenants_are_separate(store: Store) -> None:
    """The same point of another tenant is another row."""
    with committing(store) as committer:
        for tenant in ("", "a", "it's\\ b", "a"):
            committer.submit(point_rows(scrapes(1), tenant)).result(PATIENCE_S)
    assert store.select("SELECT tenant, count() FROM node_samples GROUP BY tenant ORDER BY tenant") == [("", 4), ("a", 4), ("it's\\ b", 4)]


@pytest.mark.parametrize("at", [0, 9, 19])
def test_a_refused_sample_does_not_affect_others(store: Store, at: int) -> None:
    """Other samples and streams of the group are stored; its own receipt has it; a retry is the same row of `rejected`."""
    # Built once, because the times of spans depend on the present second.
    double, body, others, spans = StoreDouble(store), scrapes(), scrapes(1, 7), spread_spans(2)
    bad = point_rows(body).samples.slice(at, 1)

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
            futures = [committer.submit(batch) for batch in (span_rows(spans), point_rows(body), point_rows(others))]
            double.gate.set()
            assert [future.result(PATIENCE_S) for future in futures] == [Receipt(), Receipt(1, ["store_refused"]), Receipt()]
        assert committer._metrics.registry.get_sample_value("legato_rejected_points_total", {"reason": "store_refused"}) == 2
    assert len(stored_samples(store)) == 23 and len(streams(store)) == 2
    (row,) = rejected(store)
    assert row["reason"] == "store_refused" and row["detail"] == f"metric {bad['metric'][0].as_py()!r}: ClickHouse error 6"
