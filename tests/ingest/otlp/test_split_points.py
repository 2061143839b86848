"""The request splitter on metrics: equal rows with and without splitting, and faults that affect one point or one metric only."""

from __future__ import annotations

import resource
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from helpers.builders.converted import convert_body
from helpers.builders.points import gauge, histogram, metrics_request, total
from legato_ingest.errors import BadRequest, TooLarge
from legato_ingest.otlp import bodies, split
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.convert import convert_points
from legato_ingest.otlp.protobuf import message
from legato_ingest.otlp.signals import POINTS, Signal

NOW_NS = time.time_ns()
MIB = 2**20
# Six times as many items as are accepted, in more bytes than a body that is parsed at once.
MANY = 3 * MIB // 2


def batch(content: bytes, faults: list[Exception] | None = None, limits: Limits | None = None, signal: Signal = POINTS) -> Batch:
    """Return the rows of a body received at ``NOW_NS``; exceptions of Legato's own code are appended to ``faults``."""
    on_fault = faults.append if faults is not None else lambda error: pytest.fail(f"fault: {error!r}")
    return convert_body(content, tenant="", now_ns=NOW_NS, limits=limits or Limits(), on_fault=on_fault, signal=signal)


def nested(content: bytes) -> bytes:
    """Return a request with these bytes as the metrics of one scope of one resource."""
    return message(1, message(2, content))


def metrics_of(engines: int, metrics: int) -> ExportMetricsServiceRequest:
    """Return a request of several resources, each with metrics of every supported kind and one point that is rejected."""
    body = ExportMetricsServiceRequest()
    for number in range(engines):
        part = metrics_request({"legato.engine.id": f"engine-{number}"})
        for each in range(metrics):
            gauge(part, f"gauge-{each:03}", each, NOW_NS - each, attributes={"n": f"point-{number}-{each:03}"})
            total(part, f"sum-{each:03}", 0.5, NOW_NS - each).CopyFrom(total(part, f"sum-{each:03}", 1.5, NOW_NS - each))
            histogram(part, f"histogram-{each:03}", [1, 2], [each, 2, 3], NOW_NS - each)
        gauge(part, "late", 1, 0)
        body.resource_metrics.extend(part.resource_metrics)
    return body


@pytest.mark.parametrize("items_max", [1, 3, 1000])
def test_a_split_body_has_the_rows_of_the_request(monkeypatch: pytest.MonkeyPatch, items_max: int) -> None:
    """Engines, kinds, temporalities, rejections and counts are those of the request without splitting, in its order."""
    monkeypatch.setattr(bodies, "UNSPLIT_BYTES_MAX", 0)
    monkeypatch.setattr(split, "_GROUP_ITEMS_MAX", items_max)
    body = metrics_of(3, 4)
    expected = convert_points(body, tenant="", now_ns=NOW_NS, limits=Limits())
    found = batch(body.SerializeToString())
    assert found.samples.combine_chunks().equals(expected.samples.combine_chunks()) and found.rejected.equals(expected.rejected)
    assert (found.points, found.ignored, found.spans) == (expected.points, expected.ignored, 0) == (51, 0, 0)


