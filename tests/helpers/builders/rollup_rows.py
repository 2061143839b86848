"""Streams, verdicts and engine steps for tests of the rollups, and the store doubles and workers that these tests run."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pyarrow as pa
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.builders.batches import received_spans
from helpers.builders.spans import SECOND_NS, native_span, request
from helpers.dashboards.minutes import ALIVE, rows_in, stored
from legato._timeline import pack
from legato_gpu_agent.agent.otlp_spans import Engine, Step, steps_request
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Limits
from legato_ingest.rollups.divided import Divided
from legato_ingest.rollups.pieces import Piece
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.storage.watermark import now_ms
from legato_ingest.write.committer import Committer

__all__ = [
    "BATCH",
    "DAY_NS",
    "HOUR_NS",
    "MINUTE_NS",
    "NOW_NS",
    "PATIENCE_S",
    "SLOW",
    "THEN_NS",
    "Double",
    "committing",
    "forget",
    "judge",
    "judgements",
    "minutes",
    "one",
    "one_step",
    "rolled_at",
    "rollup_worker",
    "scattered",
    "send",
    "snapshot",
    "steps_of",
    "streams_of",
]

PATIENCE_S = 120


HOUR_NS, DAY_NS, MINUTE_NS = 3_600 * SECOND_NS, 86_400 * SECOND_NS, 60 * SECOND_NS


NOW_NS = time.time_ns()


# The start of a minute, long enough ago for all its streams to have ended.
THEN_NS = (NOW_NS - 2 * HOUR_NS) // MINUTE_NS * MINUTE_NS


CAUSES = ("scheduling", "kv_pressure", "host", "front_end", "coalescing", "connection", "slow_reader", "consumer", "render", "mixed")


DIMENSIONS: Mapping[str, Sequence[str]] = {
    "gen_ai.request.model": ("m1", "m2", ""),
    "gen_ai.provider.name": ("openai", "vllm"),
    "http.route": ("", "/v1/chat/completions"),
    "legato.stream.transport": ("http/1.1", "iterator"),
    "legato.stream.vantage": ("client", "client", "server"),
    "legato.client.hash": ("", "alice", "bob"),
}


def one_step(divided: Divided, run: Callable[[str, Piece], None]) -> None:
    """Compute or divide one piece of the tenant that is next. Raises the ``StoreError`` of ``run``."""
    list(divided.compute(run, lambda: True))


class Double:
    """A store that calls a hook before each insert and otherwise passes calls to the real store.

    The hook gets no rows of a statement that computes minutes inside the store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.before: Callable[[str, pa.Table | None], None] = lambda table, rows: None

    def insert(self, table: str, rows: pa.Table) -> None:
        """Call ``before``, then insert."""
        self.before(table, rows)
        self._store.insert(table, rows)

    def command(self, sql: str) -> None:
        """Call ``before`` if the statement computes minutes, then run it."""
        if computed := re.match(r"\s*INSERT INTO (\w+_minutes)", sql):
            self.before(computed[1], None)
        self._store.command(sql)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def rollup_worker(
    store: Store | Double, received_ms: Callable[[], int] = now_ms, judged_ms: Callable[[], int] = now_ms, **more: Any
) -> RollupWorker:
    """Return a rollup worker that runs only on ``step()``, and computes the hours in each run."""
    return RollupWorker(cast(Store, store), load(**{"rollup_every_s": 1e-9, **more}), Metrics(), received_ms, judged_ms)


@contextmanager
def committing(store: Store | Double, **more: Any) -> Iterator[Committer]:
    """Provide a committer and close it at the end."""
    committer = Committer(cast(Store, store), Metrics(), queue_bytes_max=2**28, chunks_max=10**6, **more)
    try:
        yield committer
    finally:
        committer.close()


def send(committer: Committer, bodies: Iterable[ExportTraceServiceRequest], tenant: str = "") -> None:
    """Submit all requests, then wait for all of them. No row may be rejected."""
    batches = [received_spans(body, tenant=tenant, now_ns=time.time_ns(), limits=Limits()) for body in bodies]
    for future in [committer.submit(batch) for batch in batches]:
        assert future.result(PATIENCE_S).rejected == 0


def minutes(store: Store) -> dict[str, Any]:
    """Return the current rows of all rollup tables."""
    return {table: stored(store, table) for table in ALIVE}


