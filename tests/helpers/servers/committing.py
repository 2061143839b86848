"""A committer over a store that can refuse, fail and wait, and requests to send to it."""

from __future__ import annotations

import contextlib
import pathlib
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.builders.points import gauge, histogram, metrics_request, total
from helpers.builders.spans import SECOND_NS, native_span, request, steady_timeline
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.convert import convert_points, convert_spans
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.storage.wal import WriteAheadLog
from legato_ingest.write import pacing
from legato_ingest.write.committer import Committer, Receipt
from legato_ingest.write.receiver import Receiver
from legato_ingest.write.recovery import recover

__all__ = [
    "PATIENCE_S",
    "StoreDouble",
    "committing",
    "count",
    "logging_to",
    "pending",
    "point_rows",
    "scrapes",
    "send",
    "set_pause",
    "span_rows",
    "spread_spans",
    "stored_samples",
    "wait_until_taken",
]

PATIENCE_S = 120
NOW_NS = time.time_ns() // SECOND_NS * SECOND_NS


class StoreDouble:
    """A store with inserts that can wait, or fail in ``before(table, rows)``; everything else is done by the real store.

    ``inserts`` lists table and number of rows of each insert that succeeded.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.inserts: list[tuple[str, int]] = []
        self.before: Callable[[str, pa.Table], None] = lambda table, rows: None
        self.gate = threading.Event()
        self.gate.set()

    def insert(self, table: str, rows: pa.Table) -> None:
        """Wait for the gate, call ``before``, then insert."""
        assert self.gate.wait(PATIENCE_S)
        self.before(table, rows)
        self.inserts.append((table, rows.num_rows))
        self._store.insert(table, rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@contextmanager
def committing(
    store: Store | StoreDouble, *, queue_bytes_max: int = 2**28, chunks_max: int = 10**6, look_again_s: float | None = None
) -> Iterator[Committer]:
    """Yield a committer and close it at the end. Its metrics are at ``committer._metrics``."""
    committer = Committer(cast(Store, store), Metrics(), queue_bytes_max=queue_bytes_max, chunks_max=chunks_max, look_again_s=look_again_s)
    try:
        yield committer
    finally:
        committer.close()


def set_pause(monkeypatch: pytest.MonkeyPatch, pause_s: float) -> None:
    """Let inserts of few requests be so far apart, with readers and without."""
    for name in ("_FEW_APART_S", "_UNREAD_APART_S"):
        monkeypatch.setattr(pacing, name, pause_s)


@contextmanager
def logging_to(
    folder: pathlib.Path, store: Store | StoreDouble, *, queue_bytes_max: int = 2**28, chunks_max: int = 10**6, recovers: bool = False
) -> Iterator[Committer]:
    """Yield a committer with a log in this folder, and close it. ``recovers``: insert first what the log holds."""
    log, metrics = WriteAheadLog(folder), Metrics()
    committer = Committer(cast(Store, store), metrics, queue_bytes_max=queue_bytes_max, chunks_max=chunks_max, log=log)
    try:
        if recovers:
            for _ in recover(log, committer, Receiver(load(), committer, metrics), metrics, threading.Event()):
                pass
        yield committer
    finally:
        committer.close()


def pending(folder: pathlib.Path) -> list[tuple[int, bytes]]:
    """Return what a new process would find in the log.

    A copy is opened: to open a log cuts off what is not complete, and the committer may be writing.
    """
    with tempfile.TemporaryDirectory() as name:
        with contextlib.closing(WriteAheadLog(pathlib.Path(shutil.copytree(folder, name, dirs_exist_ok=True)))) as log:
            return list(log.pending())


def span_rows(body: ExportTraceServiceRequest, tenant: str = "") -> Batch:
    """Return the rows of a request of spans that arrives now."""
    return convert_spans(body, tenant=tenant, now_ns=time.time_ns(), limits=Limits())


def point_rows(body: ExportMetricsServiceRequest, tenant: str = "") -> Batch:
    """Return the rows of a request of metrics that arrives now."""
    return convert_points(body, tenant=tenant, now_ns=time.time_ns(), limits=Limits())


def send(committer: Committer, *bodies: ExportTraceServiceRequest) -> list[Receipt]:
    """Submit all requests, then wait for all receipts."""
    futures = [committer.submit(span_rows(body)) for body in bodies]
    return [future.result(PATIENCE_S) for future in futures]


def wait_until_taken(committer: Committer) -> None:
    """Wait until the committer has taken all requests from its queue."""
    deadline = time.monotonic() + PATIENCE_S
    while committer._now and time.monotonic() < deadline:
        time.sleep(0.001)


def count(committer: Committer, name: str) -> float:
    """Return the value of a counter."""
    return committer._metrics.registry.get_sample_value(f"legato_{name}_total") or 0.0


def spread_spans(spans: int, seed: int = 1) -> ExportTraceServiceRequest:
    """Return a request of different streams that started within the last 8 hours."""
    rng, body = random.Random(seed), request()
    now = time.time_ns() // SECOND_NS * SECOND_NS
    for i in range(spans):
        timeline = steady_timeline(3 + rng.randrange(60), dt_us=rng.randrange(1_000, 400_000))
        start = now - rng.randrange(60, 8 * 3600) * SECOND_NS
        native_span(
            body,
            {"legato.stream.timeline": timeline, "gen_ai.request.model": f"m{i % 3}"},
            start_ns=start,
            duration_ns=60 * SECOND_NS,
            rng=rng,
        )
    return body


def scrapes(count: int = 5, seed: int = 1) -> ExportMetricsServiceRequest:
    """Return a request with this many scrapes of an engine (four points each), within the last hours."""
    rng, body = random.Random(seed), metrics_request()
    for number in range(count):
        at = NOW_NS - number * rng.choice((1, 60, 3_600)) * SECOND_NS - seed
        gauge(body, "vllm:num_requests_running", rng.random(), at, attributes={"engine": "0"})
        gauge(body, "vllm:num_requests_running", rng.random(), at, attributes={"engine": "1"})
        total(body, "vllm:prompt_tokens", rng.random(), at, start_time_unix_nano=NOW_NS - 10**15)
        histogram(body, "vllm:inter_token_latency_seconds", [0.01, 0.1], [1, 2, 3], at)
    return body


def stored_samples(store: Store) -> list[Any]:
    """Return all rows of `node_samples`, including duplicates, without the receive time."""
    return store.select("SELECT * EXCEPT (received_at) FROM node_samples ORDER BY ALL")
