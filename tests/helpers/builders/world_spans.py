"""OTLP requests that the engine, server and clients of a simulated deployment (`helpers.builders.world`) send, and their storage."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from helpers.builders.batches import received_spans
from helpers.builders.spans import native_span, request
from helpers.builders.world import World
from legato._timeline import pack
from legato_gpu_agent.agent.otlp_spans import Engine, FinishedRequest, Step, steps_request
from legato_ingest.otlp.batch import Limits

__all__ = ["FIRST_US", "PREFILL_US", "QUEUED_US", "Gathered", "Inserts", "put", "response_id", "silence", "steps", "stream", "trace_id"]

ENGINE = "e"
# Time to the first token of each request, and the parts of that time in the queue and in prefill.
FIRST_US, QUEUED_US, PREFILL_US = 400_000, 100_000, 250_000
_NAMES = {"outcome": "legato.stream.outcome", "provider": "gen_ai.provider.name"}


def trace_id(number: int) -> bytes:
    """The trace id of the world's stream ``number``."""
    return bytes([7 + number]) * 16


def response_id(number: int) -> str:
    """The response id of the world's stream ``number``."""
    return f"chatcmpl-{number + 1}"


class Inserts(Protocol):
    """Takes rows of a table, as a store does."""

    def insert(self, table: str, rows: pa.Table) -> None:
        """Insert the rows."""


class Gathered:
    """Rows that a store gets together, with one insert a table: many small inserts cost more than the rows."""

    def __init__(self) -> None:
        self._rows: dict[str, list[pa.Table]] = {}

    def insert(self, table: str, rows: pa.Table) -> None:
        """Keep the rows."""
        if rows.num_rows:
            self._rows.setdefault(table, []).append(rows)

    def put_into(self, store: Inserts) -> None:
        """Insert all rows, and keep none."""
        for table, rows in self._rows.items():
            store.insert(table, pa.concat_tables(rows).unify_dictionaries())
        self._rows.clear()


def put(store: Inserts, body: ExportTraceServiceRequest, received_ns: int, tenant: str = "") -> None:
    """Convert a request body as the ingest does and store its rows with this receive time."""
    batch = received_spans(body, tenant=tenant, now_ns=received_ns, limits=Limits(retention_days=0))
    assert not batch.rejected.num_rows
    for table, rows in (
        ("stream_revs", batch.revs),
        ("stream_silences", batch.silences),
        ("engine_steps", batch.steps),
        ("engine_requests", batch.requests),
    ):
        store.insert(table, rows)


def stream(world: World, vantage: str, number: int = 0, clock: str = "", **attributes_too: str) -> ExportTraceServiceRequest:
    """The span of one of the world's streams at the server or the client. ``clock`` is the optional clock id.

    ``attributes_too``: ``outcome`` and ``provider`` in place of the default ones.
    """
    seen = world.server(number) if vantage == "server" else world.client(number)
    body = request()
    start = int(seen.times_ns[0]) // 1000 * 1000 - 1000 * FIRST_US
    times = ((seen.times_ns - start) // 1000).tolist()
    attributes = {
        "legato.stream.vantage": vantage,
        "legato.stream.timeline": pack(times, None, None, [1] * len(times)),
        "legato.engine.id": ENGINE if vantage == "server" else "",
        "gen_ai.response.id": response_id(number),
        **({"legato.stream.clock": clock} if clock else {}),
        **{_NAMES[name]: value for name, value in attributes_too.items()},
    }
    rng = random.Random(f"{vantage}{number}")
    native_span(body, attributes, trace_id=trace_id(number), start_ns=start, duration_ns=(times[-1] + 1) * 1000, rng=rng)
    return body


def silence(world: World, vantage: str, token: int, length_ms: int | None) -> ExportTraceServiceRequest:
    """The report that stream 0 has had no content since this token, for so long; ``None``: until the next token, when it went on."""
    seen = world.server(0) if vantage == "server" else world.client(0)
    start = int(seen.times_ns[0]) // 1000 * 1000 - 1000 * FIRST_US
    since_us = (int(seen.times_ns[token]) - start) // 1000
    until_us = (int(seen.times_ns[token + 1]) - start) // 1000 if length_ms is None else since_us + 1000 * length_ms
    attributes = {
        "legato.stream.silent_since": since_us,
        "legato.engine.id": ENGINE if vantage == "server" else "",
        **({"legato.stream.resumed": True} if length_ms is None else {}),
    }
    rng = random.Random(f"{vantage}0")
    span_id = native_span(request(), rng=rng, trace_id=trace_id(0)).span_id
    body = request()
    span = native_span(body, attributes, trace_id=trace_id(0), start_ns=start, duration_ns=1000 * until_us, drop=["legato.stream.vantage"])
    span.name, span.parent_span_id = "legato.stream.silence", span_id
    span.kind = Span.SPAN_KIND_SERVER if vantage == "server" else Span.SPAN_KIND_CLIENT
    return body


def steps(
    world: World,
    streams: int = 1,
    *,
    engine_id: str = ENGINE,
    epoch_ns: int = 5,
    preempted: Mapping[int, int] | None = None,
    ended: Sequence[FinishedRequest] | None = None,
) -> ExportTraceServiceRequest:
    """A request with the engine's steps and the finished requests of the first ``streams`` streams, or those that ``ended``.

    ``preempted``: the preemptions that steps report, by number (default: not reported).
    """
    records = world.records()
    made = [
        Step(
            number=i,
            recorded_ns=int(records.recorded_ns[i]) // 1000 * 1000,
            interval_us=None if np.isnan(records.interval_ns[i]) else int(records.interval_ns[i]) // 1000,
            running=int(records.running[i]),
            waiting=int(records.waiting[i]),
            prefill_tokens=int(records.prefill_tokens[i]),
            prefill_requests=int(records.prefill_requests[i]),
            decode_requests=int(records.decode_requests[i]),
            decode_tokens=int(records.decode_tokens[i]),
            preempted=preempted.get(i, 0) if preempted is not None else None,
        )
        for i in range(world.steps)
    ]
    if ended is None:
        named = map(response_id, range(streams))
        ended = [FinishedRequest(world.steps - 1, name, queued_us=QUEUED_US, prefill_us=PREFILL_US) for name in named]
    return steps_request(Engine(engine_id, epoch_ns), made, ended)
