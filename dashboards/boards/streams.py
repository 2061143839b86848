"""Streams, the start dashboard: traffic, goodput, gaps, first tokens and outcomes over time and by service, and the worst streams."""

from __future__ import annotations

from typing import Any

from dashboards.boards.attribution import AT_CLIENTS, NONE_JUDGED, TIME_BY_CAUSE
from dashboards.boards.now import IN_FLIGHT
from dashboards.panels import Kit, bars, lines, number, rows
from dashboards.scales import word
from dashboards.sql_fragments import (
    DIMENSIONS,
    SECONDS_OF_POINT,
    filters,
    in_whole_minutes,
    quantile,
    rolled,
    up_to_worst,
    worst_minutes,
)
from legato_ingest.objectives import TARGET, TARGETS

__all__ = ["board"]

_FROM, _SERIES = rolled("stream", "streams"), rolled("stream", "streams", series=True)


TRAFFIC = f"""
SELECT
    $__timeInterval(minute) AS time, concat(service_name, ' · ', vantage) AS service,
    60 * sum(streams) / {SECONDS_OF_POINT} AS "streams per minute"
{_SERIES}
WHERE {in_whole_minutes("minute")}
GROUP BY time, service
ORDER BY time, service"""
GOODPUT = f"""
SELECT sum(good) / nullIf(sum(judged), 0) AS goodput, {word("goodput", "goodput")} AS state, sum(judged) AS n
{_FROM}"""
GAP_P99_P99 = f"""
SELECT {up_to_worst(0.99, "buckets")} AS p99, {word("gap", "p99")} AS state, arraySum(mapValues(buckets)) AS n
FROM (SELECT sumMap(gap_p99_buckets) AS buckets, max(gap_max_us) AS worst_us {_FROM})"""
GAP_MAX_P99 = f"""
SELECT {up_to_worst(0.99, "buckets")} AS p99, {word("gap", "p99")} AS state, arraySum(mapValues(buckets)) AS n
FROM (SELECT sumMap(gap_max_buckets) AS buckets, max(gap_max_us) AS worst_us {_FROM})"""
JITTER = f"""
SELECT {quantile(0.5, "buckets")} / 1000 AS median, {word("jitter", "median")} AS state, arraySum(mapValues(buckets)) AS n
FROM (SELECT sumMap(jitter_permille_buckets) AS buckets {_FROM})"""
TTFT_P95 = f"""
SELECT {quantile(0.95, "buckets")} / 1e6 AS p95, {word("first output", "p95")} AS state, arraySum(mapValues(buckets)) AS n
FROM (SELECT sumMap(ttft_buckets) AS buckets {_FROM})"""
DISCONNECTS = f"""
SELECT
    sum(outcomes['client_cancel'] + outcomes['abandoned']) / nullIf(sum(streams - outcomes['running']), 0) AS disconnected,
    sum(streams - outcomes['running']) AS n
{_FROM}"""
GOODPUT_OVER_TIME = f"""
SELECT $__timeInterval(minute) AS time, concat(service_name, ' · ', vantage) AS service, sum(good) / sum(judged) AS goodput
{_SERIES}
WHERE judged > 0
GROUP BY time, service_name, vantage
ORDER BY time, service"""
GAPS_OVER_TIME = f"""
SELECT
    time, {up_to_worst(0.5, "max_buckets")} AS "max gap, median stream",
    {up_to_worst(0.99, "max_buckets")} AS "max gap, p99 of streams",
    {up_to_worst(0.99, "p99_buckets")} AS "p99 gap, p99 of streams"
FROM
(
    SELECT
        $__timeInterval(minute) AS time, max(gap_max_us) AS worst_us, sumMap(gap_max_buckets) AS max_buckets,
        sumMap(gap_p99_buckets) AS p99_buckets
    {_SERIES}
    GROUP BY time
)
ORDER BY time"""
FIRSTS_OVER_TIME = f"""
SELECT
    time, {quantile(0.5, "ttfb")} / 1e6 AS "TTFB p50", {quantile(0.5, "ttft")} / 1e6 AS "TTFT p50",
    {quantile(0.5, "ttfo")} / 1e6 AS "TTFO p50",
    {quantile(0.95, "ttfb")} / 1e6 AS "TTFB p95", {quantile(0.95, "ttft")} / 1e6 AS "TTFT p95", {quantile(0.95, "ttfo")} / 1e6 AS "TTFO p95"
FROM
(
    SELECT
        $__timeInterval(minute) AS time, sumMap(ttfb_buckets) AS ttfb, sumMap(ttft_buckets) AS ttft, sumMap(ttfo_buckets) AS ttfo
    {_SERIES}
    GROUP BY time
)
ORDER BY time"""
OUTCOMES_OVER_TIME = f"""
SELECT time, outcome, count AS streams
FROM (SELECT $__timeInterval(minute) AS time, sumMap(outcomes) AS counts {_SERIES} GROUP BY time)
ARRAY JOIN mapKeys(counts) AS outcome, mapValues(counts) AS count
ORDER BY time, outcome"""
BAD_OVER_TIME = f"""
SELECT
    $__timeInterval(minute) AS time, sum(bad_gap) AS "gap over the limit", sum(bad_error) AS "ended in an error",
    sum(bad_late) AS "first output late"
{_SERIES}
GROUP BY time
ORDER BY time"""
BY_SERVICE = f"""
SELECT
    service, release, model, provider, route, vantage, transport, n, good_share AS goodput, {word("goodput", "goodput")} AS state,
    {up_to_worst(0.99, "p99_buckets")} AS "p99 of p99 gap", {up_to_worst(0.99, "max_buckets")} AS "p99 max gap",
    if(empty(max_buckets), NULL, worst_us) / 1e6 AS "worst gap",
    {quantile(0.5, "jitter_buckets")} / 1000 AS "jitter ratio", {quantile(0.5, "ttft")} / 1e6 AS "TTFT p50",
    {quantile(0.95, "ttft")} / 1e6 AS "TTFT p95", disconnected AS "disconnect rate", stalled AS "stalled streams"
FROM
(
    SELECT
        service_name AS service, service_version AS release, model, provider, route, vantage, transport,
        sum(streams) AS n, sum(good) / nullIf(sum(judged), 0) AS good_share,
        max(gap_max_us) AS worst_us, sumMap(gap_p99_buckets) AS p99_buckets, sumMap(gap_max_buckets) AS max_buckets,
        sumMap(jitter_permille_buckets) AS jitter_buckets, sumMap(ttft_buckets) AS ttft,
        sum(outcomes['client_cancel'] + outcomes['abandoned']) / nullIf(sum(streams - outcomes['running']), 0) AS disconnected,
        sum(stalled_streams) / nullIf(sum(judged), 0) AS stalled
    {_FROM}
    GROUP BY service, release, model, provider, route, vantage, transport
)
ORDER BY n DESC, service, release, model, provider, route, vantage, transport
LIMIT 500"""
WORST = f"""
SELECT
    lower(hex(trace_id)) AS stream, start_time AS started, service_name AS service, model, vantage, outcome,
    gap_max_us / 1e6 AS "max gap", gap_open_us / 1e6 AS "open gap", stalls_250ms AS stalls, ttft_us / 1e6 AS "TTFT",
    duration_ns / 1e9 AS duration, chunks
FROM streams
WHERE $__timeFilter_ms(start_time) AND gap_max_us > 0 AND outcome != 'running'
    AND toStartOfMinute(start_time) IN
    (
        {worst_minutes(filters())}
    )
    AND {filters()}
ORDER BY gap_max_us DESC, stream, vantage
LIMIT 50"""


