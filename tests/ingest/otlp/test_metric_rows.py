"""Rows of samples: the columns, retention, the budget of attributes, and the same rows for any division into requests."""

from __future__ import annotations

import time

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from helpers.builders.points import gauge, histogram, metrics_request, point_requests, total
from legato_ingest.columns import NODE_SAMPLES
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.convert import convert_points

NOW_NS = time.time_ns()


def rows(body: ExportMetricsServiceRequest, **limits: int) -> Batch:
    """Return the rows of a request that arrives now."""
    return convert_points(body, tenant="", now_ns=NOW_NS, limits=Limits(**limits))


def test_rows_have_the_declared_columns() -> None:
    """With points and without."""
    body = metrics_request()
    assert rows(body).samples.schema == NODE_SAMPLES.schema
    gauge(body, "a", 1, NOW_NS)
    assert rows(body).samples.schema == NODE_SAMPLES.schema


def test_retention_zero_accepts_any_time() -> None:
    """Benchmarks and backfills use it."""
    body = metrics_request()
    gauge(body, "a", 1, 1)
    gauge(body, "a", 1, 2**63 - 1)
    assert rows(body, retention_days=0).samples.num_rows == 2


def test_the_attributes_of_a_request_have_a_budget() -> None:
    """Thousands of points may share a resource of kilobytes: points beyond the budget are rejected before memory is used for them."""
    body = metrics_request({f"label-{i}": "x" * 1000 for i in range(100)})
    for number in range(300):
        gauge(body, "a", number, NOW_NS - number, attributes={"n": number})
    batch = rows(body, row_bytes_max=4 * 2**20)
    assert 38 <= batch.samples.num_rows <= 42 and batch.samples.nbytes < 5 * 2**20
    assert set(batch.rejected["reason"].to_pylist()) == {"budget"} and batch.points == 300
    assert batch.samples.num_rows + batch.rejected.num_rows == 300


def test_points_sent_one_by_one_have_the_same_rows() -> None:
    """For any division of a request, the rows are the same."""
    body = metrics_request()
    for number in range(5):
        gauge(body, "a", number, NOW_NS - number, attributes={"n": number})
        total(body, "b", number, NOW_NS - number)
        histogram(body, "c", [1], [number, 2], NOW_NS - number)
    parts = Batch.joined(rows(one) for one in point_requests(body))
    assert parts.samples.combine_chunks().equals(rows(body).samples.combine_chunks()) and parts.points == 15
