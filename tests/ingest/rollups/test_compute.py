"""The tables of minutes hold what the rows behind them say, whatever came twice, late or halfway: worked out apart and compared."""

from __future__ import annotations

import os
import pathlib
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.builders.batches import received_spans
from helpers.builders.spans import SECOND_NS, native_span, request, scope_of
from helpers.builders.world import MS, World
from helpers.builders.world_spans import steps, stream
from helpers.dashboards.minutes import ALIVE, KEYS, differences, expected, rows_in, stored
from helpers.dashboards.tables import requests_of_one_span
from legato._timeline import pack
from legato_gpu_agent.agent.otlp_spans import Engine, Step, request_of
from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Limits
from legato_ingest.rollups.compute import MINUTE_S, _within, compute_minutes, passes
from legato_ingest.rollups.queries import STREAM_ROLLUPS
from legato_ingest.rollups.worker import RollupWorker, followed_until_ms, judgements_followed_until_ms
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.storage.watermark import now_ms
from legato_ingest.write.committer import Committer

PATIENCE_S = 20
HOUR_NS, DAY_NS, MINUTE_NS = 3_600 * SECOND_NS, 86_400 * SECOND_NS, 60 * SECOND_NS
NOW_NS = time.time_ns()
# Some minutes' begin, long enough ago for all that began in them to be over.
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


class Double:
    """A store whose inserts can be met before and after; all else is the real one's."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.before: Callable[[str, pa.Table], None] = lambda table, rows: None

    def insert(self, table: str, rows: pa.Table) -> None:
        """As the store's, after ``before``."""
        self.before(table, rows)
        self._store.insert(table, rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def roller(
    store: Store | Double, received_ms: Callable[[], int] = now_ms, judged_ms: Callable[[], int] = now_ms, **more: Any
) -> RollupWorker:
    """A roller that works when it is told to."""
    return RollupWorker(cast(Store, store), load(**more), Metrics(), received_ms, judged_ms)


@contextmanager
def committing(store: Store | Double, **more: Any) -> Iterator[Committer]:
    """A committer that is closed at the end."""
    committer = Committer(cast(Store, store), Metrics(), queue_bytes_max=2**28, chunks_max=10**6, **more)
    try:
        yield committer
    finally:
        committer.close()


def send(committer: Committer, bodies: Iterable[ExportTraceServiceRequest], tenant: str = "") -> None:
    """Hand over all, then wait for all; nothing is refused."""
    batches = [received_spans(body, tenant=tenant, now_ns=time.time_ns(), limits=Limits()) for body in bodies]
    for future in [committer.submit(batch) for batch in batches]:
        assert future.result(PATIENCE_S).rejected == 0


def minutes(store: Store) -> dict[str, Any]:
    """All four tables as readers see them."""
    return {table: stored(store, table) for table in ALIVE}


def rolled_at(store: Store, table: str = "stream_minutes") -> dict[int, int]:
    """When each minute was computed last (ms)."""
    rows = rows_in(store, f"SELECT toUnixTimestamp(minute) AS at, max(rolled_at) AS rolled FROM {table} GROUP BY at")
    return {row["at"]: row["rolled"] for row in rows}


# What streams are made of.


def streams_of(rng: random.Random, count: int) -> ExportTraceServiceRequest:
    """Streams of every ending over five minutes: cancelled in a pause, without a timeline, without tokens, running and abandoned."""
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
    """What makes a span a snapshot of a stream whose next is due so long after its start."""
    said = {"outcome": "running", "span_id": span_id.hex(), "rev": rev, "next_due": next_due_s}
    return {f"legato.stream.{key}": value for key, value in said.items()}


# Figures at the edges of what panels tell apart; None is NULL.
EDGES: Mapping[str, Sequence[float | None]] = {
    "duration_ns": (1, 2_000_000_999, 2_000_001_000, 30 * SECOND_NS),
    "ttfb_us": (None, 0, 1, 2, 255, 256, 257, 2**40),
    "ttft_us": (None, None, None, 0, 1, 1_999_999, 2_000_000, 2_000_001, 29_999_999, 30_000_000, 2**33),
    "ttfo_us": (None, None, None, 0, 2_000_000, 2_000_001, 2_345_678),
    "gaps": (None, 0, 1, 77),
    "gap_sum_us": (None, 0, 12_345_678_901),
    "gap_p99_us": (None, 0, 1, 2**20 - 1, 2**20, 399_999),
    "gap_max_us": (None, None, 0, 1, 249_999, 399_999, 400_000, 400_001, 2**21, 2**41),
    "jitter_ratio": (None, 0, 0.001, 0.5, 1, 1.024, 3.1415, 1e6),
    "stalls_250ms": (None, 0, 1, 9),
    "stalls_400ms": (None, 0, 3),
    "excess_250ms_us": (None, 0, 5_000_000_000),
    "chunks": (None, 0, 20),
    "content_chunks": (None, None, 0, 1, 18),
    "content_bytes": (None, 0, 900),
    "wire_bytes": (None, 0, 4_400),
    "output_tokens": (None, 0, 1, 2, 900, 2**32 - 1),
    "multi_token_share": (None, 0, 0.1, 1),
    "head_burst": (None, 0, 3, 3.0001, 50),
    "otlp_bytes": (0, 1, 2**32 - 1),
}
OUTCOMES = ("complete", "client_cancel", "timeout", "upstream_error", "abandoned", "engine_abort")


def bent(rng: random.Random, rows: pa.Table, tenant: str = "") -> pa.Table:
    """Rows with figures that no recording would bring together: of other streams, or of the same of another tenant."""
    count = rows.num_rows
    replaced: dict[str, Sequence[Any]] = {name: rng.choices(values, k=count) for name, values in EDGES.items()}
    replaced["outcome"] = rng.choices(OUTCOMES, k=count)
    replaced["ended"] = rng.choices((True, True, True, False), k=count)
    replaced["next_due_us"] = rng.choices((0, 1, 10**12), k=count)
    if tenant:
        replaced["tenant"] = [tenant] * count
    else:
        replaced["trace_id"] = [rng.randbytes(16) for _ in range(count)]
    for name, values in replaced.items():
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(place), pa.array(values).cast(rows.schema.field(place).type))
    return rows


