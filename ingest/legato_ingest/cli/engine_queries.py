"""The SQL of what engines did that makes no gap: drafts that were not kept, prompts that were cached.

One idea: both change how fast a response comes and leave no hole in it, so they are told as time beside the stalls: what fell short, and
what was saved, at the engine's own pace in the same stretch. It runs nothing.
"""

from __future__ import annotations

from legato_ingest.cli.queries import since

__all__ = ["PREFIX_CACHE", "SPECULATION", "SPECULATION_BY_PAGE"]


def _by_minute(own: str, foreign: str, part: str, whole: str) -> str:
    """Tables in SQL, the last of them ``by_minute``: by how much two counters on an engine's page grew, a row a minute, and how often the
    ``part`` was read. Their names begin with ``own`` as the agent calls them, else with ``foreign`` as a Collector that scrapes vLLM does.
    """
    names = ", ".join(f"'{name}'" for each in (part, whole) for name in (f"{own}{each}", f"{foreign}{each}_total"))
    return f"""
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
        WHERE metric IN ({names}) AND value IS NOT NULL
            AND ({{engine:String}} = '' OR engine_id = {{engine:String}}) AND {since("recorded_at")}
    ),
    chosen AS
    (
        SELECT tenant, engine_id, if(countIf(startsWith(metric, '{own}')) > 0, '{own}', '{foreign}') AS stem
        FROM counted
        GROUP BY tenant, engine_id
    ),
    by_minute AS
    (
        SELECT
            tenant, engine_id, minute, countIf(position(metric, '{part}') > 0) AS readings,
            sumIf(grown, position(metric, '{part}') > 0) AS {part}, sumIf(grown, position(metric, '{part}') = 0) AS {whole}
        FROM counted
        INNER JOIN chosen USING (tenant, engine_id)
        WHERE startsWith(metric, stem)
        GROUP BY tenant, engine_id, minute
    )"""


# Of steps, those that tell what became of their drafts.
_DRAFTING = f"""draft_tokens > 0 AND accepted_tokens IS NOT NULL AND decode_requests > 0 AND interval_us IS NOT NULL
            AND ({{engine:String}} = '' OR engine_id = {{engine:String}}) AND {since("recorded_at")}"""
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
        WHERE {_DRAFTING}
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

# The same of engines whose steps tell no drafts, from the counters of their own pages: how much fewer drafted tokens were kept in a minute
# than at the engine's own mean. How many steps that took, and how long they were, such a page does not say: it stays a count of tokens.
SPECULATION_BY_PAGE = f"""
WITH{_by_minute("legato.engine.speculation.", "vllm:spec_decode_num_", "accepted_tokens", "draft_tokens")},
    usual AS
    (
        SELECT tenant, engine_id, sum(accepted_tokens) / sum(draft_tokens) AS mean_share
        FROM by_minute
        GROUP BY tenant, engine_id
        HAVING sum(draft_tokens) > 0 AND sum(readings) > 0
    )
SELECT
    tenant, engine_id, sum(draft_tokens) AS drafted, sum(accepted_tokens) AS accepted,
    argMin(draft_tokens, (accepted_tokens / draft_tokens, -draft_tokens)) AS drafted_worst,
    argMin(accepted_tokens, (accepted_tokens / draft_tokens, -draft_tokens)) AS accepted_worst,
    sum(greatest(0, mean_share * draft_tokens - accepted_tokens)) AS lost_tokens
FROM by_minute
INNER JOIN usual USING (tenant, engine_id)
WHERE draft_tokens > 0 AND (tenant, engine_id) NOT IN
    (
        SELECT tenant, engine_id FROM engine_steps
        WHERE {_DRAFTING}
    )
GROUP BY tenant, engine_id
ORDER BY lost_tokens DESC, tenant, engine_id
LIMIT {{limit:UInt32}}
"""

# Fewer steps with prompts say nothing of what a token of prompt takes.
_PREFILLS_MIN = 20
# A prompt token that is found in the cache need not be computed: it saves its request the time that a token of prompt adds to a step, the
# slope of the engine's own steps over their prompt tokens. Hits are counted when a request leaves the queue. Of those that left it in a
# minute each is taken to have saved as much; what it had waited before, up to that, the cache gained its reader nothing.
PREFIX_CACHE = f"""
WITH{_by_minute("legato.engine.prefix_cache.", "vllm:prefix_cache_", "hits", "queries")},
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
FROM by_minute
LEFT JOIN scheduled USING (tenant, engine_id, minute)
LEFT JOIN paced USING (tenant, engine_id)
GROUP BY tenant, engine_id
HAVING prompt_tokens > 0
ORDER BY saved_us DESC NULLS LAST, tenant, engine_id
LIMIT {{limit:UInt32}}
"""
