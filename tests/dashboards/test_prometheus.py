"""The alerts for Prometheus: promtool accepts and tests the rules, and the counters that the rules need equal the stored rollups."""

from __future__ import annotations

import json
import pathlib
import random
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import httpx
import pyarrow as pa
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.builders.spans import SECOND_NS, native_span, request, scope_of, steady_timeline
from helpers.servers.ports import free_port
from helpers.servers.reading import open_store
from helpers.servers.serving import serve_process, served
from helpers.servers.waiting import until
from legato._timeline import pack
from legato_ingest.errors import StoreRefused, StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.objectives import Objective
from legato_ingest.otlp.batch import Limits
from legato_ingest.otlp.convert import convert_spans
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.storage.objective_rows import apply
from legato_ingest.write import app
from legato_ingest.write.committer import Committer

ALERTS = pathlib.Path(__file__).parents[2] / "dashboards" / "alerts"
PATIENCE_S = 120
RESULTS = ("good", "gap", "error", "late")
PROTOBUF = {"content-type": "application/x-protobuf"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with the schema, for this module."""
    with open_store(tmp_path_factory.mktemp("prometheus") / "store") as opened:
        yield opened


@pytest.fixture
def store(shared: Store) -> Store:
    """The store, emptied."""
    for table in ("stream_revs", "stream_sockets", "rejected", "stream_minutes", "rollup_runs"):
        shared.command(f"TRUNCATE TABLE {table}")
    return shared


class FailingStore:
    """A wrapper of a store that can fail or reject an insert on request."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.fails: dict[str, Exception] = {}
        self.rejects = b""

    def insert(self, table: str, rows: pa.Table) -> None:
        """Insert the rows, or raise an injected error."""
        if table in self.fails:
            raise self.fails.pop(table)
        if table == "stream_revs" and self.rejects in rows["span_id"].to_pylist():
            raise StoreRefused("Code: 6. DB::Exception: cannot", 6)
        self._store.insert(table, rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@contextmanager
def committing(store: Store | FailingStore, **more: Any) -> Iterator[tuple[Committer, Metrics]]:
    """Yield a committer and its metrics; close the committer at the end."""
    metrics = Metrics()
    committer = Committer(cast(Store, store), metrics, queue_bytes_max=2**28, chunks_max=10**6, **more)
    try:
        yield committer, metrics
    finally:
        committer.close()


def send(committer: Committer, *bodies: ExportTraceServiceRequest) -> None:
    """Submit all requests, then wait for all commits."""
    batches = [convert_spans(body, tenant="", now_ns=time.time_ns(), limits=Limits()) for body in bodies]
    for future in [committer.submit(batch) for batch in batches]:
        future.result(PATIENCE_S)


def streams_of(seed: int, count: int = 200) -> ExportTraceServiceRequest:
    """Streams with every outcome, some with gaps and starts exactly at the limits, some snapshots, some without a timeline."""
    rng = random.Random(seed)
    body, begin_ns = request({"service.name": rng.choice(("shop", "it's \\ 1", ""))}), time.time_ns() - 600 * SECOND_NS
    for _ in range(count):
        first_us = rng.choice((50_000, 300_000, 1_999_999, 2_000_000, 2_000_001, 3_000_000))
        times = [first_us]
        for _ in range(rng.randrange(12)):
            times.append(times[-1] + rng.choice((20_000, 90_000, 399_999, 400_000, 400_001)))
        kinds = [rng.choice((0, 1, 2)) if rng.random() < 0.3 else 1 for _ in times]
        attributes: dict[str, Any] = {
            "legato.stream.timeline": pack(times, None, None, kinds),
            "legato.stream.outcome": rng.choice(("complete", "complete", "client_cancel", "timeout", "upstream_error", "engine_abort")),
            "legato.stream.vantage": rng.choice(("client", "server")),
            "gen_ai.request.model": rng.choice(("a_1", "ab1")),
        }
        more: dict[str, Any] = {"drop": ("legato.stream.timeline",)} if rng.random() < 0.1 else {}
        if rng.random() < 0.1:
            attributes |= {"legato.stream.outcome": "running", "legato.stream.span_id": rng.randbytes(8).hex(), "legato.stream.rev": 1}
            attributes["legato.stream.next_due"] = 86_400.0
            more["name"] = "legato.stream.snapshot"
        duration_ns = times[-1] * 1000 + rng.choice((0, SECOND_NS, 3 * SECOND_NS))
        native_span(body, attributes, start_ns=begin_ns + rng.randrange(300) * SECOND_NS, duration_ns=duration_ns, rng=rng, **more)
    return body


def counted(metrics: Metrics) -> Counter[tuple[str, str, str]]:
    """The counters of streams by service, vantage and result."""
    found: Counter[tuple[str, str, str]] = Counter()
    for family in metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "legato_streams_total":
                found[tuple(sample.labels[name] for name in ("service", "vantage", "result"))] += int(sample.value)  # type: ignore[index]
    return +found


def rolled(store: Store) -> Counter[tuple[str, str, str]]:
    """The streams in the 1-minute rollups by service, vantage and result."""
    RollupWorker(store, load(), Metrics()).again(0)
    columns = "sum(good), sum(bad_gap), sum(bad_error), sum(bad_late)"
    rows = store.select(f"SELECT service_name, vantage, {columns} FROM stream_minutes FINAL GROUP BY service_name, vantage")
    return +Counter(
        {(str(row[0]), str(row[1]), result): int(streams) for row in rows for result, streams in zip(RESULTS, row[2:], strict=True)}
    )


# The counters.


def test_the_counters_equal_the_rollups(store: Store) -> None:
    """Counters and rollups are equal, also for requests that are sent again, overlap, or are in the same insert batch."""
    with committing(store) as (committer, metrics):
        bodies = [streams_of(seed) for seed in range(5)]
        send(committer, *bodies)
        once = counted(metrics)
        assert once == rolled(store) and {result for _, _, result in once} == set(RESULTS) and len(once) >= 12
        send(committer, *bodies, *bodies[::-1])
        assert counted(metrics) == once == rolled(store)
        fresh = streams_of(9)
        scope_of(fresh).spans.extend(scope_of(fresh).spans[:50])
        send(committer, fresh, bodies[0], fresh)
        assert counted(metrics) == rolled(store) != once


@pytest.mark.parametrize("failing", ["stream_revs", "stream_sockets", "rejected"])
def test_a_retried_request_counts_once(store: Store, failing: str) -> None:
    """The first commit fails before or after the rows of streams were inserted; the retry counts each stream once."""
    failing_store, body = FailingStore(store), streams_of(3)
    native_span(body, {"legato.stream.timeline": b""})
    with committing(failing_store) as (committer, metrics):
        failing_store.fails[failing] = StoreUnavailable("Code: 243. no space left")
        with pytest.raises(StoreUnavailable):
            send(committer, body)
        send(committer, body)
        assert counted(metrics) == rolled(store) != Counter()


def test_a_row_that_the_store_rejects_does_not_count(store: Store) -> None:
    """The other rows of the batch count once, although the batch is bisected to find the rejected row."""
    failing_store, body = FailingStore(store), streams_of(4)
    failing_store.rejects = scope_of(body).spans[7].span_id
    with committing(failing_store) as (committer, metrics):
        send(committer, body)
        assert counted(metrics) == rolled(store) != Counter()


def test_the_counters_follow_the_objectives(store: Store) -> None:
    """Other limits, also for one model alone, change the counters and the rollups in the same way."""
    with committing(store) as (committer, metrics):
        send(committer, streams_of(5))
        usual = counted(metrics)
    store.command("TRUNCATE TABLE stream_revs")
    strict = Objective(name="strict", gap_limit_ms=90, first_output_limit_ms=300)
    for objectives in ([strict], [Objective(name="lax", model="a_*", gap_limit_ms=1_000, first_output_limit_ms=10_000), strict]):
        apply(store, objectives)
        with committing(store, objectives=objectives) as (committer, metrics):
            send(committer, streams_of(5))
            found = counted(metrics)
        assert found == rolled(store) != usual
        usual = found
        store.command("TRUNCATE TABLE stream_revs")


def test_all_results_exist_from_the_first_stream(store: Store) -> None:
    """All series start at 0. A series that appeared with its first bad stream would show no increase for it."""
    with committing(store) as (committer, metrics):
        body = request({"service.name": "shop"})
        native_span(body)
        send(committer, body)
        values = {result: metrics.streams.labels("shop", "client", result)._value.get() for result in RESULTS}
        assert values == {"good": 1, "gap": 0, "error": 0, "late": 0}


def test_the_number_of_services_is_limited(store: Store) -> None:
    """Clients choose the service names, so names after the first 200 share the label `(other)`."""

    def of(number: int) -> ExportTraceServiceRequest:
        body = request({"service.name": f"s{number}"})
        native_span(body)
        return body

    with committing(store) as (committer, metrics):
        for numbers in (range(200), range(200, 210), (0, 209)):
            send(committer, *map(of, numbers))
        found = counted(metrics)
    assert len(found) == 201 and found[("(other)", "client", "good")] == 11 and found[("s0", "client", "good")] == 2


# Checks with promtool.


def promtool(*arguments: str, given: str | None = None, status: int = 0) -> str:
    """Run promtool, assert its exit status and return its output."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    done = subprocess.run([tool, *arguments], input=given, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_promtool_accepts_the_rules() -> None:
    """`promtool check rules` accepts all 31 rules."""
    assert "31 rules found" in promtool("check", "rules", str(ALERTS / "prometheus.yml"))


def test_the_rules_fire_when_they_should() -> None:
    """`promtool test rules`: fast and slow burns, recovery, few streams, late starts, and Legato itself, also its first failures."""
    assert "SUCCESS" in promtool("test", "rules", str(ALERTS / "prometheus_test.yml"))


@pytest.fixture
def metrics_text(store: Store) -> Iterator[str]:
    """The text of /metrics of the OTLP app after some requests."""
    with committing(store) as (committer, metrics), served(app.create_app(load(), committer, metrics, lambda: True)) as url:
        for body in (streams_of(1).SerializeToString(), b"\xff"):
            httpx.post(f"{url}/v1/traces", content=body, headers=PROTOBUF, timeout=PATIENCE_S)
        metrics.errors.labels("commit", "OSError").inc()
        yield httpx.get(f"{url}/metrics").text


def test_the_metrics_text_is_valid(metrics_text: str) -> None:
    """`promtool check metrics` accepts all names, types and help texts, except `minutes` in a name, which it takes for a unit."""
    found = promtool("check", "metrics", given=metrics_text, status=3)
    assert {line for line in found.splitlines() if not line.startswith("legato_rolled_minutes_")} == set()


def test_the_rules_use_existing_metrics(metrics_text: str) -> None:
    """Each Legato metric in the rules is in /metrics, with the labels that the rules use."""
    text = re.sub(r"#.*", "", (ALERTS / "prometheus.yml").read_text(encoding="utf-8"))
    names = set(re.findall(r"\blegato_\w+", text))
    assert len(names) >= 6 and {name for name in names if not re.search(rf"^{name}[ {{]", metrics_text, re.MULTILINE)} == set()
    assert re.search(r'^legato_streams_total\{result="gap",service="[^"]*",vantage="client"\}', metrics_text, re.MULTILINE)
    assert re.search(r'^legato_errors_total\{stage="commit",type="OSError"\}', metrics_text, re.MULTILINE)


@contextmanager
def prometheus(folder: pathlib.Path, url: str) -> Iterator[httpx.Client]:
    """Run Prometheus, which scrapes this server every 0.2 s and keeps exemplars, and yield a client of its API."""
    tool = shutil.which("prometheus")
    if tool is None:
        pytest.skip("prometheus is not installed (Debian: prometheus)")
    scraped = {"job_name": "legato", "scrape_interval": "200ms", "static_configs": [{"targets": [url.removeprefix("http://")]}]}
    (folder / "prometheus.yml").write_text(json.dumps({"scrape_configs": [scraped]}), encoding="utf-8")
    port = free_port()
    options = (f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}", "--enable-feature=exemplar-storage")
    command = [tool, *options, f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
    with subprocess.Popen(command) as process, httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1") as client:
        try:
            yield client
        finally:
            process.terminate()


def test_prometheus_finds_the_trace_of_a_bucket(store: Store, tmp_path: pathlib.Path) -> None:
    """A request that is sent twice counts once, and the exemplar of its bucket is its trace."""
    body = request({"service.name": "shop"})
    span = native_span(body, {"legato.stream.timeline": steady_timeline(4, 450_000)})
    with committing(store) as (committer, metrics), served(app.create_app(load(), committer, metrics, lambda: True)) as url:
        for _ in range(2):
            httpx.post(f"{url}/v1/traces", content=body.SerializeToString(), headers=PROTOBUF, timeout=PATIENCE_S).raise_for_status()
        for accept in ("application/openmetrics-text; version=x", "text/plain", ""):
            text = httpx.get(f"{url}/metrics", headers={"Accept": accept}).text
            assert span.trace_id.hex() not in text and 'legato_stream_gap_max_seconds_count{service="shop",vantage="client"} 1.0' in text
        with prometheus(tmp_path, url) as client:
            query: dict[str, str | float] = {
                "query": "legato_stream_gap_max_seconds_bucket",
                "start": time.time() - 600,
                "end": time.time() + 600,
            }

            def exemplars() -> list[Any]:
                # Prometheus answers 503 while it starts.
                with suppress(httpx.HTTPError):
                    return list(client.get("/query_exemplars", params=query).raise_for_status().json()["data"])
                return []

            until(exemplars)
            (series,) = exemplars()
    assert series["seriesLabels"]["le"] == "0.6" and series["seriesLabels"]["service"] == "shop"
    (exemplar,) = series["exemplars"]
    assert exemplar["labels"] == {"trace_id": span.trace_id.hex()} and exemplar["value"] == "0.45"


def test_legato_serve_counts_by_its_settings(tmp_path: pathlib.Path) -> None:
    """With LEGATO_SLO_GAP_MS=20, `legato serve` counts a stream with gaps of 25 ms as bad, and counts a repeated one once."""
    body = request({"service.name": "shop"})
    native_span(body, {"legato.stream.timeline": steady_timeline(20, 25_000)})
    with serve_process(tmp_path / "store", LEGATO_SLO_GAP_MS="20") as server:
        for _ in range(2):
            httpx.post(
                f"{server.otlp}/v1/traces", content=body.SerializeToString(), headers=PROTOBUF, timeout=PATIENCE_S
            ).raise_for_status()
        # A request is acknowledged before its rows are inserted, and streams are counted with the insert, for which a reader asks.
        httpx.post(server.read, content="SELECT 1", timeout=PATIENCE_S).raise_for_status()
        until(lambda: "legato_duplicate_spans_total 1.0" in httpx.get(f"{server.otlp}/metrics").text)
        text = httpx.get(f"{server.otlp}/metrics").text
    assert 'legato_streams_total{result="gap",service="shop",vantage="client"} 1.0' in text
