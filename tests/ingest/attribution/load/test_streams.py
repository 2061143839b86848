"""Streams as evidence: which have a stall to judge, and which keep a verdict that later evidence withdraws."""

from __future__ import annotations

from helpers.builders.judging import RECEIVED_NS, verdicts, worker
from helpers.builders.world import World
from helpers.builders.world_spans import put, steps, stream
from legato_ingest.storage import Store


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
