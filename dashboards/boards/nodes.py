"""Serving nodes: engines, their GPUs and hosts, with the stalls of clients in the same minutes."""

from __future__ import annotations

from typing import Any

from dashboards.panels import Kit, lines, rows
from dashboards.sql_fragments import ENGINE, filters, growth, quantile, rolled

__all__ = ["board"]

_ENGINES = f"""FROM
(
    SELECT * FROM engine_minutes FINAL
    WHERE $__timeFilter(minute) AND steps > 0
    AND {filters(ENGINE)}
)"""
# Engines with step records, and engines with a scraped metrics endpoint.
_KNOWN_ENGINES = """(
    SELECT tenant, engine_id, minute FROM engine_minutes WHERE $__timeFilter(minute)
    UNION ALL
    SELECT tenant, engine_id, toStartOfMinute(recorded_at) AS minute FROM node_samples
    WHERE metric IN ('legato.engine.up', 'vllm:num_requests_running') AND $__timeFilter_ms(recorded_at)
)"""
_STALLED = f"""FROM
(
    SELECT * FROM stall_minutes FINAL
    WHERE $__timeFilter(minute) AND stalls > 0 AND engine_id != ''
    AND {filters(ENGINE)}
)"""

KV = f"""
SELECT
    $__timeInterval(minute) AS time, engine_id AS engine, max(kv_used_max_ppm) / 1e6 AS "KV max",
    sum(kv_used_sum_ppm) / 1e6 / sum(kv_steps) AS "KV mean"
{_ENGINES}
WHERE kv_steps > 0
GROUP BY time, engine
ORDER BY time, engine"""
PREEMPTIONS = f"""
SELECT
    $__timeInterval(minute) AS time, engine_id AS engine, 60 * sum(preempted) / greatest(60, $__interval_s) AS "preempted per minute"
{_ENGINES}
GROUP BY time, engine
ORDER BY time, engine"""
WORK = f"""
SELECT
    $__timeInterval(minute) AS time, engine_id AS engine, sum(prefill_tokens) / sum(work_steps) AS "prefill tokens per step",
    sum(decode_tokens) / sum(work_steps) AS "decode tokens per step"
{_ENGINES}
WHERE work_steps > 0
GROUP BY time, engine
ORDER BY time, engine"""
STEP_TIME = f"""
SELECT
    time, engine, {quantile(0.5, "every")} / 1e6 AS "step p50", {quantile(0.99, "every")} / 1e6 AS "step p99",
    {quantile(0.5, "decoding")} / 1e6 AS "base: no prefill, p50"
FROM
(
    SELECT
        $__timeInterval(minute) AS time, engine_id AS engine, sumMap(interval_buckets) AS every, sumMap(decode_interval_buckets) AS decoding
    {_ENGINES}
    GROUP BY time, engine
)
ORDER BY time, engine"""
QUEUE = f"""
SELECT
    $__timeInterval(minute) AS time, engine_id AS engine, sum(running_sum) / sum(running_steps) AS "running, mean",
    max(waiting_max) AS "waiting, max"
{_ENGINES}
WHERE running_steps > 0
GROUP BY time, engine
ORDER BY time, engine"""
SPECULATION = f"""
SELECT
    $__timeInterval(minute) AS time, engine_id AS engine, sum(accepted_tokens) / sum(draft_tokens) AS "drafts accepted",
    sum(decode_tokens) / nullIf(sum(decode_requests), 0) AS "tokens per request and step"
{_ENGINES}
WHERE draft_tokens > 0
GROUP BY time, engine
ORDER BY time, engine"""
STALLS = f"""
SELECT $__timeInterval(minute) AS time, concat(engine_id, ' · ', cause) AS what, sum(stalls) AS stalls
{_STALLED}
GROUP BY time, what
ORDER BY time, what"""


def _samples(metrics: str, more: str = "") -> str:
    return f"""FROM node_samples FINAL
    WHERE metric IN ({metrics}) AND $__timeFilter_ms(recorded_at) AND value IS NOT NULL{more}
        AND {filters(ENGINE)}"""


def _growth(metrics: str, columns: str) -> str:
    return growth(metrics, columns, filters(ENGINE))


