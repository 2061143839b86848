"""From data points to rows: every kind that is taken, every refusal, and that one bad point costs nobody else."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from helpers.builders.points import ENGINE, gauge, histogram, metrics_request, point_requests, total
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.convert import convert_points
from legato_ingest.otlp.metric_points import BOUNDS_MAX
from legato_ingest.otlp.metric_series import ATTRIBUTES_MAX

NOW_NS = time.time_ns()
SECOND_NS = 1_000_000_000
DAY_NS = 86_400 * SECOND_NS


def rows(body: ExportMetricsServiceRequest, **limits: int) -> Batch:
    """The rows of a body that arrives now."""
    return convert_points(body, tenant="", now_ns=NOW_NS, limits=Limits(**limits))


def only(body: ExportMetricsServiceRequest, **limits: int) -> dict[str, Any]:
    """The only row of a body."""
    (row,) = rows(body, **limits).samples.to_pylist()
    return {**row, "attributes": dict(row["attributes"])}


def test_a_gauge_is_a_row() -> None:
    """Its value, its metric, whose it is, when."""
    body = metrics_request({**ENGINE, "host.id": "i-0abc", "service.name": "node"})
    gauge(body, "hw.gpu.utilization", 0.75, NOW_NS, attributes={"hw.id": "GPU-1", "n": 7, "up": True, "x": 0.5}, unit="1")
    row = only(body)
    assert (row["metric"], row["kind"], row["value"], row["unit"]) == ("hw.gpu.utilization", "gauge", 0.75, "1")
    assert (row["engine_id"], row["host"], row["tenant"]) == ("node-1:8000", "node-1", "")
    assert row["recorded_at"].value == NOW_NS and row["start_time"] is None
    assert (row["temporality"], row["monotonic"], row["count"], row["sum"], row["bounds"]) == ("", False, None, None, [])
    assert row["attributes"] == {
        **{"legato.engine.id": "node-1:8000", "host.name": "node-1", "host.id": "i-0abc", "service.name": "node"},
        **{"hw.id": "GPU-1", "n": "7", "up": "true", "x": "0.5"},
    }


@pytest.mark.parametrize(("number", "name"), [(0, "unspecified"), (1, "delta"), (2, "cumulative"), (9, "unspecified")])
def test_a_sum_says_since_when_and_how_it_counts(number: int, name: str) -> None:
    """Whole numbers and others, monotonic or not."""
    body = metrics_request()
    total(body, "system.cpu.time", 1234, NOW_NS, start_time_unix_nano=NOW_NS - SECOND_NS, temporality=number, monotonic=number == 2)
    row = only(body)
    assert (row["kind"], row["value"], row["temporality"], row["monotonic"]) == ("sum", 1234.0, name, number == 2)
    assert row["start_time"].value == NOW_NS - SECOND_NS


def test_a_histogram_keeps_its_buckets() -> None:
    """Count, sum and both arrays; no value. A sum that is not said is unknown, not 0; buckets may be missing."""
    body = metrics_request()
    histogram(body, "vllm:inter_token_latency_seconds", [0.01, 0.025, 0.05], [1, 2, 3, 4], NOW_NS, attributes={"engine": "0"})
    gauge(body, "between", 1, NOW_NS)
    histogram(body, "bare", [], [], NOW_NS, count=5).ClearField("sum")
    first, _, last = rows(body).samples.to_pylist()
    assert (first["kind"], first["value"], first["count"], first["sum"]) == ("histogram", None, 10, 1.5)
    assert (first["bounds"], first["bucket_counts"], first["temporality"]) == ([0.01, 0.025, 0.05], [1, 2, 3, 4], "cumulative")
    assert (last["count"], last["sum"], last["bounds"], last["bucket_counts"]) == (5, None, [], [])


def test_a_point_without_a_recorded_value_is_taken_and_not_stored() -> None:
    """It says that its series has ended: nothing is wrong with it, and there is nothing to keep."""
    body = metrics_request()
    gauge(body, "a", None, NOW_NS, flags=1)
    gauge(body, "b", math.nan, NOW_NS, flags=1)
    gauge(body, "c", 2, NOW_NS)
    batch = rows(body)
    assert (batch.points, batch.ignored, batch.samples.num_rows, batch.rejected.num_rows) == (3, 2, 1, 0)


def set_exponential(body: ExportMetricsServiceRequest) -> None:
    """A histogram whose buckets have no bounds of their own."""
    metric = body.resource_metrics[0].scope_metrics[0].metrics.add(name="bad")
    metric.exponential_histogram.data_points.add(time_unix_nano=NOW_NS, count=3)


def set_summary(body: ExportMetricsServiceRequest) -> None:
    """Quantiles."""
    body.resource_metrics[0].scope_metrics[0].metrics.add(name="bad").summary.data_points.add(time_unix_nano=NOW_NS, count=3)


BAD: dict[str, tuple[str, Callable[[ExportMetricsServiceRequest], Any]]] = {
    "exponential": ("kind", set_exponential),
    "summary": ("kind", set_summary),
    "no name": ("metric", lambda body: gauge(body, "", 1, NOW_NS)),
    "endless name": ("metric", lambda body: gauge(body, "n" * 1025, 1, NOW_NS)),
    "endless unit": ("metric", lambda body: gauge(body, "bad", 1, NOW_NS, unit="n" * 1025)),
    "NaN": ("value", lambda body: gauge(body, "bad", math.nan, NOW_NS)),
    "infinite": ("value", lambda body: total(body, "bad", -math.inf, NOW_NS)),
    "no value": ("value", lambda body: gauge(body, "bad", None, NOW_NS)),
    "no time": ("time", lambda body: gauge(body, "bad", 1, 0)),
    "beyond 2262": ("time", lambda body: gauge(body, "bad", 1, 2**63)),
    "before its start": ("time", lambda body: total(body, "bad", 1, NOW_NS, start_time_unix_nano=NOW_NS + 1)),
    "old": ("retention", lambda body: gauge(body, "bad", 1, NOW_NS - 91 * DAY_NS)),
    "next week": ("retention", lambda body: gauge(body, "bad", 1, NOW_NS + 7 * DAY_NS)),
    "many attributes": ("attribute", lambda body: gauge(body, "bad", 1, NOW_NS, attributes={f"k{i}": i for i in range(ATTRIBUTES_MAX)})),
    "endless key": ("attribute", lambda body: gauge(body, "bad", 1, NOW_NS, attributes={"k" * 1025: "secret"})),
    "too few counts": ("value", lambda body: histogram(body, "bad", [1, 2], [1, 2], NOW_NS)),
    "too many counts": ("value", lambda body: histogram(body, "bad", [1, 2], [1, 2, 3, 4], NOW_NS)),
    "bounds alone": ("value", lambda body: histogram(body, "bad", [1], [], NOW_NS)),
    "falling bounds": ("value", lambda body: histogram(body, "bad", [2, 1], [1, 2, 3], NOW_NS)),
    "equal bounds": ("value", lambda body: histogram(body, "bad", [1, 1], [1, 2, 3], NOW_NS)),
    "bound NaN": ("value", lambda body: histogram(body, "bad", [math.nan], [1, 2], NOW_NS)),
    "bound infinite": ("value", lambda body: histogram(body, "bad", [1, math.inf], [1, 2, 3], NOW_NS)),
    "negative count": ("value", lambda body: histogram(body, "bad", [1], [2**64 - 1, 2], NOW_NS, count=1)),
    "count of others": ("value", lambda body: histogram(body, "bad", [1], [1, 2], NOW_NS, count=4)),
    "huge count": ("value", lambda body: histogram(body, "bad", [], [], NOW_NS, count=2**63)),
    "sum NaN": ("value", lambda body: histogram(body, "bad", [1], [1, 2], NOW_NS, sum=math.nan)),
    "many bounds": ("value", lambda body: histogram(body, "bad", range(BOUNDS_MAX + 1), [0] * (BOUNDS_MAX + 2), NOW_NS)),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_point_is_rejected_alone(case: str) -> None:
    """By name and kind and never by value; the points before and after it are stored, in their own order."""
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


def test_the_largest_of_everything_is_taken() -> None:
    """One name, unit, key, attribute or bound fewer than in the cases above; long texts are cut in the row."""
    body = metrics_request({})
    attributes = {f"k{i}": i for i in range(ATTRIBUTES_MAX - 2)} | {"k" * 1024: "v", "long": "x" * 5_000}
    gauge(body, "n" * 1024, 1, NOW_NS, unit="u" * 1024, attributes=attributes)
    histogram(body, "many", range(BOUNDS_MAX), [1] * (BOUNDS_MAX + 1), NOW_NS)
    batch = rows(body)
    assert batch.rejected.num_rows == 0
    kept = dict(batch.samples.to_pylist()[0]["attributes"])
    assert len(kept) == ATTRIBUTES_MAX and kept["long"] == "x" * 1024


def test_retention_zero_takes_any_time() -> None:
    """Benches and backfills."""
    body = metrics_request()
    gauge(body, "a", 1, 1)
    gauge(body, "a", 1, 2**63 - 1)
    assert rows(body, retention_days=0).samples.num_rows == 2


def test_the_attributes_of_a_request_have_a_budget() -> None:
    """A resource of kilobytes under thousands of points: what goes beyond is rejected, before memory is."""
    body = metrics_request({f"label-{i}": "x" * 1000 for i in range(100)})
    for number in range(300):
        gauge(body, "a", number, NOW_NS - number, attributes={"n": number})
    batch = rows(body, attribute_bytes_per_request_max=10 * 2**20)
    assert 95 <= batch.samples.num_rows <= 105 and batch.samples.nbytes < 12 * 2**20
    assert set(batch.rejected["reason"].to_pylist()) == {"budget"} and batch.points == 300
    assert batch.samples.num_rows + batch.rejected.num_rows == 300


def test_a_refused_metric_is_one_rejection_however_often_it_comes() -> None:
    """An exporter of the wrong kind sends it every second: the rows have one key, the count is of the points."""
    body = metrics_request()
    metric = body.resource_metrics[0].scope_metrics[0].metrics.add(name="bad")
    for age in range(3):
        metric.exponential_histogram.data_points.add(time_unix_nano=NOW_NS - age, count=age)
    batch = rows(body)
    assert batch.points == batch.rejected.num_rows == 3 and len(set(batch.rejected["span_sha256"].to_pylist())) == 1


def series(body: ExportMetricsServiceRequest) -> list[int]:
    """The series of a body's points."""
    batch = rows(body)
    assert batch.rejected.num_rows == 0
    return list(batch.samples["series"].to_pylist())


