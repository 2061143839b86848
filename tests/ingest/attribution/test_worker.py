"""The attribution worker on a real store: it judges each stream once, continues after a restart, and judges again on late evidence."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from helpers.builders.batches import received_points
from helpers.builders.judging import PARTS, RECEIVED_NS, WORLD, put_all, verdicts, worker
from helpers.builders.points import gauge, metrics_request, total
from helpers.builders.world import MS, World
from helpers.builders.world_spans import put, silence, steps, stream
from helpers.servers.waiting import until
from legato_ingest.attribution.run import RunResult
from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.errors import StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Limits
from legato_ingest.reports.queries import BUT_FOR
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.storage.watermark import Watermark, now_ms


def test_a_settled_stream_is_judged_once(store: Store) -> None:
    """All vantages are stored; the next run, also of another worker, has nothing to do."""
    put_all(store)
    first = worker(store)
    assert first.step().verdicts == 1
    assert verdicts(store) == [("host", "likely", [], 200)]
    ((parts, gap),) = store.select("SELECT parts, gap_us FROM verdicts")
    assert sum(parts.values()) == 1000 * gap and parts["host"] == pytest.approx(600 * MS, abs=3 * MS)
    assert first.step().streams == 0 and worker(store).step().streams == 0


def test_a_run_begins_when_an_insert_has_settled(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that alone inserts runs no sweep while nothing was inserted, and the next one as soon as the insert's streams are due."""
    runs, watermark, settings = list[float](), Watermark(0), load(attribute_every_s=0.05, attribute_grace_s=0.6)
    judge = AttributionWorker(store.clone(), settings, Metrics(), watermark.reached_ms, stamp_after=watermark.stamp_after)

    def no_open_stalls(after_ms: int, until_ms: int) -> RunResult:
        runs.append(time.time())
        return RunResult()

    monkeypatch.setattr(judge, "_attribute_open", no_open_stalls)
    judge.start()
    try:
        until(lambda: judge._is_current)
        first, until_ms = len(runs), judge.until_ms
        time.sleep(0.3)
        until(lambda: judge.until_ms >= until_ms + 300)
        idle = len(runs)
        with watermark.stamp() as received_ms:
            for part in PARTS.values():
                put(store, part(), received_ms * MS)
        until(lambda: verdicts(store) != [])
        time.sleep(0.3)
    finally:
        judge.close()
    assert idle == first
    assert len(runs) == idle + 1 and runs[-1] * 1000 >= received_ms + 600


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
    assert verdicts(store) == [("host", "likely", [], 200) if named else ("generation", "likely", ["engine"], None)]