def rolled_at(store: Store, table: str = "stream_minutes") -> dict[int, int]:
    """Return when each minute was last computed (Unix ms)."""
    rows = rows_in(store, f"SELECT toUnixTimestamp(minute) AS at, max(rolled_at) AS rolled FROM {table} GROUP BY at")
    return {row["at"]: row["rolled"] for row in rows}


def streams_of(rng: random.Random, count: int) -> ExportTraceServiceRequest:
    """Return streams with every outcome over five minutes: also without a timeline, without tokens, running and abandoned."""
    body = request({"service.name": rng.choice(("shop", "chat")), "service.version": rng.choice(("", "1.2"))})
    for _ in range(count):
        attributes: dict[str, Any] = {key: rng.choice(values) for key, values in DIMENSIONS.items()}
        times = np.cumsum([rng.randrange(100_000, 4_000_000), *(rng.choice((20_000, 90_000, 700_000)) for _ in range(rng.randrange(30)))])
        size = [rng.randrange(1, 60) for _ in times]
        tokens = [rng.randrange(1, 4) for _ in times] if rng.random() < 0.5 else None
        attributes["legato.stream.timeline"] = pack(times.tolist(), size, tokens, [1] * len(times))
        attributes["legato.stream.outcome"] = rng.choice(("complete", "complete", "client_cancel", "timeout", "upstream_error"))
        more: dict[str, Any] = {"drop": rng.choice(((), ("legato.stream.timeline",), ("gen_ai.usage.output_tokens",)))}
        if rng.random() < 0.3:
            attributes |= snapshot(rng.choice((0.0, 1e6)), rng.randbytes(8))
            more["name"] = "legato.stream.snapshot"
        start = THEN_NS + rng.randrange(5) * MINUTE_NS + rng.choice((0, 1, rng.randrange(MINUTE_NS), MINUTE_NS - 1))
        native_span(body, attributes, start_ns=start, duration_ns=int(times[-1]) * 1000 + rng.choice((0, SECOND_NS)), rng=rng, **more)
    return body


def snapshot(next_due_s: float, span_id: bytes, rev: int = 1) -> dict[str, Any]:
    """Return the attributes of a snapshot; the next one is due ``next_due_s`` seconds after the stream's start."""
    fields = {"outcome": "running", "span_id": span_id.hex(), "rev": rev, "next_due": next_due_s}
    return {f"legato.stream.{key}": value for key, value in fields.items()}


def judgements(rng: random.Random, revs: pa.Table, judged_ms: int, share: float = 0.7) -> tuple[pa.Table, pa.Table]:
    """Return random rows of ``verdicts`` and ``replays`` for a share of the streams, judged at this time."""
    verdicts: list[dict[str, Any]] = []
    replays: list[dict[str, Any]] = []
    starts = revs["start_time"].cast(pa.int64()).to_pylist()
    names = zip(revs["tenant"].to_pylist(), starts, revs["trace_id"].to_pylist(), revs["span_id"].to_pylist(), strict=True)
    for named in names:
        if rng.random() > share:
            continue
        key = {**dict(zip(("tenant", "start_time", "trace_id", "span_id"), named, strict=True)), "judged_at": judged_ms}
        for place in range(rng.randrange(1, 4)):
            verdicts.append({**key, "gap_start_us": 100 * place, **charged(rng)})
        was = {"stalls": rng.randrange(1, 9), "stalled_us": rng.randrange(10**6, 10**10)}
        for cause in rng.sample(CAUSES[:8], rng.randrange(3)):
            left = {f"stalls_{at}": rng.randrange(9) for at in ("min", "max")} | {
                f"stalled_{at}_us": rng.randrange(10**10) for at in ("min", "max")
            }
            replays.append({**key, "cause": cause, "engine_id": "e", **was, **left})
    return pa.Table.from_pylist(verdicts, VERDICTS), pa.Table.from_pylist(replays, REPLAYS)


def charged(rng: random.Random) -> dict[str, Any]:
    """Return the columns of a random verdict."""
    return {
        "gap_us": rng.choice((250_000, 399_999, 400_000, 400_001, 9_000_000_000)),
        "excess_us": rng.randrange(10**7),
        "cause": rng.choice((*CAUSES, "base", "base", "base")),
        "confidence": rng.choice(("proven", "strong", "likely", "unknown")),
        "engine_id": rng.choice(("", "e1", "e2")),
        "parts": [(cause, rng.randrange(-(10**9), 10**12)) for cause in rng.sample(CAUSES, rng.randrange(4))],
        "missing": rng.sample(("server", "engine"), rng.randrange(3)),
    }


