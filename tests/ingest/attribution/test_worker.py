"""The attribution worker on a real store: it judges each stream once, continues after a restart, and judges again on late evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.builders.batches import received_points
from helpers.builders.points import gauge, metrics_request, total
from helpers.builders.world import MS, World
from helpers.builders.world_spans import put, steps, stream
from legato_gpu_agent.agent.otlp_spans import Engine, steps_request
from legato_gpu_agent.plugin.model import FinishedRequest, Step
from legato_ingest.attribution.model.vantage import Vantage
from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.cli.queries import BUT_FOR
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Limits
from legato_ingest.settings import load
from legato_ingest.storage import Store

WORLD = World(slow={200: 600 * MS})
RECEIVED_NS = int(WORLD.ends[-1]) + 10**9


def worker(store: Store) -> AttributionWorker:
    """Return a worker that runs only on ``step()``."""
    return AttributionWorker(store, load(attribute_grace_s=0), Metrics())


def verdicts(store: Store) -> list[Any]:
    """Return the current verdicts."""
    return [tuple(row) for row in store.select("SELECT cause, confidence, missing, step_first FROM verdicts FINAL")]


PARTS: dict[str, Callable[[], ExportTraceServiceRequest]] = {
    "client": lambda: stream(WORLD, "client"),
    "server": lambda: stream(WORLD, "server"),
    "steps": lambda: steps(WORLD),
}


def test_a_settled_stream_is_judged_once(store: Store) -> None:
    """All vantages are stored; the next run, also of another worker, has nothing to do."""
    for part in PARTS.values():
        put(store, part(), RECEIVED_NS)
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
    for part in PARTS.values():
        put(store, part(), RECEIVED_NS)
    stopped = worker(store)
    stopped._task.closing.set()
    assert stopped.step().streams == 0
    assert worker(store).step().verdicts == 1


def test_a_stall_that_proves_healthy_is_withdrawn(store: Store) -> None:
    """Without the engine a gap is generation. The engine's record shows a large batch and a duration that is usual for it: ``base``."""
    world = World(busy={n: 60 for n in range(50, 400, 25)})
    for vantage in ("client", "server"):
        put(store, stream(world, vantage), RECEIVED_NS)
    judge = worker(store)
    judge.step()
    assert [row[0] for row in verdicts(store)] == ["generation"] * 14
    put(store, steps(world), RECEIVED_NS)
    judge.again(0)
    assert [row[0] for row in verdicts(store)] == ["base"] * 14


def test_judging_again_changes_nothing_but_when(store: Store) -> None:
    """`legato reattribute` writes the same verdicts again, and the newest count."""
    for part in PARTS.values():
        put(store, part(), RECEIVED_NS)
    judge = worker(store)
    judge.step()
    before = verdicts(store)
    assert judge.again(0)["verdicts"] == 1 and verdicts(store) == before
    assert judge.again(1) == {"streams": 0, "verdicts": 0, "seconds": pytest.approx(0, abs=5)}
    ((rows, newest),) = store.select("SELECT count(), uniqExact(judged_at) FROM verdicts")
    assert rows == newest == 2


def test_a_verdict_has_its_evidence(store: Store) -> None:
    """The numbers, the root-cause step, the excluded causes and the possible error."""
    for part in PARTS.values():
        put(store, part(), RECEIVED_NS)
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


def test_a_restarted_engine_counts_its_steps_from_one_again(store: Store) -> None:
    """Two runs within a minute: each finished request is matched with the step at its time, so the clock offset is right."""
    for part in PARTS.values():
        put(store, part(), RECEIVED_NS)
    again = World(seed=2)
    shift = int(WORLD.ends[-1]) - int(again.ends[0]) + 5_000 * MS
    later = steps(replace(again, offset_ns=shift), 0, epoch_ns=9)
    put(store, later, RECEIVED_NS)
    worker(store).step()
    assert verdicts(store) == [("host", "strong", [], 200)]


def test_the_engine_that_finished_a_request_is_its_engine(store: Store) -> None:
    """The server has one id for several engines; the record of the finished request has the right one."""
    for part in PARTS.values():
        put(store, part(), RECEIVED_NS)
    put(store, steps(World(seed=3), 0, engine_id="e/1"), RECEIVED_NS)
    worker(store).step()
    ((engine,),) = store.select("SELECT engine_id FROM verdicts FINAL")
    assert engine == "e"
    store.command("TRUNCATE TABLE engine_requests")
    put(store, steps_request(Engine("e/1", 5), [Step(1, RECEIVED_NS)], [FinishedRequest(1, "chatcmpl-1")]), RECEIVED_NS)
    worker(store).again(0)
    ((engine,),) = store.select("SELECT engine_id FROM verdicts FINAL")
    assert engine == "e/1"


def test_streams_that_cannot_be_judged_are_left_out_and_counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that always fails must not keep later streams from being judged."""
    for part in PARTS.values():
        put(store, part(), RECEIVED_NS)
    metrics = Metrics()
    judge = AttributionWorker(store, load(attribute_grace_s=0), metrics)
    with monkeypatch.context() as broken:
        broken.setattr("legato_ingest.attribution.run.judge", lambda *_: 1 / 0)
        judge.step()
    assert metrics.errors.labels("attribute", "ZeroDivisionError")._value.get() == 1
    assert judge.step().streams == 0, "the next run continues after them"
    assert judge.again(0)["verdicts"] == 1


def test_a_counterfactual_of_an_older_verdict_does_not_count(store: Store) -> None:
    """With less evidence another cause took part. Its row stays in the store, but a newer verdict replaced that judgement."""
    for part in PARTS.values():
        put(store, part(), RECEIVED_NS)
    judge = worker(store)
    judge.step()
    store.command("INSERT INTO replays SELECT * REPLACE ('front_end' AS cause, judged_at - INTERVAL 1 HOUR AS judged_at) FROM replays")
    sql = BUT_FOR.replace("{since_s:UInt64}", "0")
    for name in ("engine", "model", "service", "vantage"):
        sql = sql.replace(f"{{{name}:String}}", "''")
    assert {str(row[0]): int(row[1]) for row in store.select(sql)} == {"host": 1, "": 1}


def test_an_engine_with_a_slow_clock_is_late_once(store: Store) -> None:
    """Its steps always arrive two minutes after their times: streams are judged again for the first step only, not in every run."""
    for part in PARTS.values():
        put(store, part(), RECEIVED_NS)
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


class _Waited(World):
    """A world in which the last token of stream 0 waited before it was sent."""

    def server(self, stream: int) -> Vantage:
        seen = super().server(stream)
        if stream == 0:
            seen.times_ns[-1] += 45 * MS
        return seen


def test_one_late_send_moves_no_clock(store: Store) -> None:
    """A run may judge a single stream; the offset of the records' clock comes from all requests that ended around it."""
    world = _Waited(prefill={200: 3000})
    put(store, steps(world, 4), RECEIVED_NS)
    for number in range(4):
        put(store, stream(world, "server", number), RECEIVED_NS)
    put(store, stream(world, "client"), RECEIVED_NS)
    worker(store).step()
    assert [(row[0], row[3]) for row in verdicts(store)] == [("scheduling", 200)]
