"""Fills a store with millions of streams for `bench/panels.py`: a few thousand by ingest's own code, then copies of them by SQL."""

from __future__ import annotations

import pathlib
import random
import time

from bench.common.recordings import ROLE, RecordedStream, load
from bench.storage import PEER, SPAN_EVENTS
from helpers.builders.batches import received_spans
from helpers.builders.spans import native_span, request
from legato._timeline import pack
from legato_ingest.causes import PARTS
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Limits
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import load as settings
from legato_ingest.storage import EmbeddedStore, Store, migrate

__all__ = ["fill", "fill_history"]

TIMELINES = 1_000
CHUNKS = (120, 280)
DAYS = 30
SHARES = {"calm": 90, "net": 6, "kv": 4}
ROOT = pathlib.Path(__file__).resolve().parents[2]
# One stream in so many of a recording's share, by a hash of its number.
_DRAWN = "cityHash64(number, 1) % 100"
_PICK = f"multiIf({_DRAWN} < {SHARES['calm']}, 0, {_DRAWN} < {SHARES['calm'] + SHARES['net']}, 1, 2)"
_NAMED = ("tenant", "start_time", "trace_id", "span_id", "received_at", "vantage", "service_name", "service_version", "model", "provider",
          "response_id", "route", "engine_id", "client_hash", "outcome", "emitter")  # fmt: skip
