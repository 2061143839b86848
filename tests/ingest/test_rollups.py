"""The tables of minutes hold what the rows behind them say, whatever came when, twice, late or halfway: worked out apart and compared whole."""

from __future__ import annotations

import os
import pathlib
import random
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

from helpers.minutes import ALIVE, KEYS, differences, expected, rows_in, stored
from helpers.spans import SECOND_NS, native_span, request, scope_of, steady_timeline
from helpers.tables import requests_of_one_span
from legato._timeline import pack
from legato_gpu_agent.steps import Engine, Step, request_of
from legato_ingest.attribution.sweep import Swept
from legato_ingest.attribution.worker import Worker
from legato_ingest.commit import Committer
from legato_ingest.literals import time_ns
from legato_ingest.metrics import Metrics
from legato_ingest.roller import Roller, followed_until_ms, now_ms
from legato_ingest.rollup_queries import STREAM_ROLLUPS
from legato_ingest.rollups import MINUTE_S, _within, roll, slices
from legato_ingest.rows import Limits, rows_of
from legato_ingest.settings import load
from legato_ingest.store import Store

PATIENCE_S = 20
HOUR_NS, DAY_NS, MINUTE_NS = 3_600 * SECOND_NS, 86_400 * SECOND_NS, 60 * SECOND_NS
NOW_NS = time.time_ns()
# Some minutes' begin, long enough ago for all that began in them to be over.
THEN_NS = (NOW_NS - 2 * HOUR_NS) // MINUTE_NS * MINUTE_NS
CAUSES = ("scheduling", "kv_pressure", "host", "front_end", "coalescing", "connection", "slow_reader", "consumer", "render", "mixed", "base")
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


def roller(store: Store | Double, received_ms: Callable[[], int] = now_ms, judged_ms: Callable[[], int] = now_ms, **more: Any) -> Roller:
    """A roller that works when it is told to."""
    return Roller(cast(Store, store), load(**more), Metrics(), received_ms, judged_ms)


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
    batches = [rows_of(body, tenant=tenant, received_at_ns=time.time_ns(), limits=Limits()) for body in bodies]
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
            attributes |= snapshot(rng.choice((0.0, 1e6)))
            more["name"] = "legato.stream.snapshot"
        start = THEN_NS + rng.randrange(5) * MINUTE_NS + rng.choice((0, 1, rng.randrange(MINUTE_NS), MINUTE_NS - 1))
        native_span(body, attributes, start_ns=start, duration_ns=int(times[-1]) * 1000 + rng.choice((0, SECOND_NS)), rng=rng, **more)
    return body


def snapshot(next_due_s: float, span_id: bytes | None = None, rev: int = 1) -> dict[str, Any]:
    """What makes a span a snapshot of a stream whose next is due so long after its start."""
    named = (span_id or random.randbytes(8)).hex()
    said = {"outcome": "running", "span_id": named, "rev": rev, "next_due": next_due_s}
    return {f"legato.stream.{key}": value for key, value in said.items()}


# Figures at the edges of what panels tell apart; None is NULL.
EDGES: Mapping[str, Sequence[float | None]] = {
    "duration_ns": (0, 1, 999, 2_000_000_999, 2_000_001_000, 30 * SECOND_NS),
    "ttfb_us": (None, 0, 1, 2, 255, 256, 257, 2**40),
    "ttft_us": (None, 0, 1, 1_999_999, 2_000_000, 2_000_001, 29_999_999, 30_000_000, 2**33),
    "ttfo_us": (None, 0, 2_000_000, 2_000_001, 2_345_678),
    "gaps": (None, 0, 1, 77),
    "gap_sum_us": (None, 0, 12_345_678_901),
    "gap_p99_us": (None, 0, 1, 2**20 - 1, 2**20, 399_999),
    "gap_max_us": (None, 0, 1, 249_999, 399_999, 400_000, 400_001, 2**21, 2**41),
    "jitter_ratio": (None, 0, 0.001, 0.5, 1, 1.024, 3.1415, 1e6),
    "stalls_250ms": (None, 0, 1, 9),
    "stalls_400ms": (None, 0, 3),
    "excess_250ms_us": (None, 0, 5_000_000_000),
    "chunks": (None, 0, 20),
    "content_chunks": (None, 0, 1, 18),
    "content_bytes": (None, 0, 900),
    "wire_bytes": (None, 0, 4_400),
    "output_tokens": (None, 0, 1, 2, 900, 2**32 - 1),
    "multi_token_share": (None, 0, 0.1, 1),
    "head_burst": (None, 0, 3, 3.0001, 50),
    "otlp_bytes": (0, 1, 2**32 - 1),
}
OUTCOMES = ("complete", "client_cancel", "timeout", "upstream_error", "abandoned", "engine_abort")