# The names under the agent, and those under a Collector that scrapes vLLM.
_PREFIX_CACHE = (
    "'legato.engine.prefix_cache.hits', 'legato.engine.prefix_cache.queries', "
    "'vllm:prefix_cache_hits_total', 'vllm:prefix_cache_queries_total'"
)
PREFIX_CACHE = f"""
SELECT
    $__timeInterval(recorded_at) AS time, engine,
    sumIf(grown, metric LIKE '%hits%') / nullIf(sumIf(grown, metric LIKE '%queries%'), 0) AS "prefix-cache hits"
FROM ({_growth(_PREFIX_CACHE, "engine_id AS engine")})
GROUP BY time, engine
HAVING sumIf(grown, metric LIKE '%queries%') > 0
ORDER BY time, engine"""
# Metrics scraped from engines, also from those without step records; each under the agent's name and the one of a Collector.
SCRAPED_KV = f"""
SELECT $__timeInterval(recorded_at) AS time, engine_id AS engine, max(value) AS "KV max", avg(value) AS "KV mean"
{_samples("'legato.engine.kv_cache.utilization', 'vllm:kv_cache_usage_perc'")}
GROUP BY time, engine
ORDER BY time, engine"""
_RUNNING = "'legato.engine.requests.running', 'vllm:num_requests_running'"
_WAITING = "'legato.engine.requests.waiting', 'vllm:num_requests_waiting'"
SCRAPED_QUEUE = f"""
SELECT
    $__timeInterval(recorded_at) AS time, engine_id AS engine, avgIf(value, metric IN ({_RUNNING})) AS "running, mean",
    maxIf(value, metric IN ({_WAITING})) AS "waiting, max"
{_samples(f"{_RUNNING}, {_WAITING}")}
GROUP BY time, engine
HAVING countIf(metric IN ({_RUNNING})) > 0
ORDER BY time, engine"""
_TOKENS = ("legato.engine.tokens.generated", "vllm:generation_tokens_total")
_PREEMPTED = ("legato.engine.preemptions", "vllm:num_preemptions_total")


def _either(own: str, foreign: str) -> str:
    """Return the growth of a counter that both the agent and a Collector may report: the agent's, if it exists."""
    return f"if(countIf(metric = '{own}') > 0, sumIf(grown, metric = '{own}'), sumIf(grown, metric = '{foreign}'))"