# The budget of a month, whatever the range: it is what an SLO promises.
BUDGETS = f"""
WITH {TARGETS} AS targets
SELECT
    service_name AS service, vantage, objective, {TARGET} AS target, {word("budget", '"budget left"')} AS state,
    1 - bad / (streams * (1 - target)) AS "budget left", sum(judged) AS streams, streams - sum(good) AS bad
FROM stream_hours FINAL
WHERE minute > now() - INTERVAL 30 DAY AND judged > 0
    AND {filters()}
GROUP BY tenant, service, vantage, objective
ORDER BY "budget left", streams DESC, service, vantage
LIMIT 50"""


_SECONDS = {name: "s" for name in ("p99 of p99 gap", "p99 max gap", "worst gap", "TTFT p50", "TTFT p95", "max gap", "open gap", "TTFT")}


def _first() -> list[Any]:
    """The first row: traffic, in flight, goodput, stalled time by cause."""
    return [
        lines("Traffic", "Streams that began per minute, by service and vantage.", TRAFFIC, "short", width=7, height=8),
        number(
            "In flight now",
            "Streams that run at this moment, whatever the time range, at clients and at servers, and those of them that have had no "
            "content for 2 s or more, each once. The "
            "filters of release, provider, route and transport do not apply. The dashboard Now lists the stalled ones.",
            IN_FLIGHT,
            "short",
            height=8,
            empty="no stream is reported",
        ),
        number(
            "Goodput",
            "Share of good streams: no gap over the limit of the stream's objective (400 ms by default; the silence before the end counts, "
            "too), the first output within its limit (2 s by default), and no error. Below 99 %: find the service below, then its causes "
            "under Jitter attribution.",
            GOODPUT,
            "percentunit",
            "goodput",
            height=8,
            empty="no stream has ended",
        ),
        bars(
            "Stalled time by cause",
            "Time that end users waited in gaps of 250 ms or more beyond a healthy step, by the cause that it was charged to. Jitter "
            f"attribution has the details, and the runbook what to do about each cause. {AT_CLIENTS}",
            TIME_BY_CAUSE,
            "s",
            width=9,
            height=8,
            by_cause=True,
            empty=NONE_JUDGED,
        ),
    ]


