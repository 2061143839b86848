"""Streams, the start dashboard: goodput, gaps, first tokens and outcomes over time and by service, and the worst streams."""

from __future__ import annotations

from typing import Any

from dashboards.panels import Kit, bars, lines, number, rows
from dashboards.sql_fragments import DIMENSIONS, filters, quantile, rolled

__all__ = ["board"]

_FROM, _SERIES = rolled("stream", "streams"), rolled("stream", "streams", series=True)

GOODPUT = f"""
SELECT sum(good) / nullIf(sum(judged), 0) AS goodput, sum(judged) AS n
{_FROM}"""
GAP_P99_P99 = f"""
SELECT {quantile(0.99, "buckets")} / 1e6 AS p99, arraySum(mapValues(buckets)) AS n
FROM (SELECT sumMap(gap_p99_buckets) AS buckets {_FROM})"""
GAP_MAX_P99 = f"""
SELECT {quantile(0.99, "buckets")} / 1e6 AS p99, arraySum(mapValues(buckets)) AS n
FROM (SELECT sumMap(gap_max_buckets) AS buckets {_FROM})"""
JITTER = f"""
SELECT {quantile(0.5, "buckets")} / 1000 AS median, arraySum(mapValues(buckets)) AS n
FROM (SELECT sumMap(jitter_permille_buckets) AS buckets {_FROM})"""
TTFT_P95 = f"""
SELECT {quantile(0.95, "buckets")} / 1e6 AS p95, arraySum(mapValues(buckets)) AS n
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
    time, {quantile(0.5, "max_buckets")} / 1e6 AS "max gap, median stream",
    {quantile(0.99, "max_buckets")} / 1e6 AS "max gap, p99 of streams",
    {quantile(0.99, "p99_buckets")} / 1e6 AS "p99 gap, p99 of streams"
FROM
(
    SELECT $__timeInterval(minute) AS time, sumMap(gap_max_buckets) AS max_buckets, sumMap(gap_p99_buckets) AS p99_buckets
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
    service, release, model, provider, route, vantage, transport, n, good_share AS goodput,
    {quantile(0.99, "p99_buckets")} / 1e6 AS "p99 of p99 gap", {quantile(0.99, "max_buckets")} / 1e6 AS "p99 max gap", worst AS "worst gap",
    {quantile(0.5, "jitter_buckets")} / 1000 AS "jitter ratio", {quantile(0.5, "ttft")} / 1e6 AS "TTFT p50",
    {quantile(0.95, "ttft")} / 1e6 AS "TTFT p95", disconnected AS "disconnect rate", stalled AS "stalled streams"
FROM
(
    SELECT
        service_name AS service, service_version AS release, model, provider, route, vantage, transport,
        sum(streams) AS n, sum(good) / nullIf(sum(judged), 0) AS good_share,
        if(sum(timed_streams) > 0, max(gap_max_us), NULL) / 1e6 AS worst,
        sumMap(gap_p99_buckets) AS p99_buckets, sumMap(gap_max_buckets) AS max_buckets,
        sumMap(jitter_permille_buckets) AS jitter_buckets, sumMap(ttft_buckets) AS ttft,
        sum(outcomes['client_cancel'] + outcomes['abandoned']) / nullIf(sum(streams - outcomes['running']), 0) AS disconnected,
        sum(stalled_streams) / nullIf(sum(timed_streams), 0) AS stalled
    {_FROM}
    GROUP BY service, release, model, provider, route, vantage, transport
)
ORDER BY n DESC, service, release, model, provider, route, vantage, transport
LIMIT 500"""
# The 50 worst streams are in the 50 minutes with the longest gaps, which are in the 50 such hours: the query reads only these.
_WORST_HOURS = f"SELECT toStartOfHour(minute) AS hour {_FROM} GROUP BY hour ORDER BY max(gap_max_us) DESC, hour DESC LIMIT 50"
_WORST_MINUTES = f"""
        SELECT minute
        FROM stream_minutes FINAL
        WHERE $__timeFilter(minute) AND streams > 0 AND toStartOfHour(minute) IN ({_WORST_HOURS})
            AND {filters()}
        GROUP BY minute
        ORDER BY max(gap_max_us) DESC, minute DESC
        LIMIT 50"""
