"""ITL distributions: gaps over time, over streams, and by vantage."""

from __future__ import annotations

from dashboards.panels import Kit, distribution, heat, lines, rows
from dashboards.sql_fragments import DIMENSIONS, bar_bound, gap_quantile, quantile, rolled, up_to_worst, weighted_quantile

__all__ = ["board"]

_FROM, _SERIES = rolled("stream", "timed_streams"), rolled("stream", "timed_streams", series=True)
# A stream of one chunk has no gap, and so no stall: it counts as one of the streams of a rate.
_JUDGED, _JUDGED_SERIES = rolled("stream", "judged"), rolled("stream", "judged", series=True)

# Two buckets per doubling, from 1 ms to 32 s. Every interval has all of them, because the first interval defines the order of the axis.
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
    mapValues(buckets)) AS "Value"
FROM counts
ARRAY JOIN range(20, 50) AS step
ORDER BY time, step"""
# Bars without a stream between others are rows, too, so that the distances are to scale.
OF_STREAMS = f"""
SELECT
    {bar_bound("bar")} AS "p99 gap up to",
    client, server, others
FROM
(
    SELECT
        bar, sumIf(count, vantage = 'client') AS client, sumIf(count, vantage = 'server') AS server,
        sumIf(count, vantage NOT IN ('client', 'server')) AS others
    FROM
    (
        SELECT vantage, intDiv(bucket, 4) AS bar, count
        FROM (SELECT vantage, sumMap(gap_p99_buckets) AS buckets {_FROM} GROUP BY vantage)
        ARRAY JOIN mapKeys(buckets) AS bucket, mapValues(buckets) AS count
    )
    GROUP BY bar
    ORDER BY bar WITH FILL
)
ORDER BY bar"""
VANTAGES = f"""
SELECT
    model, vantage, n_gaps AS gaps, n_streams AS streams, {up_to_worst(0.5, "buckets", gap_quantile)} AS p50,
    {up_to_worst(0.9, "buckets", gap_quantile)} AS p90,
    {up_to_worst(0.99, "buckets", gap_quantile)} AS p99, {up_to_worst(0.999, "buckets", gap_quantile)} AS "p99.9",
    worst_us / 1e6 AS longest
FROM
(
    SELECT
        model, vantage, sum(gaps) AS n_gaps, sum(timed_streams) AS n_streams, sumMap(gap_buckets) AS buckets,
        max(gap_max_us) AS worst_us
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
    $__timeInterval(minute) AS time, vantage, 1000 * sum(stalls_250ms) / sum(judged) AS "250 ms or more",
    1000 * sum(stalls_400ms) / sum(judged) AS "400 ms or more"
{_JUDGED_SERIES}
GROUP BY time, vantage
ORDER BY time, vantage"""
MODELS = f"""
SELECT
    model, release, vantage, n_streams AS streams, n_gaps AS gaps, {up_to_worst(0.5, "buckets", gap_quantile)} AS "ITL p50",
    {up_to_worst(0.99, "buckets", gap_quantile)} AS "ITL p99",
    {up_to_worst(0.5, "buckets", weighted_quantile)} AS "time-weighted p50",
    {up_to_worst(0.5, "p99_buckets")} AS "median p99", {up_to_worst(0.99, "p99_buckets")} AS "p99 of p99",
    stalls AS "stalls per 1,000 streams"
FROM
(
    SELECT
        model, service_version AS release, vantage, sum(judged) AS n_streams, sum(gaps) AS n_gaps, sumMap(gap_buckets) AS buckets,
        max(gap_max_us) AS worst_us, sumMap(gap_p99_buckets) AS p99_buckets, 1000 * sum(stalls_250ms) / sum(judged) AS stalls
    {_JUDGED}
    GROUP BY model, release, vantage
)
ORDER BY model, release, vantage
LIMIT 500"""


def board() -> Kit:
    """The dashboard."""
    kit = Kit(
        "legato-itl",
        "Legato · ITL distributions",
        "Inter-token latency (ITL) as end users experience it: all gaps, the p99 gap of each stream, and where long gaps arise.",
        variables=DIMENSIONS,
        empty="No stream of this range with the selected values had a gap. Choose a longer range, or All at the top.",
    )
    kit.add(
        heat(
            "Gaps between content reads",
            "Each cell counts the gaps of one length band (the label is its upper bound) in one interval. A dark band that splits or "
            "rises: steps got longer. Single cells above 400 ms are stalls: see Worst streams on the dashboard Streams for the same time.",
            HEATMAP,
            "s",
            counts="gaps",
        ),
        distribution(
            "Distribution of per-stream p99 gaps",
            "The number of streams by their p99 gap, each bar 19 % longer than the one before. Two peaks: two kinds of streams, so filter "
            "until one peak remains. If the client's peak is to the right of the server's, the network adds the difference.",
            OF_STREAMS,
            "p99 gap up to",
        ),
        rows(
            "Server against client",
            "Quantiles over all gaps (not over streams), from histogram buckets, within 9 %. What the client shows and the server "
            "does not arose on the network path.",
            VANTAGES,
            {name: "s" for name in ("p50", "p90", "p99", "p99.9", "longest")},
            width=12,
        ),
        lines(
            "Time-weighted gaps",
            "End users wait longer in long gaps, so each gap counts by its duration: half of all waiting time is in gaps up to this "
            "length. Splitting or merging chunks at the same moment does not change it.",
            WEIGHTED,
            "s",
        ),
        lines(
            "Per-stream p99 gap over time",
            "The p99 and the median over streams of each stream's p99 gap, by vantage. With few streams per interval (Traffic on the "
            "dashboard Streams) the p99 is the maximum, so no alert uses it.",
            P99_OF_P99,
            "s",
            scale="gap",
        ),
        lines(
            "Stalls per 1,000 streams",
            "Gaps of 250 ms (visible) or more, and of 400 ms (the default limit of a good stream) or more.",
            STALL_RATE,
            "short",
        ),
        rows(
            "By model and release",
            "The same figures by model and release. If a release has the same time-weighted p50 and a higher p99 of p99, it has new "
            "stalls, not slower tokens.",
            MODELS,
            {name: "s" for name in ("ITL p50", "ITL p99", "time-weighted p50", "median p99", "p99 of p99")},
            width=12,
        ),
    )
    return kit
