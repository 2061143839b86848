"""The attribution worker on a real store: it judges each stream once, continues after a restart, and judges again on late evidence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from helpers.builders.batches import received_points
from helpers.builders.judging import PARTS, RECEIVED_NS, WORLD, put_all, verdicts, worker
from helpers.builders.points import gauge, metrics_request, total
from helpers.builders.world import MS, World
from helpers.builders.world_spans import put, steps, stream
from legato_gpu_agent.agent.otlp_spans import Engine, steps_request
from legato_gpu_agent.plugin.model import Step
from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.cli.queries import BUT_FOR
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Limits
from legato_ingest.settings import load
from legato_ingest.storage import Store


def test_a_settled_stream_is_judged_once(store: Store) -> None:
    """All vantages are stored; the next run, also of another worker, has nothing to do."""
    put_all(store)
    first = worker(store)
    assert first.step().verdicts == 1
    assert verdicts(store) == [("host", "strong", [], 200)]
    ((parts, gap),) = store.select("SELECT parts, gap_us FROM verdicts")
    assert sum(parts.values()) == 1000 * gap and parts["host"] == pytest.approx(600 * MS, abs=3 * MS)
    assert first.step().streams == 0 and worker(store).step().streams == 0


@pytest.mark.parametrize("metric", ["legato.engine.up", "legato.agent.forward_passes"])
@pytest.mark.parametrize(("boot", "named"), [("boot-1", True), ("boot-2", False), ("", False)])
def test_steps_without_requests_are_used_on_one_host(store: Store, boot: str, named: bool, metric: str) -> None:
    """An engine that publishes forward passes, scraped or not: its steps are used only if server and agent report the same boot."""
    put(store, stream(WORLD, "client"), RECEIVED_NS)
    put(store, stream(WORLD, "server", clock="boot-1:time:5"), RECEIVED_NS)
    put(store, steps(WORLD, 0), RECEIVED_NS)
    body = metrics_request({"legato.engine.id": "e"})
    for at in range(10):
        gauge(body, metric, 1, int(WORLD.ends[0]) + at * 1000 * MS, attributes={"legato.boot.id": boot} if boot else {})
    store.insert("node_samples", received_points(body, tenant="", now_ns=RECEIVED_NS, limits=Limits(retention_days=0)).samples)
    worker(store).step()
    assert verdicts(store) == [("host", "strong", [], 200) if named else ("generation", "strong", ["engine"], None)]


@pytest.mark.parametrize(
    ("late", "before"),
    [
        ("steps", ("generation", "strong", ["engine"], None)),
        ("server", ("host", "likely", ["server"], 200)),
    ],
)
def test_late_evidence_is_judged_again(store: Store, late: str, before: tuple[Any, ...]) -> None:
    """The first verdict is weaker; the verdict is complete when the missing part has arrived."""
    for name, part in PARTS.items():
        if name != late:
            put(store, part(), RECEIVED_NS)
    judge = worker(store)
    judge.step()
    assert verdicts(store) == [before]
    ((until,),) = store.select("SELECT toUnixTimestamp64Milli(max(until)) FROM attribution_runs")
    put(store, PARTS[late](), (int(until) + 1) * MS)
    while not judge.step().streams:
        pass
    assert verdicts(store) == [("host", "strong", [], 200)]


def test_a_client_alone_is_judged(store: Store) -> None:
    """Nothing else was recorded: the verdict names a side, and the missing vantages."""
    put(store, PARTS["client"](), RECEIVED_NS)
    assert worker(store).step().verdicts == 1
    assert verdicts(store) == [("generation", "likely", ["server", "engine"], None)]


def test_a_stop_leaves_the_rest_for_the_next_start(store: Store) -> None:
    """Streams that were not judged are not recorded as judged."""
    put_all(store)
    stopped = worker(store)
    stopped._task.closing.set()
    assert stopped.step().streams == 0
    assert worker(store).step().verdicts == 1


def test_judging_again_changes_nothing_but_when(store: Store) -> None:
    """`legato reattribute` writes the same verdicts again, and the newest count."""
    put_all(store)
    judge = worker(store)
    judge.step()
    before = verdicts(store)
    assert judge.again(0)["verdicts"] == 1 and verdicts(store) == before
    assert judge.again(1) == {"streams": 0, "verdicts": 0, "seconds": pytest.approx(0, abs=5)}
    ((rows, newest),) = store.select("SELECT count(), uniqExact(judged_at) FROM verdicts")
    assert rows == newest == 2


def test_a_verdict_has_its_evidence(store: Store) -> None:
    """The numbers, the root-cause step, the excluded causes and the possible error."""
    put_all(store)
    worker(store).step()
    ((evidence, excluded, error_us, step, root_us, responses),) = store.select(
        "SELECT evidence, excluded, error_us, culprit_step, culprit_us, culprit_responses FROM verdicts FINAL"
    )
    assert evidence["server_gap_us"] == pytest.approx(620_000, abs=3_000) and "hold_us" not in evidence
    assert excluded["kv_pressure"] == "no preemption and no recompute in its steps" and not {"host", "consumer"} & set(excluded)
    # With one request the delay of its last send is unknown: the error of the offset is a third of a step.
    assert 7_000 <= error_us < 8_000
    assert (step, responses) == (200, []) and root_us == pytest.approx(600_000, abs=3_000)
    ((joined,),) = store.select(
        "SELECT count() FROM verdicts AS v INNER JOIN engine_steps AS s ON v.engine_id = s.engine_id AND v.culprit_at = s.recorded_at"
        " AND v.culprit_step = s.step"
    )
    assert joined == 1


@pytest.mark.parametrize(
    ("counted", "gap_s", "ruled_out"),
    [
        (lambda at: 7, 5, True),
        (lambda at: 7 if at < 20 else 8, 5, False),  # grew two seconds after the world
        (lambda at: 7 if at < 200 else 8, 5, True),  # grew long after it
        (lambda at: 7, 40, False),  # scrapes too far apart
        (lambda at: None if at < 0 else 7, 5, False),  # no scrape before
    ],
)
def test_without_steps_counters_that_do_not_grow_exclude_causes(
    store: Store, counted: Callable[[int], float | None], gap_s: int, ruled_out: bool
) -> None:
    """Scraped metrics name no cause here. They exclude preemption if its counter did not grow around the gap."""
    for name in ("client", "server"):
        put(store, PARTS[name](), RECEIVED_NS)
    begun = int(WORLD.ends[0])
    body = metrics_request({"legato.engine.id": "e"})
    for at in range(-120, 240, gap_s):
        if (value := counted(at)) is not None:
            total(body, "vllm:num_preemptions_total", value, begun + at * 1000 * MS)
    batch = received_points(body, tenant="", now_ns=RECEIVED_NS, limits=Limits(retention_days=0))
    assert not batch.rejected.num_rows
    store.insert("node_samples", batch.samples)
    worker(store).step()
    ((cause, excluded),) = store.select("SELECT cause, excluded FROM verdicts FINAL")
    assert cause == "generation" and ("kv_pressure" in excluded) is ruled_out


def test_one_event_stalls_several_streams(store: Store) -> None:
    """A preemption: one stream was preempted, the other waited for its recompute; without kv_pressure no stall is left."""
    world = World(preempted=(200, 230))
    put(store, steps(world, 2), RECEIVED_NS)
    for number in (0, 1):
        for vantage in ("server", "client"):
            put(store, stream(world, vantage, number), RECEIVED_NS)
    judge = AttributionWorker(store, load(attribute_grace_s=0, stall_ms=100), Metrics())
    judge.step()
    rows = store.select("SELECT culprit_responses, has(evidence, 'preempted_step'), culprit_step FROM verdicts FINAL ORDER BY trace_id")
    assert [tuple(row) for row in rows] == [(["chatcmpl-1"], 1, 200), (["chatcmpl-1"], 0, 230)]
    replays = store.select("SELECT cause, stalls, stalls_min, stalls_max, stalled_min_us FROM replays FINAL")
    assert [tuple(row) for row in replays] == [("kv_pressure", 1, 0, 0, 0)] * 2


def test_a_counterfactual_of_an_older_verdict_does_not_count(store: Store) -> None:
    """With less evidence another cause took part. Its row stays in the store, but a newer verdict replaced that judgement."""
    put_all(store)
    judge = worker(store)
    judge.step()
    store.command("INSERT INTO replays SELECT * REPLACE ('front_end' AS cause, judged_at - INTERVAL 1 HOUR AS judged_at) FROM replays")
    sql = BUT_FOR.replace("{since_s:UInt64}", "0")
    for name in ("engine", "model", "service", "vantage"):
        sql = sql.replace(f"{{{name}:String}}", "''")
    assert {str(row[0]): int(row[1]) for row in store.select(sql)} == {"host": 1, "": 1}


def test_an_engine_with_a_slow_clock_is_late_once(store: Store) -> None:
    """Its steps always arrive two minutes after their times: streams are judged again for the first step only, not in every run."""
    put_all(store)
    judge = worker(store)
    judge.step()
    ((until,),) = store.select("SELECT toUnixTimestamp64Milli(max(until)) FROM attribution_runs")
    at = int(until) * MS
    due = []
    for run in range(1, 5):
        behind = at + run * 1000 * MS
        put(store, steps_request(Engine("behind", 1), [Step(run, behind - 120_000 * MS)]), behind)
        due.append(len(judge._due(int(until) + 1000 * (run - 1), int(until) + 1000 * run)))
    assert due == [1, 0, 0, 0]
    put(store, steps_request(Engine("behind", 1), [Step(9, at - 900_000 * MS)]), at + 5_000 * MS)
    assert len(judge._due(int(until) + 4_000, int(until) + 5_000)) == 1, "this step is late"
