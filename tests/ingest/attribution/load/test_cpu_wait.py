"""What the kernel counted beside a stall of the host's: between the samples that surround it, of one node, whatever began anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.builders.batches import received_points
from helpers.builders.points import gauge, metrics_request, total
from helpers.builders.world import MS, World
from helpers.builders.world_spans import put, steps, stream
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
    """A counter at these times (ns since ``START``), as an agent sends it."""
    body = metrics_request({"legato.engine.id": engine_id, "host.name": host} if engine_id else {"host.name": host})
    for at, value in values.items():
        total(body, name, value, START + at, attributes={key.replace("__", "."): text for key, text in attributes.items()})
    store.insert("node_samples", received_points(body, tenant="", now_ns=START, limits=Limits(retention_days=0)).samples)


def waits(store: Store, engine_id: str = "e", by_scrapes: bool = False) -> CpuSamples:
    """The samples of an engine over two hours, on its host."""
    low, high = START - 3_600 * S, START + 3_600 * S
    return cpu_samples(store, ("", engine_id), low, high, by_scrapes).on_one_host(low, high)


def evidence(found: CpuSamples, start: int, end: int) -> dict[str, int]:
    """The evidence about one stretch, ns since ``START``."""
    return cpu_waits_around(found, np.array([START + start]), np.array([START + end]))[0]


def test_what_grew_around_a_stall_is_told(store: Store) -> None:
    """All processes of the engine and all CPUs of its host; what others waited, and other modes, are not it."""
    sampled(store, WAIT, {0: 1.0, S: 1.1, 2 * S: 1.7}, "e", role="api")
    sampled(store, WAIT, {0: 5.0, S: 5.0, 2 * S: 5.2}, "e", role="worker")
    sampled(store, WAIT, {0: 5.0, S: 9.0, 2 * S: 90.0}, "other")
    sampled(store, CPU, {0: 70.0, 2 * S: 70.3}, cpu__mode="steal")
    sampled(store, CPU, {0: 70.0, 2 * S: 90.0}, cpu__mode="user")
    sampled(store, CPU, {0: 70.0, 2 * S: 99.0}, host="elsewhere", cpu__mode="steal")
    found = evidence(waits(store), 1_200 * MS, 1_900 * MS)
    assert found == {"cpu_wait_us": 800_000, "cpu_wait_of_us": 1_000_000, "cpu_stolen_us": 300_000, "cpu_stolen_of_us": 2_000_000}
    assert evidence(waits(store, "e/1"), 1_200 * MS, 1_900 * MS) == found


def test_time_stolen_is_not_told_twice(store: Store) -> None:
    """A Collector tells each CPU, by new names or old; the agent beside it all of them: either is all of it."""
    sampled(store, WAIT, {0: 1.0, S: 1.1}, "e")
    for cpu, grown in (("0", 0.3), ("1", 0.1)):
        sampled(store, CPU, {0: 5.0, S: 5.0 + grown}, cpu__logical_number=cpu, cpu__mode="steal")
    told = {"cpu_wait_us": 100_000, "cpu_wait_of_us": 1_000_000, "cpu_stolen_us": 400_000, "cpu_stolen_of_us": 1_000_000}
    assert evidence(waits(store), 0, S) == told
    sampled(store, CPU, {0: 70.0, S: 70.4}, cpu__mode="steal")
    assert evidence(waits(store), 0, S) == told


def test_an_older_collectors_names_are_known(store: Store) -> None:
    """`cpu` and `state`, as hostmetrics had them before the conventions."""
    sampled(store, WAIT, {0: 1.0, S: 1.0}, "e")
    for cpu in ("cpu0", "cpu1"):
        sampled(store, CPU, {0: 5.0, S: 5.2}, cpu=cpu, state="steal")
        sampled(store, CPU, {0: 5.0, S: 6.0}, cpu=cpu, state="idle")
    assert evidence(waits(store), 0, S)["cpu_stolen_us"] == 400_000


def test_a_counter_that_began_anew_takes_nothing_back(store: Store) -> None:
    """An engine's process restarted: what it had waited before is not given back, and the others go on."""
    sampled(store, WAIT, {0: 9.0, S: 9.5, 2 * S: 0.1, 3 * S: 0.3}, "e", role="api")
    sampled(store, WAIT, {0: 1.0, 3 * S: 1.3}, "e", role="worker")
    assert evidence(waits(store), 1_100 * MS, 2_900 * MS)["cpu_wait_us"] == pytest.approx(500_000, abs=2)