def judgements(rng: random.Random, revs: pa.Table, judged_ms: int, share: float = 0.7) -> tuple[pa.Table, pa.Table]:
    """Rows of ``verdicts`` and ``replays``: some of the streams judged at this time, as nobody would who knew them."""
    verdicts: list[dict[str, Any]] = []
    replays: list[dict[str, Any]] = []
    starts = revs["start_time"].cast(pa.int64()).to_pylist()
    names = zip(revs["tenant"].to_pylist(), starts, revs["trace_id"].to_pylist(), revs["span_id"].to_pylist(), strict=True)
    for named in names:
        if rng.random() > share:
            continue
        whose = {**dict(zip(("tenant", "start_time", "trace_id", "span_id"), named, strict=True)), "judged_at": judged_ms}
        for place in range(rng.randrange(1, 4)):
            verdicts.append({**whose, "gap_start_us": 100 * place, **charged(rng)})
        was = {"stalls": rng.randrange(1, 9), "stalled_us": rng.randrange(10**6, 10**10)}
        for cause in rng.sample(CAUSES[:8], rng.randrange(3)):
            left = {f"stalls_{at}": rng.randrange(9) for at in ("min", "max")} | {
                f"stalled_{at}_us": rng.randrange(10**10) for at in ("min", "max")
            }
            replays.append({**whose, "cause": cause, "engine_id": "e", **was, **left})
    return pa.Table.from_pylist(verdicts, VERDICTS), pa.Table.from_pylist(replays, REPLAYS)


def charged(rng: random.Random) -> dict[str, Any]:
    """What a verdict says."""
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


def judge(store: Store, at_ms: int, *said: Mapping[str, Any]) -> None:
    """Verdicts on the stream that the store holds, at this time of judgement."""
    (whose,) = rows_in(store, "SELECT tenant, start_time, trace_id, span_id FROM streams")
    rows = [{**charged(random.Random(1)), "gap_start_us": 7, **whose, "judged_at": at_ms, **each} for each in said]
    store.insert("verdicts", pa.Table.from_pylist(rows, VERDICTS))


