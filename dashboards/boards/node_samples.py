"""The panels of Serving nodes that show samples: scraped engine metrics, prefix caches, GPUs and hosts."""

from __future__ import annotations

from typing import Any

from dashboards.boards.engine_choice import SAMPLED
from dashboards.panels import lines
from dashboards.sample_sql import MEAN, growth, observed, values
from dashboards.sql_fragments import SECONDS_OF_POINT, in_whole_minutes

__all__ = ["gpus", "hosts", "prefix_cache", "scraped"]


def _values(metrics: str) -> str:
    return values(metrics, SAMPLED)


def _growth(metrics: str, columns: str) -> str:
    return growth(metrics, columns, SAMPLED)


# The names under the agent, and those under a Collector that scrapes vLLM.
_PREFIX_CACHE = (
    "'legato.engine.prefix_cache.hits', 'legato.engine.prefix_cache.queries', "
    "'vllm:prefix_cache_hits_total', 'vllm:prefix_cache_queries_total'"
)
PREFIX_CACHE = f"""
SELECT
    $__timeInterval(at) AS time, engine,
    sumIf(grown, metric LIKE '%hits%') / nullIf(sumIf(grown, metric LIKE '%queries%'), 0) AS "prefix-cache hits"
FROM ({_growth(_PREFIX_CACHE, "engine_id AS engine")})
GROUP BY time, engine
HAVING sumIf(grown, metric LIKE '%queries%') > 0
ORDER BY time, engine"""
# Metrics scraped from engines, also from those without step records; each under the agent's name and the one of a Collector.
SCRAPED_KV = f"""
SELECT $__timeInterval(at) AS time, engine_id AS engine, max(value_max) AS "KV max",
    {MEAN} AS "KV mean"
FROM {_values("'legato.engine.kv_cache.utilization', 'vllm:kv_cache_usage_perc'")}
GROUP BY time, engine
ORDER BY time, engine"""
_RUNNING = ("legato.engine.requests.running", "vllm:num_requests_running")
_WAITING = ("legato.engine.requests.waiting", "vllm:num_requests_waiting")


def _either(own: str, foreign: str, total: str = "sumIf(grown, {})") -> str:
    """Return the total of a metric that both the agent and a Collector may report: the agent's, if it exists. By default a growth."""
    own, foreign = (f"metric = '{name}'" for name in (own, foreign))
    return f"if(countIf({own}) > 0, {total.format(own)}, {total.format(foreign)})"


# An engine has a series for each of its ranks under a Collector.
SCRAPED_QUEUE = f"""
SELECT
    time, engine, {_either(*_RUNNING, "sumOrNullIf(average, {})")} AS "running, mean",
    {_either(*_WAITING, "sumOrNullIf(most, {})")} AS "waiting, max"
FROM
(
    SELECT $__timeInterval(at) AS time, engine_id AS engine, metric, series, {MEAN} AS average, max(value_max) AS most
    FROM {_values(", ".join(f"'{name}'" for name in (*_RUNNING, *_WAITING)))}
    GROUP BY time, engine, metric, series
)
GROUP BY time, engine
HAVING "running, mean" IS NOT NULL
ORDER BY time, engine"""
_TOKENS = ("legato.engine.tokens.generated", "vllm:generation_tokens_total")
_PREEMPTED = ("legato.engine.preemptions", "vllm:num_preemptions_total")