SCRAPED_TOKENS = f"""
SELECT
    $__timeInterval(recorded_at) AS time, engine, {_either(*_TOKENS)} / greatest(60, $__interval_s) AS "tokens per second",
    60 * {_either(*_PREEMPTED)} / greatest(60, $__interval_s) AS "preempted per minute"
FROM ({_growth(", ".join(f"'{name}'" for name in (*_TOKENS, *_PREEMPTED)), "engine_id AS engine")})
GROUP BY time, engine
ORDER BY time, engine"""
_DRAFTED = ("legato.engine.speculation.draft_tokens", "vllm:spec_decode_num_draft_tokens_total")
_ACCEPTED = ("legato.engine.speculation.accepted_tokens", "vllm:spec_decode_num_accepted_tokens_total")
_LENGTH = "legato.engine.speculation.accept_length"
# An engine without speculation may report a length of 0.
SCRAPED_SPECULATION = f"""
SELECT
    $__timeInterval(recorded_at) AS time, engine, {_either(*_ACCEPTED)} / nullIf({_either(*_DRAFTED)}, 0) AS "drafts accepted",
    avgOrNullIf(value, metric = '{_LENGTH}' AND value > 0) AS "tokens per request and step"
FROM ({_growth(", ".join(f"'{name}'" for name in (*_DRAFTED, *_ACCEPTED, _LENGTH)), "engine_id AS engine")})
GROUP BY time, engine
HAVING {_either(*_DRAFTED)} > 0 OR countIf(metric = '{_LENGTH}' AND value > 0) > 0
ORDER BY time, engine"""
_WAITS = {"queue": "legato.engine.queue.time", "prefill": "legato.engine.prefill.time", "first token": "legato.engine.ttft"}
_MEANS = ",\n    ".join(
    f"sumIf(sum, metric = '{metric}') / nullIf(sumIf(count, metric = '{metric}'), 0) AS \"{name}, mean\"" for name, metric in _WAITS.items()
)
SCRAPED_WAITS = f"""
SELECT
    $__timeInterval(recorded_at) AS time, engine_id AS engine, {_MEANS}
FROM node_samples FINAL
WHERE metric IN ({", ".join(f"'{metric}'" for metric in _WAITS.values())}) AND $__timeFilter_ms(recorded_at) AND temporality = 'delta'
    AND count > 0 AND sum IS NOT NULL
    AND {filters(ENGINE)}
GROUP BY time, engine
ORDER BY time, engine"""
TTFT = f"""
SELECT time, {quantile(0.5, "buckets")} / 1e6 AS "TTFT p50", {quantile(0.95, "buckets")} / 1e6 AS "TTFT p95"
FROM
(
    SELECT $__timeInterval(minute) AS time, sumMap(ttft_buckets) AS buckets
    {rolled("stream", "streams", series=True, only=filters({"tenant": "tenant"}))}
    WHERE vantage = 'server'
    GROUP BY time
)
ORDER BY time"""
GPU_CLOCKS = f"""
SELECT
    $__timeInterval(recorded_at) AS time, concat(if(host = '', engine_id, host), ' · ', attributes['hw.id'], ' · ',
    replaceOne(metric, 'hw.gpu.', '')) AS gpu,
    avg(value) AS mhz
{_samples("'hw.gpu.clock.sm', 'hw.gpu.clock.memory'")}
GROUP BY time, gpu
ORDER BY time, gpu"""
_THROTTLED = "concat(if(host = '', engine_id, host), ' · ', attributes['hw.id']) AS gpu, attributes['reason'] AS reason"
THROTTLE = f"""
SELECT
    $__timeInterval(recorded_at) AS time, concat(gpu, ' · ', reason) AS why, sum(grown) / greatest(60, $__interval_s) AS "share of time"
FROM ({_growth("'hw.gpu.throttle.time'", _THROTTLED)})
GROUP BY time, why
ORDER BY time, why"""
POWER = f"""
SELECT
    $__timeInterval(recorded_at) AS time, concat(if(host = '', engine_id, host), ' · ', attributes['hw.id']) AS gpu, avg(value) AS watts
{_samples("'hw.gpu.power', 'hw.power'")}
GROUP BY time, gpu
ORDER BY time, gpu"""
HOST_CPU = f"""
SELECT $__timeInterval(recorded_at) AS time, if(host = '', '(none)', host) AS node, 1 - avgIf(value,
    attributes['cpu.mode'] = 'idle' OR attributes['state'] = 'idle') AS busy
{_samples("'system.cpu.utilization'")}
GROUP BY time, node
HAVING countIf(attributes['cpu.mode'] = 'idle' OR attributes['state'] = 'idle') > 0
ORDER BY time, node"""
ENGINE_TABLE = f"""
SELECT
    engine, all_steps AS steps, {quantile(0.5, "decoding")} / 1e6 AS base, {quantile(0.99, "every")} / 1e6 AS "step p99",
    kv AS "KV max", evicted AS preempted,
    waiting AS "waiting max", prefill AS "prefill steps", first AS "first seen", last AS "last seen"
FROM
(
    SELECT
        engine_id AS engine, sum(steps) AS all_steps, sumMap(interval_buckets) AS every, sumMap(decode_interval_buckets) AS decoding,
        if(sum(kv_steps) > 0, max(kv_used_max_ppm), NULL) / 1e6 AS kv, sum(preempted) AS evicted, max(waiting_max) AS waiting,
        sum(prefill_steps) / nullIf(sum(work_steps), 0) AS prefill, min(minute) AS first, max(minute) AS last
    {_ENGINES}
    GROUP BY engine
)
ORDER BY engine
LIMIT 200"""


