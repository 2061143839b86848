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

# As the agent calls them, and as a Collector that scrapes vLLM does: tokens found in the cache (hits), and looked for (queries).
_OWN, _FOREIGN = "legato.engine.prefix_cache.", "vllm:prefix_cache_"
_CACHE = f"'{_OWN}hits', '{_OWN}queries', '{_FOREIGN}hits_total', '{_FOREIGN}queries_total'"
# Fewer steps with prompts say nothing of what a token of prompt takes.
_PREFILLS_MIN = 20
# A prompt token that is found in the cache need not be computed: it saves its request the time that a token of prompt adds to a step, the
# slope of the engine's own steps over their prompt tokens. Hits are counted when a request leaves the queue. Of those that left it in a
# minute each is taken to have saved as much; what it had waited before, up to that, the cache gained its reader nothing.
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
            if(before IS NULL, 0., assumeNotNull(if(value >= before, value - before, value))) AS grown
        FROM node_samples FINAL
        WHERE metric IN ({_CACHE}) AND value IS NOT NULL
            AND ({{engine:String}} = '' OR engine_id = {{engine:String}}) AND {since("recorded_at")}
    ),
    chosen AS
    (
        SELECT tenant, engine_id, if(countIf(startsWith(metric, '{_OWN}')) > 0, '{_OWN}', '{_FOREIGN}') AS stem
        FROM counted
        GROUP BY tenant, engine_id
    ),
    cached AS
    (
        SELECT
            tenant, engine_id, minute,
            sumIf(grown, position(metric, 'hits') > 0) AS hits, sumIf(grown, position(metric, 'hits') = 0) AS queries
        FROM counted
        INNER JOIN chosen USING (tenant, engine_id)
        WHERE startsWith(metric, stem)
        GROUP BY tenant, engine_id, minute
    ),
    scheduled AS
    (
        SELECT
            tenant, engine_id, groupArray(toFloat64(queued_us)) AS waits, sum(prefill_us) AS prefilled,
            intDiv(toUnixTimestamp(recorded_at - toIntervalMicrosecond(prefill_us + decode_us)), 60) AS minute
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
        HAVING prefills >= {_PREFILLS_MIN} AND slope_us > 0
    )
SELECT
    tenant, engine_id, sum(hits) AS cached_tokens, sum(queries) AS prompt_tokens, nullIf(any(slope_us), 0) AS token_us,
    cached_tokens * token_us AS saved_us, sum(length(waits)) AS requests,
    if(requests = 0 OR token_us IS NULL, NULL,
        sum(arraySum(wait -> least(wait, hits * slope_us / length(waits)), waits))) AS wasted_us,
    if(requests = 0, NULL, sum(arraySum(waits))) AS queue_us, if(requests = 0, NULL, sum(prefilled)) AS prefill_us
FROM cached
LEFT JOIN scheduled USING (tenant, engine_id, minute)
LEFT JOIN paced USING (tenant, engine_id)
GROUP BY tenant, engine_id
HAVING prompt_tokens > 0
ORDER BY saved_us DESC NULLS LAST, tenant, engine_id
LIMIT {{limit:UInt32}}
"""
