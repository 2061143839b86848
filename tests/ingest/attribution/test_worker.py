"""The attribution's worker over a real store: it judges what settled, once, goes on after a restart, and again when evidence comes late."""

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
    """A worker that is told when to sweep."""
    return AttributionWorker(store, load(attribute_grace_s=0), Metrics())


def verdicts(store: Store) -> list[Any]:
    """What readers see."""
    return [tuple(row) for row in store.select("SELECT cause, confidence, missing, step_first FROM verdicts FINAL")]


PARTS: dict[str, Callable[[], ExportTraceServiceRequest]] = {
    "client": lambda: stream(WORLD, "client"),
    "server": lambda: stream(WORLD, "server"),
    "steps": lambda: steps(WORLD),
}


def test_a_settled_stream_is_judged_once(store: Store) -> None:
    """With all vantages, and the next sweep, also of another worker, finds nothing to do."""
    for part in PARTS.values():
        put(store, part(), RECEIVED_NS)
    first = worker(store)
    assert first.step().verdicts == 1
    assert verdicts(store) == [("host", "strong", [], 200)]
    ((parts, gap),) = store.select("SELECT parts, gap_us FROM verdicts")
    assert sum(parts.values()) == 1000 * gap and parts["host"] == pytest.approx(600 * MS, abs=3 * MS)
    assert first.step().streams == 0 and worker(store).step().streams == 0


@pytest.mark.parametrize("told", ["legato.engine.up", "legato.agent.forward_passes"])
@pytest.mark.parametrize(("boot", "named"), [("boot-1", True), ("boot-2", False), ("", False)])
def test_steps_that_name_no_request_are_joined_on_one_host(store: Store, boot: str, named: bool, told: str) -> None:
    """As of an engine that publishes its passes, page read or not: where the server's clock and the agent's are of one boot, only there."""
    put(store, stream(WORLD, "client"), RECEIVED_NS)
    put(store, stream(WORLD, "server", clock="boot-1:time:5"), RECEIVED_NS)
    put(store, steps(WORLD, 0), RECEIVED_NS)
    body = metrics_request({"legato.engine.id": "e"})
    for at in range(10):
        gauge(body, told, 1, int(WORLD.ends[0]) + at * 1000 * MS, attributes={"legato.boot.id": boot} if boot else {})
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
    """The claim is weaker first, and the full one when the rest has come, whichever it is."""
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
    """Nothing else was recorded: a coarse word, and what is missing."""
    put(store, PARTS["client"](), RECEIVED_NS)
    assert worker(store).step().verdicts == 1
    assert verdicts(store) == [("generation", "likely", ["server", "engine"], None)]


def test_a_stop_leaves_the_rest_for_the_next_start(store: Store) -> None:
    """What was not judged is not noted as judged."""
    for part in PARTS.values():
        put(store, part(), RECEIVED_NS)
    stopped = worker(store)
    stopped._task.closing.set()
    assert stopped.step().streams == 0
    assert worker(store).step().verdicts == 1


def test_what_proves_healthy_is_told_so(store: Store) -> None:
    """Without the engine a silence is generated late; its record says that the step was full, and took what such a step takes."""
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
    """`legato reattribute`: the same verdicts, of which the newest count."""
    for part in PARTS.values():
        put(store, part(), RECEIVED_NS)
    judge = worker(store)
    judge.step()
    before = verdicts(store)
    assert judge.again(0)["verdicts"] == 1 and verdicts(store) == before
    assert judge.again(1) == {"streams": 0, "verdicts": 0, "seconds": pytest.approx(0, abs=5)}
    ((rows, newest),) = store.select("SELECT count(), uniqExact(judged_at) FROM verdicts")
    assert rows == newest == 2


def test_a_verdict_stands_on_its_grounds(store: Store) -> None:
    """Its numbers, whom to blame, what is out of the question, and how far it may be off."""
    for part in PARTS.values():
        put(store, part(), RECEIVED_NS)
    worker(store).step()
    ((evidence, excluded, error_us, step, blamed_us, whose),) = store.select(
        "SELECT evidence, excluded, error_us, culprit_step, culprit_us, culprit_responses FROM verdicts FINAL"
    )
    assert evidence["server_gap_us"] == pytest.approx(620_000, abs=3_000) and "hold_us" not in evidence
    assert excluded["kv_pressure"] == "no preemption and no recompute in its steps" and not {"host", "consumer"} & set(excluded)
    # Of one request alone nobody knows how late its last send was: the offset may be off by a third of a step.
    assert 7_000 <= error_us < 8_000
    assert (step, whose) == (200, []) and blamed_us == pytest.approx(600_000, abs=3_000)
    ((joined,),) = store.select(
        "SELECT count() FROM verdicts AS v INNER JOIN engine_steps AS s ON v.engine_id = s.engine_id AND v.culprit_at = s.recorded_at"
        " AND v.culprit_step = s.step"
    )
    assert joined == 1


