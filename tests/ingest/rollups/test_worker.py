"""The rollup worker: duplicates, later revisions, late rows, overdue streams, and recomputation on request."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.builders.batches import received_spans
from helpers.builders.rollup_rows import (
    DAY_NS,
    MINUTE_NS,
    PATIENCE_S,
    SLOW,
    THEN_NS,
    Double,
    committing,
    forget,
    minutes,
    one,
    rolled_at,
    rollup_worker,
    scattered,
    send,
    snapshot,
    steps_of,
    streams_of,
)
from helpers.builders.spans import SECOND_NS, native_span, request, scope_of
from helpers.builders.world import MS, World
from helpers.builders.world_spans import steps, stream
from helpers.dashboards.minutes import differences, stored
from helpers.dashboards.tables import requests_of_one_span
from legato_gpu_agent.agent.otlp_spans import Engine, Step, steps_request
from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Limits
from legato_ingest.rollups.compute import MINUTE_S
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.storage.watermark import now_ms


def everything(rng: random.Random) -> list[ExportTraceServiceRequest]:
    """Return requests with streams, snapshots, engine steps, and a simulated stall with a counterfactual."""
    bodies = [streams_of(rng, 12), streams_of(rng, 12)]
    for number, span in enumerate(scope_of(bodies[0]).spans):
        if span.name != "legato.stream.snapshot" and number % 2:
            before = request()
            attributes = {**snapshot(60.0, span.span_id), "gen_ai.request.model": "not known yet"}
            native_span(before, attributes, trace_id=span.trace_id, start_ns=span.start_time_unix_nano, name="legato.stream.snapshot")
            span.attributes.add(key="legato.stream.rev").value.int_value = 2
            bodies.append(before)
    world = World(slow={200: 600 * MS}, offset_ns=THEN_NS - 10**15)
    return [*bodies, steps_of(rng, "e1", 40), steps_of(rng, "e2", 40), stream(world, "client"), stream(world, "server"), steps(world)]


def split_requests(bodies: Iterable[ExportTraceServiceRequest]) -> list[ExportTraceServiceRequest]:
    """Return each request, followed by a separate request for each of its spans."""
    return [part for body in bodies for part in (body, *requests_of_one_span(body))]


def attribute(store: Store) -> None:
    """Run the attribution once."""
    AttributionWorker(store, load(attribute_grace_s=0), Metrics()).step()


def test_duplicates_change_no_figure(store: Store) -> None:
    """Repeated requests, also span by span, in another order, from four senders and between two runs, leave every table unchanged."""
    bodies, rng = everything(random.Random(1)), random.Random(2)
    with committing(store) as committer:
        send(committer, bodies)
        attribute(store)
        rollup_worker(store, committer.watermark_ms).step()
    once = minutes(store)
    assert differences(store) == [] and all(once.values())
    for empty in (False, True):
        if empty:
            forget(store)
        with committing(store) as committer, ThreadPoolExecutor(4) as senders:
            again, worker = split_requests(bodies) * 2, rollup_worker(store, committer.watermark_ms)
            rng.shuffle(again)
            while again:
                now, again = again[:40], again[40:]
                waiting = [senders.submit(send, committer, now[each::4]) for each in range(4)]
                worker.step()
                for each in waiting:
                    each.result(PATIENCE_S)
            attribute(store)
            worker.step()
        assert differences(store) == [] and minutes(store) == once


def test_a_repeated_snapshot_after_the_end_changes_nothing(store: Store) -> None:
    """A snapshot that is sent again after its stream ended, also after the store merged it away, causes no judgement and no rollup."""
    before, end = one("a", 1, due_s=60.0), one("a", 2, attributes=SLOW, duration_ns=9 * SECOND_NS)
    with committing(store) as committer:
        send(committer, [before, end])
        judging = AttributionWorker(store, load(attribute_grace_s=0), Metrics(), committer.watermark_ms)
        worker = rollup_worker(store, committer.watermark_ms, judging.judged_ms)
        assert judging.step().verdicts == 1 and worker.step().minutes == 1
        store.command("OPTIMIZE TABLE stream_revs FINAL")
        send(committer, [before])
        assert judging.step().streams == 0 and worker.step().minutes == 0


def test_a_later_rev_takes_the_place_of_the_one_before(store: Store) -> None:
    """Also if it names another model, and then the first again: queries see one stream, under its newest model only."""
    with committing(store) as committer:
        worker = rollup_worker(store, committer.watermark_ms)
        for rev, (model, due_s) in enumerate([("a", 1e6), ("a", 1e6), ("b", 1e6), ("c", None), ("a", None)], 1):
            send(committer, [one(model, rev, due_s=due_s)])
            assert worker.step().minutes == 1
            assert differences(store) == [] and worker.step().minutes == 0
            ((streams, chunks, models),) = store.select(
                "SELECT sum(streams), sum(chunks), groupArrayIf(model, streams > 0) FROM stream_minutes FINAL"
            )
            assert (streams, chunks, models) == (1, 20, [model])
    ((due, ghosts),) = store.select("SELECT max(toUnixTimestamp64Milli(due_at)), countIf(streams = 0) FROM stream_minutes FINAL")
    assert (due, ghosts) == (0, 2)


def test_a_stream_without_its_sender_becomes_abandoned(store: Store) -> None:
    """A running stream becomes abandoned in its minute once its next snapshot is overdue, although no data arrived."""
    query = "SELECT toUnixTimestamp64Milli(due_at), outcomes, judged, bad_error FROM stream_minutes FINAL"
    with committing(store) as committer:
        # On a busy machine the first run may take longer than half a second.
        for patience_s in (0.5, 2, 8):
            forget(store)
            due_ns = time.time_ns() + int(patience_s * SECOND_NS)
            send(committer, [one("a", 1, due_s=5.0, start_ns=due_ns - 35 * SECOND_NS)])
            worker = rollup_worker(store, committer.watermark_ms)
            assert worker.step().minutes == 1
            if store.select(query) == [(due_ns // 10**6, {"running": 1}, 0, 0)]:
                break
        while now_ms() <= due_ns // 10**6:
            time.sleep(0.005)
        assert worker.step().minutes == 1
        assert store.select(query) == [(0, {"abandoned": 1}, 1, 1)] and differences(store) == []
        assert worker.step().minutes == 0


def test_late_rows_touch_their_minute_alone(store: Store) -> None:
    """A stream and a step from two days ago change their minutes only."""
    with committing(store) as committer:
        worker = rollup_worker(store, committer.watermark_ms)
        send(committer, [streams_of(random.Random(3), 30), steps_of(random.Random(3), "e1", 40)])
        worker.step()
        before = {table: rolled_at(store, table) for table in ("stream_minutes", "engine_minutes")}
        late_ns = THEN_NS - 2 * DAY_NS
        send(committer, [one("late", 1, start_ns=late_ns), steps_request(Engine("e1", 5), [Step(1, late_ns)])])
        assert worker.step().minutes == 2
    assert differences(store) == []
    for table, times in before.items():
        after = rolled_at(store, table)
        assert after.pop(late_ns // SECOND_NS) and after == times
    assert worker.step().minutes == 0


def test_streams_in_minutes_computed_before_join_them(store: Store) -> None:
    """New streams in computed minutes: only these minutes are written again, completely."""
    with committing(store) as committer:
        worker = rollup_worker(store, committer.watermark_ms)
        send(committer, [one("a", 1, span_id=bytes([each]) * 8, start_ns=THEN_NS + each * MINUTE_NS) for each in range(1, 6)])
        worker.step()
        before = rolled_at(store)
        send(committer, [one("b", 1, span_id=bytes([each]) * 8, start_ns=THEN_NS + each % 10 * MINUTE_NS) for each in (12, 14)])
        assert worker.step().minutes == 2
    after, changed = rolled_at(store), [THEN_NS // SECOND_NS + 60 * each for each in (2, 4)]
    assert all(after.pop(at) > before.pop(at) for at in changed) and after == before and differences(store) == []


def test_verdicts_of_the_attribution_reach_the_rollups(store: Store) -> None:
    """With the wiring of `legato serve`, the verdict of an attribution run is in the rollups after the next rollup run."""
    with committing(store) as committer:
        send(committer, [one("a", 1, attributes=SLOW, duration_ns=9 * SECOND_NS)])
        judging = AttributionWorker(store, load(attribute_grace_s=0), Metrics(), committer.watermark_ms)
        worker = rollup_worker(store, committer.watermark_ms, judging.judged_ms)
        worker.step()
        assert not stored(store, "stall_minutes")
        assert judging.step().verdicts == 1
        assert worker.step().minutes == 1 and stored(store, "stall_minutes") and differences(store) == []
        judging.again(0)
        assert worker.step().minutes == 1 and worker.step().minutes == 0


def test_only_the_minutes_asked_for_are_computed_again(store: Store) -> None:
    """Only the minutes of the last hours change, including the whole first minute."""
    scattered(store)
    worker = rollup_worker(store)
    worker.step()
    before = rolled_at(store)
    asked = [int(time.time()) - 5 * 3600]
    done = worker.again(5 * 3600)["minutes"]
    asked.append(int(time.time()) - 5 * 3600)
    after = rolled_at(store)
    changed = {at for at in after if after[at] != before[at]}
    # All minutes that began after the call, none that ended before it, and two minutes of steps.
    assert {at for at in after if at >= asked[1]} <= changed <= {at for at in after if at + MINUTE_S > asked[0]}
    assert len(changed) > 3 and done == len(changed) + 2
    assert differences(store) == []


def test_new_minutes_do_not_wait_for_old_ones(store: Store) -> None:
    """A stream that arrives while all minutes are computed again is rolled up in between, before the last of them."""
    body, rng = request(), random.Random(6)
    for number in range(200):
        native_span(body, start_ns=THEN_NS - 30 * number * MINUTE_NS, rng=rng)
    store.insert("stream_revs", received_spans(body, tenant="", now_ns=time.time_ns(), limits=Limits()).revs)
    double, main, live = Double(store.clone()), threading.current_thread(), list[int]()

    def arrive(table: str, rows: pa.Table | None) -> None:
        if table == "stream_minutes" and threading.current_thread() is main:
            if not live:
                late = received_spans(
                    one("live", 1, start_ns=time.time_ns() - MINUTE_NS), tenant="", now_ns=time.time_ns(), limits=Limits()
                )
                store.insert("stream_revs", late.revs)
            live.append(int(store.select("SELECT sum(streams) FROM stream_minutes WHERE model = 'live'")[0][0]))

    worker = rollup_worker(double)
    worker.step()
    worker.start()
    try:
        double.before = arrive
        worker.again(0)
    finally:
        worker.close()
    assert live[0] == 0 and live[-1] == 1
