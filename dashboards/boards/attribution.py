"""Jitter attribution: causes of stalls, their confidence, counterfactuals, and root-cause events."""

from __future__ import annotations

from typing import Any

from dashboards.cause_style import GAP_CAUSES, order_of_causes
from dashboards.panels import Kit, bars, number, rows
from dashboards.scales import word
from dashboards.sql_fragments import DIMENSIONS, IN_RANGE, filters, rolled
from legato_ingest import causes

__all__ = ["AT_CLIENTS", "NONE_JUDGED", "board"]

_NONE = "no stall was judged"
AT_CLIENTS = "A stall is judged at the client if there is one: with servers alone chosen, only those without a recorded client are here."
"""What a description says of the stalls that it counts."""
NONE_JUDGED = (
    "No stall of these streams was judged. They had no gap of 250 ms or more beyond a healthy step, or they are streams of a server with a "
    "recorded client: their stalls are judged at the client. Choose the client's service and vantage, or All."
)
"""Why a panel with causes has no data. A server's stalls are counted under its client's values, so it cannot say that there are none."""

_STALLS, _STALLS_OVER_TIME = rolled("stall", "stalls"), rolled("stall", "stalls", series=True)
_STREAMS = rolled("stream", "streams")
_BUT_FOR = rolled("but_for", "streams")
# Verdicts without a single cause: a side only, or several causes.
_COARSE = causes.sql_list(causes.COARSE)
_ORDER = order_of_causes()
_MEANINGS = "\n".join(f"- `{cause.name}`: {cause.meaning}" for cause in GAP_CAUSES)

JUDGED = f"""
SELECT judged, if(client_stalls IS NULL, server_stalls, client_stalls + at_servers) AS "of stalls"
FROM (SELECT sum(stalls) AS judged, sumIf(stalls, vantage = 'server') AS at_servers {_STALLS}) AS verdicts
CROSS JOIN
(
    SELECT sumOrNullIf(stalls_250ms, vantage = 'client') AS client_stalls, sumIf(stalls_250ms, vantage = 'server') AS server_stalls
    {_STREAMS}
) AS streams"""
CHARGED = f"""
SELECT sumOrNull(excess_us) / 1e6 AS "beyond healthy steps", sum(stalls) AS n
{_STALLS}"""
UNKNOWN = f"""
SELECT sumIf(excess_us, cause = 'unknown') / nullIf(sum(excess_us), 0) AS "of stalled time",
    {word("evidence missing", '"of stalled time"')} AS state, sum(stalls) AS n
{_STALLS}"""
COARSE = f"""
SELECT sumIf(excess_us, cause IN {_COARSE}) / nullIf(sum(excess_us), 0) AS "of stalled time",
    {word("evidence missing", '"of stalled time"')} AS state, sum(stalls) AS n
{_STALLS}"""
MISSING = f"""
SELECT sumIf(stalls, notEmpty(missing)) / nullIf(sum(stalls), 0) AS "of judged stalls", sum(stalls) AS n
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
ORDER BY time, {_ORDER}"""
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
    least(all_stalls, all_stalls - sum(stalls) + sum(stalls_max)) AS "left at most",
    greatest(0, sum(stalled_us) - sum(stalled_max_us)) / nullIf(any(all_us), 0) AS "time saved at least",
    greatest(0, sum(stalled_us) - sum(stalled_min_us)) / nullIf(any(all_us), 0) AS "time saved at most"
FROM (SELECT * {_BUT_FOR} WHERE cause != '') AS each
CROSS JOIN everything
GROUP BY cause, all_stalls
ORDER BY "time saved at most" DESC, cause"""
MISSING_BY = f"""
SELECT vantage_missing AS "missing vantages", sum(count) AS stalls, sum(count) / nullIf((SELECT sum(stalls) {_STALLS}), 0) AS share
FROM (SELECT sumMap(missing) AS missed {_STALLS})
ARRAY JOIN mapKeys(missed) AS vantage_missing, mapValues(missed) AS count
GROUP BY vantage_missing
ORDER BY stalls DESC, vantage_missing"""
ENGINES = f"""
SELECT
    engine, service, model, n, "beyond healthy", mapKeys(of_causes)[indexOf(mapValues(of_causes), arrayMax(mapValues(of_causes)))]
        AS "cause of most"
FROM
(
    SELECT
        if(engine_id = '', '(none)', engine_id) AS engine, service_name AS service, model, sum(stalls) AS n,
        sum(excess_us) / 1e6 AS "beyond healthy", sumMap(map(cause::String, excess_us)) AS of_causes
    {_STALLS}
    GROUP BY engine, service, model
)
ORDER BY "beyond healthy" DESC, engine, service, model
LIMIT 100"""
# Events are ranked only within the minutes with the most stalled time, which bounds the number of verdicts to read.
_WORST_MINUTES = f"""
    SELECT minute
    FROM stall_minutes FINAL
    WHERE {IN_RANGE} AND stalls > 0
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
ROOT_CAUSES = f"""
SELECT
    min(culprit_at) AS happened, cause, engine_id AS engine,
    if(empty(responses), concat('step ', toString(min(culprit_step))), arrayStringConcat(responses, ', ')) AS event,
    uniqExact(trace_id, span_id) AS "streams hit", count() AS stalls, sum(excess_us) / 1e6 AS "beyond healthy",
    max(gap_us) / 1e6 AS longest,
    lower(hex(argMax(trace_id, excess_us))) AS stream
FROM
(
    -- Verdicts on one step may have been made at times at which fewer of its requests were known.
    SELECT *, argMax(culprit_responses, length(culprit_responses)) OVER (PARTITION BY tenant, engine_id, cause, culprit_at) AS responses
    FROM ({_JUDGED})
    WHERE culprit_step IS NOT NULL
)
GROUP BY tenant, engine_id, cause, responses, if(empty(responses), culprit_at, toDateTime64(0, 9, 'UTC'))
ORDER BY "beyond healthy" DESC, happened
LIMIT 50"""
WORST = f"""
SELECT
    lower(hex(trace_id)) AS stream, addMicroseconds(start_time, gap_start_us) AS "gap start", gap_us / 1e6 AS gap,
    excess_us / 1e6 AS "beyond healthy", cause, confidence, arrayStringConcat(missing, ', ') AS "missing vantages", engine_id AS engine
FROM ({_JUDGED})
ORDER BY excess_us DESC, stream, gap_start_us
LIMIT 100"""
RATE = f"""
SELECT $__timeInterval(minute) AS time, cause, sum(stalls) AS stalls
{_STALLS_OVER_TIME}
GROUP BY time, cause
ORDER BY time, {_ORDER}"""


