"""Serving nodes: engines, their GPUs and hosts, with the stalls of clients in the same minutes."""

from __future__ import annotations

from typing import Any

from dashboards.boards.engine_choice import ENGINES, HOSTS, KNOWN, STEPPED, VARIABLES
from dashboards.boards.node_samples import gpus, hosts, prefix_cache, scraped
from dashboards.panels import Kit, lines, rows
from dashboards.sql_fragments import IN_RANGE, SECONDS_OF_POINT, filters, in_whole_minutes, quantile, rolled

__all__ = ["board"]

_ENGINES = f"""FROM
(
    SELECT * FROM engine_minutes FINAL
    WHERE {IN_RANGE} AND steps > 0
    AND {STEPPED}
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
    $__timeInterval(minute) AS time, engine_id AS engine, 60 * sum(preempted) / {SECONDS_OF_POINT} AS "preempted per minute"
{_ENGINES}
WHERE {in_whole_minutes("minute")}
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
FROM
(
    SELECT * FROM stall_minutes FINAL
    WHERE {IN_RANGE} AND stalls > 0 AND engine_id != ''
    AND {STEPPED}
)
GROUP BY time, what
ORDER BY time, what"""


TTFT = f"""
SELECT time, {quantile(0.5, "buckets")} / 1e6 AS "TTFT p50", {quantile(0.95, "buckets")} / 1e6 AS "TTFT p95"
FROM
(
    SELECT $__timeInterval(minute) AS time, sumMap(ttft_buckets) AS buckets
    {rolled("stream", "streams", series=True, only=filters({"tenant": "tenant", "model": "model"}))}
    WHERE vantage = 'server'
    GROUP BY time
)
ORDER BY time"""
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


_NO_STEPS = (
    "No engine recorded steps in this range. Steps need Legato's plugin in the engine and the agent beside it; scraped metrics, below, "
    "need the agent alone."
)


def _engines() -> list[Any]:
    """Panels of the engines' steps."""
    return [
        rows(
            "Engines",
            "One row per engine with recorded steps. KV max near 100 % together with preemptions: the KV cache is too small for the load.",
            ENGINE_TABLE,
            {"base": "s", "step p99": "s", "KV max": "percentunit", "prefill steps": "percentunit"},
            height=7,
            links={"engine": "/d/legato-nodes/nodes?var-engine=${__value.raw}&${__url_time_range}"},
        ),
        lines(
            "KV cache used",
            "When the cache is full, the engine preempts. Use fewer concurrent requests, shorter contexts, or more memory.",
            KV,
            "percentunit",
            scale="KV cache",
        ),
        lines(
            "Preemptions",
            "Requests per minute that were evicted from the cache, to be recomputed. Each is a stall of seconds for one end user.",
            PREEMPTIONS,
            "short",
            scale="preemptions",
        ),
        lines(
            "Step time against its base",
            "The interval between tokens as the engine measures it. The base is the median of steps without prefill. p99 far above "
            "it: prefill or preemption. A rising base: load, GPU clocks or the host.",
            STEP_TIME,
            "s",
        ),
        lines(
            "Work per step",
            "Prefill tokens share a step with the decode of all requests: a burst of long prompts makes steps longer for all. Chunked "
            "prefill limits it.",
            WORK,
            "short",
        ),
        lines("Running and waiting", "Requests in the batch and in the queue. With a persistent queue TTFT grows.", QUEUE, "short"),
        lines(
            "Stalls charged to each engine",
            "Stalls of all streams by engine and cause, by the minute in which their stream began.",
            STALLS,
            "short",
            empty="No stall was charged to the chosen engines: no judged stream had a gap of 250 ms or more beyond their healthy steps.",
        ),
    ]


def _tokens() -> list[Any]:
    """Panels of first tokens, the prefix cache and speculation."""
    return [
        lines(
            "TTFT at the servers",
            "Time to the first token of all servers of the chosen models, for the same minutes as the prefix-cache hits.",
            TTFT,
            "s",
            scale="first output",
            empty="No server recorded streams in this range: streams have a server's vantage if its middleware is installed.",
        ),
        prefix_cache(),
        lines(
            "Speculation",
            "Share of draft tokens that were accepted, by recorded steps. A fall causes no gap: all tokens get slower. Which share is good "
            "depends on the draft model.",
            SPECULATION,
            "percentunit",
            units={"tokens per request and step": "short"},
            width=24,
            empty="No step with draft tokens in this range: the chosen engines do not speculate, or record no steps.",
        ),
    ]


def board() -> Kit:
    """The dashboard."""
    kit = Kit(
        "legato-nodes",
        "Legato · Serving nodes",
        "Engine steps summed by minute, GPUs and hosts, with the stalls of the same minutes. A service or model chooses the engines that "
        "served its streams; a host applies to GPUs, hosts and scraped metrics.",
        variables=VARIABLES,
        empty=_NO_STEPS,
        sources={"tenant": KNOWN, "engine": ENGINES, "host": HOSTS},
        annotated=False,
    )
    kit.add_row("Engines", *_engines(), folded=False)
    kit.add_row("First tokens, prefix cache and speculation", *_tokens())
    kit.add_row("Scraped engine metrics", *scraped())
    kit.add_row("GPUs", *gpus())
    kit.add_row("Hosts", *hosts())
    return kit
