"""The SQL of what engines did that makes no gap: drafts that were not kept, prompts that were cached.

One idea: both change how fast a response comes and leave no hole in it, so they are told as time beside the stalls: what fell short, and
what was saved, at the engine's own pace in the same stretch. It runs nothing.
"""

from __future__ import annotations

from legato_ingest.queries import since

__all__ = ["PREFIX_CACHE", "SPECULATION"]

# Speculation makes no gap when it fails: a step takes its time and brings fewer tokens. So it is a deficit of rate: by how much the tokens
# that a request got in a step fell short, over 10 s, of the engine's own mean, and the time that so many tokens take at that mean.
SPECULATION = f"""
WITH
    stretches AS
    (
        SELECT
            engine_id, intDiv(toUnixTimestamp64Milli(recorded_at), 10000) AS stretch, sum(decode_requests) AS requests,
            sum(draft_tokens) AS drafts, sum(accepted_tokens) AS kept, sum(toUInt64(interval_us) * decode_requests) AS request_us
        FROM engine_steps FINAL
        WHERE draft_tokens > 0 AND accepted_tokens IS NOT NULL AND decode_requests > 0 AND interval_us IS NOT NULL
            AND ({{engine:String}} = '' OR engine_id = {{engine:String}}) AND {since("recorded_at")}
        GROUP BY engine_id, stretch
    ),
    usual AS
    (
        SELECT engine_id, 1 + sum(kept) / sum(requests) AS mean_tokens, sum(request_us) / sum(requests) AS step_us
        FROM stretches
        GROUP BY engine_id
    )
SELECT
    engine_id, sum(drafts) AS drafted, sum(kept) AS accepted, any(mean_tokens) AS tokens_per_step,
    min(1 + kept / requests) AS tokens_per_step_worst,
    sum(greatest(0, mean_tokens - 1 - kept / requests) * requests / mean_tokens * step_us) AS lost_us, sum(request_us) AS generating_us
FROM stretches
INNER JOIN usual USING (engine_id)
GROUP BY engine_id
ORDER BY lost_us DESC
LIMIT {{limit:UInt32}}
"""

# As the agent calls them, else as a Collector that scrapes vLLM does: tokens found in the cache, and looked for.
_CACHE = {
    "hits": ("legato.engine.prefix_cache.hits", "vllm:prefix_cache_hits_total"),
    "queries": ("legato.engine.prefix_cache.queries", "vllm:prefix_cache_queries_total"),
}
_CACHE_METRICS = ", ".join(f"'{name}'" for names in _CACHE.values() for name in names)


def _grown(what: str) -> str:
    own, foreign = (f"sumIf(grown, metric = '{name}')" for name in _CACHE[what])
    return f"if({own} > 0, {own}, {foreign}) AS {what}"


# A prompt token that is found in the cache need not be computed: it saves its request the time that a token of prompt adds to a step, which
# is the slope of the engine's own steps over their prompt tokens. In a minute whose requests waited in the queue, as much of what was saved
# as they waited brought their readers nothing yet: such hits were wasted there.
PREFIX_CACHE = f"""
WITH
    counted AS
    (
        SELECT
            tenant, engine_id, metric, intDiv(toUnixTimestamp(recorded_at), 60) AS minute, value,
            lagInFrame(toNullable(value)) OVER
            (
                PARTITION BY tenant, metric, engine_id, host, series
                ORDER BY recorded_at ROWS BETWEEN 1 PRECEDING AND CURRENT ROW
            ) AS before,
            if(before IS NULL, 0, if(value >= before, value - before, value)) AS grown
        FROM node_samples FINAL
        WHERE metric IN ({_CACHE_METRICS}) AND value IS NOT NULL
            AND ({{engine:String}} = '' OR engine_id = {{engine:String}}) AND {since("recorded_at")}
    ),
    cached AS
    (
        SELECT tenant, engine_id, minute, {_grown("hits")}, {_grown("queries")}
        FROM counted
        GROUP BY tenant, engine_id, minute
    ),
    asked AS
    (
        SELECT
            tenant, engine_id, sum(queued_us) AS queued, sum(prefill_us) AS prefilled, count() AS ended,
            intDiv(toUnixTimestamp(recorded_at - toIntervalMicrosecond(queued_us + prefill_us + decode_us)), 60) AS minute
        FROM engine_requests FINAL
        WHERE ({{engine:String}} = '' OR engine_id = {{engine:String}}) AND {since("recorded_at")}
        GROUP BY tenant, engine_id, minute
    ),
    paced AS
    (
        SELECT
            tenant, engine_id, countIf(prefill_tokens > 0) AS prefills,
            simpleLinearRegression(toFloat64(assumeNotNull(prefill_tokens)), toFloat64(assumeNotNull(interval_us))).1 AS slope_us
        FROM engine_steps FINAL
        WHERE interval_us IS NOT NULL AND prefill_tokens IS NOT NULL
            AND ({{engine:String}} = '' OR engine_id = {{engine:String}}) AND {since("recorded_at")}
        GROUP BY tenant, engine_id
        HAVING prefills >= {{prefills_min:UInt32}} AND slope_us > 0
    )
SELECT
    engine_id, sum(hits) AS cached_tokens, sum(queries) AS prompt_tokens, nullIf(any(slope_us), 0) AS token_us,
    sum(hits) * token_us AS saved_us, sum(least(hits * slope_us, toFloat64(queued))) AS wasted_us,
    sum(queued) AS queue_us, sum(prefilled) AS prefill_us, sum(ended) AS requests
FROM cached
LEFT JOIN asked USING (tenant, engine_id, minute)
LEFT JOIN paced USING (tenant, engine_id)
GROUP BY tenant, engine_id
HAVING prompt_tokens > 0
ORDER BY saved_us DESC NULLS LAST, engine_id
LIMIT {{limit:UInt32}}
"""