STREAM = [("tenant", pa.string()), ("start_time", pa.timestamp("ns", "UTC")), ("trace_id", pa.binary(16)), ("span_id", pa.binary(8))]


STREAM = [*STREAM, ("judged_at", pa.timestamp("ms", "UTC")), ("cause", pa.string()), ("engine_id", pa.string())]


VERDICTS = pa.schema(
    [
        *STREAM,
        *((name, pa.uint64()) for name in ("gap_start_us", "gap_us", "excess_us")),
        ("confidence", pa.string()),
        ("parts", pa.map_(pa.string(), pa.int64())),
        ("missing", pa.list_(pa.string())),
    ]
)


REPLAYS = pa.schema(
    [
        *STREAM,
        *((name, pa.uint32()) for name in ("stalls", "stalls_min", "stalls_max")),
        *((name, pa.uint64()) for name in ("stalled_us", "stalled_min_us", "stalled_max_us")),
    ]
)


def judge(store: Store, at_ms: int, *verdicts: Mapping[str, Any]) -> None:
    """Insert verdicts on the store's only stream, judged at this time."""
    (key,) = rows_in(store, "SELECT tenant, start_time, trace_id, span_id FROM streams")
    rows = [{**charged(random.Random(1)), "gap_start_us": 7, **key, "judged_at": at_ms, **each} for each in verdicts]
    store.insert("verdicts", pa.Table.from_pylist(rows, VERDICTS))


def steps_of(rng: random.Random, engine: str, count: int, first: int = 0) -> ExportTraceServiceRequest:
    """Return steps of an engine over two minutes. Any column may be unknown."""
    unknown = rng.choice((0.0, 0.3))

    def known(*values: int) -> int | None:
        return None if rng.random() < unknown else rng.choice(values)

    made = []
    for number in range(first, first + count):
        at = THEN_NS + (2 * MINUTE_NS * number // 200) // 1000 * 1000
        names = ("running", "waiting", "prefill_tokens", "decode_requests", "decode_tokens", "draft_tokens", "accepted_tokens")
        columns = {name: known(0, 1, 7, 4_000_000_000) for name in (*names, "preempted")}
        made.append(Step(number, at, interval_us=known(0, 1, 2**14, 2**14 - 1, 25_000), kv_used_ppm=known(0, 999_999), **columns))
    return steps_request(Engine(engine, 5), made)


def forget(store: Store, *tables: str) -> None:
    """Empty these tables, or all tables if none is named."""
    for table in tables or (*ALIVE, *BEHIND):
        store.command(f"TRUNCATE TABLE {table}")


BEHIND = ("rollup_runs", "stream_revs", "verdicts", "replays", "attribution_runs", "engine_steps")


def one(model: str, rev: int, span_id: bytes = b"8 bytes.", **more: Any) -> ExportTraceServiceRequest:
    """Return a revision of the same stream: a snapshot if ``due_s`` is given, otherwise its end."""
    body, due_s = request(), more.pop("due_s", None)
    attributes = {"gen_ai.request.model": model, "legato.stream.rev": rev, **more.pop("attributes", {})}
    if due_s is not None:
        attributes, more["name"] = {**attributes, **snapshot(due_s, span_id, rev)}, "legato.stream.snapshot"
    native_span(body, attributes, **{"trace_id": b"16 bytes of one.", "span_id": span_id, "start_ns": THEN_NS, **more})
    return body


PAUSED = pack([400_000 + 25_000 * each + 900_000 * (each > 9) for each in range(20)], None, None, [1] * 20)


SLOW = {"legato.stream.timeline": PAUSED, "legato.client.hash": "alice"}


# Far apart, so that each is a separate stretch: two passes.
SCATTERED = [THEN_NS - 20 * each * MINUTE_NS for each in range(70)]


def scattered(store: Store) -> None:
    """Insert a stream with a verdict in each of these minutes, and engine steps in two more."""
    body, rng = request(), random.Random(5)
    for start in SCATTERED:
        native_span(body, start_ns=start, rng=rng)
    made = received_spans(body, tenant="", now_ns=NOW_NS, limits=Limits())
    store.insert("stream_revs", made.revs)
    store.insert("verdicts", judgements(rng, made.revs, NOW_NS // 10**6, share=1)[0])
    store.insert("engine_steps", received_spans(steps_of(rng, "e1", 150), tenant="", now_ns=NOW_NS, limits=Limits()).steps)


BATCH = received_spans(one("a", 1), tenant="", now_ns=NOW_NS, limits=Limits())