_COPY = """
INSERT INTO stream_revs (tenant, start_time, trace_id, span_id, received_at, vantage, service_name, service_version, model, provider,
    response_id, route, engine_id, client_hash, outcome, emitter, {others})
SELECT
    '', fromUnixTimestamp64Nano(toInt64({begin_ns} + place * {step_ns})), sipHash128(number),
    reinterpretAsFixedString(sipHash64(number, 2)),
    fromUnixTimestamp64Milli(toInt64(({begin_ns} + place * {step_ns}) / 1000000 + 3000)),
    if(cityHash64(number, 3) % 10 < 7, 'client', 'server'), concat('service-', toString(cityHash64(number, 4) % 12)),
    concat('1.', toString(intDiv(place * 5, {total}))), concat('model-', toString(model_number)),
    concat('provider-', toString(model_number % 4)), concat('chatcmpl-', hex(sipHash64(number, 6))),
    concat('/v1/route-', toString(cityHash64(number, 4) % 3)), concat('engine-', toString(cityHash64(number, 7) % 4)),
    hex(cityHash64(number, 8) % 100000), if(cityHash64(number, 9) % 50 = 0, 'client_cancel', 'complete'), 'legato-python/0.1.0', {others}
FROM
(
    SELECT
        (cityHash64(number, 4) % 12 + (cityHash64(number, 5) % 5 = 0)) % 8 AS model_number, number,
        3 * (cityHash64(number, 10) % {timelines}) + {pick} AS k, {place} AS place
    FROM numbers_mt({first}, {count})
) AS n
INNER JOIN (SELECT * EXCEPT ({named}), toUInt64(model) AS k FROM templates) AS t USING (k)
SETTINGS max_threads = 0, max_insert_threads = 2, max_partitions_per_insert_block = 0, min_insert_block_size_bytes = 268435456"""
_VERDICTS = f"""
INSERT INTO verdicts (tenant, start_time, trace_id, span_id, gap_start_us, gap_us, excess_us, judged_at, cause, confidence, share, parts,
    engine_id, step_first, step_last, missing, culprit_step, culprit_at, culprit_us, culprit_responses)
SELECT
    tenant, start_time, trace_id, span_id, 500000, gap_max_us, gap_max_us - 30000, received_at + 5 AS at,
    {list(PARTS[1:7])}[1 + cityHash64(trace_id) % 6] AS named,
    if(cityHash64(trace_id, 1) % 3 = 0, 'likely', 'strong'), 0.9, map(named, toInt64(gap_max_us) * 1000 - 30000000, 'base', 30000000),
    engine_id, 1, 9, if(cityHash64(trace_id, 2) % 10 = 0, ['server'], []), if(cityHash64(trace_id) % 6 < 2, 5, NULL), start_time, 400000,
    if(cityHash64(trace_id) % 6 < 2, [concat('chatcmpl-', toString(intDiv(toUnixTimestamp(start_time), 300)))], [])
FROM stream_revs
WHERE vantage = 'client' AND stalls_250ms > 0 AND trace_id NOT IN (SELECT trace_id FROM verdicts)"""
_REPLAYS = """
INSERT INTO replays
SELECT tenant, start_time, trace_id, span_id, cause, judged_at, engine_id, 2, 0, 1, 2 * gap_us, 0, gap_us
FROM verdicts
WHERE (trace_id, span_id) NOT IN (SELECT trace_id, span_id FROM replays)"""
_ENGINE_MINUTES = f"""
INSERT INTO engine_minutes
SELECT
    '', toStartOfMinute(now()) - toIntervalMinute(intDiv(number, 4)), concat('engine-', toString(number % 4)), now64(3),
    2400, 2400, 60000000, map(230, 2000, 240, 380, 270, 20), map(230, 2000), 2400, 24000, 20, 100, 3, 2400, 120, 9600, 24000, 24600,
    1000, 700, number % 7 = 0, number % 7 = 0, 2400, 1200000000, 700000
FROM numbers_mt({DAYS * 1440 * 4})"""
# Their times and figures vary, or a million of them would take so little room that the store merged them again with each new part.
_STEPS = """
INSERT INTO engine_steps (tenant, engine_id, engine_epoch, recorded_at, step, received_at, interval_us, running, waiting, prefill_tokens,
    decode_requests, decode_tokens, kv_used_ppm)
SELECT
    '', concat('engine-', toString(number % 4)), now64(9), now64(9) - toIntervalNanosecond(25000000 * step + drawn % 1000000) AS at, step,
    toDateTime64(at, 3) + toIntervalMillisecond(drawn % 1000), 24500 + drawn % 1000, 8 + drawn % 5 AS requests, 0, 0,
    requests, requests, 500000 + drawn % 1000
FROM (SELECT number, intDiv(number, 4) AS step, cityHash64(number) AS drawn FROM numbers_mt(1152000))"""
# Of four nodes: what an agent reads each second, and of other metrics a sample each minute. Counters grow, gauges vary.
_SAMPLES = """
INSERT INTO node_samples (tenant, metric, engine_id, host, series, recorded_at, received_at, kind, attributes, value)
SELECT '', metric, concat('engine-', toString(node)), concat('host-', toString(node)), cityHash64(metric, node),
    toStartOfMinute(now()) - toIntervalDay({day}) - toIntervalSecond({every_s} * place) + toIntervalMicrosecond(drawn % 900000) AS at,
    toDateTime64(at, 3), 'gauge', map('hw.id', '0', 'reason', 'power', 'cpu.mode', 'idle'),
    if(endsWith(metric, '_total'), toUnixTimestamp(at) % 1000000, drawn % 1000)
FROM
(
    SELECT number % 4 AS node, intDiv(number, 4) AS place, cityHash64(number) AS drawn FROM numbers_mt(4 * intDiv(86400, {every_s}))
)
ARRAY JOIN {metrics} AS metric
SETTINGS max_threads = 0, max_partitions_per_insert_block = 0"""
_SAMPLED_EVERY_S = {
    1: ["hw.gpu.clock.sm", "hw.gpu.power", "system.cpu.utilization", "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"],
    60: ["hw.gpu.clock.memory", "hw.gpu.throttle.time", "legato_queue_bytes", "legato_received_spans_total", "legato_rollup_lag_seconds"],
}
_ROLLED = "INSERT INTO rollup_runs (tenant, until, judged_until, sampled_until, ran_at) SELECT '', {at}, {at}, {at}, now64(3)"
_MERGEABLE = """
SELECT table FROM system.parts WHERE active AND database = currentDatabase() AND table != 'stream_revs'
GROUP BY table HAVING count() > uniqExact(partition)"""


def fill(path: pathlib.Path, first: int, last: int, total: int, rng: random.Random) -> None:
    """Streams ``first`` to ``last`` of ``total``, all of them rolled up afterwards."""
    store = EmbeddedStore(path)
    migrate.apply(store, migrate.load(ROOT / "schema"))
    step_ns = DAYS * 86_400 * 10**9 // total
    # Written once: both fillings of a run use the same start.
    marker = path.parent / "begin"
    if not marker.exists():
        marker.write_text(str(time.time_ns() - DAYS * 86_400 * 10**9))
    begin_ns = int(marker.read_text())
    if not first:
        _templates(store, rng)
        for sql in (_ENGINE_MINUTES, _STEPS):
            store.command(sql)
        for every_s, metrics in _SAMPLED_EVERY_S.items():
            for day in range(DAYS):
                store.command(_SAMPLES.format(day=day, every_s=every_s, metrics=metrics))
        store.command("INSERT INTO attribution_runs (until, ran_at) SELECT now64(3) + INTERVAL 1 DAY, now64(3)")
    _copy(store, first, last, total, begin_ns, step_ns)
    store.command(_VERDICTS)
    store.command(_REPLAYS)
    store.command("DROP TABLE IF EXISTS otel_traces")
    store.command(PEER.format(table="otel_traces"))
    hour = "FROM stream_revs WHERE start_time > now() - INTERVAL 1 HOUR"
    store.command(SPAN_EVENTS.replace("peer_events", "otel_traces").replace("FROM stream_revs", hour))
    RollupWorker(store, settings(), Metrics()).again(0, samples=True)
    store.command(_ROLLED.format(at="now64(3) + INTERVAL 1 DAY"))
    # A store in use has merged its past; otherwise the first minutes after this would do it.
    for (table,) in store.select(_MERGEABLE):
        store.command(f"OPTIMIZE TABLE {table} FINAL")
    store.close()


