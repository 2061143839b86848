"""The attribution's worker over a real store: it judges what settled, once, goes on after a restart, and again when evidence comes late."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.spans import native_span, request
from helpers.world import MS, World
from legato._timeline import pack
from legato_gpu_agent.steps import Engine, FinishedRequest, Step, request_of
from legato_ingest.attribution.pairs import Vantage
from legato_ingest.attribution.worker import Worker
from legato_ingest.metrics import Metrics
from legato_ingest.rows import Limits, rows_of
from legato_ingest.settings import load
from legato_ingest.store import Store

WORLD = World(slow={200: 600 * MS})
RECEIVED_NS = int(WORLD.ends[-1]) + 10**9
TRACE = b"\x07" * 16


def worker(store: Store) -> Worker:
    """A worker that is told when to sweep."""
    return Worker(store, load(attribute_settle_s=0), Metrics())


def put(store: Store, body: ExportTraceServiceRequest, received_at_ns: int = RECEIVED_NS) -> None:
    """Store a body as received at this time."""
    batch = rows_of(body, tenant="", received_at_ns=received_at_ns, limits=Limits(retention_days=0))
    assert not batch.rejected.num_rows
    for table, rows in (("stream_revs", batch.revs), ("engine_steps", batch.steps), ("engine_requests", batch.requests)):
        store.insert(table, rows)


def stream(vantage: str, seen: Vantage) -> ExportTraceServiceRequest:
    """The stream as one vantage saw it."""
    body = request()
    start = int(seen.times_ns[0]) // 1000 * 1000 - 400 * MS
    times = ((seen.times_ns - start) // 1000).tolist()
    attributes = {
        "legato.stream.vantage": vantage,
        "legato.stream.timeline": pack(times, None, None, [1] * len(times)),
        "legato.engine.id": "e" if vantage == "server" else "",
        "gen_ai.response.id": "chatcmpl-1",
    }
    native_span(body, attributes, trace_id=TRACE, start_ns=start, duration_ns=(times[-1] + 1) * 1000, rng=random.Random(vantage))
    return body


def steps() -> ExportTraceServiceRequest:
    """The engine's steps, the stream's end among them."""
    records = WORLD.records()
    return request_of(
        Engine("e", 5),
        [
            Step(
                number=i,
                recorded_ns=int(records.recorded_ns[i]) // 1000 * 1000,
                interval_us=None if np.isnan(records.interval_ns[i]) else int(records.interval_ns[i]) // 1000,
                running=4,
                waiting=0,
                prefill_tokens=0,
                prefill_requests=0,
                decode_requests=4,
                decode_tokens=4,
            )
            for i in range(WORLD.steps)
        ],
        [FinishedRequest(WORLD.steps - 1, "chatcmpl-1")],
    )


def verdicts(store: Store) -> list[Any]:
    """What readers see."""
    return [tuple(row) for row in store.select("SELECT cause, confidence, missing, step_first FROM verdicts FINAL")]


PARTS = {"client": lambda: stream("client", WORLD.client(0)), "server": lambda: stream("server", WORLD.server(0)), "steps": steps}


def test_a_settled_stream_is_judged_once(store: Store) -> None:
    """With all vantages, and the next sweep, also of another worker, finds nothing to do."""
    for part in PARTS.values():
        put(store, part())
    first = worker(store)
    assert first.step().verdicts == 1
    assert verdicts(store) == [("host", "strong", [], 200)]
    ((parts, gap),) = store.select("SELECT parts, gap_us FROM verdicts")
    assert sum(parts.values()) == 1000 * gap and parts["host"] == pytest.approx(600 * MS, abs=3 * MS)
    assert first.step().streams == 0 and worker(store).step().streams == 0


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
            put(store, part())
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
    put(store, PARTS["client"]())
    assert worker(store).step().verdicts == 1
    assert verdicts(store) == [("generation", "likely", ["server", "engine"], None)]


def test_a_stop_leaves_the_rest_for_the_next_start(store: Store) -> None:
    """What was not judged is not noted as judged."""
    for part in PARTS.values():
        put(store, part())
    stopped = worker(store)
    stopped._closing.set()
    assert stopped.step().streams == 0
    assert worker(store).step().verdicts == 1
