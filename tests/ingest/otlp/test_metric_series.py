"""Series of data points: their identity, attributes as text, and the cost of a resource with too many attributes."""

from __future__ import annotations

import time
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from helpers.builders.points import ENGINE, gauge, metrics_request, total
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.convert import convert_points

NOW_NS = time.time_ns()


def rows(body: ExportMetricsServiceRequest) -> Batch:
    """Return the rows of a request that arrives now."""
    return convert_points(body, tenant="", now_ns=NOW_NS, limits=Limits())


def series(body: ExportMetricsServiceRequest) -> list[int]:
    """Return the series of the points of a request."""
    batch = rows(body)
    assert batch.rejected.num_rows == 0
    return list(batch.samples["series"].to_pylist())


def test_a_series_is_identified_by_all_its_attributes() -> None:
    """Every part of its identity counts, including text that the row cuts and keys that the row merges; time and value do not."""
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
    """Attributes are a set, and of equal keys the last counts; time and value are not part of the identity."""
    body = metrics_request()
    gauge(body, "x", 1, NOW_NS, attributes={"a": "1", "b": "2"})
    gauge(body, "x", 2.5, NOW_NS - 1, attributes={"b": "2", "a": "1"})
    twice = gauge(body, "x", 3, NOW_NS, attributes={"a": "0", "b": "2", "c": "1"})
    twice.attributes[2].key = "a"
    assert len(set(series(body))) == 1


def test_a_series_is_the_same_in_every_version() -> None:
    """The hash is stored: if it changed, a retry across an update would be stored twice."""
    body = metrics_request()
    gauge(body, "hw.gpu.utilization", 0.5, NOW_NS, attributes={"hw.id": "GPU-1", "größe": "ü"})
    assert series(body) == [14260823092566639914]


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (7, "7"), (0.1, "0.1"), (b"\x00\xff", "AP8="), (["a", 1, b"x"], '["a",1,"eA=="]'), ("", "")],
)
def test_every_type_of_attribute_has_a_text(value: Any, text: str) -> None:
    """Resources hold arrays, such as the arguments of a command. They are no reason to reject a point."""
    body = metrics_request({"key": value})
    gauge(body, "a", 1, NOW_NS)
    (row,) = rows(body).samples.to_pylist()
    assert dict(row["attributes"]) == {"key": text}


def test_a_rejected_resource_is_cheap() -> None:
    """With thousands of attributes and scopes, its points are rejected in 2 s of processor time, and the rejections name the service."""
    body = metrics_request({**{f"key-{i}": "x" for i in range(5_000)}, "service.name": "large"})
    for number in range(2_000):
        body.resource_metrics[0].scope_metrics.add().metrics.add(name="a").gauge.data_points.add(time_unix_nano=NOW_NS, as_int=number)
    started = time.process_time()
    batch = rows(body)
    assert time.process_time() - started < 2
    assert set(batch.rejected["reason"].to_pylist()) == {"attribute"} and batch.rejected_items == 2_000
    assert set(batch.rejected["service_name"].to_pylist()) == {"large"}