def fill_history(path: pathlib.Path, streams: int) -> None:
    """The same streams as the past of a store that is in use: the workers continue after them."""
    fill(path, 0, streams, streams, random.Random(7))
    store = EmbeddedStore(path)
    attributed = "INSERT INTO attribution_runs (until, ran_at) SELECT now64(3), now64(3)"
    for table, sql in (("attribution_runs", attributed), ("rollup_runs", _ROLLED.format(at="now64(3)"))):
        store.command(f"TRUNCATE TABLE {table}")
        store.command(sql)
    store.close()


def _copy(store: Store, first: int, last: int, total: int, begin_ns: int, step_ns: int) -> None:
    """The first tenth takes every tenth place in time, the others those between: both are spread over the thirty days."""
    listed = "SELECT name FROM system.columns WHERE database = currentDatabase() AND table = 'stream_revs'"
    names = [str(row[0]) for row in store.select(listed)]
    others = ", ".join(name for name in names if name not in _NAMED)
    tenth, per_pass = total // 10, 250_000
    place = "number * 10" if last <= tenth else f"number - {tenth} + intDiv(number - {tenth}, 9) + 1"
    for at in range(first, last, per_pass):
        sql = _COPY.format(
            others=others, named=", ".join(_NAMED), begin_ns=begin_ns, step_ns=step_ns, total=total, timelines=TIMELINES, pick=_PICK,
            place=place, first=at, count=min(per_pass, last - at),
        )  # fmt: skip
        store.command(sql)


def _templates(store: Store, rng: random.Random) -> None:
    """A thousand timelines of each recording, one after another in turn, by the ordinary way into a table like the streams'."""
    store.command("CREATE TABLE templates AS stream_revs ENGINE = MergeTree ORDER BY tuple()")
    recorded = [[stream for stream in load(ROOT / "demo" / "recordings" / name) if len(stream.chunks) >= CHUNKS[0]] for name in SHARES]
    body = request({"service.name": "bench"})
    for number in range(TIMELINES * len(recorded)):
        _add(body, number, rng.choice(recorded[number % len(recorded)]), rng)
    batch = received_spans(body, tenant="", now_ns=time.time_ns(), limits=Limits(retention_days=0))
    assert batch.revs.num_rows == TIMELINES * len(SHARES), batch.rejected
    store.insert("templates", batch.revs)


def _add(body: object, number: int, stream: RecordedStream, rng: random.Random) -> None:
    """Return a window of a stream as a span; its model is the window's number."""
    length = min(rng.randint(*CHUNKS), len(stream.chunks))
    first = rng.randrange(len(stream.chunks) - length + 1)
    chunks = stream.chunks[first : first + length]
    at, times = 200_000 + rng.randrange(400_000), []
    before = chunks[0][0]
    for place, _, _ in chunks:
        at += round((place - before) * rng.lognormvariate(0, 0.15))
        before = place
        times.append(at)
    sizes, kinds = [size for _, size, _ in chunks], [kind for _, _, kind in chunks]
    kinds[0], sizes[0] = ROLE, 0
    attributes = {
        "gen_ai.request.model": str(number),
        "legato.stream.timeline": pack(times, sizes, [int(kind == 1) for kind in kinds], kinds),
        "legato.stream.ttfb": times[0] / 1e6,
        "legato.stream.wire_bytes": sum(sizes) + 200 * length,
        "gen_ai.usage.output_tokens": length,
    }
    native_span(body, attributes, duration_ns=(times[-1] + 1_000) * 1000, rng=rng)  # type: ignore[arg-type]
