"""The same alerts for Prometheus: its own tool takes the rules and tests them, and the counters that they need are what the store holds."""

from __future__ import annotations

import pathlib
import random
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import httpx
import pyarrow as pa
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.builders.spans import SECOND_NS, native_span, request, scope_of, steady_timeline
from helpers.servers.reading import open_store
from helpers.servers.serving import serve_process, served
from legato._timeline import pack
from legato_ingest.errors import StoreRefused, StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Limits
from legato_ingest.otlp.convert import convert_spans
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.write import app
from legato_ingest.write.committer import Committer

ALERTS = pathlib.Path(__file__).parents[2] / "dashboards" / "alerts"
PATIENCE_S = 30
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


class Double:
    """A store that can be told to fail or refuse an insert; all else is the real one's."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.fails: dict[str, Exception] = {}
        self.refuses = b""

    def insert(self, table: str, rows: pa.Table) -> None:
        """As the store's, unless it was told otherwise."""
        if table in self.fails:
            raise self.fails.pop(table)
        if table == "stream_revs" and self.refuses in rows["span_id"].to_pylist():
            raise StoreRefused("Code: 6. DB::Exception: cannot", 6)
        self._store.insert(table, rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@contextmanager
def committing(store: Store | Double, **more: Any) -> Iterator[tuple[Committer, Metrics]]:
    """A committer that is closed at the end, and what it counts."""
    metrics = Metrics()
    committer = Committer(cast(Store, store), metrics, queue_bytes_max=2**28, chunks_max=10**6, **more)
    try:
        yield committer, metrics
    finally:
        committer.close()


def send(committer: Committer, *bodies: ExportTraceServiceRequest) -> None:
    """Hand over all, then wait for all."""
    batches = [convert_spans(body, tenant="", now_ns=time.time_ns(), limits=Limits()) for body in bodies]
    for future in [committer.submit(batch) for batch in batches]:
        future.result(PATIENCE_S)


def streams_of(seed: int, count: int = 200) -> ExportTraceServiceRequest:
    """Streams of every ending, pace and start, some at the very limits; with snapshots, and streams without a timeline."""
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
    """What the counters say, by service, vantage and result."""
    found: Counter[tuple[str, str, str]] = Counter()
    for family in metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "legato_streams_total":
                found[tuple(sample.labels[name] for name in ("service", "vantage", "result"))] += int(sample.value)  # type: ignore[index]
    return +found


def rolled(store: Store, **settings: Any) -> Counter[tuple[str, str, str]]:
    """What the minutes say, likewise."""
    RollupWorker(store, load(**settings), Metrics()).again(0)
    columns = "sum(good), sum(bad_gap), sum(bad_error), sum(bad_late)"
    rows = store.select(f"SELECT service_name, vantage, {columns} FROM stream_minutes FINAL GROUP BY service_name, vantage")
    return +Counter(
        {(str(row[0]), str(row[1]), result): int(streams) for row in rows for result, streams in zip(RESULTS, row[2:], strict=True)}
    )


# The counters.


def test_the_counters_are_the_sums_of_the_minutes(store: Store) -> None:
    """By service, vantage and result, for the same requests: also sent again, in other pieces, in the same insert, and by a later end."""
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
def test_a_request_that_failed_and_came_again_counts_once(store: Store, failing: str) -> None:
    """Wherever in the commit it failed: before the rows of streams were in the store, or after."""
    double, body = Double(store), streams_of(3)
    native_span(body, {"legato.stream.timeline": b""})
    with committing(double) as (committer, metrics):
        double.fails[failing] = StoreUnavailable("Code: 243. no space left")
        with pytest.raises(StoreUnavailable):
            send(committer, body)
        send(committer, body)
        assert counted(metrics) == rolled(store) != Counter()


def test_a_row_that_the_store_refuses_does_not_count(store: Store) -> None:
    """Its neighbours do, each once, though they were inserted by halves."""
    double, body = Double(store), streams_of(4)
    double.refuses = scope_of(body).spans[7].span_id
    with committing(double) as (committer, metrics):
        send(committer, body)
        assert counted(metrics) == rolled(store) != Counter()


def test_the_limits_are_those_of_the_settings(store: Store) -> None:
    """Other limits make other streams bad, here as in the minutes."""
    with committing(store) as (committer, metrics):
        send(committer, streams_of(5))
        usual = counted(metrics)
    store.command("TRUNCATE TABLE stream_revs")
    with committing(store, slo_gap_ms=90.0, slo_first_output_ms=300.0) as (committer, metrics):
        send(committer, streams_of(5))
        assert counted(metrics) == rolled(store, slo_gap_ms=90.0, slo_first_output_ms=300.0) != usual


def test_all_results_are_there_from_the_first_stream(store: Store) -> None:
    """A series that began with its first bad stream would show no increase there."""
    with committing(store) as (committer, metrics):
        body = request({"service.name": "shop"})
        native_span(body)
        send(committer, body)
        values = {result: metrics.streams.labels("shop", "client", result)._value.get() for result in RESULTS}
        assert values == {"good": 1, "gap": 0, "error": 0, "late": 0}


def test_services_are_bounded(store: Store) -> None:
    """Names come from outside: those after the first 200 share one, and the first keep theirs."""

    def of(number: int) -> ExportTraceServiceRequest:
        body = request({"service.name": f"s{number}"})
        native_span(body)
        return body

    with committing(store) as (committer, metrics):
        for numbers in (range(200), range(200, 210), (0, 209)):
            send(committer, *map(of, numbers))
        found = counted(metrics)
    assert len(found) == 201 and found[("(other)", "client", "good")] == 11 and found[("s0", "client", "good")] == 2


# What Prometheus' own tool says.


def promtool(*arguments: str, given: str | None = None, status: int = 0) -> str:
    """What it prints, after it has ended with this status."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    done = subprocess.run([tool, *arguments], input=given, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_rules_are_rules() -> None:
    """`promtool check rules` takes all of them."""
    assert "29 rules found" in promtool("check", "rules", str(ALERTS / "prometheus.yml"))


def test_the_rules_fire_when_they_should() -> None:
    """`promtool test rules`: fast and slow burns, recovery, few streams, late starts, and Legato itself."""
    assert "SUCCESS" in promtool("test", "rules", str(ALERTS / "prometheus_test.yml"))


@pytest.fixture
def page(store: Store) -> Iterator[str]:
    """/metrics of the real app after some work."""
    with committing(store) as (committer, metrics), served(app.create_app(load(), committer, metrics, lambda: True)) as url:
        for body in (streams_of(1).SerializeToString(), b"\xff"):
            httpx.post(f"{url}/v1/traces", content=body, headers=PROTOBUF, timeout=PATIENCE_S)
        metrics.errors.labels("commit", "OSError").inc()
        yield httpx.get(f"{url}/metrics").text


def test_the_page_of_metrics_is_one(page: str) -> None:
    """`promtool check metrics` finds nothing wrong with names, types and help, but that it takes minutes that are counted for a unit."""
    found = promtool("check", "metrics", given=page, status=3)
    assert {line for line in found.splitlines() if not line.startswith("legato_rolled_minutes_")} == set()


def test_the_rules_ask_for_metrics_that_are_there(page: str) -> None:
    """Each metric of Legato's in the rules is on the page, with the labels that they select and group by."""
    text = re.sub(r"#.*", "", (ALERTS / "prometheus.yml").read_text(encoding="utf-8"))
    names = set(re.findall(r"\blegato_\w+", text))
    assert len(names) >= 6 and {name for name in names if not re.search(rf"^{name}[ {{]", page, re.MULTILINE)} == set()
    assert re.search(r'^legato_streams_total\{result="gap",service="[^"]*",vantage="client"\}', page, re.MULTILINE)
    assert re.search(r'^legato_errors_total\{stage="commit",type="OSError"\}', page, re.MULTILINE)


def test_legato_serve_counts_by_its_settings(tmp_path: pathlib.Path) -> None:
    """The running command: a stream with gaps of 25 ms is bad where LEGATO_SLO_GAP_MS is 20."""
    body = request({"service.name": "shop"})
    native_span(body, {"legato.stream.timeline": steady_timeline(20, 25_000)})
    with serve_process(tmp_path / "store", LEGATO_SLO_GAP_MS="20") as server:
        for _ in range(2):
            httpx.post(
                f"{server.otlp}/v1/traces", content=body.SerializeToString(), headers=PROTOBUF, timeout=PATIENCE_S
            ).raise_for_status()
        text = httpx.get(f"{server.otlp}/metrics").text
    assert 'legato_streams_total{result="gap",service="shop",vantage="client"} 1.0' in text
