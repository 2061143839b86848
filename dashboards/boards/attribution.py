"""Jitter attribution: what stalled streams, how sure that is, what fixing it would bring, and which events are to blame."""

from __future__ import annotations

from typing import Any

from dashboards.panels import Kit, bars, number, rows
from dashboards.sql_fragments import DIMENSIONS, filters, rolled

__all__ = ["board"]

_STALLS, _STALLS_OVER_TIME = rolled("stall", "stalls"), rolled("stall", "stalls", series=True)
_STREAMS = rolled("stream", "streams")
_BUT_FOR = rolled("but_for", "streams")
# Words that name a side and no cause, or none at all.
_COARSE = "('generation', 'delivery', 'mixed')"

JUDGED = f"""
SELECT
    sum(stalls) AS judged,
    (SELECT sum(stalls_250ms) {_STREAMS} WHERE vantage = 'client') AS "of client stalls"
{_STALLS}"""
CHARGED = f"""
SELECT sum(excess_us) / 1e6 AS "beyond healthy steps", sum(stalls) AS n
{_STALLS}"""
UNKNOWN = f"""
SELECT sumIf(excess_us, cause = 'unknown') / nullIf(sum(excess_us), 0) AS "of stalled time", sum(stalls) AS n
{_STALLS}"""
COARSE = f"""
SELECT sumIf(excess_us, cause IN {_COARSE}) / nullIf(sum(excess_us), 0) AS "of stalled time", sum(stalls) AS n
{_STALLS}"""
MISSING = f"""
SELECT sumIf(stalls, notEmpty(missing)) / nullIf(sum(stalls), 0) AS "of stalls", sum(stalls) AS n
{_STALLS}"""
TIME_BY_CAUSE = f"""
SELECT time, cause, sum(ns) / 1e9 AS seconds
FROM
(
    SELECT $__timeInterval(minute) AS time, sumMap(parts) AS charged
    {_STALLS_OVER_TIME}
    GROUP BY time
)
ARRAY JOIN mapKeys(charged) AS cause, mapValues(charged) AS ns
WHERE cause != 'base' AND ns > 0
GROUP BY time, cause
ORDER BY time, cause"""
BY_CAUSE = f"""
SELECT
    cause, sum(stalls) AS named, sumIf(stalls, confidence = 'proven') AS proven, sumIf(stalls, confidence = 'strong') AS strong,
    sumIf(stalls, confidence = 'likely') AS likely, sumIf(stalls, confidence NOT IN ('proven', 'strong', 'likely')) AS weaker,
    sum(excess_us) / 1e6 AS "beyond healthy", sum(stalled_us) / 1e6 AS "in these stalls"
{_STALLS}
GROUP BY cause
ORDER BY "beyond healthy" DESC, cause"""
BUT_FOR = f"""
WITH
    everything AS (SELECT sum(stalls) AS all_stalls, sum(stalled_us) AS all_us {_BUT_FOR} WHERE cause = '')
SELECT
    cause, sum(streams) AS n, any(all_stalls) AS "stalls as they were", all_stalls - sum(stalls) + sum(stalls_min) AS "left at least",
    all_stalls - sum(stalls) + sum(stalls_max) AS "left at most",
    (sum(stalled_us) - sum(stalled_max_us)) / nullIf(any(all_us), 0) AS "time saved at least",
    (sum(stalled_us) - sum(stalled_min_us)) / nullIf(any(all_us), 0) AS "time saved at most"
FROM (SELECT * {_BUT_FOR} WHERE cause != '') AS each
CROSS JOIN everything
GROUP BY cause, all_stalls
ORDER BY "time saved at most" DESC, cause"""
MISSING_BY = f"""
SELECT vantage_missing AS "not seen", sum(count) AS stalls, sum(count) / nullIf((SELECT sum(stalls) {_STALLS}), 0) AS share
FROM (SELECT sumMap(missing) AS missed {_STALLS})
ARRAY JOIN mapKeys(missed) AS vantage_missing, mapValues(missed) AS count
GROUP BY vantage_missing
ORDER BY stalls DESC, vantage_missing"""
ENGINES = f"""
SELECT
    if(engine_id = '', '(none)', engine_id) AS engine, service_name AS service, model, sum(stalls) AS n,
    sum(excess_us) / 1e6 AS "beyond healthy",
    argMax(cause, excess_us) AS "cause of most"
{_STALLS}
GROUP BY engine, service, model
ORDER BY "beyond healthy" DESC, engine, service, model
LIMIT 100"""
# The minutes with the most stalled time hold the events that matter; a thousand verdicts of each suffice to rank them.
_WORST_MINUTES = f"""
    SELECT minute
    FROM stall_minutes FINAL
    WHERE $__timeFilter(minute) AND stalls > 0
        AND {filters()}
    GROUP BY minute
    ORDER BY sum(excess_us) DESC, minute DESC
    LIMIT 60"""
