"""Batches: the empty one, joining, weights, and the rows of `rejected`."""

from __future__ import annotations

from collections import Counter

import pytest

from helpers.builders.points import gauge, metrics_request
from helpers.builders.spans import SECOND_NS, native_span, request
from legato_ingest.columns import REJECTED, TABLES
from legato_ingest.otlp.batch import Batch, Limits, Rejection, rejected_row, rejected_table
from legato_ingest.otlp.convert import convert_points, convert_spans

NOW_NS = 1_795_240_000 * SECOND_NS
LIMITS = Limits()


def spans(count: int = 1) -> Batch:
    """Return the batch of a request with this many streams."""
    body = request()
    for _ in range(count):
        native_span(body, start_ns=NOW_NS)
    return convert_spans(body, tenant="shop", now_ns=NOW_NS, limits=LIMITS)


def points(count: int = 1) -> Batch:
    """Return the batch of a request with this many data points."""
    body = metrics_request()
    for number in range(count):
        gauge(body, "up", 1.0, NOW_NS - number)
    return convert_points(body, tenant="shop", now_ns=NOW_NS, limits=LIMITS)


def test_the_empty_batch_has_the_declared_columns() -> None:
    """It has each declared table that a request fills, no rows, no bytes and no weight."""
    batch = Batch()
    tables = (batch.revs, batch.sockets, batch.steps, batch.requests, batch.samples, batch.rejected)
    by_others = {"verdicts", "replays", "emitter_spans"}
    assert {table.schema for table in tables} == {table.schema for name, table in TABLES.items() if name not in by_others}
    assert sum(table.num_rows for table in tables) == batch.nbytes == batch.weight == 0


def test_names_of_senders_are_counted() -> None:
    """They are in memory as long as the rows, and may be all of a batch: a thousand names of a kilobyte."""
    names = Counter[tuple[str, ...]]({("scope", chr(0x1F600) * 256, str(number)): 1 for number in range(1_000)})
    assert 1_000_000 < Batch(senders=names).nbytes < 2_000_000
    assert Batch(senders=names, size_bytes=7).nbytes == Batch(senders=names).nbytes + 7


@pytest.mark.parametrize("batch", [spans(), spans(300), points(), points(300)])
def test_a_batch_is_measured_by_its_rows(batch: Batch) -> None:
    """As Arrow measures them, but for buffers that several columns share, and the rounding of small ones."""
    size = sum(table.nbytes for table in batch.tables)
    assert 0.75 * size <= batch.measured().size_bytes <= 1.1 * size + 200
    assert batch.measured().measured() == batch.measured()


def test_joined_batches_add_up() -> None:
    """Rows are in the order of the parts, and counts are added; without parts the batch is empty."""
    parts = [spans(2), points(3), spans(1)]
    joined = Batch.joined(parts)
    assert (joined.spans, joined.points, joined.chunks) == (3, 3, 60)
    assert joined.revs["span_id"].to_pylist() == [span for part in parts for span in part.revs["span_id"].to_pylist()]
    assert joined.samples.num_rows == 3 and joined.nbytes == sum(part.nbytes for part in parts)
    assert Batch.joined([]) == Batch()


def test_the_weight_counts_chunks_and_the_bytes_of_samples() -> None:
    """A chunk weighs 1, a stream one more, and 16 bytes of samples weigh the same."""
    assert spans(2).weight == 42
    assert points(50).weight == points(50).samples.nbytes // 16 > 0


def test_ids_of_rejections_are_cut_or_padded() -> None:
    """The ids of a bad span can have any length; those of the row have 16 and 8 bytes."""
    digest = bytes(32)
    made = [Rejection("identity", "d", 0, digest, ids, ids) for ids in (b"", b"abc", b"x" * 40)]
    table = rejected_table(made, "shop")
    assert table.schema == REJECTED.schema and table["tenant"].unique().to_pylist() == ["shop"]
    assert table["trace_id"].to_pylist() == [bytes(16), b"abc" + bytes(13), b"x" * 16]
    assert table["span_id"].to_pylist() == [bytes(8), b"abc" + bytes(5), b"x" * 8]


@pytest.mark.parametrize("kind", ["stream", "sample"])
def test_a_refused_row_becomes_a_row_of_rejected(kind: str) -> None:
    """It keeps what the refused row holds: ids and sizes of a stream, the name and time of a sample."""
    row = spans().revs if kind == "stream" else points().samples
    (made,) = rejected_row(row, "ClickHouse error 6", b"h" * 32).to_pylist()
    assert (made["tenant"], made["reason"], made["span_sha256"], made["received_at"]) == ("shop", "store_refused", b"h" * 32, None)
    assert made["start_time"].value == NOW_NS
    if kind == "stream":
        for name in ("trace_id", "span_id", "rev", "service_name", "emitter", "otlp_bytes"):
            assert made[name] == row[name][0].as_py() != ""
        assert made["detail"] == "ClickHouse error 6"
    else:
        assert (made["trace_id"], made["otlp_bytes"], made["service_name"]) == (bytes(16), 0, "")
        assert made["detail"] == "metric 'up': ClickHouse error 6"