WORST = f"""
SELECT
    lower(hex(trace_id)) AS stream, start_time AS started, service_name AS service, model, vantage, outcome,
    gap_max_us / 1e6 AS "max gap", gap_open_us / 1e6 AS "open gap", stalls_250ms AS stalls, ttft_us / 1e6 AS "TTFT",
    duration_ns / 1e9 AS duration, chunks
FROM streams
WHERE $__timeFilter_ms(start_time) AND gap_max_us > 0 AND outcome != 'running'
    AND toStartOfMinute(start_time) IN
    (
{_WORST_MINUTES}
    )
    AND {filters()}
ORDER BY gap_max_us DESC, stream, vantage
LIMIT 50"""


_SECONDS = {name: "s" for name in ("p99 of p99 gap", "p99 max gap", "worst gap", "TTFT p50", "TTFT p95", "max gap", "open gap", "TTFT")}


def _figures() -> list[Any]:
    """Single figures."""
    return [
        number(
            "Goodput",
            "Share of streams without a gap over 400 ms (including the open gap at the end), with the first output within 2 s, and "
            "without an error. Both limits are settings. Below 99 %: find the service below, then its causes under Jitter "
            "attribution.",
            GOODPUT,
            "percentunit",
            "goodput",
        ),
        number(
            "p99 of per-stream p99 gap",
            "The p99 over streams of each stream's p99 gap: the bad moments of the unlucky streams. With n ≤ 100 it is the maximum. "
            "It depends on n, so it is shown, but no alert uses it.",
            GAP_P99_P99,
            "s",
            "gap_s",
        ),
        number(
            "p99 of the longest gap",
            "One stream in a hundred had a gap at least this long. Over 400 ms its end user saw the text freeze.",
            GAP_MAX_P99,
            "s",
            "gap_s",
        ),
        number(
            "Jitter ratio, median",
            "p99 gap divided by the median gap of a stream. 1 is perfectly even; over 5 text comes in bursts or freezes.",
            JITTER,
            "none",
            "jitter",
        ),
        number(
            "TTFT p95",
            "Time to the first token of any kind. Over 2 s: check queue and prefill under Serving nodes.",
            TTFT_P95,
            "s",
            "first_s",
        ),
        number(
            "Disconnect rate",
            "Share of the ended streams that their end user cancelled or that ended with their application. If it rises after longer "
            "gaps, end users give up.",
            DISCONNECTS,
            "percentunit",
            "share",
        ),
    ]


def _curves_and_tables() -> list[Any]:
    """Curves and tables."""
    return [
        lines(
            "Goodput by service and vantage",
            "When goodput fell, and for which service. Client below server: the network or the end user's side. Both low: the engine.",
            GOODPUT_OVER_TIME,
            "percentunit",
            limits="goodput",
        ),
        lines(
            "Longest gaps",
            "Median and p99 over streams of each stream's longest gap, and p99 of its p99 gap. From histogram buckets, within 2.2 %.",
            GAPS_OVER_TIME,
            "s",
            limits="gap_s",
        ),
        lines(
            "First byte, first token, first output",
            "TTFB without TTFT: the server responded and had no token yet. TTFT without TTFO: the model reasoned, or called tools.",
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
        rows(
            "By service, release, model, provider, route, vantage, transport",
            "One row per combination, those with most streams first; n is their number. Compare releases of one service, and vantages "
            "of one model.",
            BY_SERVICE,
            {**_SECONDS, "goodput": "percentunit", "disconnect rate": "percentunit", "stalled streams": "percentunit"},
            limits={"goodput": "goodput", "p99 max gap": "gap_s", "TTFT p95": "first_s"},
        ),
        rows(
            "Worst streams",
            "The longest gaps in the range. Open a stream for its vantages, the engine's steps and its verdicts.",
            WORST,
            {**_SECONDS, "duration": "s"},
            limits={"max gap": "gap_s"},
        ),
    ]


def board() -> Kit:
    """The dashboard."""
    kit = Kit(
        "legato-streams",
        "Legato · Streams",
        "Streamed responses as end users experienced them: goodput, gaps, first tokens, outcomes.",
        variables=DIMENSIONS,
        # The client's vantage: a stream recorded at two vantages would count twice.
        first={"vantage": "client"},
    )
    kit.add(*_figures(), *_curves_and_tables())
    return kit
