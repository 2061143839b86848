"""Each alert rule on real rows: it fires, stays silent, and resolves. `test_incident` has the rules on the past of the demo."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from dashboards.alerts.others import CHUNKING, COLLECTOR, INGEST, PREEMPTION
from helpers.builders.batches import received_points, received_spans
from helpers.builders.points import gauge, metrics_request, total
from helpers.builders.spans import SECOND_NS
from helpers.dashboards.minutes import rule_rows
from helpers.servers.reading import open_store
from helpers.servers.stores import empty
from legato_gpu_agent.agent.otlp_spans import Engine, Step, steps_request
from legato_ingest.jobs.self_monitoring import SelfMonitor
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Limits
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.write.committer import Committer

Row = dict[str, Any]
NOW_NS = time.time_ns()
NOW_S = NOW_NS // SECOND_NS
MINUTE_NS = 60 * SECOND_NS
PATIENCE_S = 120


def ask(store: Store, sql: str, at_s: float = NOW_S) -> list[Row]:
    """The rows of a rule with the clock at ``at_s``."""
    return rule_rows(store, sql, at_s)


def firing(store: Store, sql: str, *names: str, at_s: float = NOW_S) -> set[tuple[Any, ...]]:
    """These columns of the rows that fire."""
    return {tuple(row[name] for name in names) for row in ask(store, sql, at_s) if row["firing"]}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with the schema, for this module."""
    with open_store(tmp_path_factory.mktemp("rules") / "store") as opened:
        yield opened


@pytest.fixture
def store(shared: Store) -> Store:
    """The store of the module, emptied."""
    empty(shared)
    return shared


# Preemptions.


def preempt(store: Store, engine: str, minutes: Sequence[int], preempted: int = 3) -> None:
    """Insert and roll up two steps in each of the last 90 minutes; one of them preempts requests in ``minutes``."""
    begin_ns = NOW_NS // MINUTE_NS * MINUTE_NS
    steps = list[Step]()
    for ago in range(89, -1, -1):
        at_ns = begin_ns - ago * MINUTE_NS
        steps.append(Step(len(steps), at_ns, preempted=0, kv_used_ppm=500_000))
        steps.append(Step(len(steps), at_ns + 1_000, preempted=preempted * (ago in minutes), kv_used_ppm=970_000))
    store.insert(
        "engine_steps", received_spans(steps_request(Engine(engine, 5), steps, []), tenant="", now_ns=NOW_NS, limits=Limits()).steps
    )
    RollupWorker(store, load(), Metrics()).again(0)


def test_an_engine_that_preempts_half_of_the_hour_fires(store: Store) -> None:
    """Preemptions in 30 of the last 60 minutes fire; 29 minutes, or minutes before that hour, do not. The alert resolves afterwards."""
    preempt(store, "storm", range(0, 62, 2))
    preempt(store, "burst", range(0, 58, 2), 500)
    preempt(store, "earlier", range(61, 90))
    preempt(store, "calm", ())
    rows = {row["engine"]: row for row in ask(store, PREEMPTION)}
    assert {engine for engine, row in rows.items() if row["firing"]} == {"storm"} and len(rows) == 4
    storm = rows["storm"]
    assert (storm["minutes_preempting"], storm["requests_preempted"]) == (30, 90)
    assert storm["kv_used_max"] == 0.97 and rows["calm"]["minutes_preempting"] == 0
    assert firing(store, PREEMPTION, "engine", at_s=NOW_S + 120) == set()


# Chunking.


def finding(
    store: Store, service: str, *, changed_h: float, alarmed_h: float, found: bool = True, detected: int = 1, after: float = 0.9
) -> None:
    """Insert a finding of the chunking detector; times are in hours before now."""
    moments = {"changed_at": changed_h, "alarmed_at": alarmed_h}
    columns: dict[str, pa.Array] = {name: pa.array([NOW_S - round(3600 * ago)], pa.timestamp("s", "UTC")) for name, ago in moments.items()}
    columns |= {name: pa.array([text]) for name, text in {"service_name": service, "vantage": "client", "model": "large-2"}.items()}
    columns |= {name: pa.array([value]) for name, value in {"share_before": 0.01, "share_after": after, "rate_ratio": 1.02}.items()}
    columns |= {"found": pa.array([found]), "detected_at": pa.array([NOW_S * 1000 + detected], pa.timestamp("ms", "UTC"))}
    store.insert("chunking_changes", pa.table(columns))


def test_a_change_of_chunking_fires_for_a_day(store: Store) -> None:
    """A finding fires for 24 hours after its alarm, with its newest figures. Withdrawn and older findings do not fire."""
    finding(store, "today", changed_h=9, alarmed_h=2, after=0.5)
    finding(store, "today", changed_h=9, alarmed_h=2, detected=2, after=0.97)
    finding(store, "yesterday", changed_h=30, alarmed_h=25)
    finding(store, "withdrawn", changed_h=9, alarmed_h=2)
    finding(store, "withdrawn", changed_h=9, alarmed_h=2, found=False, detected=2)
    finding(store, "never", changed_h=9, alarmed_h=2, found=False)
    finding(store, "long ago", changed_h=24 * 31, alarmed_h=1)
    rows = {row["service"]: row for row in ask(store, CHUNKING)}
    assert {service: row["firing"] for service, row in rows.items()} == {"today": 1, "yesterday": 0}
    assert (rows["today"]["share_after"], rows["today"]["changed_s"]) == (0.97, NOW_S - 9 * 3600)
    assert firing(store, CHUNKING, "service", at_s=NOW_S + 23 * 3600) == set()