def _figures() -> list[Any]:
    """Single figures."""
    return [
        number(
            "p99 of per-stream p99 gap",
            "The p99 over streams of each stream's p99 gap: the bad moments of the unlucky streams. With n ≤ 100 it is the maximum. "
            "It depends on n, so no alert uses it.",
            GAP_P99_P99,
            "s",
            "gap",
            width=5,
            empty="no stream had a gap",
        ),
        number(
            "p99 of the longest gap",
            "One stream in a hundred had a gap at least this long. Over 400 ms its end user saw the text freeze.",
            GAP_MAX_P99,
            "s",
            "gap",
            width=5,
            empty="no stream had a gap",
        ),
        number(
            "Jitter ratio, median",
            "The p99 gap of a stream divided by its median gap. 1 is perfectly even; over 5 the text comes in bursts or freezes.",
            JITTER,
            "none",
            "jitter",
            width=5,
            empty="no stream had enough gaps",
        ),
        number(
            "TTFT p95",
            "Time to the first token of any kind. Over 2 s: check queue and prefill under Serving nodes.",
            TTFT_P95,
            "s",
            "first output",
            width=5,
            empty="no stream had a token",
        ),
        number(
            "Disconnect rate",
            "Share of the ended streams that their end user cancelled, or that ended because their application died. If it rises after "
            "longer gaps, end users give up. Which rate is normal depends on the application.",
            DISCONNECTS,
            "percentunit",
            empty="no stream has ended",
        ),
    ]


def _curves() -> list[Any]:
    """Curves."""
    return [
        lines(
            "Goodput by service and vantage",
            "When goodput fell, and for which service. Client below server: the network or the end user's side. Both low: the engine.",
            GOODPUT_OVER_TIME,
            "percentunit",
            scale="goodput",
        ),
        lines(
            "Longest gaps",
            "Median and p99 over streams of each stream's longest gap, and the p99 over streams of their p99 gap. From histogram buckets, "
            "within 2.2 %.",
            GAPS_OVER_TIME,
            "s",
            scale="gap",
        ),
        lines(
            "First byte, first token, first output",
            "TTFB: first byte, TTFT: first token, TTFO: first visible output. TTFB early and TTFT late: the server responded and had no "
            "token yet. TTFT early and TTFO late: the model reasoned, or called tools.",
            FIRSTS_OVER_TIME,
            "s",
        ),
        bars("Streams by outcome", "How streams ended, by the minute in which they began.", OUTCOMES_OVER_TIME, "short"),
        bars(
            "Bad streams by reason",
            "Each stream counts once: for a gap, else for an error, else for a late start.",
            BAD_OVER_TIME,
            "short",
            width=24,
            height=6,
        ),
    ]


def _tables() -> list[Any]:
    """Tables."""
    return [
        rows(
            "Error budget left",
            "What is left of the bad streams that the target of each objective allows, in the last 30 days, whatever the range. Below 0 "
            "the budget is used up: −1 means twice as many bad streams as allowed. `legato objectives show` prints the limits.",
            BUDGETS,
            {"target": "percentunit", "budget left": "percentunit"},
            scales={"budget left": "budget"},
            height=6,
            empty="No stream with the selected values ended in the last 30 days.",
        ),
        rows(
            "By service, release, model, provider, route, vantage, transport",
            "One row per combination, those with most streams first; n is their number. Compare releases of one service, and vantages "
            "of one model.",
            BY_SERVICE,
            {**_SECONDS, "goodput": "percentunit", "disconnect rate": "percentunit", "stalled streams": "percentunit"},
            scales={"goodput": "goodput"},
        ),
        rows(
            "Worst streams",
            "The streams with the longest gaps of the range. Open a stream for its vantages, the engine's steps and its verdicts.",
            WORST,
            {**_SECONDS, "duration": "s"},
            empty="No stream of this range with the selected values had a gap.",
        ),
    ]


def board() -> Kit:
    """The dashboard."""
    kit = Kit(
        "legato-streams",
        "Legato · Streams",
        "Streamed responses as end users experienced them: goodput, gaps, first tokens, outcomes.",
        variables=DIMENSIONS,
        empty="No stream began in this range with the selected values. Choose a longer range, or All at the top, also for the vantage.",
        # The client's vantage: a stream recorded at two vantages would count twice.
        first={"vantage": "client"},
    )
    kit.add(*_first(), *_figures(), *_curves(), *_tables())
    return kit
