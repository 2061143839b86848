"""CPU waits and stolen time read from a store: between the samples around a stall, on one node, over resets of counters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.builders.batches import received_points
from helpers.builders.points import gauge, metrics_request, total
from helpers.builders.world import MS, World
from helpers.builders.world_spans import put, steps, stream
from legato_ingest.attribution.load import by_engine
from legato_ingest.attribution.load.cpu_wait import cpu_samples
from legato_ingest.attribution.model.cpu_wait import CpuSamples, cpu_waits_around
from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.cli.verdict_text import evidence_lines
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Limits
from legato_ingest.settings import load
from legato_ingest.storage import Store

S = 1_000 * MS
START = 1_700_000_000 * S
WAIT, CPU = "legato.process.run_queue.wait_time", "system.cpu.time"


def sampled(store: Store, name: str, values: dict[int, float], engine_id: str = "", host: str = "node", **attributes: str) -> None:
    """Store a counter at these times (ns since ``START``), as an agent sends it."""
    body = metrics_request({"legato.engine.id": engine_id, "host.name": host} if engine_id else {"host.name": host})
    for at, value in values.items():
        total(body, name, value, START + at, attributes={key.replace("__", "."): text for key, text in attributes.items()})
    store.insert("node_samples", received_points(body, tenant="", now_ns=START, limits=Limits(retention_days=0)).samples)


def waits(store: Store, engine_id: str = "e", by_scrapes: bool = False) -> CpuSamples:
    """Return the samples of an engine on its host, over two hours."""
    low, high = START - 3_600 * S, START + 3_600 * S
    return cpu_samples(store, {("", engine_id): (low, high)}, by_scrapes)["", engine_id].on_one_host(low, high)


def evidence(found: CpuSamples, start: int, end: int) -> dict[str, int]:
    """Return the evidence about one stretch, given in ns since ``START``."""
    return cpu_waits_around(found, np.array([START + start]), np.array([START + end]))[0]


def test_growth_around_a_stall_is_evidence(store: Store) -> None:
    """All processes of the engine and all CPUs of its host count; other engines, other modes and other hosts do not."""
    sampled(store, WAIT, {0: 1.0, S: 1.1, 2 * S: 1.7}, "e", role="api")
    sampled(store, WAIT, {0: 5.0, S: 5.0, 2 * S: 5.2}, "e", role="worker")
    sampled(store, WAIT, {0: 5.0, S: 9.0, 2 * S: 90.0}, "other")
    sampled(store, CPU, {0: 70.0, 2 * S: 70.3}, cpu__mode="steal")
    sampled(store, CPU, {0: 70.0, 2 * S: 90.0}, cpu__mode="user")
    sampled(store, CPU, {0: 70.0, 2 * S: 99.0}, host="elsewhere", cpu__mode="steal")
    found = evidence(waits(store), 1_200 * MS, 1_900 * MS)
    assert found == {"cpu_wait_us": 800_000, "cpu_wait_of_us": 1_000_000, "cpu_stolen_us": 300_000, "cpu_stolen_of_us": 2_000_000}
    assert evidence(waits(store, "e/1"), 1_200 * MS, 1_900 * MS) == found


def test_an_engine_or_a_host_with_very_many_samples_is_one_without(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others that share the queries keep theirs."""
    monkeypatch.setattr(by_engine, "_SAMPLES_MAX", 12)
    for engine, waited, stolen in (("few", 2, 3), ("many", 13, 3), ("stolen", 12, 13)):
        sampled(store, WAIT, {at * S: 1.0 for at in range(waited)}, engine, host=f"node of {engine}")
        sampled(store, CPU, {at * S: 1.0 for at in range(stolen)}, host=f"node of {engine}", cpu__mode="steal")
    window = START - 3_600 * S, START + 3_600 * S
    found = cpu_samples(store, {("", engine): window for engine in ("few", "many", "stolen")})
    counts = {engine: [sum(len(each.times_ns) for each in part) for part in (own.waits, own.stolen)] for (_, engine), own in found.items()}
    assert counts == {"few": [2, 3], "many": [0, 0], "stolen": [12, 0]}