# Self-monitoring and Collectors.


def sample(
    store: Store, ago_s: float, values: Mapping[str, float], host: str = "a", started_s: int = 0, *, instance: str = "", tenant: str = ""
) -> None:
    """Insert OTLP samples as an agent sends them. A name with the suffix ``_total`` is a counter; attributes follow after a space.

    ``started_s``: the start time of the counters; 0 for none.
    """
    body = metrics_request({"host.name": host, **({"service.instance.id": instance} if instance else {})})
    for name, value in values.items():
        metric, *attributes = name.split()
        named, at_ns = dict(each.split("=") for each in attributes), NOW_NS - round(ago_s * 1e9)
        if metric.endswith("_total"):
            total(body, metric, float(value), at_ns, attributes=named, start_time_unix_nano=started_s * SECOND_NS)
        else:
            gauge(body, metric, float(value), at_ns, attributes=named)
    insert(store, body, tenant)


def insert(store: Store, body: ExportMetricsServiceRequest, tenant: str = "") -> None:
    """Convert a metrics request and insert its rows."""
    batch = received_points(body, tenant=tenant, now_ns=NOW_NS, limits=Limits())
    assert not batch.rejected.num_rows
    store.insert("node_samples", batch.samples)


HEALTHY = {
    "legato_rollup_lag_seconds": 120,
    "legato_attribution_lag_seconds": 600,
    "legato_trace_export_lag_seconds": 900,
    "legato_queue_bytes": 50,
    "legato_queue_bytes_max": 100,
    "legato_errors_total stage=commit type=OSError": 7,
}
CALM = {name: value for name, value in HEALTHY.items() if "errors" not in name}
UNHEALTHY = {
    "rollups behind, s": {"legato_rollup_lag_seconds": 121},
    "attribution behind, s": {"legato_attribution_lag_seconds": 601},
    "trace export behind, s": {"legato_trace_export_lag_seconds": 901},
    "queue in use": {"legato_queue_bytes": 51},
    "failures in 10 minutes": {"legato_errors_total stage=commit type=OSError": 8},
}


@pytest.mark.parametrize("what", list(UNHEALTHY))
def test_each_exceeded_limit_fires_and_resolves(store: Store, what: str) -> None:
    """Values at the limits are healthy. A value beyond one limit fires for this limit and host only, and resolves afterwards."""
    for host in ("a", "b"):
        sample(store, 2_000, HEALTHY, host)
        sample(store, 60, HEALTHY, host)
    assert firing(store, INGEST, "host", "what") == set() and len(ask(store, INGEST)) == 12
    # A trace backend that is away for a moment is no failure.
    sample(store, 30, {**HEALTHY, **UNHEALTHY[what], "legato_errors_total stage=trace_export type=Http503": 3})
    assert firing(store, INGEST, "host", "what") == {("a", what)}
    # A counter does not decrease: the alert resolves after 10 minutes without another failure.
    recovered = {**HEALTHY, **UNHEALTHY[what]} if what == "failures in 10 minutes" else HEALTHY
    sample(store, -690, recovered)
    sample(store, -690, HEALTHY, "b")
    assert firing(store, INGEST, "host", "what", at_s=NOW_S + 700) == set()


def test_missing_samples_fire(store: Store) -> None:
    """A host fires after 5 minutes without a sample, until the next one. A host without any sample of Legato does not fire."""
    for ago_s in (2_000, 290):
        sample(store, ago_s, HEALTHY)
    sample(store, 7_000, {"system.cpu.utilization": 0.5}, "node")
    assert firing(store, INGEST, "host", "what") == set()
    assert firing(store, INGEST, "host", "what", at_s=NOW_S + 15) == {("a", "silent, s")}
    sample(store, 0, HEALTHY)
    assert firing(store, INGEST, "host", "what", at_s=NOW_S + 15) == set()


def test_a_stopped_process_is_not_silent(store: Store) -> None:
    """After a deploy the old process is gone: its last sample has `legato_up` 0. One that was killed fires."""
    for host, last in (("stopped", 0.0), ("killed", 1.0)):
        sample(store, 600, {**HEALTHY, "legato_up": 1.0}, host)
        sample(store, 400, {**HEALTHY, "legato_up": last}, host)
    assert {host for host, what in firing(store, INGEST, "host", "what") if what == "silent, s"} == {"killed"}


