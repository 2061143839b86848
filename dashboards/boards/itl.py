"""ITL distributions: how gaps are distributed over time, over streams, and between vantages."""

from __future__ import annotations

from dashboards.panels import Kit, heat, lines, rows
from dashboards.sql_fragments import DIMENSIONS, gap_quantile, quantile, rolled, weighted_quantile

__all__ = ["board"]

_FROM, _SERIES = rolled("stream", "timed_streams"), rolled("stream", "timed_streams", series=True)

# Two buckets a doubling, from 1 ms to 32 s, each in every interval: the first interval's order is the axis' order.
HEATMAP = f"""
WITH
    counts AS
    (
        SELECT $__timeInterval(minute) AS time, sumMap(gap_buckets) AS buckets
        {_SERIES}
        GROUP BY time
    )
SELECT
    time, toString(round(pow(2, (step + 1) / 2) / 1e6, 6)) AS le,
    arraySum((bucket, count) -> if(least(greatest(intDiv(bucket, 2), 20), 49) = step, count, 0), mapKeys(buckets),
    mapValues(buckets)) AS gaps
FROM counts
ARRAY JOIN range(20, 50) AS step
ORDER BY time, step"""
# Four fine buckets are one here: a bar of 19 %.
OF_STREAMS = f"""
SELECT
    round(pow(2, (bar + 1) / 4) / 1e6, 6) AS "p99 gap up to", sumIf(count, vantage = 'client') AS client,
    sumIf(count, vantage = 'server') AS server, sumIf(count, vantage NOT IN ('client', 'server')) AS others
FROM
(
    SELECT vantage, intDiv(bucket, 4) AS bar, count
    FROM (SELECT vantage, sumMap(gap_p99_buckets) AS buckets {_FROM} GROUP BY vantage)
    ARRAY JOIN mapKeys(buckets) AS bucket, mapValues(buckets) AS count
)
GROUP BY bar
ORDER BY bar"""
VANTAGES = f"""
SELECT
    model, vantage, n_gaps AS gaps, n_streams AS streams, {gap_quantile(0.5, "buckets")} / 1e6 AS p50,
    {gap_quantile(0.9, "buckets")} / 1e6 AS p90,
    {gap_quantile(0.99, "buckets")} / 1e6 AS p99, {gap_quantile(0.999, "buckets")} / 1e6 AS "p99.9", longest
FROM
(
    SELECT
        model, vantage, sum(gaps) AS n_gaps, sum(timed_streams) AS n_streams, sumMap(gap_buckets) AS buckets,
        max(gap_max_us) / 1e6 AS longest
    {_FROM}
    GROUP BY model, vantage
)
ORDER BY model, vantage"""
WEIGHTED = f"""
SELECT
    time, vantage, {weighted_quantile(0.5, "buckets")} / 1e6 AS "half of the time in gaps up to",
    {weighted_quantile(0.9, "buckets")} / 1e6 AS "90 % of the time in gaps up to"
FROM
(
    SELECT $__timeInterval(minute) AS time, vantage, sumMap(gap_buckets) AS buckets
    {_SERIES}
    GROUP BY time, vantage
)
ORDER BY time, vantage"""
P99_OF_P99 = f"""
SELECT time, vantage, {quantile(0.99, "buckets")} / 1e6 AS "p99 of p99", {quantile(0.5, "buckets")} / 1e6 AS "median p99"
FROM
(
    SELECT $__timeInterval(minute) AS time, vantage, sumMap(gap_p99_buckets) AS buckets
    {_SERIES}
    GROUP BY time, vantage
)
ORDER BY time, vantage"""
STALL_RATE = f"""
SELECT
    $__timeInterval(minute) AS time, vantage, 1000 * sum(stalls_250ms) / sum(timed_streams) AS "250 ms or more",
    1000 * sum(stalls_400ms) / sum(timed_streams) AS "400 ms or more"
{_SERIES}
GROUP BY time, vantage
ORDER BY time, vantage"""
MODELS = f"""
SELECT
    model, release, vantage, n_streams AS streams, n_gaps AS gaps, {gap_quantile(0.5, "buckets")} / 1e6 AS "ITL p50",
    {gap_quantile(0.99, "buckets")} / 1e6 AS "ITL p99",
    {weighted_quantile(0.5, "buckets")} / 1e6 AS "time-weighted p50", {quantile(0.5, "p99_buckets")} / 1e6 AS "median p99",
    {quantile(0.99, "p99_buckets")} / 1e6 AS "p99 of p99", stalls AS "stalls per 1,000 streams"
FROM
(
    SELECT
        model, service_version AS release, vantage, sum(timed_streams) AS n_streams, sum(gaps) AS n_gaps, sumMap(gap_buckets) AS buckets,
        sumMap(gap_p99_buckets) AS p99_buckets, 1000 * sum(stalls_250ms) / sum(timed_streams) AS stalls
    {_FROM}
    GROUP BY model, release, vantage
)
ORDER BY model, release, vantage
LIMIT 500"""


def board() -> Kit:
    """The dashboard."""
    kit = Kit(
        "legato-itl",
        "Legato · ITL distributions",
        "Inter-token latency as readers meet it: all gaps, each stream's worst, and where they come from.",
        variables=DIMENSIONS,
    )
    kit.add(
        heat(
            "Gaps between content reads",
            "Each cell counts gaps that ended up in one band of length (the label is its upper bound). A dark band that splits or "
            "rises: the "
            "step got longer. Lone cells above 400 ms: stalls; click into Worst streams for the same time.",
            HEATMAP,
            "s",
        ),
        rows(
            "Distribution of per-stream p99 gaps",
            "How many streams had which p99 gap: the distribution of distributions. Two hills: two kinds of streams, so filter until "
            "there is one. "
            "The client's to the right of the server's: what the network adds.",
            OF_STREAMS,
            {"p99 gap up to": "s"},
            width=12,
        ),
        rows(
            "Server against client",
            "Quantiles over all gaps, not over streams, in buckets (within 9 %). n is gaps and streams. What the client has and the "
            "server has not "
            "came on the way.",
            VANTAGES,
            {name: "s" for name in ("p50", "p90", "p99", "p99.9", "longest")},
            width=12,
            limits={"p99.9": "gap_s"},
        ),
        lines(
            "Time-weighted gaps",
            "A reader waits longer in long gaps, so they count by their time: half of all waiting is in gaps up to this. It does not "
            "change when "
            "chunks are split or merged at the same moment.",
            WEIGHTED,
            "s",
        ),
        lines(
            "p99 of per-stream p99, and its median",
            "Over time, by vantage. Its n is under Streams; with few streams an interval it is the maximum. It decides nothing.",
            P99_OF_P99,
            "s",
            limits="gap_s",
        ),
        lines("Stalls per 1,000 streams", "Gaps of 250 ms (visible) and of 400 ms (the SLO's limit) or more.", STALL_RATE, "short"),
        rows(
            "By model and release",
            "The same figures side by side. A release whose time-weighted p50 is the same and whose p99 of p99 rose has new stalls, not "
            "slower "
            "tokens.",
            MODELS,
            {name: "s" for name in ("ITL p50", "ITL p99", "time-weighted p50", "median p99", "p99 of p99")},
            width=12,
        ),
    )
    return kit