def bent(rng: random.Random, rows: pa.Table) -> pa.Table:
    """The rows of other streams, whose figures no recording would bring together."""
    count = rows.num_rows
    replaced: dict[str, Sequence[Any]] = {name: rng.choices(values, k=count) for name, values in EDGES.items()}
    replaced["outcome"] = rng.choices(OUTCOMES, k=count)
    replaced["ended"] = rng.choices((True, True, True, False), k=count)
    replaced["next_due_us"] = rng.choices((0, 1, 10**12), k=count)
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
        stream = {**dict(zip(("tenant", "start_time", "trace_id", "span_id"), named, strict=True)), "judged_at": judged_ms}
        for place in range(rng.randrange(1, 4)):
            verdicts.append({**stream, "gap_start_us": 100 * place, **charged(rng)})
        was = {"stalls": rng.randrange(1, 9), "stalled_us": rng.randrange(10**6, 10**10)}
        for cause in rng.sample(CAUSES[:8], rng.randrange(3)):
            left = {f"stalls_{at}": rng.randrange(9) for at in ("min", "max")} | {f"stalled_{at}_us": rng.randrange(10**10) for at in ("min", "max")}
            replays.append({**stream, "cause": cause, "engine_id": "e", **was, **left})
    return pa.Table.from_pylist(verdicts, VERDICTS), pa.Table.from_pylist(replays, REPLAYS)