def test_stolen_time_is_not_counted_twice(store: Store) -> None:
    """A Collector sends each CPU, the agent all CPUs together: either of them is the complete time."""
    sampled(store, WAIT, {0: 1.0, S: 1.1}, "e")
    for cpu, grown in (("0", 0.3), ("1", 0.1)):
        sampled(store, CPU, {0: 5.0, S: 5.0 + grown}, cpu__logical_number=cpu, cpu__mode="steal")
    expected = {"cpu_wait_us": 100_000, "cpu_wait_of_us": 1_000_000, "cpu_stolen_us": 400_000, "cpu_stolen_of_us": 1_000_000}
    assert evidence(waits(store), 0, S) == expected
    sampled(store, CPU, {0: 70.0, S: 70.4}, cpu__mode="steal")
    assert evidence(waits(store), 0, S) == expected


def test_an_older_collectors_names_are_known(store: Store) -> None:
    """`cpu` and `state`, the attributes of the hostmetrics receiver before the semantic conventions."""
    sampled(store, WAIT, {0: 1.0, S: 1.0}, "e")
    for cpu in ("cpu0", "cpu1"):
        sampled(store, CPU, {0: 5.0, S: 5.2}, cpu=cpu, state="steal")
        sampled(store, CPU, {0: 5.0, S: 6.0}, cpu=cpu, state="idle")
    assert evidence(waits(store), 0, S)["cpu_stolen_us"] == 400_000


def test_a_reset_counter_takes_nothing_back(store: Store) -> None:
    """A process of the engine restarted: its earlier waits stay counted, and the other processes continue."""
    sampled(store, WAIT, {0: 9.0, S: 9.5, 2 * S: 0.1, 3 * S: 0.3}, "e", role="api")
    sampled(store, WAIT, {0: 1.0, 3 * S: 1.3}, "e", role="worker")
    assert evidence(waits(store), 1_100 * MS, 2_900 * MS)["cpu_wait_us"] == pytest.approx(500_000, abs=2)


@pytest.mark.parametrize(("start", "end"), [(-200 * MS, 300 * MS), (2_900 * MS, 3_200 * MS), (20 * S, 21 * S)])
def test_without_samples_around_a_stall_there_is_no_evidence(store: Store, start: int, end: int) -> None:
    """Before the first, after the last, and between two that are far apart."""
    sampled(store, WAIT, {0: 9.0, S: 9.5, 3 * S: 9.6}, "e")
    assert evidence(waits(store), start, end) == {}
    sampled(store, WAIT, {40 * S: 19.0}, "e")
    assert evidence(waits(store), 20 * S, 21 * S) == {}


def test_two_nodes_with_one_engine_id_give_no_evidence(store: Store) -> None:
    """It is unknown which of the two engines the waits belong to."""
    for host in ("a", "b"):
        sampled(store, WAIT, {0: 1.0, 9 * S: 1.5}, "e", host)
    assert evidence(waits(store), S, 2 * S) == {}
    assert evidence(CpuSamples(), S, 2 * S) == {}


def test_a_process_that_was_not_sampled_then_is_not_counted(store: Store) -> None:
    """Samples a minute apart do not show when the process waited, and a value that is no number of seconds is left out."""
    sampled(store, WAIT, {0: 1.0, 60 * S: 31.0}, "e", role="seldom")
    sampled(store, WAIT, {second * S: 1.0 + 0.1 * second for second in range(60)}, "e", role="often")
    sampled(store, WAIT, {second * S: 1e300 * second for second in range(60)}, "e", role="broken")
    assert evidence(waits(store), 10_200 * MS, 10_800 * MS) == {"cpu_wait_us": 100_000, "cpu_wait_of_us": 1_000_000}


HOT, LONG = World(slow={200: 600 * MS}), World(prefill={n: 2_500 for n in range(40, 400, 60)})


