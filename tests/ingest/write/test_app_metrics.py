"""The OTLP endpoint for metrics: replies, refusals, counters, and points with any values."""

from __future__ import annotations

import gzip
import socket
import time
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse

from helpers.builders.points import gauge, histogram, metrics_request, total
from helpers.dashboards.tables import rejected
from helpers.platform.examples import examples
from helpers.servers.otlp import METRICS, PROTOBUF, Endpoint, StubCommitter, endpoint_over, refused
from helpers.servers.waiting import until
from legato_ingest.errors import Overloaded, StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.storage import Store
from legato_ingest.write.committer import Committer, Receipt


def metrics_of(points: int = 3, bad: int = 0) -> ExportMetricsServiceRequest:
    """Return a request with good points, and some without a value."""
    body, now = metrics_request(), time.time_ns()
    for number in range(points):
        gauge(body, "system.cpu.utilization", number / 7, now - number, attributes={"cpu": number})
    for number in range(bad):
        gauge(body, "broken", None, now - number)
    return body


def samples(store: Store) -> list[Any]:
    """Return metric and value of the stored samples."""
    return store.select("SELECT metric, value FROM node_samples ORDER BY metric, value")


@pytest.mark.parametrize(("encoding", "encode"), [("", bytes), ("gzip", gzip.compress), ("zstd", zstandard.compress)])
def test_metrics_are_stored_when_they_are_acknowledged(store: Store, endpoint: Endpoint, encoding: str, encode: Any) -> None:
    """Compressed or not, they are stored once, however often they are sent; an empty request is accepted."""
    content = encode(metrics_of().SerializeToString())
    for _ in range(3):
        reply = endpoint.post(content, encoding, path=METRICS)
        assert (reply.status_code, reply.content, reply.headers["content-type"]) == (200, b"", PROTOBUF)
        assert len(samples(store)) == 3
    assert endpoint.post(encode(b""), encoding, path=METRICS).status_code == 200


def test_a_partial_success_of_metrics_counts_points(store: Store, endpoint: Endpoint) -> None:
    """Two of five points are rejected, and the reply is that of the metrics service."""
    reply = endpoint.post(metrics_of(3, bad=2).SerializeToString(), path=METRICS)
    partial = ExportMetricsServiceResponse.FromString(reply.content).partial_success
    assert partial.rejected_data_points == 2 and "2 data points rejected: value" in partial.error_message
    assert len(samples(store)) == 3 and [row["reason"] for row in rejected(store)] == ["value", "value"]


def test_bad_bodies_of_metrics_are_refused(store: Store, endpoint: Endpoint) -> None:
    """Another type or encoding, malformed or too large: refused for good as with spans, and nothing is stored."""
    content = metrics_of().SerializeToString()
    refused(endpoint.post(content, content_type="text/plain", path=METRICS), 415, 3)
    refused(endpoint.post(content, "br", path=METRICS), 415, 3)
    refused(endpoint.post(content[:-1], path=METRICS), 400, 3)
    refused(endpoint.post(gzip.compress(content)[:-1], "gzip", path=METRICS), 400, 3)
    refused(endpoint.post(gzip.compress(bytes(200_001)), "gzip", path=METRICS), 413, 8)
    assert not samples(store)


@pytest.mark.parametrize(
    ("stub", "status", "code"),
    [
        (StubCommitter(StoreUnavailable("Code: 243")), 503, 14),
        (StubCommitter(Receipt(), raises=Overloaded("full")), 429, 8),
        (StubCommitter(RuntimeError("a secret")), 503, 14),
    ],
    ids=["unavailable", "overloaded", "bug"],
)
def test_temporary_errors_of_metrics_are_retried(stub: StubCommitter, status: int, code: int) -> None:
    """429 and 503 have a Retry-After."""
    with endpoint_over(stub, retry_after_s=7) as endpoint:
        reply = endpoint.post(metrics_of().SerializeToString(), path=METRICS)
        assert "secret" not in refused(reply, status, code).message and reply.headers["retry-after"] == "7"


def test_both_signals_share_one_limit_of_bodies_in_flight() -> None:
    """While a body of spans arrives, its bytes are not available to metrics."""
    content = metrics_of(20).SerializeToString()
    with (
        endpoint_over(StubCommitter(Receipt()), queue_bytes_max=len(content)) as endpoint,
        socket.create_connection(endpoint.address, timeout=60) as connection,
    ):
        connection.sendall(endpoint.head(1000) + bytes(999))
        until(lambda: endpoint.post(content, path=METRICS).status_code == 429)
        refused(endpoint.post(content, path=METRICS), 429, 8)