def test_splitting_does_not_multiply_the_budget_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget holds for the request and not for each part."""
    body = metrics_request({"label": "x" * 1000})
    for number in range(100):
        gauge(body, "a", number, NOW_NS - number)
    monkeypatch.setattr(bodies, "UNSPLIT_BYTES_MAX", 0)
    monkeypatch.setattr(split, "_GROUP_ITEMS_MAX", 7)
    found = batch(body.SerializeToString(), limits=Limits(row_bytes_max=22_000))
    assert found.samples.num_rows == 20 and found.rejected["reason"].to_pylist() == ["budget"] * 80


@pytest.mark.parametrize("at", [0, 7, 19])
def test_a_point_that_is_not_utf8_is_rejected_alone(at: int) -> None:
    """All other points are stored, also those of its metric; the rejection names the metric."""
    body = metrics_of(1, 20)
    content = body.SerializeToString().replace(f"point-0-{at:03}".encode(), b"\xff" * 11)
    found = batch(content)
    assert found.samples.num_rows == 79 and found.points == 81
    assert sorted(found.rejected["reason"].to_pylist()) == ["protobuf", "time"]
    (row,) = [row for row in found.rejected.to_pylist() if row["reason"] == "protobuf"]
    assert row["detail"].startswith(f"metric 'gauge-{at:03}': not valid protobuf")
    again = batch(content).rejected.to_pylist()
    assert row["span_sha256"] in [each["span_sha256"] for each in again]


def test_a_fault_inside_legato_rejects_the_point_that_caused_it() -> None:
    """It is rejected as `internal` and reported, as with spans."""

    def failing(body: ExportMetricsServiceRequest, **more: object) -> Batch:
        out = convert_points(body, **more)  # type: ignore[arg-type]
        if 3 in out.samples["value"].to_pylist():
            raise IndexError("poison")
        return out

    body, faults = metrics_request(), list[Exception]()
    for number in range(9):
        gauge(body, "a", number, NOW_NS)
    found = batch(body.SerializeToString(), faults, signal=replace(POINTS, convert=failing))
    assert found.samples["value"].to_pylist() == [0, 1, 2, 4, 5, 6, 7, 8] and [repr(fault) for fault in faults] == ["IndexError('poison')"]
    assert found.rejected["reason"].to_pylist() == ["internal"] and found.points == 9


def metric_of(content: bytes) -> bytes:
    """Return a request with these bytes as the only metric."""
    return nested(message(2, content))


@pytest.mark.parametrize("reason", ["protobuf", "size"])
def test_a_metric_that_cannot_be_split_is_one_rejection(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    """A truncated metric, or one with a very long name in a large body, is rejected as one item; the other metrics are stored."""
    monkeypatch.setattr(bodies, "UNSPLIT_BYTES_MAX", 0)
    body = metrics_request({})
    for name in ("first", "n" * 300_000, "last"):
        gauge(body, name, 1, NOW_NS)
    first, bad, last = (metric.SerializeToString() for metric in body.resource_metrics[0].scope_metrics[0].metrics)
    found = batch(nested(b"".join(message(2, each) for each in (first, bad if reason == "size" else first[:-2], last))))
    assert found.samples["metric"].to_pylist() == ["first", "last"]
    assert found.rejected["reason"].to_pylist() == [reason] and found.points == 3
    assert len(found.rejected["detail"][0].as_py()) < 400


@pytest.mark.parametrize(
    "content",
    [
        metric_of(message(5, b"\x0a\x00" * MANY)),
        nested(b"\x12\x00" * MANY),
        metric_of(b"\x2a\x00" * MANY),
        pytest.param(nested(b"\x12\x00" * (8 * MIB)), marks=pytest.mark.long),
    ],
    ids=["points", "metrics", "gauges", "16 MiB of metrics"],
)
def test_a_body_with_too_many_points_is_too_large(content: bytes) -> None:
    """It is refused after a bounded walk, before it is parsed."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TooLarge):
        batch(content)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 250_000


@given(st.binary(max_size=200))
def test_any_bytes_become_rows_or_a_bad_request(content: bytes) -> None:
    """Any bytes as a body, as a metric, as its data and as a point."""
    point = message(1, content)
    for body in (content, nested(content), metric_of(content), *(metric_of(message(kind, point)) for kind in (5, 7, 9, 10, 11))):
        try:
            found = batch(body)
        except BadRequest:
            continue
        assert found.points == found.samples.num_rows + found.rejected.num_rows + found.ignored


@given(st.data())
def test_a_changed_byte_in_a_point_affects_that_point_only(data: st.DataObject) -> None:
    """For any byte of any point of one metric, every other point is stored."""
    body = metrics_request()
    kind = data.draw(st.sampled_from(["gauge", "sum", "histogram"]))
    for number in range(4):
        add = {"gauge": gauge, "sum": total}.get(kind)
        add(body, "a", number, NOW_NS, attributes={"n": number}) if add else histogram(body, "a", [1], [number, 2], NOW_NS - number)
    metrics = body.resource_metrics[0].scope_metrics[0].metrics
    points = [getattr(metric, kind).data_points[0].SerializeToString() for metric in metrics]
    at = data.draw(st.integers(0, 3))
    raw = bytearray(points[at])
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    parts = b"".join(message(1, bytes(raw) if number == at else point) for number, point in enumerate(points))
    field = {"gauge": 5, "sum": 7, "histogram": 9}[kind]
    found = batch(metric_of(message(1, b"a") + message(field, parts)))
    assert found.points == 4 and found.samples.num_rows + found.ignored >= 3
    column = "value" if kind != "histogram" else "count"
    kept = {row[column] for row in found.samples.to_pylist()}
    assert {number + 2 * (kind == "histogram") for number in range(4) if number != at} <= kept


@given(st.data())
def test_a_changed_byte_in_a_metric_affects_that_metric_only(data: st.DataObject) -> None:
    """For any byte of any metric, the points of all other metrics are stored."""
    body = metrics_request()
    gauge(body, "a", 1, NOW_NS)
    total(body, "b", 1, NOW_NS)
    histogram(body, "c", [1], [1, 2], NOW_NS)
    metrics = [metric.SerializeToString() for metric in body.resource_metrics[0].scope_metrics[0].metrics]
    at = data.draw(st.integers(0, 2))
    raw = bytearray(metrics[at])
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    parts = [bytes(raw) if number == at else metric for number, metric in enumerate(metrics)]
    found = batch(nested(b"".join(message(2, part) for part in parts)))
    assert {name for number, name in enumerate("abc") if number != at} <= set(found.samples["metric"].to_pylist())