@pytest.mark.parametrize(("world", "cause", "expected"), [(HOT, "host", True), (LONG, "scheduling", False)], ids=["host", "scheduling"])
def test_a_host_stall_reports_the_waits_of_its_threads(store: Store, world: World, cause: str, expected: bool) -> None:
    """From samples to the text of `legato stream`; a stall with another cause has no such text."""
    received_ns = int(world.ends[-1]) + S
    for part in (stream(world, "client"), stream(world, "server"), steps(world)):
        put(store, part, received_ns)
    # Half a second of the wait is in the long step.
    ends = {int(at) - START: 0.5 * (at >= world.ends[200]) for at in np.arange(world.ends[0] - S, world.ends[-1] + 2 * S, 250 * MS)}
    sampled(store, WAIT, ends, "e")
    assert AttributionWorker(store, load(attribute_grace_s=0), Metrics()).step().verdicts >= 1
    table = store.select_arrow(
        "SELECT cause, evidence, parts, gap_us, error_us, excluded FROM verdicts FINAL WHERE cause != 'base' LIMIT 1"
    )
    (row,) = table.to_pylist()
    verdict = {**row, "evidence": {key.decode(): value for key, value in row["evidence"]}, "excluded": {}, "parts": {}}
    assert row["cause"] == cause.encode()
    assert ("the engine's threads were ready without a CPU for 500 ms in total in the" in words(verdict)) == expected
    assert not expected or 500_000 <= verdict["evidence"]["cpu_wait_of_us"] <= 1_300_000


def test_the_host_of_a_scrape_counts_only_without_sampled_processes(store: Store) -> None:
    """A scraper may run on another host. Sampled processes identify the engine's host; the scraper's host is used only without them."""
    sampled(store, WAIT, {0: 1, S: 1.1}, "e", host="node")
    sampled(store, CPU, {0: 5, S: 6}, host="monitor", cpu__mode="steal")
    body = metrics_request({"legato.engine.id": "e", "host.name": "monitor"})
    gauge(body, "legato.engine.up", 1.0, START)
    store.insert("node_samples", received_points(body, tenant="", now_ns=START, limits=Limits(retention_days=0)).samples)
    assert evidence(waits(store), 0, S) == {"cpu_wait_us": 100_000, "cpu_wait_of_us": 1_000_000}
    alone = metrics_request({"legato.engine.id": "far", "host.name": "monitor"})
    gauge(alone, "legato.engine.up", 1.0, START)
    store.insert("node_samples", received_points(alone, tenant="", now_ns=START, limits=Limits(retention_days=0)).samples)
    assert evidence(waits(store, "far"), 0, S) == {}
    assert evidence(waits(store, "far", by_scrapes=True), 0, S)["cpu_stolen_us"] == 1_000_000


def test_the_host_of_a_scrape_reports_stolen_time(store: Store) -> None:
    """No steps and no sampled processes: the scrapes give the engine's host, and its counters the stolen time."""
    world = World(slow={200: 2_000 * MS})
    received_ns = int(world.ends[-1]) + S
    for vantage in ("client", "server"):
        put(store, stream(world, vantage, clock="boot-1:time:5"), received_ns)
    stalled = int(world.ends[199]), int(world.ends[200])
    seconds = range(-90, 90)
    body = metrics_request({"legato.engine.id": "e", "host.name": "node"})
    for at in seconds:
        gauge(body, "legato.engine.up", 1.0, stalled[0] + at * S, attributes={"legato.boot.id": "boot-1"})
    store.insert("node_samples", received_points(body, tenant="", now_ns=START, limits=Limits(retention_days=0)).samples)
    within = [stalled[0] + at * S for at in seconds]
    stolen = {at - START: 8 * min(max(at - stalled[0], 0), 2 * S) / S for at in within}
    sampled(store, CPU, stolen, cpu__mode="steal")
    sampled(store, CPU, {at - START: 8 * (at - within[0]) / S - stolen[at - START] for at in within}, cpu__mode="idle")
    assert AttributionWorker(store, load(attribute_grace_s=0), Metrics()).step().verdicts >= 1
    ((cause, confidence, evidence),) = store.select("SELECT cause, confidence, evidence FROM verdicts FINAL WHERE cause != 'base'")
    assert (cause, confidence) == ("host", "possible") and evidence["cpu_stolen_us"] >= 15_000_000


def words(verdict: dict[str, Any]) -> str:
    """Return the evidence as `legato stream` prints it."""
    return "\n".join(line.plain for line in evidence_lines(verdict))


def test_without_samples_there_are_none(store: Store) -> None:
    """An engine that was never sampled, and one that was scraped on a host without counters."""
    assert waits(store) == CpuSamples()
    body = metrics_request({"legato.engine.id": "e", "host.name": "monitor"})
    gauge(body, "legato.engine.up", 1.0, START)
    store.insert("node_samples", received_points(body, tenant="", now_ns=START, limits=Limits(retention_days=0)).samples)
    found = waits(store, by_scrapes=True)
    assert (list(found.waits), list(found.stolen)) == ([], [])