@pytest.mark.parametrize(
    ("late", "before"),
    [
        ("steps", ("generation", "likely", ["engine"], None)),
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
    put(store, PARTS[late](), later())
    step_until(judge, "streams")
    assert verdicts(store) == [("host", "likely", [], 200)]


def test_a_client_alone_is_judged(store: Store) -> None:
    """Nothing else was recorded: the verdict names a side, and the missing vantages."""
    put(store, PARTS["client"](), RECEIVED_NS)
    assert worker(store).step().verdicts == 1
    assert verdicts(store) == [("generation", "likely", ["server", "engine"], None)]


def test_a_server_alone_is_judged_until_a_client_arrives(store: Store) -> None:
    """No client was recorded: the server's own gap has a verdict. The client's verdict takes its place, so the stall counts once."""
    for name in ("server", "steps"):
        put(store, PARTS[name](), RECEIVED_NS)
    judge = worker(store)
    assert judge.step().verdicts == 1
    assert stalls(store) == [("server", "host", ["client"])]
    put(store, PARTS["client"](), later())
    step_until(judge, "streams")
    assert stalls(store) == [("client", "host", [])]
    assert judge.again(0)["verdicts"] == 1 and stalls(store) == [("client", "host", [])]


@pytest.mark.parametrize("at_once", [250_000, 1])
def test_a_client_without_a_stall_withdraws_the_stall_of_its_server(store: Store, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """The network path hid it from the end user: buffered chunks filled the server's gap. Many stalls are read in parts."""
    monkeypatch.setattr("legato_ingest.attribution.load.superseded._AT_ONCE", at_once)
    for number in range(3):
        put(store, stream(WORLD, "server", number), RECEIVED_NS)
    put(store, PARTS["steps"](), RECEIVED_NS)
    judge = worker(store)
    judge.step()
    assert len(stalls(store)) == 3
    for number in range(3):
        put(store, stream(World(), "client", number), later())
    until(lambda: judge.step() and stalls(store) == [])
    assert store.select("SELECT cause, vantage FROM verdicts FINAL") == [("base", "server")] * 3


def test_a_client_that_knows_no_chunk_takes_nothing_from_its_server(store: Store) -> None:
    """Another library's row of the client is a summary: the server's stall keeps its verdict, whichever comes first."""
    for name in ("server", "steps", "client"):
        put(store, PARTS[name](), RECEIVED_NS)
    store.command(
        "ALTER TABLE stream_revs UPDATE chunks = NULL, gap_max_us = NULL, dt_us = [] WHERE vantage = 'client' SETTINGS mutations_sync = 1"
    )
    judge = worker(store)
    judge.step()
    assert stalls(store) == [("server", "host", ["client"])]
    assert judge.again(0)["verdicts"] == 1 and stalls(store) == [("server", "host", ["client"])]


def test_a_running_stream_is_judged_by_its_snapshot(store: Store) -> None:
    """The gap is over, and the stream is not: its verdict does not wait for the end. The server of a running client is not judged."""
    put_all(store)
    store.command("ALTER TABLE stream_revs UPDATE ended = false, outcome = 'running' WHERE 1 SETTINGS mutations_sync = 1")
    # Another stream of the engine has ended, which shows the offset of the clocks.
    put(store, steps(WORLD, 2), RECEIVED_NS)
    for vantage in ("client", "server"):
        put(store, stream(WORLD, vantage, 1), RECEIVED_NS)
    worker(store).step()
    assert stalls(store) == 2 * [("client", "host", [])]


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("vantages", [("server",), ("server", "client")])
def test_a_stall_is_judged_before_its_stream_ends(store: Store, vantages: tuple[str, ...], ended: bool) -> None:
    """By the reports of the silent stream and the engine's steps until then; the verdict at the end replaces it, also if it was open."""
    world = World(preempted=(200, 330))
    put(store, steps(world, 2), RECEIVED_NS)
    for vantage in ("client", "server"):
        put(store, stream(world, vantage, 1), RECEIVED_NS)
    judge = AttributionWorker(store, load(attribute_grace_s=0, stall_ms=1_000), Metrics())
    judge.step()
    assert stalls(store) == []
    now_ns = later()
    for vantage in vantages:
        put(store, silence(world, vantage, 199, 2_000 if not ended else None), now_ns)
    step_until(judge, "verdicts")
    outermost = vantages[-1]
    ((vantage, cause, confidence, missing, evidence),) = store.select(
        "SELECT vantage, cause, confidence, missing, mapKeys(evidence) FROM verdicts FINAL WHERE cause != 'base'"
    )
    assert (vantage, cause, missing) == (outermost, "kv_pressure", [] if outermost == "client" else ["client"])
    assert ("open" in evidence, confidence) == (not ended, "likely")
    for vantage in vantages:
        put(store, stream(world, vantage), later())
    step_until(judge, "verdicts")
    ((count, open_),) = store.select("SELECT count(), countIf(has(evidence, 'open')) FROM verdicts FINAL WHERE cause != 'base'")
    assert (count, open_) == (1, 0)


def test_what_a_frozen_engine_does_is_not_known_yet(store: Store) -> None:
    """No step follows, so the time since the last one is charged to no cause in the engine, and not to its front end."""
    world = World()
    put(store, steps(world, 2), RECEIVED_NS)
    put(store, stream(world, "server", 1), RECEIVED_NS)
    judge = worker(store)
    judge.step()
    put(store, silence(world, "server", world.steps - 1, 8_000), later())
    step_until(judge, "verdicts")
    ((cause, confidence, parts),) = store.select("SELECT cause, confidence, parts FROM verdicts FINAL WHERE cause != 'base'")
    assert (cause, confidence) == ("generation", "likely") and "front_end" not in parts


def step_until(judge: AttributionWorker, counted: str) -> None:
    """Run the worker until a run has judged a stream, or written a verdict: what was stored in this ms is judged in the next."""
    deadline = time.monotonic() + 20
    while not getattr(judge.step(), counted):
        assert time.monotonic() < deadline, f"no run counted any {counted}"


def stalls(store: Store) -> list[Any]:
    """Return the stalls: vantage, cause and missing vantages."""
    return [tuple(row) for row in store.select("SELECT vantage, cause, missing FROM verdicts FINAL WHERE cause != 'base'")]


def later() -> int:
    """Return a time of receipt (ns) that no run has seen yet. A run sees until this host's time; the clock of a server may be behind it."""
    return (now_ms() + 1) * MS


def test_a_stop_leaves_the_rest_for_the_next_start(store: Store) -> None:
    """Streams that were not judged are not recorded as judged."""
    put_all(store)
    stopped = worker(store)
    stopped._task.closing.set()
    assert stopped.step().streams == 0
    with pytest.raises(StoreUnavailable, match="stopping before all streams were judged"):
        stopped.again(0)
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
    sql = re.sub(r"\{(since_s|from_ns|to_ns):\w+\}", "0", BUT_FOR)
    for name in ("engine", "model", "service", "vantage", "tenant"):
        sql = sql.replace(f"{{{name}:String}}", "''")
    assert {str(row[0]): int(row[1]) for row in store.select(sql)} == {"host": 1, "": 1}


def test_steps_that_arrive_at_once_make_no_stream_due_again(store: Store) -> None:
    """A running deployment: streams and steps arrive within the grace period, so each stream is judged once."""
    now_ms = int(WORLD.ends[-1]) // MS
    judge = AttributionWorker(store, load(attribute_grace_s=0), Metrics(), received_ms=lambda: now_ms)
    streams = []
    for number in range(3):
        shift = number * 20_000 * MS
        world = World(seed=number, slow={200: 600 * MS}, offset_ns=shift)
        for part in (steps(world, 0, epoch_ns=number), stream(world, "server", number), stream(world, "client", number)):
            put(store, part, int(world.ends[-1]) + 500 * MS)
        now_ms = int(world.ends[-1]) // MS + 1_000
        streams.append(judge.step().streams)
    assert streams == [1, 1, 1]