def test_a_series_is_the_whole_set_of_attributes() -> None:
    """Every part of its name tells it from the others, also what the row cuts or keeps in one map; time and value do not."""
    bodies = [metrics_request(resource, scope) for resource in (ENGINE, {"host.name": "node-1"}) for scope in ("a", "b")]
    for body in bodies:
        for name in ("x", "y"):
            for attributes in (
                {},
                {"a": "1", "b": "2"},
                {"a": "12", "b": ""},
                {"a": "x" * 2000},
                {"a": "x" * 2001},
                {"host.name": "node-1"},
            ):
                gauge(body, name, 1, NOW_NS, attributes=attributes)
            gauge(body, name, 1, NOW_NS, unit="By")
            total(body, name, 1, NOW_NS, unit="1")
            total(body, name, 1, NOW_NS, unit="1", monotonic=False)
    found = [each for body in bodies for each in series(body)]
    assert len(set(found)) == len(found) == 4 * 2 * 9


def test_a_series_does_not_depend_on_order_or_repetition() -> None:
    """Attributes are a set; of equal keys the last counts; time and value are not part of it."""
    body = metrics_request()
    gauge(body, "x", 1, NOW_NS, attributes={"a": "1", "b": "2"})
    gauge(body, "x", 2.5, NOW_NS - 1, attributes={"b": "2", "a": "1"})
    twice = gauge(body, "x", 3, NOW_NS, attributes={"a": "0", "b": "2", "c": "1"})
    twice.attributes[2].key = "a"
    assert len(set(series(body))) == 1


