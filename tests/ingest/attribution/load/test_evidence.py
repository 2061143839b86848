"""Which evidence a judgement has: what was scraped of an engine counts also where its steps are known and explain nothing."""

from __future__ import annotations

import pytest

from helpers.builders.batches import received_points
from helpers.builders.judging import RECEIVED_NS, verdicts, worker
from helpers.builders.points import gauge, metrics_request, total
from helpers.builders.world import MS, World
from helpers.builders.world_spans import ENGINE, put, response_id, steps, stream
from legato_gpu_agent.agent.otlp_spans import FinishedRequest
from legato_ingest.otlp.batch import Limits
from legato_ingest.storage import Store

PROMPTS = {step: 100 for step in range(20, 140, 20)}
# Step 200 takes 600 ms longer for a prompt. Another stream ended before, and shows the offset of the clocks.
WORLD, BEFORE = World(prefill={**PROMPTS, 200: 3_000}), World(steps=151, prefill=PROMPTS)
ENDED = [FinishedRequest(number, response_id(stream)) for stream, number in enumerate((399, 150))]


def put_scrapes(store: Store) -> None:
    """Store scrapes every 5 s, from long before the stall until long after it: prompts were counted, and no preemption."""
    body, stalled_ns = metrics_request({"legato.engine.id": ENGINE, "host.name": "node"}), int(WORLD.ends[200])
    for at in range(stalled_ns - 100_000 * MS, stalled_ns + 100_000 * MS, 5_000 * MS):
        gauge(body, "legato.engine.up", 1.0, at)
        total(body, "legato.engine.tokens.prompt", float(3_000 * (at >= stalled_ns)), at)
        total(body, "legato.engine.preemptions", 0.0, at)
    batch = received_points(body, tenant="", now_ns=RECEIVED_NS, limits=Limits(retention_days=0))
    store.insert("node_samples", batch.samples)


@pytest.mark.parametrize(
    ("change", "judged"),
    [
        ("", ("scheduling", "strong", [], 200)),
        (
            "UPDATE prefill_requests = NULL, prefill_tokens = NULL, decode_requests = NULL WHERE 1",
            ("scheduling", "possible", ["engine"], None),
        ),
        ("DELETE WHERE step = 200", ("scheduling", "possible", ["engine"], None)),
        ("DELETE WHERE step > 190", ("scheduling", "possible", ["engine"], None)),
        ("DELETE WHERE 1", ("scheduling", "possible", ["engine"], None)),
    ],
)
def test_scrapes_count_where_the_steps_explain_nothing(store: Store, change: str, judged: tuple[object, ...]) -> None:
    """The steps have no work (vLLM without iteration details), one is missing, the last ones are, or all. Elsewhere steps alone count."""
    for part in (stream(WORLD, "client"), stream(WORLD, "server"), stream(BEFORE, "server", 1), steps(WORLD, ended=ENDED)):
        put(store, part, RECEIVED_NS)
    put_scrapes(store)
    if change:
        store.command(f"ALTER TABLE engine_steps {change} SETTINGS mutations_sync = 1")
    worker(store).step()
    assert verdicts(store) == [judged]
