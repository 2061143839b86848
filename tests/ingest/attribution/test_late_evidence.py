"""Verdicts wait for their evidence: each kind of it may arrive seconds or minutes late, and in the end the verdicts are the same.

One store and one worker, which runs after each arrival by simulated times of receipt; or three workers that divide the streams, each time
in another way; or one to which every tenant has too many engines to look at each, and too many streams to judge at once. Each tenant is a
copy of one world in which one kind of evidence is late.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.builders.batches import received_points
from helpers.builders.points import gauge, metrics_request, total
from helpers.builders.spans import native_span, scope_of
from helpers.builders.spans import request as spans_request
from helpers.builders.world import MS, World
from helpers.builders.world_spans import Gathered, Inserts, put, steps, stream
from legato._timeline import pack
from legato_ingest.attribution import turns
from legato_ingest.attribution import worker as worker_module
from legato_ingest.attribution.load import due_again
from legato_ingest.attribution.load.streams import Most
from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.jobs.shard_lease import shards_of
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Limits
from legato_ingest.settings import load
from legato_ingest.storage import Store

PROMPT, THROTTLED, SLOW = 250, 300, 350
WORLD = World(
    prefill={**{step: 100 for step in range(20, 200, 8)}, PROMPT: 2_000},
    throttled={THROTTLED: 20.0},
    slow={SLOW: 500 * MS},
)
ENDED_NS = int(WORLD.ends[-1])
DELAYS_S = (1, 10, 29, 31, 600)
SKEW_NS = -120_000 * MS
SAID = (
    "vantage, gap_start_us, gap_us, excess_us, cause, confidence, parts, engine_id, step_first, step_last, missing, evidence, excluded,"
    " error_us, culprit_step, culprit_us, culprit_responses"
)
Put = Callable[[Inserts, str, int], None]


def spans(vantage: str) -> Put:
    """Return a function that stores the stream at this vantage."""
    return lambda store, tenant, at_ns: put(store, with_own_traces(stream(WORLD, vantage), tenant), at_ns, tenant)


def with_own_traces(body: ExportTraceServiceRequest, tenant: str) -> ExportTraceServiceRequest:
    """Return the request with trace ids of this tenant."""
    for span in scope_of(body).spans:
        span.trace_id = hashlib.blake2b(tenant.encode() + span.trace_id, digest_size=16).digest()
    return body


def engine(skew_ns: int = 0) -> Put:
    """Return a function that stores the engine's steps, by a clock that is wrong by ``skew_ns``."""
    return lambda store, tenant, at_ns: put(store, steps(replace(WORLD, offset_ns=skew_ns)), at_ns, tenant)


def samples(store: Inserts, tenant: str, body: Any, at_ns: int) -> None:
    """Store node samples."""
    batch = received_points(body, tenant=tenant, now_ns=at_ns, limits=Limits(retention_days=0))
    assert not batch.rejected.num_rows
    store.insert("node_samples", batch.samples)


def gpu(store: Inserts, tenant: str, at_ns: int) -> None:
    """Store the samples of the GPU, one a second."""
    body, clock = metrics_request({"legato.engine.id": "e", "host.name": "node"}), WORLD.gpu(every_ns=1_000 * MS)
    for at, hard_ns, mhz in zip(clock.times_ns.tolist(), clock.hard_ns.tolist(), clock.mhz.tolist(), strict=True):
        total(body, "hw.gpu.throttle.time", hard_ns / 1e9, at, attributes={"hw.id": "g", "reason": "thermal"})
        gauge(body, "hw.gpu.clock.sm", mhz, at, attributes={"hw.id": "g"})
    samples(store, tenant, body, at_ns)


def cpu(store: Inserts, tenant: str, at_ns: int) -> None:
    """Store how long the engine's threads waited for a CPU, sampled every second: as long as the slow step took longer."""
    body = metrics_request({"legato.engine.id": "e", "host.name": "node"})
    slow_ns = int(WORLD.ends[SLOW] - WORLD.took[SLOW])
    for at in range(int(WORLD.ends[0]), ENDED_NS + 2_000 * MS, 1_000 * MS):
        total(body, "legato.process.run_queue.wait_time", float(np.clip((at - slow_ns) / 1e9, 0, 0.5)), at)
    samples(store, tenant, body, at_ns)


