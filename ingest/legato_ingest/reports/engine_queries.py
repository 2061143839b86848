"""The SQL of speculation and prefix cache, which change the speed of a response without a gap.

Both are reported as time next to the stalls: the time lost below the engine's own mean, and the time saved at the engine's own speed in the
same period. This module runs no query.
"""

from __future__ import annotations

from legato_ingest.definitions import counter_growth
from legato_ingest.reports.queries import within

__all__ = ["PREFIX_CACHE", "SPECULATION", "SPECULATION_SCRAPED"]


def _by_minute(own: str, foreign: str, part: str, whole: str) -> str:
    """SQL common table expressions that end with ``by_minute``: the growth of two scraped counters, one row per minute, and how often the
    counter ``part`` was read. The counters' names start with ``own`` (the agent's names) or, if there are none, with ``foreign`` (the names
    of a Collector that scrapes vLLM).
    """
    names = ", ".join(f"'{name}'" for each in (part, whole) for name in (f"{own}{each}", f"{foreign}{each}_total"))
    return f"""
    counted AS
    (
        SELECT
            tenant, engine_id, metric, intDiv(toUnixTimestamp(recorded_at), 60) AS minute, value,
            {counter_growth()}
        FROM node_samples FINAL
        WHERE metric IN ({names}) AND value IS NOT NULL
            AND ({{engine:String}} = '' OR engine_id = {{engine:String}}) AND {within("recorded_at")}
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


# Steps that report their drafts.
_DRAFTING = f"""draft_tokens > 0 AND accepted_tokens IS NOT NULL AND decode_requests > 0 AND interval_us IS NOT NULL
            AND ({{engine:String}} = '' OR engine_id = {{engine:String}}) AND {within("recorded_at")}"""
# Failed speculation makes no gap: a step takes the usual time and yields fewer tokens. The loss is a deficit of rate: the tokens per
# request and step below the engine's own mean, over 10 s, and the time that these tokens take at that mean.
SPECULATION = f"""
WITH
    stretches AS
    (
        SELECT
            tenant, engine_id, intDiv(toUnixTimestamp64Milli(recorded_at), 10000) AS stretch, sum(decode_requests) AS requests,
            sum(draft_tokens) AS drafts, sum(accepted_tokens) AS kept, sum(toUInt64(interval_us) * decode_requests) AS request_us
        FROM engine_steps FINAL
        WHERE {_DRAFTING}
        GROUP BY tenant, engine_id, stretch
    ),
    usual AS
    (
        SELECT tenant, engine_id, 1 + sum(kept) / sum(requests) AS mean_tokens, sum(request_us) / sum(requests) AS step_us
        FROM stretches
        GROUP BY tenant, engine_id
    )
SELECT
    tenant, engine_id, sum(drafts) AS drafted, sum(kept) AS accepted, any(mean_tokens) AS tokens_per_step,
    min(1 + kept / requests) AS tokens_per_step_worst,
    sum(greatest(0, mean_tokens - 1 - kept / requests) * requests / mean_tokens * step_us) AS lost_us, sum(request_us) AS generating_us
FROM stretches
INNER JOIN usual USING (tenant, engine_id)
GROUP BY tenant, engine_id
ORDER BY lost_us DESC, tenant, engine_id
LIMIT {{limit:UInt32}}
"""

# The same for engines with steps that report no drafts, from their scraped counters: how many fewer drafted tokens were kept in a minute
# than at the engine's own mean. Scraped metrics have no steps and no step times, so the loss is a number of tokens.
SPECULATION_SCRAPED = f"""
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

# With fewer prefill steps the time per prompt token cannot be estimated.
_PREFILLS_MIN = 20
# A cached prompt token saves its request the time that one prompt token adds to a step: the slope of the step time over the prompt tokens
# of the engine's own steps. Hits are counted when a request leaves the queue. All requests that leave it in one minute are assumed to
# save the same time; up to that time, waiting in the queue cancels the gain for the end user.
PREFIX_CACHE = f"""
WITH{_by_minute("legato.engine.prefix_cache.", "vllm:prefix_cache_", "hits", "queries")},
    scheduled AS
    (
        SELECT
            tenant, engine_id, groupArray(toFloat64(queued_us)) AS waits, sum(prefill_us) AS prefilled,
            intDiv(toUnixTimestamp(recorded_at - toIntervalMicrosecond(prefill_us + decode_us)), 60) AS minute
        FROM engine_requests FINAL
        WHERE ({{engine:String}} = '' OR engine_id = {{engine:String}}) AND {within("recorded_at")}
        GROUP BY tenant, engine_id, minute
    ),
    paced AS
    (
        SELECT
            tenant, engine_id, countIf(prefill_tokens > 0) AS prefills,
            simpleLinearRegression(toFloat64(assumeNotNull(prefill_tokens)), toFloat64(assumeNotNull(interval_us))).1 AS slope_us
        FROM engine_steps FINAL
        WHERE interval_us IS NOT NULL AND prefill_tokens IS NOT NULL
            AND ({{engine:String}} = '' OR engine_id = {{engine:String}}) AND {within("recorded_at")}
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
