"""Data points by kind: the fields of gauges, sums and histograms, and every reason to reject a point."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ExponentialHistogramDataPoint

from helpers.builders.points import ENGINE, gauge, histogram, metrics_request, total
from legato_ingest.otlp.batch import DAY_NS, Batch, Limits
from legato_ingest.otlp.convert import convert_points
from legato_ingest.otlp.metric_points import BOUNDS_MAX
from legato_ingest.otlp.metric_series import ATTRIBUTES_MAX

NOW_NS = time.time_ns()
SECOND_NS = 1_000_000_000


def rows(body: ExportMetricsServiceRequest, **limits: int) -> Batch:
    """Return the rows of a request that arrives now."""
    return convert_points(body, tenant="", now_ns=NOW_NS, limits=Limits(**limits))


def only(body: ExportMetricsServiceRequest) -> dict[str, Any]:
    """Return the only row of a request."""
    (row,) = rows(body).samples.to_pylist()
    return {**row, "attributes": dict(row["attributes"])}


def test_a_gauge_is_a_row() -> None:
    """With its value, metric, engine, host, time and attributes; the receive time is left to the committer."""
    body = metrics_request({**ENGINE, "host.id": "i-0abc", "service.name": "node"})
    gauge(body, "hw.gpu.utilization", 0.75, NOW_NS, attributes={"hw.id": "GPU-1", "n": 7, "up": True, "x": 0.5}, unit="1")
    row = only(body)
    assert (row["metric"], row["kind"], row["value"], row["unit"]) == ("hw.gpu.utilization", "gauge", 0.75, "1")
    assert (row["engine_id"], row["host"], row["tenant"]) == ("node-1:8000", "node-1", "")
    assert row["recorded_at"].value == NOW_NS and row["start_time"] is None and row["received_at"] is None
    assert (row["temporality"], row["monotonic"], row["count"], row["sum"], row["bounds"]) == ("", False, None, None, [])
    assert row["attributes"] == {
        **{"legato.engine.id": "node-1:8000", "host.name": "node-1", "host.id": "i-0abc", "service.name": "node"},
        **{"hw.id": "GPU-1", "n": "7", "up": "true", "x": "0.5"},
    }


@pytest.mark.parametrize(("number", "name"), [(0, "unspecified"), (1, "delta"), (2, "cumulative"), (9, "unspecified")])
def test_a_sum_has_a_start_and_a_temporality(number: int, name: str) -> None:
    """Integers are stored as floats; the sum is monotonic or not."""
    body = metrics_request()
    total(body, "system.cpu.time", 1234, NOW_NS, start_time_unix_nano=NOW_NS - SECOND_NS, temporality=number, monotonic=number == 2)
    row = only(body)
    assert (row["kind"], row["value"], row["temporality"], row["monotonic"]) == ("sum", 1234.0, name, number == 2)
    assert row["start_time"].value == NOW_NS - SECOND_NS


def test_a_histogram_keeps_its_buckets() -> None:
    """It has count, sum and both arrays, and no value. An absent sum is unknown and not 0; buckets may be absent."""
    body = metrics_request()
    histogram(body, "vllm:inter_token_latency_seconds", [0.01, 0.025, 0.05], [1, 2, 3, 4], NOW_NS, attributes={"engine": "0"})
    gauge(body, "between", 1, NOW_NS)
    histogram(body, "bare", [], [], NOW_NS, count=5).ClearField("sum")
    first, _, last = rows(body).samples.to_pylist()
    assert (first["kind"], first["value"], first["count"], first["sum"]) == ("histogram", None, 10, 1.5)
    assert (first["bounds"], first["bucket_counts"], first["temporality"]) == ([0.01, 0.025, 0.05], [1, 2, 3, 4], "cumulative")
    assert (last["count"], last["sum"], last["bounds"], last["bucket_counts"]) == (5, None, [], [])


def test_a_point_without_a_recorded_value_is_ignored() -> None:
    """The flag marks the end of a series. The point is acknowledged and not stored."""
    body = metrics_request()
    gauge(body, "a", None, NOW_NS, flags=1)
    gauge(body, "b", math.nan, NOW_NS, flags=1)
    gauge(body, "c", 2, NOW_NS)
    batch = rows(body)
    assert (batch.points, batch.ignored, batch.samples.num_rows, batch.rejected.num_rows) == (3, 2, 1, 0)


def add_exponential(body: ExportMetricsServiceRequest, name: str = "bad", count: int = 6) -> None:
    """Add an exponential histogram with the buckets (1, 2] and (2, 4], and two zeros."""
    metric = body.resource_metrics[0].scope_metrics[0].metrics.add(name=name)
    metric.exponential_histogram.aggregation_temporality = 1
    buckets = ExponentialHistogramDataPoint.Buckets(offset=0, bucket_counts=[3, 1])
    metric.exponential_histogram.data_points.add(time_unix_nano=NOW_NS, count=count, sum=7.5, zero_count=2, positive=buckets)


def test_an_exponential_histogram_becomes_one_with_bounds() -> None:
    """Kind, temporality, count and sum are those of a histogram."""
    body = metrics_request()
    add_exponential(body, "a")
    (row,) = rows(body).samples.to_pylist()
    assert (row["kind"], row["temporality"], row["count"], row["sum"]) == ("histogram", "delta", 6, 7.5)
    assert (row["bounds"], row["bucket_counts"]) == ([0.0, 1.0, 2.0, 4.0], [2, 0, 3, 1, 0])


def add_summary(body: ExportMetricsServiceRequest) -> None:
    """Add a summary, which holds quantiles."""
    body.resource_metrics[0].scope_metrics[0].metrics.add(name="bad").summary.data_points.add(time_unix_nano=NOW_NS, count=3)


BAD: dict[str, tuple[str, Callable[[ExportMetricsServiceRequest], Any]]] = {
    "exponential": ("value", lambda body: add_exponential(body, count=5)),
    "summary": ("kind", add_summary),
    "no name": ("metric", lambda body: gauge(body, "", 1, NOW_NS)),
    "long name": ("metric", lambda body: gauge(body, "n" * 1025, 1, NOW_NS)),
    "long unit": ("metric", lambda body: gauge(body, "bad", 1, NOW_NS, unit="n" * 1025)),
    "NaN": ("value", lambda body: gauge(body, "bad", math.nan, NOW_NS)),
    "infinite": ("value", lambda body: total(body, "bad", -math.inf, NOW_NS)),
    "no value": ("value", lambda body: gauge(body, "bad", None, NOW_NS)),
    "no time": ("time", lambda body: gauge(body, "bad", 1, 0)),
    "beyond 2262": ("time", lambda body: gauge(body, "bad", 1, 2**63)),
    "before its start": ("time", lambda body: total(body, "bad", 1, NOW_NS, start_time_unix_nano=NOW_NS + 1)),
    "old": ("retention", lambda body: gauge(body, "bad", 1, NOW_NS - 91 * DAY_NS)),
    "next week": ("retention", lambda body: gauge(body, "bad", 1, NOW_NS + 7 * DAY_NS)),
    "many attributes": ("attribute", lambda body: gauge(body, "bad", 1, NOW_NS, attributes={f"k{i}": i for i in range(ATTRIBUTES_MAX)})),
    "long key": ("attribute", lambda body: gauge(body, "bad", 1, NOW_NS, attributes={"k" * 1025: "secret"})),
    "too few counts": ("value", lambda body: histogram(body, "bad", [1, 2], [1, 2], NOW_NS)),
    "too many counts": ("value", lambda body: histogram(body, "bad", [1, 2], [1, 2, 3, 4], NOW_NS)),
    "only bounds": ("value", lambda body: histogram(body, "bad", [1], [], NOW_NS)),
    "falling bounds": ("value", lambda body: histogram(body, "bad", [2, 1], [1, 2, 3], NOW_NS)),
    "equal bounds": ("value", lambda body: histogram(body, "bad", [1, 1], [1, 2, 3], NOW_NS)),
    "bound NaN": ("value", lambda body: histogram(body, "bad", [math.nan], [1, 2], NOW_NS)),
    "bound infinite": ("value", lambda body: histogram(body, "bad", [1, math.inf], [1, 2, 3], NOW_NS)),
    "negative count": ("value", lambda body: histogram(body, "bad", [1], [2**64 - 1, 2], NOW_NS, count=1)),
    "other count": ("value", lambda body: histogram(body, "bad", [1], [1, 2], NOW_NS, count=4)),
    "huge count": ("value", lambda body: histogram(body, "bad", [], [], NOW_NS, count=2**63)),
    "sum NaN": ("value", lambda body: histogram(body, "bad", [1], [1, 2], NOW_NS, sum=math.nan)),
    "many bounds": ("value", lambda body: histogram(body, "bad", range(BOUNDS_MAX + 1), [0] * (BOUNDS_MAX + 2), NOW_NS)),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_point_is_rejected_alone(case: str) -> None:
    """The rejection has name and kind but no value; the points before and after it are stored in their order."""
    reason, add = BAD[case]
    body = metrics_request()
    gauge(body, "before", 1, NOW_NS)
    add(body)
    histogram(body, "after", [1], [1, 2], NOW_NS)
    batch = rows(body)
    assert batch.samples["metric"].to_pylist() == ["before", "after"] and (batch.points, batch.spans) == (3, 0)
    assert [row["count"] for row in batch.samples.to_pylist()] == [None, 3]
    (row,) = batch.rejected.to_pylist()
    assert row["reason"] == reason and row["detail"].startswith("metric '") and "secret" not in row["detail"]
    assert row["trace_id"] == bytes(16) and len(row["detail"]) < 400


def test_the_largest_allowed_values_are_stored() -> None:
    """A name, unit, key, number of attributes and of bounds at the limit are stored; long texts are cut in the row."""
    body = metrics_request({})
    attributes = {f"k{i}": i for i in range(ATTRIBUTES_MAX - 2)} | {"k" * 1024: "v", "long": "x" * 5_000}
    gauge(body, "n" * 1024, 1, NOW_NS, unit="u" * 1024, attributes=attributes)
    histogram(body, "many", range(BOUNDS_MAX), [1] * (BOUNDS_MAX + 1), NOW_NS)
    batch = rows(body)
    assert batch.rejected.num_rows == 0
    kept = dict(batch.samples.to_pylist()[0]["attributes"])
    assert len(kept) == ATTRIBUTES_MAX and kept["long"] == "x" * 1024


def test_an_unsupported_metric_is_one_rejection_for_any_number_of_points() -> None:
    """An exporter may send an unsupported kind every second: the metric has one row, and the number of rejected items counts the points."""
    body = metrics_request()
    metric = body.resource_metrics[0].scope_metrics[0].metrics.add(name="bad")
    for age in range(3):
        metric.summary.data_points.add(time_unix_nano=NOW_NS - age, count=age)
    batch = rows(body)
    assert batch.points == batch.rejected_items == 3 and batch.rejected.num_rows == 1