def _figures() -> list[Any]:
    """Single figures and curves."""
    return [
        number(
            "Stalls judged",
            "Stalls of 250 ms or more that have a verdict, next to the number of such gaps: all of the clients, and of servers without a "
            "recorded client those with a verdict; without clients, all of the servers. If fewer have a verdict, the attribution is still "
            "running, the gaps were healthy steps, or only servers are chosen: a stall of a stream with a client is judged at the client, "
            "so it counts under the client's service. Beside clients, a server's stall that is not judged yet is in neither number: "
            "`legato blame` counts it.",
            JUDGED,
            "short",
            empty=_NONE,
        ),
        number(
            "Stalled time",
            "The part of the stalls beyond the engine's healthy step. The panels below charge all of it to causes.",
            CHARGED,
            "s",
            empty=_NONE,
        ),
        number(
            "Cause unknown",
            "Share of the stalled time without a known cause. If it is high, evidence is not recorded: see Missing vantages.",
            UNKNOWN,
            "percentunit",
            "evidence missing",
            empty=_NONE,
        ),
        number(
            "Side known, cause unknown",
            "Stalled time charged to generation or delivery without a cause, or to several causes without a main one. A vantage is "
            "missing.",
            COARSE,
            "percentunit",
            "evidence missing",
            empty=_NONE,
        ),
        number(
            "Stalls with a missing vantage",
            "Share of the judged stalls without the evidence of the client, of the server or of the engine. Without clients it is 100 %: "
            "then see their confidence below.",
            MISSING,
            "percentunit",
            empty=_NONE,
            width=8,
        ),
        bars(
            "Stalled time by cause",
            "All parts of all stalls, also those that are not the main cause of their stall. Time that a delayed stream caught up later is "
            f"not subtracted. {AT_CLIENTS}\n\n" + _MEANINGS,
            TIME_BY_CAUSE,
            "s",
            by_cause=True,
        ),
        bars("Stalls by cause", f"Each stall counts for its main cause. {AT_CLIENTS}\n\n" + _MEANINGS, RATE, "short", by_cause=True),
    ]


def _tables() -> list[Any]:
    """Tables."""
    return [
        rows(
            "Causes and confidence",
            f"proven and strong verdicts rest on the engine's own record of the step; likely ones on fewer vantages. {AT_CLIENTS}",
            BY_CAUSE,
            {"beyond healthy": "s", "in these stalls": "s"},
            width=12,
            causes=("cause",),
        ),
        rows(
            "Counterfactual: without one cause",
            "The stalls that would remain if this one cause were fixed, computed for each stalled stream. Causes overlap, so savings do "
            "not add up.",
            BUT_FOR,
            {"time saved at least": "percentunit", "time saved at most": "percentunit"},
            empty="No stall was judged under these values, or none with a cause that can be removed in a computation.",
            width=12,
            causes=("cause",),
        ),
        rows(
            "Root-cause events",
            "The prompts, preemptions and engine steps that caused the stalls of the 60 worst minutes, how many streams each of them "
            "stalled, and one of these streams.",
            ROOT_CAUSES,
            {"beyond healthy": "s", "longest": "s"},
            empty="No stall was judged under these values, or none was traced to an engine step, which needs recorded steps of the engine.",
            links={"engine": "/d/legato-nodes/nodes?var-engine=${__value.raw}&${__url_time_range}"},
            causes=("cause",),
        ),
        rows(
            "Longest stalls",
            "The longest stalls of the 60 worst minutes. Open a stream for its evidence.",
            WORST,
            {"gap": "s", "beyond healthy": "s"},
            causes=("cause",),
        ),
        rows(
            "Missing vantages",
            "Vantages that were missing when stalls were judged. `client`: the server's own gap was judged; add the "
            "SDK to the client. `server`: add the middleware. `engine`: run the plugin and its agent.",
            MISSING_BY,
            {"share": "percentunit"},
            empty="No stall was judged under these values, or all of them with the evidence of client, server and engine.",
            width=8,
        ),
        rows(
            "By engine",
            "Stalls by engine, service and model. (none): streams without an engine, or stalls on the network path.",
            ENGINES,
            {"beyond healthy": "s"},
            width=16,
            links={"engine": "/d/legato-nodes/nodes?var-engine=${__value.raw}&${__url_time_range}"},
            causes=("cause of most",),
        ),
    ]


def board() -> Kit:
    """The dashboard."""
    kit = Kit(
        "legato-attribution",
        "Legato · Jitter attribution",
        "The causes that stalls were charged to, from the chunks at both ends and the engine's steps in between.",
        variables=DIMENSIONS,
        empty=NONE_JUDGED,
    )
    kit.add(*_figures(), *_tables())
    return kit