def test_each_instance_of_a_host_counts(store: Store) -> None:
    """One that is behind fires beside one that is not, and one that was killed beside one that lives, unless it was started again."""
    behind = {**CALM, "legato_rollup_lag_seconds": 900.0}
    for ago_s in (900, 60):
        sample(store, ago_s + 7, behind, "two", instance="two-a")
        sample(store, ago_s, CALM, "two", instance="two-b")
        sample(store, ago_s, CALM, "one left", instance="left-b")
        sample(store, ago_s - 40, CALM, "again", instance="again-b" if ago_s == 60 else "again-a")
    for ago_s in (900, 700):
        sample(store, ago_s, CALM, "one left", instance="left-a")
    assert firing(store, INGEST, "host", "what") == {("two", "rollups behind, s"), ("one left", "silent, s")}


def test_senders_of_a_tenant_change_nothing(store: Store) -> None:
    """Neither do they silence the rule for a host, nor raise it."""
    sample(store, 60, {**CALM, "legato_rollup_lag_seconds": 900.0})
    sample(store, 30, CALM, tenant="shop")
    sample(store, 30, {"legato_rollup_lag_seconds": 900.0, "legato_errors_total stage=commit type=OSError": 9}, "b", tenant="shop")
    assert firing(store, INGEST, "host", "what") == {("a", "rollups behind, s")}


def test_a_killed_instance_stays_silent(store: Store) -> None:
    """Until another one reports, for a day at most: also when its last figures are hours old."""
    sample(store, 0, HEALTHY)
    for hours, fires in ((2, {("a", "silent, s")}), (23, {("a", "silent, s")}), (25, set())):
        assert firing(store, INGEST, "host", "what", at_s=NOW_S + 3_600 * hours) == fires


@pytest.mark.parametrize(
    ("before", "after", "failures"), [((), (1.0,), 1), ((5.0, 5.0), (5.0, 5.0), 0), ((5.0,), (6.0, 2.0, 3.0), 4), ((5.0,), (5.0, 1.0), 1)]
)
def test_failures_are_counted_from_the_first_and_over_restarts(
    store: Store, before: Sequence[float], after: Sequence[float], failures: float
) -> None:
    """A counter that appears with the value 1 counts one failure; a decrease is a restart from 0."""
    name = "legato_errors_total stage=rollup type=OSError"
    for place, value in enumerate(before):
        sample(store, 900 + 60 * (len(before) - place), {name: value})
    for place, value in enumerate(after):
        sample(store, 60 * (len(after) - place), {name: value})
    (row,) = (row for row in ask(store, INGEST) if row["what"] == "failures in 10 minutes")
    assert (row["value"], row["firing"]) == (failures, int(failures > 0))


@pytest.mark.parametrize(("runs", "failures"), [([1.0, 1.0], 1), ([5.0, 6.0], 6), ([5.0, 5.0, 2.0], 7), ([0.0, 0.0], 0)])
def test_a_restart_is_seen_by_its_start_time(store: Store, runs: Sequence[float], failures: float) -> None:
    """A counter of a new process counts from 0, also if it has the value of the process before again, or a larger one."""
    for place, value in enumerate(runs):
        started_ago_s = 900 - 400 * place
        for ago_s in (started_ago_s - 60, started_ago_s - 120):
            sample(store, ago_s, {"legato_errors_total stage=rollup type=OSError": value}, started_s=NOW_S - started_ago_s)
    (row,) = (row for row in ask(store, INGEST) if row["what"] == "failures in 10 minutes")
    assert (row["value"], row["firing"]) == (failures, int(failures > 0))


def test_the_rule_reads_the_self_monitoring_metrics(store: Store) -> None:
    """Self-monitoring writes the metric names and the host that the rule reads, and only the injected failure fires."""
    metrics = Metrics()
    committer = Committer(store, metrics, queue_bytes_max=2**28, chunks_max=10**6)
    try:
        sampler = SelfMonitor(store, committer, metrics)
        metrics.errors.labels("commit", "OSError").inc()
        sampler.step()
    finally:
        committer.close()
    rows = ask(store, INGEST, time.time())
    whats = {*UNHEALTHY, "silent, s"}
    assert {row["what"] for row in rows} == whats
    assert {row["what"] for row in rows if row["firing"]} == {"failures in 10 minutes"}


def test_a_collector_that_backs_up_fires_and_resolves(store: Store) -> None:
    """An exporter fires if its queue is more than half full. Queues with unknown capacity or without recent samples do not fire."""
    queues = {"otelcol_exporter_queue_size exporter=otlp": 501, "otelcol_exporter_queue_capacity exporter=otlp": 1000}
    half = {"otelcol_exporter_queue_size exporter=debug": 500, "otelcol_exporter_queue_capacity exporter=debug": 1000}
    sample(store, 60, {**queues, **half, "otelcol_exporter_queue_size exporter=other": 900})
    sample(store, 700, queues, "removed")
    assert firing(store, COLLECTOR, "host", "exporter", "in_use") == {("a", "otlp", 0.501)}
    assert {row["exporter"] for row in ask(store, COLLECTOR)} == {"otlp", "debug"}
    sample(store, 30, {"otelcol_exporter_queue_size exporter=otlp": 20})
    assert firing(store, COLLECTOR, "host") == set()
