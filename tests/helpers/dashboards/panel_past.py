"""Fill a store for the tests of the dashboards: a part of the demo's past, and the cases that the demo lacks.

All data takes the normal path: OTLP requests are converted and committed, judged by the attribution worker and rolled up by the rollup
worker. Then every raw table is read once. Only the findings of the chunking detector are inserted as rows. The module checks nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from demo.past import bodies, placements
from helpers.builders.points import gauge, histogram, metrics_request, total
from helpers.builders.spans import SECOND_NS, native_span, request
from helpers.dashboards.minutes import rows_in
from helpers.dashboards.panels import DIMENSIONS, Past, Row
from legato._timeline import pack
from legato_gpu_agent.agent.otlp_spans import Engine, Step, steps_request
from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.columns import EMITTER_SPANS
from legato_ingest.jobs.self_monitoring import request_of as self_request
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Batch, Limits
from legato_ingest.otlp.convert import convert_points, convert_spans
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.write.committer import Committer

__all__ = ["NASTY", "RUNNING", "TENANT", "fill"]

MINUTE_NS, HOUR_NS = 60 * SECOND_NS, 3_600 * SECOND_NS
TENANT = "acme's"
RUNNING = bytes(range(16))
_PATIENCE_S = 120
# Names that end a literal, a statement, a value in a URL or an HTML page unless they are escaped.
NASTY = (
    "it's",
    'say "hi"',
    "' OR 1=1 --",
    "') UNION ALL SELECT name FROM system.tables --",
    "back\\slash\\",
    "\\'",
    "100%",
    "100%25",
    "a+b c",
    "a&var-service=shop",
    "größe-模型-🦙",
    "<script>alert(1)</script>",
    "${tenant:queryparam} $__timeFilter(minute) $__x",
    "tab\tand\nline",
)
_READ = {
    "streams": "SELECT * EXCEPT (chunk_tokens, chunk_hold_64us, gap_top_us, gap_bucket, gap_bucket_count) FROM streams",
    "revs": "SELECT received_at, start_time, duration_ns, ended FROM stream_revs",
    "verdicts": "SELECT * FROM verdicts FINAL",
    "replays": "SELECT * FROM replays FINAL",
    "steps": "SELECT * FROM engine_steps FINAL",
    "samples": "SELECT * FROM node_samples FINAL",
    "rejected": "SELECT * FROM rejected FINAL",
    "senders": "SELECT * FROM emitter_spans",
    "changes": "SELECT * FROM chunking_changes FINAL",
    "rollup_runs": "SELECT * FROM rollup_runs",
}
# Kinds of chunks with content.
_CONTENT = (1, 2, 3)


def fill(store: Store) -> Past:
    """Fill a store that has the schema and no rows, and return its content."""
    # A full minute, so that the grouping into minutes does not depend on the time of the test run.
    now_ns = time.time_ns() // MINUTE_NS * MINUTE_NS
    metrics = Metrics()
    committer = Committer(store, metrics, queue_bytes_max=2**28, chunks_max=10**6)
    try:
        for batch in _batches(now_ns):
            committer.submit(batch).result(_PATIENCE_S)
    finally:
        committer.close()
    _put_twice(store)
    store.insert("emitter_spans", _senders(now_ns))
    store.insert("chunking_changes", _changes(now_ns))
    roller = RollupWorker(store, load(rollup_every_s=1e-9), metrics)
    roller.step()
    worker = AttributionWorker(store, load(attribute_grace_s=0), metrics)
    for _ in range(2):
        worker.again(0)
        roller.step()
    tables = {name: _with_minutes(rows_in(store, sql)) for name, sql in _READ.items()}
    tables["stalls"] = _of_streams((row for row in tables["verdicts"] if row["cause"] != "base"), tables["streams"])
    tables["left"] = _of_streams(_newest(tables["replays"], tables["stalls"]), tables["streams"])
    return Past(now_ns, TENANT, tables)


def _newest(replays: list[Row], stalls: list[Row]) -> Iterator[Row]:
    """The replays of the newest attribution run of each stream."""
    newest: dict[tuple[Any, ...], int] = {}
    for stall in stalls:
        newest[_stream_of(stall)] = max(newest.get(_stream_of(stall), 0), stall["judged_at"])
    return (row for row in replays if newest.get(_stream_of(row)) == row["judged_at"])


def _stream_of(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("tenant", "start_time", "trace_id", "span_id"))


def _of_streams(rows: Iterable[Row], streams: list[Row]) -> list[Row]:
    """The rows that have a stream, with the dimensions of the stream that panels filter."""
    known = {_stream_of(stream): {name: stream[name] for name in DIMENSIONS.values()} for stream in streams}
    return [{**row, **known[_stream_of(row)]} for row in rows if _stream_of(row) in known]


def _put_twice(store: Store) -> None:
    """Insert some rows again, as after a crash between insert and acknowledgement. Queries with FINAL count them once."""
    for table in ("engine_steps", "node_samples", "rejected"):
        rows = store.select_arrow(f"SELECT * FROM {table} ORDER BY ALL LIMIT 500")
        store.insert(table, rows)


def _with_minutes(rows: list[Row]) -> list[Row]:
    """Add to each row its minute (unix s), and to streams the derived figures that many expectations need."""
    for row in rows:
        at_ns = row["start_time"] if "start_time" in row and "metric" not in row else row.get("recorded_at")
        row["minute"] = None if at_ns is None else at_ns // MINUTE_NS * 60
        if "chunk_kind" in row:
            row |= _judged(row)
    return rows


def _judged(row: Row) -> Row:
    """Whether a stream was good, the reason if it was not, and all its gaps (µs)."""
    is_over = row["outcome"] != "running"
    until_end = 0 if row["content_chunks"] else row["duration_ns"] // 1000
    first = next(us for us in (row["ttfo_us"], row["ttft_us"], until_end) if us is not None)
    reasons = {
        "gap": (row["gap_max_us"] or 0) > 400_000,
        "error": row["outcome"] in ("timeout", "upstream_error", "engine_abort", "abandoned"),
        "late": first > 2_000_000,
    }
    is_judged = is_over and row["content_chunks"] is not None
    gaps = _gaps(row) if is_over else []
    return {
        "is_over": is_over,
        "is_judged": is_judged,
        "bad": next((reason for reason, hit in reasons.items() if hit), "") if is_judged else "",
        "is_timed": is_over and bool(gaps),
        "all_gaps": gaps,
    }


def _gaps(row: Row) -> list[int]:
    """Every gap of a stream in µs: between epochs (reads within 5 ms of the first), and the open gap before an incomplete end."""
    at, epoch, last = 0, None, 0
    gaps = []
    for dt, kind in zip(row["dt_us"], row["chunk_kind"], strict=True):
        at += dt
        if kind not in _CONTENT:
            continue
        if epoch is None:
            epoch = at
        elif at - epoch >= 5_000:
            gaps.append(at - last)
            epoch = at
        last = at
    if epoch is not None and row["ended"] and row["outcome"] != "complete":
        gaps.append(max(0, row["duration_ns"] // 1000 - last))
    return gaps


# The requests.


def _batches(now_ns: int) -> Iterator[Batch]:
    def spans(body: ExportTraceServiceRequest, tenant: str = "") -> Batch:
        return convert_spans(body, tenant=tenant, now_ns=now_ns, limits=Limits())

    def points(body: ExportMetricsServiceRequest, tenant: str = "") -> Batch:
        return convert_points(body, tenant=tenant, now_ns=now_ns, limits=Limits())

    for body in _of_the_demo(now_ns):
        yield spans(body)
    for tenant in ("", TENANT):
        yield spans(_streams(now_ns, tenant), tenant)
        yield spans(_speculation(now_ns, "spec-0" if tenant else "spec-1"), tenant)
    yield spans(_mute(now_ns))
    # A snapshot, then the end: two revs of one stream.
    for rev in _snapshots(now_ns):
        yield spans(rev)
    for name in NASTY:
        yield spans(_named(now_ns, name))
    yield spans(_rejected(now_ns))
    yield spans(_silences(now_ns))
    nodes = (
        _node(now_ns, "node-1", "shop-gpu-0"),
        _node(now_ns, "", "shop-gpu-1"),
        _scraped_only(now_ns),
        _host_alone(now_ns),
        _in_flight(now_ns),
    )
    for batch in (*nodes, *_self_monitoring(now_ns)):
        yield points(batch)
    yield points(_node(now_ns, "node-2", "spec-0"), TENANT)


def _of_the_demo(now_ns: int) -> Iterator[ExportTraceServiceRequest]:
    """Both incidents, a quarter of the last 3 calm hours, and a sample of the two weeks in which a provider changes its chunking."""
    every = placements(now_ns, "net")
    calm = [each for each in every if each.service == "shop" and each.name == "calm" and now_ns - each.begin_ns < 3 * HOUR_NS]
    made = [
        *calm[::4],
        *(each for each in every if each.name in ("kv", "net")),
        *[each for each in every if each.service == "search"][::35],
    ]
    for body, _ in bodies(sorted(made, key=lambda each: each.begin_ns)):
        yield ExportTraceServiceRequest.FromString(body)


def _streams(now_ns: int, tenant: str) -> ExportTraceServiceRequest:
    """Streams with every outcome, vantage and transport over 3 hours; some lack a timeline, sizes, tokens or wire bytes."""
    rng = random.Random(f"streams {tenant}")
    body = request({"service.name": "voice" if tenant else "chat", "service.version": "0.9"})
    for _ in range(150):
        pauses = (1_000, 4_999, 20_000, 40_000, 90_000, 260_000, 900_000)
        times = np.cumsum([rng.randrange(50_000, 3_000_000), *(rng.choice(pauses) for _ in range(rng.randrange(40)))]).tolist()
        kinds = [rng.choice((0, 2, 6)) for _ in times[:3]] + [rng.choice((1, 1, 1, 3, 5)) for _ in times[3:]]
        sizes = None if rng.random() < 0.2 else [rng.randrange(1, 60) if kind in _CONTENT else 0 for kind in kinds]
        tokens = None if rng.random() < 0.4 else [rng.randrange(1, 4) if kind in _CONTENT else 0 for kind in kinds]
        attributes: dict[str, Any] = {
            "legato.stream.timeline": pack(times, sizes, tokens, kinds),
            "legato.stream.outcome": rng.choice(("complete", "complete", "client_cancel", "upstream_error", "timeout", "engine_abort")),
            "legato.stream.vantage": rng.choice(("client", "server", "gateway", "screen")),
            "legato.stream.transport": rng.choice(("http/1.1", "http/2", "websocket", "iterator")),
            "gen_ai.request.model": rng.choice(("large-2", "tiny", "")),
            "gen_ai.provider.name": rng.choice(("openai", "tokenhouse")),
            "gen_ai.usage.output_tokens": rng.randrange(1, 200),
            "http.route": rng.choice(("", "/v1/responses")),
        }
        drop = rng.choice(
            ((), (), ("legato.stream.timeline",), ("gen_ai.usage.output_tokens",), ("legato.stream.wire_bytes",), ("gen_ai.provider.name",))
        )
        start = now_ns - rng.randrange(5 * MINUTE_NS, 3 * HOUR_NS)
        native_span(
            body, attributes, start_ns=start, duration_ns=times[-1] * 1000 + rng.choice((0, SECOND_NS, 5 * SECOND_NS)), rng=rng, drop=drop
        )
    return body


def _snapshots(now_ns: int) -> Iterator[ExportTraceServiceRequest]:
    """A running stream, an abandoned one, and one that ended after its snapshot with another model."""
    start = now_ns - 20 * MINUTE_NS
    for number, due_s in enumerate((86_400.0, 10.0, 10.0)):
        body = request({"service.name": "chat", "service.version": "1.0"})
        trace_id, span_id = bytes((each + number) % 256 for each in RUNNING), bytes([number + 1]) * 8
        snapshot: dict[str, Any] = {"outcome": "running", "span_id": span_id.hex(), "rev": 1, "next_due": due_s}
        attributes: dict[str, Any] = {f"legato.stream.{key}": value for key, value in snapshot.items()}
        attributes |= {"legato.stream.timeline": pack([10_000, 3_000_000], [3, 3], [1, 1], [1, 1]), "gen_ai.request.model": "tiny"}
        native_span(body, attributes, trace_id=trace_id, start_ns=start, name="legato.stream.snapshot", duration_ns=4 * SECOND_NS)
        yield body
    ended = request({"service.name": "chat", "service.version": "1.0"})
    attributes = {
        "legato.stream.rev": 2,
        "gen_ai.request.model": "large-2",
        "legato.stream.timeline": pack([10_000, 700_000], [3, 3], [1, 1], [1, 1]),
    }
    native_span(ended, attributes, trace_id=trace_id, span_id=span_id, start_ns=start, duration_ns=6 * SECOND_NS)
    yield ended


def _named(now_ns: int, name: str) -> ExportTraceServiceRequest:
    """Two streams with this name as service and as model."""
    body, rng = request({"service.name": name, "service.version": "1"}), random.Random(name)
    for number in range(2):
        native_span(body, {"gen_ai.request.model": name}, start_ns=now_ns - (40 + number) * MINUTE_NS, rng=rng)
    return body


def _speculation(now_ns: int, engine: str) -> ExportTraceServiceRequest:
    """Steps of an engine with speculative decoding; one value in ten is unknown."""
    rng = random.Random(engine)

    def known(*values: int) -> int | None:
        return None if rng.random() < 0.1 else rng.choice(values)

    steps = []
    for number in range(400):
        drafts = known(0, 12, 30)
        steps.append(
            Step(
                number,
                (now_ns - 3 * HOUR_NS + number * 20 * SECOND_NS) // 1000 * 1000,
                interval_us=known(18_000, 25_000, 90_000),
                interval_max_us=known(90_000, 900_000),
                running=known(1, 5, 9),
                waiting=known(0, 0, 3),
                prefill_requests=known(0, 1),
                prefill_tokens=known(0, 0, 512),
                decode_requests=known(0, 4, 8),
                decode_tokens=known(4, 8, 20),
                draft_tokens=drafts,
                accepted_tokens=None if drafts is None else drafts // 3,
                preempted=known(0, 0, 1),
                kv_used_ppm=known(250_000, 990_000),
            )
        )
    return steps_request(Engine(engine, 5), steps, [])


def _mute(now_ns: int) -> ExportTraceServiceRequest:
    """Steps of an engine without any figures."""
    return steps_request(Engine("mute-0", 5), [Step(number, now_ns - (50 - number) * MINUTE_NS) for number in range(20)], [])


def _rejected(now_ns: int) -> ExportTraceServiceRequest:
    """Spans that are rejected: no identity, an undecodable timeline, an attribute of a wrong type; one emitter has no name."""
    body, rng = request({"service.name": "broken"}), random.Random(9)
    for number in range(3):
        native_span(body, trace_id=bytes(16), start_ns=now_ns - number * MINUTE_NS, rng=rng)
    native_span(body, {"legato.stream.timeline": b"\x09nothing"}, rng=rng)
    native_span(body, {"legato.stream.ttfb": "soon"}, rng=rng)
    nameless = request({"service.name": ""}, {"legato.emitter": ""})
    native_span(nameless, trace_id=bytes(16), rng=rng)
    body.MergeFrom(nameless)
    return body


def _node(now_ns: int, host: str, engine: str) -> ExportMetricsServiceRequest:
    """Samples of a GPU node and its engine every 10 minutes; the counters restart once."""
    body = metrics_request({"legato.engine.id": engine, **({"host.name": host} if host else {})})
    rng = random.Random(f"{host}{engine}")
    counters: dict[tuple[str, str], float] = {}
    for number in range(16):
        at = now_ns - 3 * HOUR_NS + number * 10 * MINUTE_NS + rng.randrange(SECOND_NS)
        for gpu in ("0", "1"):
            own = {"hw.id": gpu}
            gauge(body, "hw.gpu.clock.sm", float(rng.randrange(800, 1980)), at, attributes=own, unit="MHz")
            gauge(body, "hw.gpu.clock.memory", rng.choice((1593, 2619)), at, attributes=own, unit="MHz")
            gauge(body, "hw.gpu.power" if gpu == "0" else "hw.power", rng.uniform(90, 700), at, attributes=own, unit="W")
            for reason in ("sw_power_cap", "hw_thermal_slowdown"):
                _count(body, counters, ("hw.gpu.throttle.time", f"{gpu} {reason}"), rng.uniform(0, 60), at, {**own, "reason": reason})
        for which, step in (("queries", rng.randrange(300, 900)), ("hits", rng.randrange(300))):
            # With the agent's metric name, or the name that a scraping Collector reports.
            name = f"legato.engine.prefix_cache.{which}" if host else f"vllm:prefix_cache_{which}_total"
            _count(body, counters, (name, ""), step, at, {"model_name": "demo-7b"})
        _scraped(body, counters, rng, at, bool(host))
        if host:
            _count(body, counters, ("legato.agent.cpu.time", ""), 0.25, at, {})
        if number == 9:
            counters.clear()
    gauge(body, "hw.gpu.clock.sm", float("nan"), now_ns, attributes={"hw.id": "0"})
    return body


_COUNTED = (("legato.engine.tokens.generated", "legato.engine.preemptions"), ("vllm:generation_tokens_total", "vllm:num_preemptions_total"))


def _scraped(body: Any, counters: dict[tuple[str, str], float], rng: random.Random, at: int, by_agent: bool) -> None:
    """Scraped metrics of an engine, with the names of the agent or of a Collector. Only the agent reports delta histograms."""
    own = {"model_name": "demo-7b"}
    stems = (
        ("legato.engine.kv_cache.utilization", "legato.engine.requests.")
        if by_agent
        else ("vllm:kv_cache_usage_perc", "vllm:num_requests_")
    )
    gauge(body, stems[0], rng.random(), at, attributes=own)
    if by_agent:
        gauge(body, "legato.engine.up", 1.0, at)
    for state in ("running", "waiting"):
        if rng.random() < 0.8:
            gauge(body, stems[1] + state, rng.randrange(30), at, attributes=own)
    # A Collector may scrape an engine that the agent scrapes, too.
    for tokens, preempted in _COUNTED[0 if by_agent else 1 :]:
        _count(body, counters, (tokens, ""), rng.randrange(9_000), at, own)
        _count(body, counters, (preempted, ""), rng.randrange(3), at, own)
    for name in ("queue.time", "prefill.time", "ttft"):
        counts = [rng.randrange(4) for _ in range(3)]
        point = histogram(body, f"legato.engine.{name}", [0.1, 1.0], counts, at, attributes=own)
        point.sum = 0.3 * sum(counts)
        if by_agent:
            body.resource_metrics[0].scope_metrics[0].metrics[-1].histogram.aggregation_temporality = 1


def _count(
    body: Any, counters: dict[tuple[str, str], float], key: tuple[str, str], step: float, at: int, attributes: dict[str, str]
) -> None:
    counters[key] = counters.get(key, 0.0) + step
    total(body, key[0], float(counters[key]), at, attributes=attributes)


def _host_alone(now_ns: int) -> ExportMetricsServiceRequest:
    """A host without an engine: CPU utilization with both attribute names for the mode, and the queues of a Collector."""
    body, rng = metrics_request({"host.name": "node-3"}), random.Random(3)
    for number in range(12):
        at = now_ns - 2 * HOUR_NS + number * 10 * MINUTE_NS
        for core in ("0", "1"):
            idle = rng.random()
            for mode, share in (("idle", idle), ("user", 1 - idle)):
                key = "cpu.mode" if number % 2 else "state"
                gauge(body, "system.cpu.utilization", share, at, attributes={key: mode, "cpu": core})
        for exporter in ("otlp_http", "debug"):
            gauge(body, "otelcol_exporter_queue_size", rng.randrange(900), at, attributes={"exporter": exporter})
            if exporter == "otlp_http" or number % 3:
                gauge(body, "otelcol_exporter_queue_capacity", 1000, at, attributes={"exporter": exporter})
        histogram(body, "vllm:time_to_first_token_seconds", [0.1, 1.0], [1, 2, 3], at)
    return body


def _scraped_only(now_ns: int) -> ExportMetricsServiceRequest:
    """An engine with scraped metrics only: it uses speculative decoding, restarts, and is scraped by a Collector, too."""
    body = metrics_request({"legato.engine.id": "paged-0", "host.name": "node-4"})
    for number, (drafted, accepted, length) in enumerate(
        [(900, 400, 0.0), (1_200, 600, 2.5), (1_200, 600, 0.0), (300, 90, 1.9), (500, 90, 0)]
    ):
        at = now_ns - HOUR_NS + number * 10 * MINUTE_NS
        gauge(body, "legato.engine.up", 1.0, at)
        gauge(body, "legato.engine.kv_cache.utilization", 0.1 * number, at)
        gauge(body, "legato.engine.speculation.accept_length", length, at)
        for name, value in (("draft_tokens", drafted), ("accepted_tokens", accepted)):
            total(body, f"legato.engine.speculation.{name}", value, at)
            total(body, f"vllm:spec_decode_num_{name}_total", 2 * value, at + (0 if number % 2 else 5 * MINUTE_NS))
    return body


def _silences(now_ns: int) -> ExportTraceServiceRequest:
    """Reports of streams that were silent during the last hour."""
    body, rng = request({"service.name": "shop"}), random.Random(6)
    for minute in range(2, 60, 3):
        start_ns = now_ns - minute * MINUTE_NS
        span = native_span(body, {"legato.stream.silent_since": 900_000}, start_ns=start_ns, duration_ns=3 * SECOND_NS, rng=rng)
        span.name, span.parent_span_id = "legato.stream.silence", rng.randbytes(8)
    return body


def _in_flight(now_ns: int) -> ExportMetricsServiceRequest:
    """Streams in flight of two processes of a service, over an hour."""
    body = metrics_request({"service.name": "shop"})
    for minute in range(60):
        for process in ("a", "b"):
            named = {"legato.stream.vantage": "client", "gen_ai.request.model": "demo-7b", "service.instance.id": process}
            gauge(body, "legato.stream.in_flight", minute % 7, now_ns - minute * MINUTE_NS, unit="{stream}", attributes=named)
    return body


def _self_monitoring(now_ns: int) -> Iterator[ExportMetricsServiceRequest]:
    """Legato's self-monitoring samples every 10 minutes over 2 hours, with a restart after the first hour."""
    rng = random.Random(4)
    for life in range(2):
        metrics = Metrics()
        started_ns = now_ns - (2 - life) * HOUR_NS
        for number in range(6):
            _work(metrics, rng)
            yield self_request(metrics, "node-9", started_ns, started_ns + number * 10 * MINUTE_NS)