def _engines() -> list[Any]:
    """Panels of the engines' steps."""
    return [
        lines(
            "KV cache used",
            "Over 95 %: the engine will preempt. Use fewer concurrent requests, shorter contexts, or more memory.",
            KV,
            "percentunit",
        ),
        lines(
            "Preemptions",
            "Requests evicted from the cache, to be recomputed. Each is a stall of seconds for one end user.",
            PREEMPTIONS,
            "short",
            limits="any",
        ),
        lines(
            "Work per step",
            "Prefill tokens share a step with the decode of all requests: a burst of long prompts makes steps longer for all. Chunked "
            "prefill limits it.",
            WORK,
            "short",
        ),
        lines(
            "Step time against its base",
            "The interval between tokens as the engine measures it. The base is the median of steps without prefill. p99 far above "
            "it: prefill or preemption. A rising base: load, GPU clocks or the host.",
            STEP_TIME,
            "s",
        ),
        lines("Running and waiting", "Requests in the batch and in the queue. With a persistent queue TTFT grows.", QUEUE, "short"),
        lines("Stalls charged to each engine", "Stalls of clients, by the minute in which their stream began.", STALLS, "short"),
        lines(
            "Speculation",
            "Share of draft tokens that were accepted. A fall causes no gap: all tokens get slower.",
            SPECULATION,
            "percentunit",
            units={"tokens per request and step": "short"},
        ),
    ]


def _hosts() -> list[Any]:
    """Panels of GPUs and hosts, and the table of engines."""
    return [
        lines(
            "Prefix-cache hits",
            "Share of prompt tokens found in the cache, from the engine's own counters. A fall raises TTFT.",
            PREFIX_CACHE,
            "percentunit",
        ),
        lines("TTFT at the servers", "For the same minutes as the hits.", TTFT, "s", limits="first_s"),
        lines("GPU clocks", "A clock that falls under load makes every step longer: see throttling and power.", GPU_CLOCKS, "megahertz"),
        lines("GPU throttling", "Share of the time that a GPU was throttled, by reason.", THROTTLE, "percentunit", limits="any"),
        lines("GPU power", "At its power limit a GPU reduces its clocks.", POWER, "watt"),
        lines(
            "Host CPU",
            "Busy share of the serving hosts' CPUs. Near 100 % the engine's front end waits for a core, which delays tokens.",
            HOST_CPU,
            "percentunit",
        ),
        rows(
            "Engines",
            "One row per engine. KV max near 100 % together with preemptions: the KV cache is too small for the load.",
            ENGINE_TABLE,
            {"base": "s", "step p99": "s", "KV max": "percentunit", "prefill steps": "percentunit"},
            width=12,
        ),
    ]


def _scraped() -> list[Any]:
    """Panels of scraped metrics, for engines with and without step records."""
    return [
        lines(
            "KV cache used, scraped",
            "From each engine's metrics endpoint, also for engines without step records.",
            SCRAPED_KV,
            "percentunit",
        ),
        lines(
            "Running and waiting, scraped",
            "Requests in the batch and in the queue at each scrape of the engine's metrics endpoint.",
            SCRAPED_QUEUE,
            "short",
        ),
        lines(
            "Tokens and preemptions, scraped",
            "From the engine's counters. If tokens fall while requests run: longer steps, or preemptions.",
            SCRAPED_TOKENS,
            "short",
        ),
        lines(
            "Speculation, scraped",
            "Draft tokens as each engine's metrics endpoint counts them, also for engines without drafts in their steps; tokens per "
            "request from its gauge, if it has one.",
            SCRAPED_SPECULATION,
            "percentunit",
            units={"tokens per request and step": "short"},
        ),
        lines(
            "First token by phase, scraped",
            "Means over the requests of the interval. Queue time close to the first token's: a larger batch helps, a larger prefix "
            "cache does not. Prefill time close to it: shorter or cached prompts help.",
            SCRAPED_WAITS,
            "s",
            limits="first_s",
        ),
    ]


def board() -> Kit:
    """The dashboard."""
    kit = Kit(
        "legato-nodes",
        "Legato · Serving nodes",
        "Engine steps summed by minute, GPUs and hosts, with the stalls of the same minutes.",
        variables=ENGINE,
        source=_KNOWN_ENGINES,
        annotated=False,
    )
    kit.add(*_engines(), *_scraped(), *_hosts())
    return kit