def charged(rng: random.Random) -> dict[str, Any]:
    """What a verdict says."""
    return {
        "gap_us": rng.choice((250_000, 399_999, 400_000, 400_001, 9_000_000_000)),
        "excess_us": rng.randrange(10**7),
        "cause": rng.choice(CAUSES),
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
    (stream,) = rows_in(store, "SELECT tenant, start_time, trace_id, span_id FROM streams")
    rows = [{**charged(random.Random(1)), "gap_start_us": 7, **stream, "judged_at": at_ms, **each} for each in said]
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


def fill(store: Store, seed: int) -> None:
    """Streams, verdicts of two judgements, replays and steps of two tenants."""
    rng = random.Random(seed)
    for tenant in ("", "it's\\ b"):
        for _ in range(3):
            made = rows_of(streams_of(rng, 40), tenant=tenant, received_at_ns=NOW_NS, limits=Limits())
            assert made.rejected.num_rows == 0
            revs = pa.concat_tables([made.revs, bent(rng, made.revs)])
            store.insert("stream_revs", revs)
            for ago_ms in (9_000, 5_000):
                verdicts, replays = judgements(rng, revs, NOW_NS // 10**6 - ago_ms)
                store.insert("verdicts", verdicts)
                store.insert("replays", replays)
        for engine in ("e1", "e2"):
            store.insert("engine_steps", rows_of(steps_of(rng, engine, 150), tenant=tenant, received_at_ns=NOW_NS, limits=Limits()).steps)


# What is in them.


@pytest.mark.parametrize("seed", range(3))
def test_every_column_is_what_the_rows_say(store: Store, seed: int) -> None:
    """All four tables, whole: each key and each figure is the one that a loop over the raw rows finds."""
    fill(store, seed)
    done = roller(store).step()
    should = expected(store)
    assert min(len(rows) for rows in should.values()) >= 8 and sum(map(len, should.values())) > 500
    assert differences(store) == []
    assert done.rows == sum(map(len, should.values()))


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
    """Requests of streams, of snapshots before the end of some, and of an engine's steps."""
    bodies = [streams_of(rng, 12), streams_of(rng, 12)]
    for number, span in enumerate(scope_of(bodies[0]).spans):
        if span.name != "legato.stream.snapshot" and number % 2:
            before = request()
            attributes = {**snapshot(60.0, span.span_id), "gen_ai.request.model": "not known yet"}
            native_span(before, attributes, trace_id=span.trace_id, start_ns=span.start_time_unix_nano, name="legato.stream.snapshot")
            span.attributes.add(key="legato.stream.rev").value.int_value = 2
            bodies.append(before)
    return [*bodies, steps_of(rng, "e1", 40), steps_of(rng, "e2", 40)]


def pieces(bodies: Iterable[ExportTraceServiceRequest]) -> list[ExportTraceServiceRequest]:
    """Each request whole, and each of its spans in a request of its own."""
    return [piece for body in bodies for piece in (body, *requests_of_one_span(body))]


def attribute(store: Store) -> None:
    """Judge what has not been judged."""
    Worker(store, load(attribute_settle_s=0), Metrics()).step()


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
            assert differences(store) == []
            ((streams, chunks, models),) = store.select("SELECT sum(streams), sum(chunks), groupArrayIf(model, streams > 0) FROM stream_minutes FINAL")
            assert (streams, chunks, models) == (1, 20, [model])
    ((due, ghosts),) = store.select("SELECT max(toUnixTimestamp64Milli(due_at)), countIf(streams = 0) FROM stream_minutes FINAL")
    assert (due, ghosts) == (0, 2)


def test_a_stream_whose_sender_died_is_abandoned_without_a_word(store: Store) -> None:
    """It was running; when its next snapshot is overdue its minute says so, though nothing was received."""
    wanted_ns = time.time_ns() + 700_000_000
    with committing(store) as committer:
        send(committer, [one("a", 1, due_s=5.0, start_ns=wanted_ns - 35 * SECOND_NS)])
        rolling = roller(store, committer.settled_ms)
        assert rolling.step().minutes == 1
        ((due_ms, outcomes, judged),) = store.select("SELECT toUnixTimestamp64Milli(due_at), outcomes, judged FROM stream_minutes FINAL")
        assert (due_ms, outcomes, judged) == (wanted_ns // 10**6, {"running": 1}, 0)
        assert rolling.step().minutes == 0, "nothing has changed"
        while time.time_ns() // 10**6 <= due_ms:
            time.sleep(0.005)
        assert rolling.step().minutes == 1
        assert rolling.step().minutes == 0
    ((outcomes, judged, errors),) = store.select("SELECT outcomes, judged, bad_error FROM stream_minutes FINAL")
    assert (outcomes, judged, errors) == ({"abandoned": 1}, 1, 1) and differences(store) == []


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


def test_a_stream_in_a_minute_computed_before_joins_it(store: Store) -> None:
    """The minute is written whole again, the neighbouring ones are not."""
    with committing(store) as committer:
        rolling = roller(store, committer.settled_ms)
        send(committer, [one("a", 1, span_id=bytes([each]) * 8, start_ns=THEN_NS + each * MINUTE_NS) for each in (1, 2, 3)])
        rolling.step()
        before = rolled_at(store)
        send(committer, [one("b", 1, span_id=b"another.", start_ns=THEN_NS + 2 * MINUTE_NS)])
        assert rolling.step().minutes == 1
    after, middle = rolled_at(store), THEN_NS // SECOND_NS + 120
    assert after.pop(middle) > before.pop(middle) and after == before and differences(store) == []


# Judgements.

SLOW = {"legato.stream.timeline": steady_timeline(6, 900_000), "legato.client.hash": "alice"}


@pytest.mark.parametrize(("cause", "side"), [("consumer", "reader"), ("render", "reader"), ("connection", "connection"), ("base", "service")])
def test_another_judgement_is_in_the_minute(store: Store, cause: str, side: str) -> None:
    """A bad stream is the service's until a verdict says otherwise, and again when the verdict is another's, or withdrawn."""
    at_ms = now_ms()
    with committing(store) as committer:
        send(committer, [one("a", 1, attributes=SLOW, duration_ns=9 * SECOND_NS)])
        rolling = roller(store, committer.settled_ms, lambda: at_ms)
        rolling.step()
        for said, whose in (("host", "service"), (cause, side), ("kv_pressure", "service"), ("base", "service")):
            at_ms += 1
            judge(store, at_ms, {"cause": said, "gap_us": 900_000})
            assert rolling.step().minutes == 1
            assert differences(store) == []
            (row,) = stored(store, "stream_minutes").values()
            found = {name: sum(row[f"bad_{name}_clients"].values()) for name in ("service", "connection", "reader") if row[f"bad_{name}_clients"]}
            assert found == {whose: 1} and row["bad_gap"] == 1
            assert [key[-2] for key in stored(store, "stall_minutes")] == [said] * (said != "base")
        assert rolling.step().minutes == 0


def test_of_several_stalls_the_service_is_to_blame_before_the_path_and_the_path_before_the_reader(store: Store) -> None:
    """And stalls within the limit blame nobody."""
    with committing(store) as committer:
        send(committer, [one("a", 1, attributes=SLOW, duration_ns=9 * SECOND_NS)])
    stalls = [("consumer", 900_000, "reader"), ("connection", 900_000, "connection"), ("host", 400_000, "connection"), ("host", 400_001, "service")]
    for place, (cause, gap_us, side) in enumerate(stalls):
        judge(store, now_ms(), {"cause": cause, "gap_us": gap_us, "gap_start_us": place})
        roller(store).again(0)
        (row,) = stored(store, "stream_minutes").values()
        assert len(row[f"bad_{side}_clients"]) == 1 and differences(store) == []


def test_judged_by_the_worker_is_rolled_by_the_roller(store: Store) -> None:
    """The two as `legato serve` wires them: the verdict of a sweep is in the minutes after the next run."""
    with committing(store) as committer:
        send(committer, [one("a", 1, attributes=SLOW, duration_ns=9 * SECOND_NS)])
        judging = Worker(store, load(attribute_settle_s=0), Metrics(), committer.settled_ms)
        rolling = roller(store, committer.settled_ms, judging.judged_ms)
        rolling.step()
        assert not stored(store, "stall_minutes")
        while not judging.step().verdicts:
            pass
        assert rolling.step().minutes == 1 and stored(store, "stall_minutes") and differences(store) == []
        judging.again(0)
        assert rolling.step().minutes == 1 and rolling.step().minutes == 0