def prompt(store: Inserts, tenant: str, at_ns: int) -> None:
    """Store the server's span of the request with the large prompt. Its first token came from that step."""
    sent = WORLD.server(2).times_ns[PROMPT : PROMPT + 20]
    start_ns = int(sent[0]) // 1000 * 1000 - 500 * MS
    times = ((sent - start_ns) // 1000).tolist()
    body = spans_request()
    attributes = {
        "legato.stream.vantage": "server",
        "legato.stream.timeline": pack(times, None, None, [1] * len(times)),
        "legato.engine.id": "e",
        "gen_ai.response.id": "chatcmpl-prompt",
    }
    rng = random.Random("prompt")
    native_span(body, attributes, trace_id=b"p" * 16, start_ns=start_ns, duration_ns=times[-1] * 1000 + 1000, rng=rng)
    put(store, with_own_traces(body, tenant), at_ns, tenant)


PARTS: dict[str, Put] = {
    "client": spans("client"),
    "server": spans("server"),
    "steps": engine(),
    "gpu": gpu,
    "cpu": cpu,
    "prompt": prompt,
}
# Of the last tenant all steps are late by their own clock, too.
SKEWED = PARTS | {"steps": engine(SKEW_NS)}


def verdicts(store: Store, tenant: str) -> list[tuple[Any, ...]]:
    """Return everything that a verdict says, without the time of the judgement."""
    sql = f"SELECT {SAID} FROM verdicts FINAL WHERE tenant = '{tenant}' AND cause != 'base' ORDER BY gap_start_us"
    return [tuple(row) for row in store.select(sql)]


@pytest.fixture(scope="module", params=[(1, 2_048, 2_000), (3, 2_048, 2_000), (1, 0, 0)], ids=["one worker", "three workers", "too many"])
def arrived(shared_store: Store, request: pytest.FixtureRequest) -> Iterator[tuple[Store, dict[str, list[Any]]]]:
    """The store after everything arrived, and the verdicts of each tenant just before its late part."""
    count, engines_max, streams_max = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(due_again, "_ENGINES_MAX", engines_max)
        patch.setattr(turns, "TURN", Most(streams=streams_max, bytes=2**26))
        patch.setattr(worker_module, "_TURNS_S", 600.0)
        yield judged_by(shared_store, count)


def judged_by(shared_store: Store, count: int) -> tuple[Store, dict[str, list[Any]]]:
    """Judge after each arrival, with so many workers."""
    for table in ("stream_revs", "engine_steps", "engine_requests", "node_samples", "verdicts", "replays", "attribution_runs"):
        shared_store.command(f"TRUNCATE TABLE {table}")
    parts_of = [shards_of(str(number), [str(each) for each in range(count)]) for number in range(count)]
    arrivals: list[tuple[float, str, Put]] = [(0, "all", part) for part in PARTS.values()]
    arrivals += [(0, "skewed", part) for part in SKEWED.values()]
    for delay_s in DELAYS_S:
        for tenant, parts, late in (
            *((f"{name} {delay_s}", PARTS, name) for name in PARTS),
            (f"skewed steps {delay_s}", SKEWED, "steps"),
        ):
            arrivals += [(delay_s if name == late else 0, tenant, part) for name, part in parts.items()]
    now_ms, before, turns = 0, {}, 0
    workers = [
        AttributionWorker(
            shared_store,
            load(attribute_grace_s=0),
            Metrics(),
            received_ms=lambda: now_ms,
            shards=lambda number=number: parts_of[(number + turns) % count],  # type: ignore[misc]
        )
        for number in range(count)
    ]
    for at_s in sorted({at for at, _, _ in arrivals}):
        at_ns = ENDED_NS + 500 * MS + int(at_s * 1e9)
        for tenant in {tenant for at, tenant, _ in arrivals if at == at_s}:
            before[tenant] = verdicts(shared_store, tenant)
        rows = Gathered()
        for _, tenant, part in (each for each in arrivals if each[0] == at_s):
            part(rows, tenant, at_ns)
        rows.put_into(shared_store)
        now_ms = at_ns // MS + 1
        turns += 1
        judged = [worker.step().streams for worker in workers]
        assert all(judged) or at_s
    return shared_store, before


def test_with_everything_at_once_each_stall_has_its_cause(arrived: tuple[Store, dict[str, list[Any]]]) -> None:
    """The world that the other tests compare with: three stalls with three causes, and the request with the prompt is known."""
    store, _ = arrived
    rows = [(row[0], row[4], row[5], row[10], row[-1]) for row in verdicts(store, "all")]
    assert rows == [
        ("client", "scheduling", "strong", [], ["chatcmpl-prompt"]),
        ("client", "gpu_clock", "strong", [], []),
        ("client", "host", "strong", [], []),
    ]


# Each of these tests is about all delays, because pytest-xdist would divide many tests between processes that each judge all of it again.


def test_late_evidence_gives_the_same_verdicts(arrived: tuple[Store, dict[str, list[Any]]]) -> None:
    """However late it arrives. Before that, no verdict is called strong that it changed."""
    store, before = arrived
    complete = verdicts(store, "all")
    for kind, delay_s in itertools.product(PARTS, DELAYS_S):
        tenant = f"{kind} {delay_s}"
        early = before[tenant]
        assert verdicts(store, tenant) == complete, tenant
        assert len(early) == 3, tenant
        changed = [row for row, final in zip(early, complete, strict=True) if row[4] != final[4]]
        assert not [row for row in changed if row[5] in ("strong", "proven")], tenant
        assert bool(changed) == (kind in ("steps", "gpu")), tenant


def test_steps_by_a_wrong_clock_may_be_late_too(arrived: tuple[Store, dict[str, list[Any]]]) -> None:
    """The engine's clock is two minutes behind, so all its steps seem to arrive late."""
    store, _ = arrived
    at_once = verdicts(store, "skewed")
    assert [row[4] for row in at_once] == ["scheduling", "host", "host"]
    for delay_s in DELAYS_S:
        assert verdicts(store, f"skewed steps {delay_s}") == at_once, delay_s