def steps_of(rng: random.Random, engine: str, count: int, first: int = 0) -> ExportTraceServiceRequest:
    """Steps of an engine over two minutes, each column of which may be unknown."""
    unknown = rng.choice((0.0, 0.3))

    def known(*values: int) -> int | None:
        return None if rng.random() < unknown else rng.choice(values)

    made = []
    for number in range(first, first + count):
        at = THEN_NS + (2 * MINUTE_NS * number // 200) // 1000 * 1000
        names = ("running", "waiting", "prefill_tokens", "decode_requests", "decode_tokens", "draft_tokens", "accepted_tokens")
        said = {name: known(0, 1, 7, 4_000_000_000) for name in (*names, "preempted")}
        made.append(Step(number, at, interval_us=known(0, 1, 2**14, 2**14 - 1, 25_000), kv_used_ppm=known(0, 999_999), **said))
    return request_of(Engine(engine, 5), made)


def fill(store: Store, seed: int, requests: int = 2) -> None:
    """Streams, verdicts of two judgements, replays and steps of two tenants, whose streams have the same ids."""
    rng = random.Random(seed)
    for _ in range(requests):
        made = received_spans(streams_of(rng, 40), tenant="", now_ns=NOW_NS, limits=Limits())
        assert made.rejected.num_rows == 0
        revs = pa.concat_tables([made.revs, bent(rng, made.revs)])
        revs = pa.concat_tables([revs, bent(rng, revs, OTHER)])
        store.insert("stream_revs", revs)
        for ago_ms in (9_000, 5_000):
            verdicts, replays = judgements(rng, revs, NOW_NS // 10**6 - ago_ms)
            # As if a judgement had been written twice: it is the same rows.
            for _ in range(2):
                store.insert("verdicts", verdicts)
                store.insert("replays", replays)
    for tenant in ("", OTHER):
        for engine in ("e1", "e2"):
            store.insert("engine_steps", received_spans(steps_of(rng, engine, 150), tenant=tenant, now_ns=NOW_NS, limits=Limits()).steps)


OTHER = "it's\\ b"


# What is in them.


@pytest.mark.parametrize("seed", range(2))
def test_every_column_is_what_the_rows_say(store: Store, seed: int) -> None:
    """All four tables, whole: each key and each figure is the one that a loop over the raw rows finds."""
    fill(store, seed)
    done = roller(store).step()
    should = expected(store)
    assert min(len(rows) for rows in should.values()) >= 8 and sum(map(len, should.values())) > 500
    assert differences(store) == []
    assert done.rows == sum(len(rows) for table, rows in should.items() if table.endswith("_minutes"))


def test_the_check_sees_every_figure(store: Store) -> None:
    """Whichever figure of whichever table were wrong, or missing, the comparison would say so; and the data moves each of them."""
    fill(store, 0)
    roller(store).step()
    blind = []
    for table, rows in expected(store).items():
        columns = {name for (name,) in store.select(f"SELECT name FROM system.columns WHERE database = 'default' AND table = '{table}'")}
        assert columns == {*KEYS[table], *next(iter(rows.values())), "rolled_at"}
        blind += [f"{table}.{name}" for name in next(iter(rows.values())) if not any(row[name] for row in rows.values())]
    assert blind == []


# What is sent again, or later.


def everything(rng: random.Random) -> list[ExportTraceServiceRequest]:
    """Requests of streams, of snapshots before the end of some, of engines' steps, and of a world whose stall can be replayed."""
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


def pieces(bodies: Iterable[ExportTraceServiceRequest]) -> list[ExportTraceServiceRequest]:
    """Each request whole, and each of its spans in a request of its own."""
    return [piece for body in bodies for piece in (body, *requests_of_one_span(body))]


def attribute(store: Store) -> None:
    """Judge what has not been judged."""
    AttributionWorker(store, load(attribute_settle_s=0), Metrics()).step()


def forget(store: Store, *tables: str) -> None:
    """Empty these tables; all of them when none is named."""
    for table in tables or (*ALIVE, *BEHIND):
        store.command(f"TRUNCATE TABLE {table}")


BEHIND = ("rollup_runs", "stream_revs", "verdicts", "replays", "attribution_runs", "engine_steps")


def test_what_is_sent_again_changes_no_figure(store: Store) -> None:
    """Whole, span by span, in another order, by four senders at once and between two runs: each table is that of one sending."""
    bodies, rng = everything(random.Random(1)), random.Random(2)
    with committing(store) as committer:
        send(committer, bodies)
        attribute(store)
        roller(store, committer.settled_ms).step()
    once = minutes(store)
    assert differences(store) == [] and all(once.values())
    for empty in (False, True):
        if empty:
            forget(store)
        with committing(store) as committer, ThreadPoolExecutor(4) as senders:
            again, rolling = pieces(bodies) * 2, roller(store, committer.settled_ms)
            rng.shuffle(again)
            while again:
                now, again = again[:40], again[40:]
                waiting = [senders.submit(send, committer, now[each::4]) for each in range(4)]
                rolling.step()
                for each in waiting:
                    each.result(PATIENCE_S)
            attribute(store)
            rolling.step()
        assert differences(store) == [] and minutes(store) == once


def test_a_snapshot_that_is_sent_again_after_its_end_is_no_news(store: Store) -> None:
    """Also when the store has merged it away: nothing is judged or computed again, in whatever company it would be this time."""
    before, end = one("a", 1, due_s=60.0), one("a", 2, attributes=SLOW, duration_ns=9 * SECOND_NS)
    with committing(store) as committer:
        send(committer, [before, end])
        judging = AttributionWorker(store, load(attribute_settle_s=0), Metrics(), committer.settled_ms)
        rolling = roller(store, committer.settled_ms, judging.judged_ms)
        assert judging.step().verdicts == 1 and rolling.step().minutes == 1
        store.command("OPTIMIZE TABLE stream_revs FINAL")
        send(committer, [before])
        assert judging.step().streams == 0 and rolling.step().minutes == 0


def one(model: str, rev: int, span_id: bytes = b"8 bytes.", **more: Any) -> ExportTraceServiceRequest:
    """The same stream by another rev: a snapshot where its next is due, else its end."""
    body, due_s = request(), more.pop("due_s", None)
    attributes = {"gen_ai.request.model": model, "legato.stream.rev": rev, **more.pop("attributes", {})}
    if due_s is not None:
        attributes, more["name"] = {**attributes, **snapshot(due_s, span_id, rev)}, "legato.stream.snapshot"
    native_span(body, attributes, **{"trace_id": b"16 bytes of one.", "span_id": span_id, "start_ns": THEN_NS, **more})
    return body


def test_a_later_rev_takes_the_place_of_the_one_before(store: Store) -> None:
    """Also where it names another model, and the first again: a reader sees one stream, and of what it was called before nothing."""
    with committing(store) as committer:
        rolling = roller(store, committer.settled_ms)
        for rev, (model, due_s) in enumerate([("a", 1e6), ("a", 1e6), ("b", 1e6), ("c", None), ("a", None)], 1):
            send(committer, [one(model, rev, due_s=due_s)])
            assert rolling.step().minutes == 1
            assert differences(store) == [] and rolling.step().minutes == 0
            ((streams, chunks, models),) = store.select(
                "SELECT sum(streams), sum(chunks), groupArrayIf(model, streams > 0) FROM stream_minutes FINAL"
            )
            assert (streams, chunks, models) == (1, 20, [model])
    ((due, ghosts),) = store.select("SELECT max(toUnixTimestamp64Milli(due_at)), countIf(streams = 0) FROM stream_minutes FINAL")
    assert (due, ghosts) == (0, 2)


def test_a_stream_whose_sender_died_is_abandoned_without_a_word(store: Store) -> None:
    """It was running; when its next snapshot is overdue its minute says so, though nothing was received."""
    told = "SELECT toUnixTimestamp64Milli(due_at), outcomes, judged, bad_error FROM stream_minutes FINAL"
    with committing(store) as committer:
        # On a busy machine half a second may be over before the first run is.
        for patience_s in (0.5, 2, 8):
            forget(store)
            due_ns = time.time_ns() + int(patience_s * SECOND_NS)
            send(committer, [one("a", 1, due_s=5.0, start_ns=due_ns - 35 * SECOND_NS)])
            rolling = roller(store, committer.settled_ms)
            assert rolling.step().minutes == 1
            if store.select(told) == [(due_ns // 10**6, {"running": 1}, 0, 0)]:
                break
        while now_ms() <= due_ns // 10**6:
            time.sleep(0.005)
        assert rolling.step().minutes == 1
        assert store.select(told) == [(0, {"abandoned": 1}, 1, 1)] and differences(store) == []
        assert rolling.step().minutes == 0


def test_late_rows_touch_their_minute_alone(store: Store) -> None:
    """A stream and a step from two days ago land in their minutes; other minutes stay as they were written."""
    with committing(store) as committer:
        rolling = roller(store, committer.settled_ms)
        send(committer, [streams_of(random.Random(3), 30), steps_of(random.Random(3), "e1", 40)])
        rolling.step()
        before = {table: rolled_at(store, table) for table in ("stream_minutes", "engine_minutes")}
        late_ns = THEN_NS - 2 * DAY_NS
        send(committer, [one("late", 1, start_ns=late_ns), request_of(Engine("e1", 5), [Step(1, late_ns)])])
        assert rolling.step().minutes == 2
    assert differences(store) == []
    for table, times in before.items():
        after = rolled_at(store, table)
        assert after.pop(late_ns // SECOND_NS) and after == times
    assert rolling.step().minutes == 0


def test_streams_in_minutes_computed_before_join_them(store: Store) -> None:
    """These minutes are written whole again, those around and between them are not."""
    with committing(store) as committer:
        rolling = roller(store, committer.settled_ms)
        send(committer, [one("a", 1, span_id=bytes([each]) * 8, start_ns=THEN_NS + each * MINUTE_NS) for each in range(1, 6)])
        rolling.step()
        before = rolled_at(store)
        send(committer, [one("b", 1, span_id=bytes([each]) * 8, start_ns=THEN_NS + each % 10 * MINUTE_NS) for each in (12, 14)])
        assert rolling.step().minutes == 2
    after, changed = rolled_at(store), [THEN_NS // SECOND_NS + 60 * each for each in (2, 4)]
    assert all(after.pop(at) > before.pop(at) for at in changed) and after == before and differences(store) == []


# Judgements.

PAUSED = pack([400_000 + 25_000 * each + 900_000 * (each > 9) for each in range(20)], None, None, [1] * 20)
SLOW = {"legato.stream.timeline": PAUSED, "legato.client.hash": "alice"}


def test_another_judgement_is_in_the_minute(store: Store) -> None:
    """A bad stream is the service's until a verdict says otherwise, and again when the next verdict does, or it is withdrawn."""
    at_ms = now_ms()
    with committing(store) as committer:
        send(committer, [one("a", 1, attributes=SLOW, duration_ns=9 * SECOND_NS)])
        rolling = roller(store, committer.settled_ms, lambda: at_ms)
        rolling.step()
        for said, whose in JUDGED:
            at_ms += 1
            judge(store, at_ms, {"cause": said, "gap_us": 9_000_000})
            assert rolling.step().minutes == 1
            assert differences(store) == []
            (row,) = stored(store, "stream_minutes").values()
            found = {name: row[f"bad_{name}_clients"] for name in ("service", "connection", "reader") if row[f"bad_{name}_clients"]}
            assert found.keys() == {whose} and row["bad_gap"] == 1
            assert [key[-2] for key in stored(store, "stall_minutes")] == [said] * (said != "base")
        assert rolling.step().minutes == 0


JUDGED = (("host", "service"), ("consumer", "reader"), ("connection", "connection"), ("render", "reader"), ("base", "service"))


@pytest.mark.parametrize(
    ("attributes", "gap_us", "side"),
    [
        ({}, 9_000_000, "reader"),
        ({}, 450_000, "service"),
        ({"legato.stream.outcome": "timeout"}, 9_000_000, "service"),
        ({"legato.stream.outcome": "client_cancel"}, 9_000_000, "service"),
    ],
    ids=["all that was bad", "less than the longest gap", "before an error", "before a wait that had no end"],
)
def test_a_reader_answers_for_what_it_did_alone(store: Store, attributes: dict[str, Any], gap_us: int, side: str) -> None:
    """A hold once in a stream does not make an engine's failure the reader's."""
    with committing(store) as committer:
        send(committer, [one("a", 1, attributes={**SLOW, **attributes}, duration_ns=9 * SECOND_NS)])
    judge(store, now_ms(), {"cause": "consumer", "gap_us": gap_us})
    roller(store).again(0)
    (row,) = stored(store, "stream_minutes").values()
    assert row[f"bad_{side}_clients"] and differences(store) == []
    assert not row[f"bad_{'reader' if side == 'service' else 'service'}_clients"]


def test_an_hour_that_missed_what_its_minute_heard_hears_it_later(store: Store) -> None:
    """Killed between a minute and its hour, by a stream that nobody sent anything of any more: the hour asks by itself."""
    with committing(store) as committer:
        send(committer, [one("a", 1, due_s=1.0, start_ns=time.time_ns() - 40 * SECOND_NS)])
        rolling = roller(store, committer.settled_ms)
        rolling.step()
        was = "map('running', 1) AS outcomes, fromUnixTimestamp64Milli(5000) AS due_at"
        store.command(f"INSERT INTO stream_hours SELECT * REPLACE ({was}) FROM stream_hours FINAL")
        assert differences(store) != [] and rolling.step().minutes == 1
        assert differences(store) == [] and rolling.step().minutes == 0


def test_of_several_stalls_the_service_is_to_blame_before_the_path_and_the_path_before_the_reader(store: Store) -> None:
    """And stalls within the limit blame nobody."""
    with committing(store) as committer:
        send(committer, [one("a", 1, attributes=SLOW, duration_ns=9 * SECOND_NS)])
    stalls = [
        ("consumer", 9_000_000, "reader"),
        ("connection", 9_000_000, "connection"),
        ("host", 400_000, "connection"),
        ("host", 400_001, "service"),
    ]
    for place, (cause, gap_us, side) in enumerate(stalls):
        judge(store, now_ms(), {"cause": cause, "gap_us": gap_us, "gap_start_us": place})
        roller(store).again(0)
        (row,) = stored(store, "stream_minutes").values()
        assert len(row[f"bad_{side}_clients"]) == 1 and differences(store) == []


def test_judged_by_the_worker_is_rolled_by_the_roller(store: Store) -> None:
    """The two as `legato serve` wires them: the verdict of a sweep is in the minutes after the next run."""
    with committing(store) as committer:
        send(committer, [one("a", 1, attributes=SLOW, duration_ns=9 * SECOND_NS)])
        judging = AttributionWorker(store, load(attribute_settle_s=0), Metrics(), committer.settled_ms)
        rolling = roller(store, committer.settled_ms, judging.judged_ms)
        rolling.step()
        assert not stored(store, "stall_minutes")
        assert judging.step().verdicts == 1
        assert rolling.step().minutes == 1 and stored(store, "stall_minutes") and differences(store) == []
        judging.again(0)
        assert rolling.step().minutes == 1 and rolling.step().minutes == 0


# Stopped, killed, and at it while rows come.

# Far from one another, so that each is a stretch of its own: two passes.
SCATTERED = [THEN_NS - 20 * each * MINUTE_NS for each in range(70)]


def scattered(store: Store) -> None:
    """A stream with a verdict in each of these minutes, and steps of two more."""
    body, rng = request(), random.Random(5)
    for start in SCATTERED:
        native_span(body, start_ns=start, rng=rng)
    made = received_spans(body, tenant="", now_ns=NOW_NS, limits=Limits())
    store.insert("stream_revs", made.revs)
    store.insert("verdicts", judgements(rng, made.revs, NOW_NS // 10**6, share=1)[0])
    store.insert("engine_steps", received_spans(steps_of(rng, "e1", 150), tenant="", now_ns=NOW_NS, limits=Limits()).steps)


class Killed(Exception):
    """The process ended here."""


def inserts_of_a_run(store: Store, at: int | None, act: Callable[[RollupWorker], None]) -> tuple[RollupWorker, list[str]]:
    """A roller over a store that does something to it at its insert number ``at``; and the tables that it wrote to, or tried."""
    double, written = Double(store), list[str]()
    rolling = roller(double)

    def before(table: str, rows: pa.Table) -> None:
        written.append(table)
        if len(written) == at:
            act(rolling)

    double.before = before
    return rolling, written


def kill(_: RollupWorker) -> None:
    """As SIGKILL would: what comes after does not come."""
    raise Killed


@pytest.mark.parametrize(("at", "same"), [(5, True), (8, False)])
def test_cut_off_anywhere_the_next_run_makes_it_whole(store: Store, at: int, same: bool) -> None:
    """Between two tables, between minutes and the note: who runs next, another process or the same, finds no note and computes it all."""
    scattered(store)
    rolling, _ = inserts_of_a_run(store, at, kill)
    with pytest.raises(Killed):
        rolling.step()
    assert store.select("SELECT count() FROM rollup_runs") == [(0,)]
    other, written = inserts_of_a_run(store, None, kill)
    assert (rolling if same else other).step().minutes == 72
    # Two passes over streams, one over steps, and not one more.
    minutes = [table for table in ALIVE if table.endswith("_minutes")]
    assert same or [written.count(each) for each in (*minutes, "rollup_runs")] == [2, 2, 2, 1, 1]
    assert differences(store) == [] and other.step().minutes == 0


@pytest.mark.parametrize(("at", "minutes", "inserts"), [(1, 64, 3), (7, 72, 7)])
def test_a_stop_between_passes_leaves_no_note(store: Store, at: int, minutes: int, inserts: int) -> None:
    """The pass that runs is finished, the rest is left, and the next run does all of it."""
    scattered(store)
    rolling, written = inserts_of_a_run(store, at, lambda rolling: rolling._task.closing.set())
    assert rolling.step().minutes == minutes and len(written) == inserts
    assert "rollup_runs" not in written
    assert roller(store).step().minutes == 72 and differences(store) == []


@contextmanager
def held(double: Double, table: str) -> Iterator[tuple[threading.Event, threading.Event, list[int]]]:
    """Inserts into a table wait: an event when one has begun, one that lets it go, and the times that its rows bear (ms)."""
    begun, go, times = threading.Event(), threading.Event(), list[int]()
    column = "judged_at" if table == "verdicts" else "received_at"

    def before(name: str, rows: pa.Table) -> None:
        if name == table and rows.num_rows:
            times.extend(rows[column].cast(pa.int64()).to_pylist())
            begun.set()
            assert go.wait(PATIENCE_S)

    double.before = before
    try:
        yield begun, go, times
    finally:
        go.set()


@pytest.mark.parametrize("after_ms", [0, NOW_NS // 10**6 + 3_600_000], ids=["now", "the clock was set back"])
def test_a_row_on_its_way_in_is_rolled_by_the_next_run(store: Store, after_ms: int) -> None:
    """Runs that end while an insert is under way, and note how far they came, do not pass it by."""
    double = Double(store)
    with committing(double, after_ms=after_ms) as committer, held(double, "stream_revs") as (begun, go, times):
        store.insert("stream_revs", received_spans(one("a", 1), tenant="", now_ns=NOW_NS, limits=Limits()).revs)
        rolling = roller(store, committer.settled_ms)
        rolling.step()
        body = one("b", 1, span_id=b"another.", start_ns=THEN_NS + HOUR_NS)
        coming = committer.submit(received_spans(body, tenant="", now_ns=NOW_NS, limits=Limits()))
        assert begun.wait(PATIENCE_S)
        for _ in range(2):
            judge(store, now_ms(), {"cause": "host"})
            assert rolling.step().minutes == 1
            assert committer.settled_ms() < times[0]
        go.set()
        assert coming.result(PATIENCE_S).rejected == 0
        assert rolling.step().minutes == 1
    assert differences(store) == [] and len(stored(store, "stream_minutes")) == 2


def test_a_verdict_on_its_way_in_is_rolled_by_the_next_run(store: Store) -> None:
    """As with rows: a run that ends while verdicts are written has not seen them, and does not say so."""
    double = Double(store)
    with committing(store) as committer, held(double, "verdicts") as (begun, go, times):
        send(committer, [one("a", 1, attributes=SLOW, duration_ns=9 * SECOND_NS)])
        judging = AttributionWorker(cast(Store, double), load(attribute_settle_s=0), Metrics(), committer.settled_ms)
        rolling = roller(store, committer.settled_ms, judging.judged_ms)
        rolling.step()
        with ThreadPoolExecutor(1) as thread:
            sweep = thread.submit(judging.step)
            assert begun.wait(PATIENCE_S)
            for each in range(2):
                send(committer, [one("b", 1, span_id=bytes([each + 1]) * 8, start_ns=THEN_NS + HOUR_NS)])
                assert rolling.step().minutes == 1
                assert judging.judged_ms() < times[0]
            go.set()
            assert sweep.result(PATIENCE_S).verdicts == 1
        assert rolling.step().minutes == 1
    assert differences(store) == [] and len(stored(store, "stall_minutes")) == 1


class Void:
    """A store that holds nothing and forgets what it is given, but for when that was received."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.stamp_ms = 0
        self.clock_ms = now_ms

    def insert(self, table: str, rows: pa.Table) -> None:
        """Takes as long as it is told to."""
        if table == "stream_revs":
            (self.stamp_ms,) = rows["received_at"].cast(pa.int64()).to_pylist()
            self.begun.set()
            assert self.go.wait(PATIENCE_S)

    def select_arrow(self, *_: Any) -> pa.Table:
        """No row is known."""
        return pa.table({name: pa.array([], pa.string()) for name in ("tenant", "trace_id", "span_id", "rev")})


FUTURE_MS = NOW_NS // 10**6 + 3_600_000
BATCH = received_spans(one("a", 1), tenant="", now_ns=NOW_NS, limits=Limits())


@given(st.lists(st.booleans(), max_size=12), st.sampled_from((0, NOW_NS // 10**6, FUTURE_MS)))
@settings(max_examples=40, deadline=None)
def test_no_row_is_received_before_a_promise(asked: list[bool], after_ms: int) -> None:
    """Whoever asks, before, during and after inserts, and whatever the clock says: what is promised never reaches a row to come."""
    store = Void()
    with committing(cast(Store, store), after_ms=after_ms) as committer:
        promised = after_ms
        for during in asked:
            store.begun.clear()
            store.go.clear()
            done = committer.submit(BATCH)
            assert store.begun.wait(PATIENCE_S) and store.stamp_ms > promised
            if during:
                promise = committer.settled_ms()
                assert promised <= promise < store.stamp_ms
                promised = promise
            store.go.set()
            done.result(PATIENCE_S)
            if not during:
                promise = committer.settled_ms()
                assert promise >= promised
                promised = promise


@given(st.lists(st.booleans(), max_size=12), st.sampled_from((0, NOW_NS // 10**6, FUTURE_MS)))
@settings(max_examples=40, deadline=None)
def test_no_verdict_is_judged_before_a_promise(asked: list[bool], after_ms: int) -> None:
    """The same of verdicts: the time of a judgement is later than all that was promised before it, and than what is while it is written."""
    judging = AttributionWorker(cast(Store, Void()), load(), Metrics(), after_ms=after_ms)
    promises = [after_ms]

    def ask() -> int:
        promises.append(judging.judged_ms())
        assert promises[-1] >= promises[-2]
        return promises[-1]

    for during in asked:
        with judging._stamps.stamp() as at_ms:
            assert at_ms > promises[-1]
            assert not during or ask() < at_ms
        ask()


def test_many_may_ask_while_many_rows_come() -> None:
    """From another thread, all the time: no insert that was still to come bears a time that had been promised."""
    store, promises, done = Void(), list[tuple[int, int]](), list[int]()
    store.go.set()
    with committing(cast(Store, store)) as committer, ThreadPoolExecutor(1) as thread:
        stop = threading.Event()

        def ask() -> None:
            while not stop.wait(0.0002):
                promise = committer.settled_ms()
                promises.append((promise, len(done)))

        asking = thread.submit(ask)
        for _ in range(100):
            committer.submit(BATCH).result(PATIENCE_S)
            done.append(store.stamp_ms)
        stop.set()
        asking.result(PATIENCE_S)
    # One row may be in the store and its future not be read yet.
    assert all(promise < done[seen + 1] for promise, seen in promises if seen + 1 < len(done))
    assert done == sorted(done)


# Set back, set anew.


def test_rows_that_come_after_the_clock_was_set_back_are_rolled_at_once(store: Store) -> None:
    """They bear later times than what was followed so far; nobody waits until the clock has caught up with these."""
    with committing(store, after_ms=FUTURE_MS) as committer:
        rolling = roller(store, committer.settled_ms)
        rolling.step()
        send(committer, [one("a", 1)])
        assert rolling.step().minutes == 1


def test_verdicts_that_come_after_the_clock_was_set_back_are_rolled_at_once(store: Store) -> None:
    """Likewise."""
    with committing(store) as committer:
        send(committer, [one("a", 1, attributes=SLOW, duration_ns=9 * SECOND_NS)])
        judging = AttributionWorker(store, load(attribute_settle_s=0), Metrics(), committer.settled_ms, FUTURE_MS)
        rolling = roller(store, committer.settled_ms, judging.judged_ms)
        rolling.step()
        assert judging.step().verdicts == 1
        assert rolling.step().minutes == 1


def test_verdicts_of_a_worker_that_was_started_anew_are_later_than_what_was_rolled(store: Store) -> None:
    """Also where the clock was set back in between, so that none of them slips through."""
    with committing(store) as committer:
        send(committer, [one("a", 1, attributes=SLOW, duration_ns=9 * SECOND_NS)])
        roller(store, committer.settled_ms, lambda: FUTURE_MS).step()
        after_ms = judgements_followed_until_ms(store)
        assert AttributionWorker(store, load(attribute_settle_s=0), Metrics(), committer.settled_ms, after_ms).step().verdicts == 1
    ((judged_ms,),) = store.select("SELECT toUnixTimestamp64Milli(max(judged_at)) FROM verdicts")
    assert judged_ms > FUTURE_MS


def test_what_is_computed_later_counts_whatever_the_clock_says(store: Store) -> None:
    """A minute that had stalls, none, and one again, the clock being set back each time: the last word is what readers see."""
    store.insert("stream_revs", BATCH.revs)
    minute = np.array([THEN_NS // SECOND_NS])
    (stalls,) = (each for each in STREAM_ROLLUPS if each.table == "stall_minutes")
    for number, cause in enumerate(("host", "base", "host", "base", "base", "host")):
        judge(store, NOW_NS // 10**6 + number, {"cause": cause, "engine_id": "", "confidence": "strong"})
        compute_minutes(store, stalls, "start_time", minute, {"gap_us": 400_000, "first_us": 2_000_000}, NOW_NS // 10**6 - 1000 * number)
        assert len(stored(store, "stall_minutes")) == (cause == "host")


def test_what_was_followed_is_known_in_every_time_zone(tmp_path: pathlib.Path) -> None:
    """A new process goes on from there, not from hours later or before."""
    script = (
        "import pathlib, sys, time; from legato_ingest.storage import migrate; from legato_ingest.rollups import worker\n"
        "from legato_ingest.metrics import Metrics\n"
        "from legato_ingest.settings import load; from legato_ingest.storage import EmbeddedStore\n"
        "settings, store = load(), EmbeddedStore(pathlib.Path(sys.argv[1]))\n"
        "migrate.apply(store, migrate.load(settings.schema_dir)); worker.RollupWorker(store, settings, Metrics()).step()\n"
        "print(worker.followed_until_ms(store) - time.time_ns() // 10**6); store.close()"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "store")]
    told = subprocess.run(command, env={**os.environ, "TZ": "America/New_York"}, check=True, capture_output=True, text=True)
    assert -60_000 < int(told.stdout) <= 1


def test_what_was_followed_is_the_later_of_both(store: Store) -> None:
    """Of the attribution's and of the rollups'; of a new store nothing."""
    assert followed_until_ms(store) <= 1
    roller(store, lambda: 10**12).step()
    assert followed_until_ms(store) == 10**12
    # With the time of its run: a row of 1970 is past its retention, and a merge may drop it at once.
    store.command("INSERT INTO attribution_runs (until, ran_at) VALUES (fromUnixTimestamp64Milli(1000000000777), now64(3))")
    assert followed_until_ms(store) == 10**12 + 777


def test_one_span_with_two_starts_is_two_streams(store: Store) -> None:
    """As in `streams`: a verdict is of the start that it names, in whatever pass the other is computed."""
    starts = [THEN_NS, THEN_NS + MINUTE_NS, THEN_NS + HOUR_NS]
    for rev, start in enumerate(starts, 1):
        made = received_spans(one("a", rev, start_ns=start, attributes=SLOW), tenant="", now_ns=NOW_NS, limits=Limits()).revs
        store.insert("stream_revs", made)
        verdicts, replays = judgements(random.Random(2), made, NOW_NS // 10**6, share=1)
        store.insert("verdicts", verdicts)
        store.insert("replays", replays)
    roller(store).step()
    assert differences(store) == []


def test_other_limits_count_when_minutes_are_computed_again(store: Store) -> None:
    """With stricter limits fewer streams are good, with none all but the broken ones; until then nothing moves."""
    fill(store, 7, requests=1)
    roller(store).step()
    good = store.select("SELECT sum(good), sum(judged) FROM stream_minutes FINAL")
    counts = []
    for gap_ms, first_ms in ((100, 1_000), (10**9, 10**9)):
        other = roller(store, slo_gap_ms=gap_ms, slo_first_output_ms=first_ms)
        assert other.step().minutes == 0
        assert other.again(0)["minutes"] == len(rolled_at(store)) + len(rolled_at(store, "engine_minutes"))
        assert differences(store, gap_ms * 1000, first_ms * 1000) == []
        counts += store.select("SELECT sum(good), sum(judged) FROM stream_minutes FINAL")
    assert counts[0][0] < good[0][0] < counts[1][0] and {judged for _, judged in counts} == {good[0][1]}


def test_only_the_minutes_asked_for_are_computed_again(store: Store) -> None:
    """Those of the last hours, the first of them whole; the rest stays as it was written."""
    scattered(store)
    rolling = roller(store)
    rolling.step()
    before = rolled_at(store)
    asked = [int(time.time()) - 5 * 3600]
    done = rolling.again(5 * 3600)["minutes"]
    asked.append(int(time.time()) - 5 * 3600)
    after = rolled_at(store)
    changed = {at for at in after if after[at] != before[at]}
    # All that began after the question's moment, none that ended before it; and two minutes of steps.
    assert {at for at in after if at >= asked[1]} <= changed <= {at for at in after if at + MINUTE_S > asked[0]}
    assert len(changed) > 3 and done == len(changed) + 2
    assert differences(store) == []


def test_minutes_whose_streams_are_gone_are_emptied(store: Store) -> None:
    """What nothing stands behind any more is nothing once it is computed again."""
    store.insert("stream_revs", BATCH.revs)
    judge(store, now_ms() - 1, {"cause": "host"})
    rolling = roller(store)
    rolling.step()
    assert stored(store, "stream_minutes") and stored(store, "stall_minutes")
    forget(store, "stream_revs")
    rolling.again(0)
    assert differences(store) == [] and not stored(store, "stream_minutes") and not stored(store, "stall_minutes")


# Passes.

SOME_MINUTES = st.lists(st.tuples(st.integers(0, 30_000), st.integers(1, 400)), max_size=100).map(
    lambda runs: np.array(sorted({minute for first, length in runs for minute in range(first, first + length)}), np.int64) * MINUTE_S
)


@given(SOME_MINUTES)
@settings(max_examples=50, deadline=None)
def test_passes_have_every_minute_once_and_are_bounded(minutes_s: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    """In order, at most 240 minutes and 64 ranges of the primary key each, and no more passes than that takes."""
    parts = list(passes(minutes_s))
    assert [*np.concatenate([np.zeros(0, np.int64), *parts])] == [*minutes_s]
    ranges = [_within("t", each).count("t >= ") for each in parts]
    assert all(1 <= len(each) <= 240 for each in parts) and all(count <= 64 for count in ranges)
    assert all(len(each) == 240 or count == 64 for each, count in zip(parts[:-1], ranges, strict=False))


@given(SOME_MINUTES)
@settings(max_examples=50, deadline=None)
def test_a_passes_condition_is_true_of_its_minutes_alone(minutes_s: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    """Of the first and the last nanosecond of each, and of none in the minutes around and between them."""
    for each in passes(minutes_s):
        inside = set(each.tolist())
        condition = read_as_python(_within("t", each))
        # All edges, and a few of the minutes that are in the midst of others.
        edges = [at for at in inside if not {at - MINUTE_S, at + MINUTE_S} <= inside]
        for minute in {near for at in (*edges, *each[:3].tolist()) for near in (at - MINUTE_S, at, at + MINUTE_S)}:
            assert condition(minute * 10**9) == condition((minute + MINUTE_S) * 10**9 - 1) == (minute in inside)


def read_as_python(condition: str) -> Callable[[int], bool]:
    """A condition on the time ``t`` as a function of ns since the epoch."""
    text = re.sub(r"fromUnixTimestamp64Nano\((\d+), 'UTC'\)", r"\1", condition)
    text = re.sub(r"IN \(([\d, ]+)\)", r"in {\1}", text).replace(" AND ", " and ").replace(" OR ", " or ")
    functions = {"toUnixTimestamp64Second": lambda ns: ns // 10**9, "intDiv": lambda a, b: a // b}
    return cast(Callable[[int], bool], eval(f"lambda t: {text}", functions))