def test_a_series_is_the_same_in_every_version() -> None:
    """The hash is stored: were it to change, a retry across an update would count twice."""
    body = metrics_request()
    gauge(body, "hw.gpu.utilization", 0.5, NOW_NS, attributes={"hw.id": "GPU-1", "größe": "ü"})
    assert series(body) == [14260823092566639914]


def test_points_one_by_one_are_the_rows_of_the_whole() -> None:
    """However a request is cut, the rows are the same."""
    body = metrics_request()
    for number in range(5):
        gauge(body, "a", number, NOW_NS - number, attributes={"n": number})
        total(body, "b", number, NOW_NS - number)
        histogram(body, "c", [1], [number, 2], NOW_NS - number)
    parts = Batch.joined(rows(one) for one in point_requests(body))
    assert parts.samples.combine_chunks().equals(rows(body).samples.combine_chunks()) and parts.points == 15


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (7, "7"), (0.1, "0.1"), (b"\x00\xff", "AP8="), (["a", 1, b"x"], '["a",1,"eA=="]'), ("", "")],
)
def test_every_type_of_attribute_has_a_text(value: Any, text: str) -> None:
    """Resources hold arrays (the command's arguments): they are no reason to refuse a point."""
    body = metrics_request({"key": value})
    gauge(body, "a", 1, NOW_NS)
    assert only(body)["attributes"] == {"key": text}


def test_a_resource_that_is_refused_costs_little() -> None:
    """Thousands of attributes over thousands of scopes: told at once, and what is told names the service."""
    body = metrics_request({**{f"key-{i}": "x" for i in range(5_000)}, "service.name": "large"})
    for number in range(2_000):
        body.resource_metrics[0].scope_metrics.add().metrics.add(name="a").gauge.data_points.add(time_unix_nano=NOW_NS, as_int=number)
    started = time.perf_counter()
    batch = rows(body)
    assert time.perf_counter() - started < 2
    assert set(batch.rejected["reason"].to_pylist()) == {"attribute"} and batch.rejected.num_rows == 2_000
    assert set(batch.rejected["service_name"].to_pylist()) == {"large"}