def _work(metrics: Metrics, rng: random.Random) -> None:
    """Increase every kind of metric."""
    metrics.count_received(rng.randrange(900), 0, rng.randrange(9))
    metrics.count_received(0, rng.randrange(1, 900), rng.randrange(9))
    metrics.count_ignored("no LLM call", "opentelemetry.instrumentation.httpx", rng.randrange(1, 90))
    metrics.count_stored("node_samples", rng.randrange(900), rng.randrange(9), 1)
    metrics.stored_spans.inc(rng.randrange(900))
    metrics.duplicate_spans.inc(rng.randrange(90))
    metrics.rejected_spans.labels(rng.choice(("identity", "time"))).inc()
    metrics.errors.labels(rng.choice(("commit", "rollup")), "OSError").inc()
    metrics.requests.labels(rng.choice(("200", "429", "503"))).inc(rng.randrange(9))
    metrics.queries.labels(rng.choice(("ok", "error", "denied"))).inc(rng.randrange(9))
    metrics.rollup_lag_seconds.set(rng.random())
    metrics.attribution_lag_seconds.set(rng.random())
    metrics.queue_bytes.set(rng.randrange(10**6))
    for table in ("stream_revs", "node_samples"):
        metrics.store_bytes.labels(table).set(rng.randrange(10**9))