_JUDGED = f"""
    SELECT
        tenant, trace_id, span_id, start_time, cause, engine_id, culprit_step, culprit_at, culprit_responses, excess_us, gap_us,
        gap_start_us,
        confidence, missing
    FROM verdicts FINAL
    WHERE $__timeFilter_ms(start_time) AND cause != 'base' AND toStartOfMinute(start_time) IN ({_WORST_MINUTES})
        AND (tenant, start_time, trace_id, span_id) IN
        (
            SELECT tenant, start_time, trace_id, span_id FROM streams
            WHERE $__timeFilter_ms(start_time) AND toStartOfMinute(start_time) IN ({_WORST_MINUTES})
                AND {filters()}
        )"""
CULPRITS = f"""
SELECT
    min(culprit_at) AS happened, cause, engine_id AS engine,
    if(empty(culprit_responses), concat('step ', toString(min(culprit_step))), arrayStringConcat(culprit_responses, ', ')) AS event,
    uniqExact(trace_id) AS "streams hit", count() AS stalls, sum(excess_us) / 1e6 AS "beyond healthy", max(gap_us) / 1e6 AS longest,
    lower(hex(argMax(trace_id, excess_us))) AS stream
FROM ({_JUDGED})
WHERE culprit_step IS NOT NULL
GROUP BY tenant, engine_id, cause, culprit_responses, if(empty(culprit_responses), culprit_at, toDateTime64(0, 9, 'UTC'))
ORDER BY "beyond healthy" DESC, happened
LIMIT 50"""
WORST = f"""
SELECT
    lower(hex(trace_id)) AS stream, addMicroseconds(start_time, gap_start_us) AS "silent from", gap_us / 1e6 AS gap,
    excess_us / 1e6 AS "beyond healthy", cause, confidence, arrayStringConcat(missing, ', ') AS "not seen", engine_id AS engine
FROM ({_JUDGED})
ORDER BY excess_us DESC, stream, gap_start_us
LIMIT 100"""
RATE = f"""
SELECT $__timeInterval(minute) AS time, cause, sum(stalls) AS stalls
{_STALLS_OVER_TIME}
GROUP BY time, cause
ORDER BY time, cause"""


def _figures() -> list[Any]:
    """Single figures, and curves."""
    return [
        number(
            "Stalls judged",
            "Client stalls of 250 ms or more that have a verdict, beside all of them. Fewer verdicts: `legato serve` is still judging, "
            "or the gap "
            "was a healthy step.",
            JUDGED,
            "short",
        ),
        number(
            "Stalled time",
            "Of the silences, what was beyond the engine's healthy step. Charged to causes below, to the nanosecond.",
            CHARGED,
            "s",
        ),
        number(
            "Unknown",
            "Stalled time that nothing could be said about. High: something is not recorded, see Not seen.",
            UNKNOWN,
            "percentunit",
            "share",
        ),
        number(
            "Side known, cause not",
            "Charged to generation or delivery as a whole, or to several causes without a main one: a vantage is missing.",
            COARSE,
            "percentunit",
            "share",
        ),
        number("A vantage missing", "Stalls judged without the server's or the engine's view.", MISSING, "percentunit", "share", width=8),
        bars(
            "Stalled time by cause",
            "Every part of every stall, whatever it was named after. Tall kv_pressure: the cache is too small for the load. scheduling: "
            "others' "
            "prompts run in the same step. connection: the way there. consumer, slow_reader: the application itself.",
            TIME_BY_CAUSE,
            "s",
        ),
        bars("Stalls by cause", "Each stall counts for the cause that has most of it.", RATE, "short"),
    ]


def _tables() -> list[Any]:
    """Tables."""
    return [
        rows(
            "Causes, and how sure",
            "proven and strong rest on the engine's own record of that step; likely on fewer vantages.",
            BY_CAUSE,
            {"beyond healthy": "s", "in these stalls": "s"},
            width=12,
        ),
        rows(
            "But for one cause",
            "What would be left had this one cause been fixed, by replaying each stalled stream without it. Causes overlap, so savings "
            "do not add up.",
            BUT_FOR,
            {"time saved at least": "percentunit", "time saved at most": "percentunit"},
            width=12,
        ),
        rows(
            "Culprit events",
            "The prompts, preemptions and steps behind the stalls of the sixty worst minutes: how many streams each one hit, and one of "
            "them.",
            CULPRITS,
            {"beyond healthy": "s", "longest": "s"},
            links={"engine": "/d/legato-nodes/nodes?var-engine=${__value.raw}"},
        ),
        rows(
            "Longest stalls",
            "Of the sixty worst minutes. Open a stream for its evidence.",
            WORST,
            {"gap": "s", "beyond healthy": "s"},
            limits={"gap": "gap_s"},
        ),
        rows(
            "Not seen",
            "Vantages that a stall was judged without. `server`: add the middleware. `engine`: run the plugin and its agent.",
            MISSING_BY,
            {"share": "percentunit"},
            width=8,
        ),
        rows(
            "By engine",
            "Which engine stalled whom. (none): streams without an engine, or stalls on the way.",
            ENGINES,
            {"beyond healthy": "s"},
            width=16,
            links={"engine": "/d/legato-nodes/nodes?var-engine=${__value.raw}"},
        ),
    ]


def board() -> Kit:
    """The dashboard."""
    kit = Kit(
        "legato-attribution",
        "Legato · Jitter attribution",
        "What each stall was charged to, from the chunks at both ends and the engine's steps in between.",
        variables=DIMENSIONS,
    )
    kit.add(*_figures(), *_tables())
    return kit