def test_points_are_counted(store: Store) -> None:
    """By outcome and reason, separately from spans."""
    metrics = Metrics()
    committer = Committer(store, metrics, queue_bytes_max=2**26, chunks_max=10**6)
    body = metrics_of(3, bad=1)
    gauge(body, "ended", None, time.time_ns(), flags=1)
    with endpoint_over(committer, metrics) as endpoint:
        for _ in range(2):
            endpoint.post(body.SerializeToString(), path=METRICS)
        text = endpoint.client.get("/metrics").text
    committer.close()
    for line in (
        'legato_requests_total{status="200"} 2.0',
        'legato_points_total{outcome="received"} 10.0',
        'legato_points_total{outcome="ignored"} 2.0',
        'legato_points_total{outcome="stored"} 3.0',
        'legato_points_total{outcome="duplicate"} 3.0',
        'legato_rejected_points_total{reason="value"} 2.0',
        "legato_received_spans_total 0.0",
    ):
        assert line in text.splitlines(), line


_POINTS = metrics_request()
for _number in range(3):
    gauge(_POINTS, "a", _number, time.time_ns(), attributes={"n": _number})
    total(_POINTS, "b", 0.5, time.time_ns() - _number)
    histogram(_POINTS, "c", [1.0], [1, 2], time.time_ns() - _number)


@given(st.data())
@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_metrics_have_a_defined_reply(lasting: Endpoint, data: st.DataObject) -> None:
    """Points with some bytes changed, or any bytes, are stored, rejected or refused, and the server keeps running."""
    raw = bytearray(data.draw(st.one_of(st.binary(max_size=200), st.just(_POINTS.SerializeToString()))))
    for _ in range(data.draw(st.integers(0, 6)) if raw else 0):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    reply = lasting.post(bytes(raw), path=METRICS)
    assert reply.status_code in (200, 400), reply.content
    assert lasting.client.get("/healthz").status_code == 200


_NUMBERS = st.one_of(st.floats(), st.integers(-(2**63), 2**63 - 1), st.none())
_NANOSECONDS = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 10**12).map(lambda age: time.time_ns() - age))
_VALUES = st.one_of(
    st.text(max_size=5), st.booleans(), st.integers(-9, 9), st.floats(), st.binary(max_size=3), st.lists(st.text(max_size=2), max_size=2)
)
_ATTRIBUTES = st.dictionaries(st.text(max_size=5), _VALUES, max_size=3)
_COUNTS = st.lists(st.integers(0, 2**64 - 1), max_size=4)


@given(st.data())
@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_points_between_good_ones(lasting: Endpoint, shared_store: Store, data: st.DataObject) -> None:
    """Points with any numbers, times, flags and attributes: the good ones are stored, and nothing is stored twice by a retry."""
    run = f"run-{time.monotonic_ns()}"
    body, now = metrics_request({"run": run}), time.time_ns()
    for number in range(data.draw(st.integers(1, 5))):
        gauge(body, "neighbour", number, now - number)
        at, attributes = data.draw(_NANOSECONDS), data.draw(_ATTRIBUTES)
        more = {"flags": data.draw(st.integers(0, 3)), "start_time_unix_nano": data.draw(st.sampled_from([0, at, now]))}
        name = data.draw(st.sampled_from(["any", "", "neighbour's", "\0"]))
        if data.draw(st.booleans()):
            data.draw(st.sampled_from([gauge, total]))(body, name, data.draw(_NUMBERS), at, attributes=attributes, **more)
        else:
            bounds, counts = data.draw(st.lists(st.floats(), max_size=4)), data.draw(_COUNTS)
            count = data.draw(st.sampled_from([0, 1, 2**64 - 1]))
            histogram(body, name, bounds, counts, at, count=count, sum=data.draw(st.floats()), attributes=attributes, **more)
    found, columns = [], "countIf(metric = 'neighbour'), count(), uniqExact(series, recorded_at)"
    for _ in range(2):
        assert lasting.post(body.SerializeToString(), path=METRICS).status_code == 200
        found += shared_store.select(f"SELECT {columns} FROM node_samples WHERE attributes['run'] = '{run}'")
    neighbours = sum(metric.name == "neighbour" for metric in body.resource_metrics[0].scope_metrics[0].metrics)
    assert found[0] == found[1] and found[0][0] == neighbours and found[0][1] == found[0][2]