def _senders(now_ns: int) -> pa.Table:
    """Numbers of spans of other libraries: of two families and of a scope, at two times."""
    httpx = ("opentelemetry.instrumentation.httpx", "0.66")
    rows = [
        (minutes, service, scope, version, emitter, result, reason, spans)
        for minutes in (1, 30)
        for service, (scope, version), emitter, result, reason, spans in (
            ("shop", ("", ""), "openllmetry/0.62.4", "stored", "", 40),
            ("shop", ("", ""), "openllmetry/0.62.4", "same_response", "legato-python/0.1.0", 3),
            ("shop", httpx, "", "ignored", "no LLM call", 70),
            ("mobile", ("pydantic-ai", "2.68.0"), "pydantic-ai", "ignored", "outer span", 7),
            ("mobile", ("pydantic-ai", "2.68.0"), "pydantic-ai", "ignored", "streaming unknown", 2),
        )
    ]
    names = ("received_at", "service_name", "scope", "scope_version", "emitter", "result", "reason", "spans")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    columns["received_at"] = [now_ns // 10**6 - 60_000 * minutes for minutes in columns["received_at"]]
    columns["tenant"] = [""] * len(rows)
    return EMITTER_SPANS.rows({column.name: pa.array(columns[column.name]).cast(column.type) for column in EMITTER_SPANS.columns})


def _changes(now_ns: int) -> pa.Table:
    """Rows of the chunking detector: a change, the same change with newer figures, and a withdrawn one."""
    rows = []
    for day, found, detected in ((5, True, 1), (5, True, 2), (9, True, 1), (9, False, 2), (1, True, 1)):
        changed_s = now_ns // 10**9 // 60 * 60 - day * 86_400
        rows.append(
            {
                "tenant": TENANT if day == 1 else "",
                "changed_at": changed_s,
                "vantage": "client",
                "service_name": "search" if day > 1 else "voice",
                "model": "large-2",
                "provider": "tokenhouse" if day > 1 else "",
                "route": "",
                "detected_at": changed_s * 1000 + detected,
                "found": found,
                "alarmed_at": changed_s + 120 * detected,
                "kind": "chunking change",
                "direction": "coarser",
                "share_before": 0.01 * day,
                "share_after": 0.97,
                "tokens_per_chunk_before": 1.0,
                "tokens_per_chunk_after": 1.9 + detected,
                "rate_ratio": 1.01,
                "streams_before": 2000 * day,
                "streams_after": 300,
                "log_e": 12.5,
            }
        )
    moments = {"changed_at": pa.timestamp("s", "UTC"), "alarmed_at": pa.timestamp("s", "UTC"), "detected_at": pa.timestamp("ms", "UTC")}
    table = pa.Table.from_pylist(rows)
    for name, kind in moments.items():
        table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(kind))
    return table