@pytest.mark.parametrize(
    ("counted", "gap_s", "ruled_out"),
    [
        (lambda at: 7, 5, True),
        (lambda at: 7 if at < 20 else 8, 5, False),  # moved two seconds after the world
        (lambda at: 7 if at < 200 else 8, 5, True),  # long after
        (lambda at: 7, 40, False),  # too far apart to say
        (lambda at: None if at < 0 else 7, 5, False),  # nothing of the time before
    ],
)
def test_without_steps_counters_that_stand_still_rule_causes_out(
    store: Store, counted: Callable[[int], float | None], gap_s: int, ruled_out: bool
) -> None:
    """The scrapes of the stream's engine name no cause, and take preemption off the list where its counter did not move."""
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


def test_one_event_stalls_many_and_has_a_name(store: Store) -> None:
    """A preemption: the victim's own stall is its own, and the others waited for its recompute; without it nothing is left."""
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


def test_an_engine_that_starts_again_is_two_engines_in_time(store: Store) -> None:
    """Step numbers begin anew within the minute: each finished request is of the step of its own time, so no clock is moved."""
    for part in PARTS.values():
        put(store, part(), RECEIVED_NS)
    again = World(seed=2)
    shift = int(WORLD.ends[-1]) - int(again.ends[0]) + 5_000 * MS
    later = steps(replace(again, offset_ns=shift), 0, epoch_ns=9)
    put(store, later, RECEIVED_NS)
    worker(store).step()
    assert verdicts(store) == [("host", "strong", [], 200)]


def test_the_engine_that_finished_a_request_is_its_engine(store: Store) -> None:
    """Several engines behind one server: the server knows one name for all, the record of the finished request the right one."""
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
    """One that fails for ever must not keep the others from being judged for ever."""
    for part in PARTS.values():
        put(store, part(), RECEIVED_NS)
    metrics = Metrics()
    judge = AttributionWorker(store, load(attribute_grace_s=0), metrics)
    with monkeypatch.context() as broken:
        broken.setattr("legato_ingest.attribution.run.judge", lambda *_: 1 / 0)
        judge.step()
    assert metrics.errors.labels("attribute", "ZeroDivisionError")._value.get() == 1
    assert judge.step().streams == 0, "it goes on after them"
    assert judge.again(0)["verdicts"] == 1


def test_a_replay_that_a_newer_judgement_outdates_does_not_count(store: Store) -> None:
    """By less evidence another cause took part: its row stays in the store, and is of no judgement that counts."""
    for part in PARTS.values():
        put(store, part(), RECEIVED_NS)
    judge = worker(store)
    judge.step()
    store.command("INSERT INTO replays SELECT * REPLACE ('front_end' AS cause, judged_at - INTERVAL 1 HOUR AS judged_at) FROM replays")
    sql = BUT_FOR.replace("{since_s:UInt64}", "0")
    for name in ("engine", "model", "service", "vantage"):
        sql = sql.replace(f"{{{name}:String}}", "''")
    assert {str(row[0]): int(row[1]) for row in store.select(sql)} == {"host": 1, "": 1}


def test_an_engine_whose_clock_is_behind_is_late_once(store: Store) -> None:
    """Its steps come two minutes behind their times for ever: streams are judged again for the first of them, not at every sweep."""
    for part in PARTS.values():
        put(store, part(), RECEIVED_NS)
    judge = worker(store)
    judge.step()
    ((until,),) = store.select("SELECT toUnixTimestamp64Milli(max(until)) FROM attribution_runs")
    at = int(until) * MS
    due = []
    for sweep in range(1, 5):
        behind = at + sweep * 1000 * MS
        put(store, steps_request(Engine("behind", 1), [Step(sweep, behind - 120_000 * MS)]), behind)
        due.append(len(judge._due(int(until) + 1000 * (sweep - 1), int(until) + 1000 * sweep)))
    assert due == [1, 0, 0, 0]
    put(store, steps_request(Engine("behind", 1), [Step(9, at - 900_000 * MS)]), at + 5_000 * MS)
    assert len(judge._due(int(until) + 4_000, int(until) + 5_000)) == 1, "this one really is late"


class _Waited(World):
    """A world in which stream 0's last token waited before it was sent."""

    def server(self, stream: int) -> Vantage:
        seen = super().server(stream)
        if stream == 0:
            seen.times_ns[-1] += 45 * MS
        return seen


def test_one_late_send_moves_no_clock(store: Store) -> None:
    """A sweep may judge a single stream: how far the records' clock is comes from all requests that ended around it."""
    world = _Waited(prefill={200: 3000})
    put(store, steps(world, 4), RECEIVED_NS)
    for number in range(4):
        put(store, stream(world, "server", number), RECEIVED_NS)
    put(store, stream(world, "client"), RECEIVED_NS)
    worker(store).step()
    assert [(row[0], row[3]) for row in verdicts(store)] == [("scheduling", 200)]