SCRAPED_TOKENS = f"""
SELECT
    $__timeInterval(at) AS time, engine, {_either(*_TOKENS)} / {SECONDS_OF_POINT} AS "tokens per second",
    60 * {_either(*_PREEMPTED)} / {SECONDS_OF_POINT} AS "preempted per minute"
FROM ({_growth(", ".join(f"'{name}'" for name in (*_TOKENS, *_PREEMPTED)), "engine_id AS engine")})
WHERE {in_whole_minutes("at")}
GROUP BY time, engine
ORDER BY time, engine"""
_DRAFTED = ("legato.engine.speculation.draft_tokens", "vllm:spec_decode_num_draft_tokens_total")
_ACCEPTED = ("legato.engine.speculation.accepted_tokens", "vllm:spec_decode_num_accepted_tokens_total")
_LENGTH = "legato.engine.speculation.accept_length"
# An engine without speculation may report a length of 0, which counts in no mean.
_SPECULATING = f"metric = '{_LENGTH}' AND positive > 0"
SCRAPED_SPECULATION = f"""
SELECT
    $__timeInterval(at) AS time, engine, {_either(*_ACCEPTED)} / nullIf({_either(*_DRAFTED)}, 0) AS "drafts accepted",
    sumIf(value_sum, {_SPECULATING}) / nullIf(sumIf(positive, {_SPECULATING}), 0) AS "tokens per request and step"
FROM ({_growth(", ".join(f"'{name}'" for name in (*_DRAFTED, *_ACCEPTED, _LENGTH)), "engine_id AS engine")})
GROUP BY time, engine
HAVING {_either(*_DRAFTED)} > 0 OR countIf({_SPECULATING}) > 0
ORDER BY time, engine"""
_WAITS = {"queue": "legato.engine.queue.time", "prefill": "legato.engine.prefill.time", "first token": "legato.engine.ttft"}
_MEANS = ",\n    ".join(
    f"sumIf(observed_sum, metric = '{metric}') / nullIf(sumIf(observations, metric = '{metric}'), 0) AS \"{name}, mean\""
    for name, metric in _WAITS.items()
)
SCRAPED_WAITS = f"""
SELECT
    $__timeInterval(at) AS time, engine_id AS engine, {_MEANS}
FROM {observed(", ".join(f"'{metric}'" for metric in _WAITS.values()), SAMPLED)}
GROUP BY time, engine
ORDER BY time, engine"""
GPU_CLOCKS = f"""
SELECT
    $__timeInterval(at) AS time, concat(if(host = '', engine_id, host), ' · ', attributes['hw.id'], ' · ',
    replaceOne(metric, 'hw.gpu.', '')) AS gpu,
    1e6 * {MEAN} AS hertz
FROM {_values("'hw.gpu.clock.sm', 'hw.gpu.clock.memory'")}
GROUP BY time, gpu
ORDER BY time, gpu"""
_THROTTLED = "concat(if(host = '', engine_id, host), ' · ', attributes['hw.id']) AS gpu, attributes['reason'] AS reason"
THROTTLE = f"""
SELECT
    $__timeInterval(at) AS time, concat(gpu, ' · ', reason) AS why, sum(grown) / {SECONDS_OF_POINT} AS "share of time"
FROM ({_growth("'hw.gpu.throttle.time'", _THROTTLED)})
WHERE {in_whole_minutes("at")}
GROUP BY time, why
ORDER BY time, why"""
POWER = f"""
SELECT
    $__timeInterval(at) AS time, concat(if(host = '', engine_id, host), ' · ', attributes['hw.id']) AS gpu, {MEAN} AS watts
FROM {_values("'hw.gpu.power', 'hw.power'")}
GROUP BY time, gpu
ORDER BY time, gpu"""
HOST_CPU = f"""
SELECT $__timeInterval(at) AS time, if(host = '', '(none)', host) AS node, 1 - {MEAN} AS busy
FROM {_values("'system.cpu.utilization'")}
WHERE attributes['cpu.mode'] = 'idle' OR attributes['state'] = 'idle'
GROUP BY time, node
ORDER BY time, node"""
_NO_SCRAPES = (
    "No scraped metrics of the chosen engines in this range. The agent scrapes an engine's metrics endpoint; docs/operating.md lists the "
    "engines and what each of them has."
)
_NO_GPU = "No GPU samples of the chosen engines and hosts in this range. The agent takes them on hosts with NVIDIA GPUs and NVML."


def prefix_cache() -> Any:
    """The panel of prefix-cache hits."""
    return lines(
        "Prefix-cache hits",
        "Share of prompt tokens found in the cache, from the engine's own counters. A fall raises TTFT.",
        PREFIX_CACHE,
        "percentunit",
        empty="No prompt was looked up in a prefix cache in this range, or no engine's metrics endpoint is scraped.",
    )


def scraped() -> list[Any]:
    """Panels of scraped metrics, for engines with and without step records."""
    return [
        lines(
            "KV cache used, scraped",
            "From each engine's metrics endpoint, also for engines without step records.",
            SCRAPED_KV,
            "percentunit",
            scale="KV cache",
            empty=_NO_SCRAPES,
        ),
        lines(
            "Running and waiting, scraped",
            "Requests in the batch and in the queue at each scrape of the engine's metrics endpoint, of all its ranks.",
            SCRAPED_QUEUE,
            "short",
            empty=_NO_SCRAPES,
        ),
        lines(
            "Tokens and preemptions, scraped",
            "From the engine's counters. If tokens fall while requests run: longer steps, or preemptions.",
            SCRAPED_TOKENS,
            "short",
            empty=_NO_SCRAPES,
        ),
        lines(
            "Speculation, scraped",
            "Draft tokens as each engine's metrics endpoint counts them, also for engines without drafts in their steps; tokens per "
            "request from its gauge, if it has one.",
            SCRAPED_SPECULATION,
            "percentunit",
            units={"tokens per request and step": "short"},
            empty="No metrics of speculation in this range: the chosen engines do not speculate, or are not scraped.",
        ),
        lines(
            "First token by phase, scraped",
            "Means over the requests of the interval. Queue time close to the first token's: a larger batch helps, a larger prefix "
            "cache does not. Prefill time close to it: shorter or cached prompts help.",
            SCRAPED_WAITS,
            "s",
            scale="first output",
            width=24,
            empty=_NO_SCRAPES,
        ),
    ]


def gpus() -> list[Any]:
    """Panels of GPUs."""
    return [
        lines(
            "GPU clocks",
            "A clock that falls under load makes every step longer: see throttling and power.",
            GPU_CLOCKS,
            "hertz",
            empty=_NO_GPU,
        ),
        lines(
            "GPU throttling",
            "Share of the time that a GPU was throttled, by reason.",
            THROTTLE,
            "percentunit",
            scale="throttling",
            empty=_NO_GPU,
        ),
        lines("GPU power", "At its power limit a GPU reduces its clocks.", POWER, "watt", width=24, empty=_NO_GPU),
    ]


def hosts() -> list[Any]:
    """Panels of hosts."""
    return [
        lines(
            "Host CPU",
            "Busy share of the serving hosts' CPUs. Near 100 % the engine's front end waits for a core, which delays tokens.",
            HOST_CPU,
            "percentunit",
            scale="CPU",
            width=24,
            empty="No CPU samples of the chosen engines and hosts in this range. The agent takes them on each engine's host.",
        ),
    ]
