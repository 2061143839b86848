"""The OpenTelemetry SDK's metric exporter against `legato serve`: the points that it sends are the rows that a query returns."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import Counter, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader, MetricExportResult
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource

from helpers.servers.serving import Served, serve_process

RESOURCE = {"service.name": "agent", "host.name": "node-1", "host.id": "i-1", "legato.engine.id": "node-1:8000"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A running `legato serve`."""
    with serve_process(tmp_path_factory.mktemp("metrics") / "store") as served:
        yield served


def rows(served: Served, sql: str) -> list[dict[str, Any]]:
    """The rows of a query at the read endpoint."""
    reply = httpx.post(served.read, content=f"{sql} FORMAT JSONEachRow", timeout=60)
    assert reply.status_code == 200, reply.text
    return [json.loads(line) for line in reply.text.splitlines()]


def recorded(temporality: AggregationTemporality = AggregationTemporality.CUMULATIVE) -> Any:
    """Metrics data that an SDK recorded: a gauge, two counters and a histogram."""
    reader = InMemoryMetricReader(preferred_temporality={Counter: temporality})
    views = [View(instrument_name="itl", aggregation=ExplicitBucketHistogramAggregation((0.01, 0.1)))]
    provider = MeterProvider([reader], Resource(RESOURCE), views=views)
    meter = provider.get_meter("legato-gpu-agent", "0.1.0")

    def utilization(_: CallbackOptions) -> list[Observation]:
        return [Observation(0.5, {"hw.id": "GPU-0"}), Observation(0.75, {"hw.id": "GPU-1"})]

    meter.create_observable_gauge("hw.gpu.utilization", [utilization], unit="1")
    counter = meter.create_counter("legato.socket.retransmits", unit="{segment}")
    counter.add(3, {"client.address": "10.0.0.9", "client.port": 40_001, "server.address": "10.0.0.1", "server.port": 8000})
    meter.create_up_down_counter("system.memory.usage", unit="By").add(2**40)
    itl = meter.create_histogram("itl", unit="s")
    for seconds in (0.005, 0.02, 0.03, 0.5):
        itl.record(seconds)
    data = reader.get_metrics_data()
    provider.shutdown()
    return data


@pytest.mark.parametrize("temporality", [AggregationTemporality.CUMULATIVE, AggregationTemporality.DELTA])
@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_exported_points_can_be_queried(server: Served, temporality: AggregationTemporality, compression: Compression) -> None:
    """Points that are sent three times are one row each, with engine, host and connection."""
    exporter, data, since = OTLPMetricExporter(f"{server.otlp}/v1/metrics", compression=compression), recorded(temporality), time.time_ns()
    for _ in range(3):
        assert exporter.export(data) is MetricExportResult.SUCCESS
    exporter.shutdown()
    mine = f"FROM node_samples WHERE host = 'node-1' AND recorded_at > fromUnixTimestamp64Nano({since - 5 * 10**9})"
    found = rows(server, f"SELECT * EXCEPT (received_at) {mine} AND recorded_at IN (SELECT max(recorded_at) {mine}) ORDER BY metric, value")
    assert [row["metric"] for row in found] == [
        "hw.gpu.utilization",
        "hw.gpu.utilization",
        "itl",
        "legato.socket.retransmits",
        "system.memory.usage",
    ]
    first, second, itl, socket, memory = found
    assert [(row["value"], row["attributes"]["hw.id"], row["unit"]) for row in (first, second)] == [
        (0.5, "GPU-0", "1"),
        (0.75, "GPU-1", "1"),
    ]
    assert {row["engine_id"] for row in found} == {"node-1:8000"} and itl["attributes"]["service.name"] == "agent"
    assert (itl["count"], itl["bounds"], itl["bucket_counts"]) in [(4, [0.01, 0.1], [1, 2, 1]), ("4", [0.01, 0.1], ["1", "2", "1"])]
    assert itl["sum"] == pytest.approx(0.555) and itl["value"] is None
    assert socket["monotonic"] and socket["temporality"] == temporality.name.lower() and socket["start_time"] is not None
    assert not memory["monotonic"] and memory["value"] == 2**40
    by_connection = f"SELECT value {mine} AND attributes['client.port'] = '40001' AND metric LIKE 'legato.socket.%' LIMIT 1"
    assert rows(server, by_connection) == [{"value": 3}]


def test_there_is_one_row_per_point(server: Served) -> None:
    """Also when every request is repeated."""
    exporter, data = OTLPMetricExporter(f"{server.otlp}/v1/metrics"), recorded()
    for _ in range(2):
        assert exporter.export(data) is MetricExportResult.SUCCESS
    exporter.shutdown()
    ((counts),) = rows(server, "SELECT count() AS rows, uniqExact(series, recorded_at) AS points FROM node_samples")
    assert counts["rows"] == counts["points"] and int(counts["rows"]) >= 5


def test_rows_outlive_the_process(tmp_path: pathlib.Path) -> None:
    """After a kill, a new process on the same store has every acknowledged row and deduplicates a retry."""
    store, data = tmp_path / "store", recorded()
    with serve_process(store) as first:
        exporter = OTLPMetricExporter(f"{first.otlp}/v1/metrics")
        assert exporter.export(data) is MetricExportResult.SUCCESS
        first.process.kill()
        first.process.wait()
    with serve_process(store) as second:
        assert int(rows(second, "SELECT count() AS n FROM node_samples")[0]["n"]) == 5
        exporter = OTLPMetricExporter(f"{second.otlp}/v1/metrics")
        assert exporter.export(data) is MetricExportResult.SUCCESS
        assert int(rows(second, "SELECT count() AS n FROM node_samples")[0]["n"]) == 5
