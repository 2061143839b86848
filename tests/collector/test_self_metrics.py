"""collector/self.yaml: the size and the capacity of a Collector's queue reach the store, and the alert rule evaluates them."""

from __future__ import annotations

import pathlib

import httpx
import pytest
import yaml
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from helpers.repo.repository import ROOT
from helpers.servers.collector import CONFIGS, run, validate
from helpers.servers.receiver import Received, receiver
from helpers.servers.serving import serve_process
from helpers.servers.waiting import eventually

# The names that the rule and the panel read.
QUEUE = {"otelcol_exporter_queue_size", "otelcol_exporter_queue_capacity"}
SOON = {"LEGATO_COLLECTOR_METRICS_INTERVAL_MS": "300"}
RULE = (ROOT / "dashboards" / "alerts" / "collector_backlog.sql").read_text(encoding="utf-8")


def names(received: Received) -> set[str]:
    """The names of the metrics in a request."""
    resources = ExportMetricsServiceRequest.FromString(received.body).resource_metrics
    return {metric.name for resource in resources for scope in resource.scope_metrics for metric in scope.metrics}


def test_the_rule_has_data_from_a_collector(tmp_path: pathlib.Path) -> None:
    """A Collector in front of `legato serve` sends its metrics, and the rule evaluates its queue. A stop ends with status 0."""
    with serve_process(tmp_path / "store") as served:
        settings = {"LEGATO_INGEST_URL": served.otlp, "LEGATO_HOST_NAME": "gateway-0", **SOON}
        with run(tmp_path / "collector", "gateway.yaml", "self.yaml", **settings) as collector:
            row = "gateway-0\totlp_http/legato\t0\t0\n"
            assert eventually(lambda: httpx.post(served.read, content=RULE).text == row)
            assert collector.stop() == 0
        capacity = "SELECT DISTINCT value FROM node_samples WHERE metric = 'otelcol_exporter_queue_capacity'"
        assert httpx.post(served.read, content=capacity).text == f"{2**31}\n"


@pytest.mark.parametrize("layers", [("gateway.yaml", "tokens.yaml", "self.yaml"), ("agent.yaml", "self.yaml")], ids="+".join)
def test_the_metrics_have_the_collectors_token(layers: tuple[str, ...], tmp_path: pathlib.Path) -> None:
    """The Collector's own token, from LEGATO_TOKEN. Its metrics for Prometheus stay available."""
    tokens = tmp_path / "tokens"
    tokens.write_text("one\n")
    with receiver() as behind:
        settings = {"LEGATO_INGEST_URL": behind.url, "LEGATO_TOKEN": "one", "LEGATO_TOKEN_FILE": str(tokens), **SOON}
        with run(tmp_path, *layers, **settings, LEGATO_COLLECTOR_TOKENS_FILE=str(tokens)) as collector:
            assert eventually(lambda: any(names(each) >= QUEUE for each in behind.received))
            assert "otelcol_exporter_queue_size" in httpx.get(collector.metrics_url).text
    assert {(each.path, each.authorization) for each in behind.received} == {("/v1/metrics", "Bearer one")}


@pytest.mark.parametrize("other", ["gateway.yaml", "agent.yaml", "loadbalancing.yaml"])
def test_it_repeats_the_reader_of_the_other_file(other: str, tmp_path: pathlib.Path) -> None:
    """The list of readers is replaced. The Collector accepts the combination."""
    own, base = (yaml.safe_load((CONFIGS / name).read_text(encoding="utf-8"))["service"]["telemetry"] for name in ("self.yaml", other))
    assert own["metrics"]["readers"][0] == base["metrics"]["readers"][0] and len(own["metrics"]["readers"]) == 2
    tokens = tmp_path / "tokens"
    tokens.write_text("one\n")
    assert validate((other, "self.yaml"), {"LEGATO_TOKEN_FILE": str(tokens), "LEGATO_GATEWAYS": "[a:4317]"}) == ""