@pytest.mark.parametrize(("start", "end"), [(-200 * MS, 300 * MS), (2_900 * MS, 3_200 * MS), (20 * S, 21 * S)])
def test_without_samples_around_it_nothing_is_said(store: Store, start: int, end: int) -> None:
    """Before the first, after the last, and between two that are far apart."""
    sampled(store, WAIT, {0: 9.0, S: 9.5, 3 * S: 9.6}, "e")
    assert evidence(waits(store), start, end) == {}
    sampled(store, WAIT, {40 * S: 19.0}, "e")
    assert evidence(waits(store), 20 * S, 21 * S) == {}


def test_of_two_nodes_nothing_is_said(store: Store) -> None:
    """Two engines have one id: nobody knows whose threads waited."""
    for host in ("a", "b"):
        sampled(store, WAIT, {0: 1.0, 9 * S: 1.5}, "e", host)
    assert evidence(waits(store), S, 2 * S) == {}
    assert evidence(CpuSamples(), S, 2 * S) == {}


def test_a_process_that_was_not_sampled_then_is_not_counted(store: Store) -> None:
    """Nobody knows when in its minute it waited; and what is no number of seconds is nobody's wait."""
    sampled(store, WAIT, {0: 1.0, 60 * S: 31.0}, "e", role="seldom")
    sampled(store, WAIT, {second * S: 1.0 + 0.1 * second for second in range(60)}, "e", role="often")
    sampled(store, WAIT, {second * S: 1e300 * second for second in range(60)}, "e", role="broken")
    assert evidence(waits(store), 10_200 * MS, 10_800 * MS) == {"cpu_wait_us": 100_000, "cpu_wait_of_us": 1_000_000}


HOT, LONG = World(slow={200: 600 * MS}), World(prefill={n: 2_500 for n in range(40, 400, 60)})


@pytest.mark.parametrize(("world", "cause", "told"), [(HOT, "host", True), (LONG, "scheduling", False)], ids=["host", "scheduling"])
def test_a_stall_of_the_hosts_says_what_its_threads_waited(store: Store, world: World, cause: str, told: bool) -> None:
    """From samples to the words of `legato stream`; a stall of another cause says nothing of it."""
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
    assert ("the engine's threads were ready without a CPU for 500 ms in total in the" in words(verdict)) == told
    assert not told or 500_000 <= verdict["evidence"]["cpu_wait_of_us"] <= 1_300_000


def test_who_read_the_page_is_not_asked_where_the_processes_are_seen(store: Store) -> None:
    """It may read from afar: whose host it is, the kernel's count says, and who read the page only where a page named the host."""
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


def test_a_host_that_a_page_named_says_what_was_stolen(store: Store) -> None:
    """Without steps, and without a sight of the engine's processes: its page says on which host it is, the host what was stolen."""
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
    """All that `legato stream` says of it."""
    return "\n".join(line.plain for line in evidence_lines(verdict))


def test_without_samples_there_are_none(store: Store) -> None:
    """An engine that was never sampled, and one that was scraped on a host without counters."""
    assert waits(store) == CpuSamples()
    body = metrics_request({"legato.engine.id": "e", "host.name": "monitor"})
    gauge(body, "legato.engine.up", 1.0, START)
    store.insert("node_samples", received_points(body, tenant="", now_ns=START, limits=Limits(retention_days=0)).samples)
    found = waits(store, by_scrapes=True)
    assert (list(found.waits), list(found.stolen)) == ([], [])
