"""A world with one stall, its parts as requests, and the worker that judges it. The worker has no thread: it runs on `step()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.builders.world import MS, World
from helpers.builders.world_spans import put, steps, stream
from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.metrics import Metrics
from legato_ingest.settings import load
from legato_ingest.storage import Store

__all__ = ["PARTS", "RECEIVED_NS", "WORLD", "put_all", "verdicts", "worker"]

# The engine's step 200 takes 600 ms longer.
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


def put_all(store: Store, tenant: str = "") -> None:
    """Store all parts of the world."""
    for part in PARTS.values():
        put(store, part(), RECEIVED_NS, tenant)
