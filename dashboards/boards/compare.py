"""Compare: two selections of streams beside each other: their figures with intervals, distributions, causes, and what else differs.

It shows differences, not their reasons: streams were not assigned to A and B at random, so the last tables show what else differs.
"""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.models import dashboard as shapes

from dashboards.cause_style import order_of_causes
from dashboards.differing import CHANGED, REQUESTS
from dashboards.intervals import RESULTS, Figure, compared
from dashboards.panels import Kit, distribution, lines, options, rows
from dashboards.sides import AUTOMATIC, NAMES, VALUES, picks, sides, streams_of
from dashboards.sql_fragments import DIMENSIONS, bar_bound, quantile
from legato_ingest.definitions import ERRORS

__all__ = ["board"]

_PICKS = picks()
_ENDED = "(streams - outcomes['running'])"
_FAILED = " + ".join(f"outcomes['{outcome}']" for outcome in ERRORS if outcome != "abandoned")
FIGURES = (
    Figure("streams", "count", "", n="streams"),
    Figure("goodput", "share", "high", "good", "judged"),
    Figure("TTFT p50", "quantile", buckets="ttft_buckets", level=0.5),
    Figure("TTFT p95", "quantile", buckets="ttft_buckets", level=0.95),
    Figure("per-stream p99 gap, median", "quantile", buckets="gap_p99_buckets", level=0.5),
    Figure("per-stream p99 gap, p99", "quantile", buckets="gap_p99_buckets", level=0.99),
    Figure("longest gap, p99", "quantile", buckets="gap_max_buckets", level=0.99),
    Figure("stalls per 1,000 streams", "rate", above="stalls_250ms", below="judged"),
    Figure("streams with a stall", "share", above="stalled_streams", below="judged"),
    Figure("time over 250 ms in gaps, of all gaps", "time", above="excess_250ms_us", below="gap_sum_us", n="timed_streams"),
    Figure("disconnect rate", "share", above="outcomes['client_cancel'] + outcomes['abandoned']", below=_ENDED),
    Figure("error rate", "share", above=_FAILED, below=_ENDED),
)

SELECTED = f"""
{_PICKS}
SELECT
    side, by_name AS dimension, value, sum(streams) AS n, sum(judged) AS "n judged", min(minute) AS "first minute",
    max(minute) AS "last minute or hour"
{sides("stream", "streams")}
GROUP BY side, value
ORDER BY side, n DESC, value
LIMIT 200"""
BESIDE = _PICKS + "\n" + compared(FIGURES, sides("stream", "streams"))


def _of_streams(buckets: str, along: str) -> str:
    """The share of each side's streams in each bar, four bars per doubling. Bars without a stream between others are rows, too."""
    return f"""
{_PICKS}
SELECT {bar_bound("bar")} AS "{along}", a / nullIf(sum(a) OVER (), 0) AS "A", b / nullIf(sum(b) OVER (), 0) AS "B"
FROM
(
    SELECT bar, sumIf(count, side = 'A') AS a, sumIf(count, side = 'B') AS b
    FROM
    (
        SELECT side, intDiv(bucket, 4) AS bar, count
        FROM (SELECT side, sumMap({buckets}) AS buckets {sides("stream", "streams")} GROUP BY side)
        ARRAY JOIN mapKeys(buckets) AS bucket, mapValues(buckets) AS count
    )
    GROUP BY bar
    ORDER BY bar WITH FILL
)
ORDER BY bar"""


GAPS = _of_streams("gap_p99_buckets", "p99 gap up to")
FIRSTS = _of_streams("ttft_buckets", "TTFT up to")


def _if_enough(level: float, least: int, buckets: str) -> str:
    return f"if(arraySum(mapValues({buckets})) < {least}, NULL, {quantile(level, buckets)} / 1e6)"


OVER_TIME = f"""
{_PICKS}
SELECT
    time, {_if_enough(0.5, 2, "a")} AS "A, median", {_if_enough(0.95, 20, "a")} AS "A, p95",
    {_if_enough(0.5, 2, "b")} AS "B, median", {_if_enough(0.95, 20, "b")} AS "B, p95"
FROM
(
    SELECT $__timeInterval(moved_minute) AS time, sumMapIf(gap_p99_buckets, side = 'A') AS a, sumMapIf(gap_p99_buckets, side = 'B') AS b
    {sides("stream", "streams", series=True)}
    GROUP BY time
)
ORDER BY time"""
# A server's stalls are judged at its client: a side with stalls and without any verdict has no known causes, which is not 0.
_KNOWN = "sum({0}_named) OVER () > 0 OR {0}_stalls = 0"
BY_CAUSE = f"""
{_PICKS}
SELECT
    cause, if({_KNOWN.format("a")}, 1000 * a_ns / 1e9 / nullIf(n_a, 0), NULL) AS "A",
    if({_KNOWN.format("b")}, 1000 * b_ns / 1e9 / nullIf(n_b, 0), NULL) AS "B", "B" - "A" AS "B − A",
    if({_KNOWN.format("a")}, a_named, NULL) AS "stalls of A", if({_KNOWN.format("b")}, b_named, NULL) AS "stalls of B",
    n_a AS "n of A", n_b AS "n of B"
FROM
(
    SELECT
        part.1 AS cause, sumIf(part.2, side = 'A') AS a_ns, sumIf(part.2, side = 'B') AS b_ns, sumIf(part.3, side = 'A') AS a_named,
        sumIf(part.3, side = 'B') AS b_named
    FROM
    (
        SELECT
            side, arrayConcat([(cause::String, toInt64(0), sum(stalls))],
                arrayMap((name, ns) -> (name::String, greatest(ns, 0), toUInt64(0)), mapKeys(sumMap(parts)), mapValues(sumMap(parts)))
            ) AS listed
        {sides("stall", "stalls")}
        GROUP BY side, cause
    )
    ARRAY JOIN listed AS part
    GROUP BY cause
) AS charged
CROSS JOIN
(
    SELECT
        sumIf(judged, side = 'A') AS n_a, sumIf(judged, side = 'B') AS n_b,
        sumIf(stalls_250ms, side = 'A') AS a_stalls, sumIf(stalls_250ms, side = 'B') AS b_stalls
    {sides("stream", "streams")}
) AS counted
WHERE by_name != 'vantage' AND cause != 'base' AND a_ns + b_ns + a_named + b_named > 0
ORDER BY coalesce(abs("B − A"), "A", "B") DESC, {order_of_causes()}"""

_WORST_MINUTES = f"""
            SELECT minute
            FROM (SELECT side, minute, max(gap_max_us) AS worst {sides("stream", "streams", minutes=True)} GROUP BY side, minute)
            ORDER BY worst DESC, minute DESC
            LIMIT 20 BY side"""
_SHOWN = "trace_id, start_time, service_name AS service, model, vantage, outcome, gap_max_us, stalls_250ms, ttft_us"
WORST = f"""
{_PICKS}
SELECT
    side, value, lower(hex(trace_id)) AS stream, start_time AS started, service, model, vantage, outcome, gap_max_us / 1e6 AS "max gap",
    stalls_250ms AS stalls, ttft_us / 1e6 AS "TTFT"
{streams_of(_WORST_MINUTES, _SHOWN)}
WHERE gap_max_us > 0 AND outcome != 'running'
ORDER BY side, gap_max_us DESC, stream, vantage
LIMIT 20 BY side"""

_SHARES = {"share of A": "percentunit", "share of B": "percentunit", "B − A": "percentunit"}


def _figures() -> list[Any]:
    """What is compared, and its figures."""
    beside = rows(
        "Side by side",
        "Each figure of A and B, their difference, and 95 % intervals. The intervals count the minutes or hours that streams share: those "
        "of one incident are not independent. If the interval of the difference includes 0, no difference is shown, which does not mean "
        "that there is none. Of twenty figures without a real difference, about one shows one. A quantile is shown from so many streams "
        "on that it is not their maximum: 20 for p95, 100 for p99; ? is an unknown end.",
        BESIDE,
        height=13,
    )
    colors = {word: {"color": color, "index": place} for place, (word, color) in enumerate(RESULTS.items())}
    result = [
        shapes.DynamicConfigValue("mappings", [{"type": "value", "options": colors}]),
        shapes.DynamicConfigValue("custom.cellOptions", {"type": "color-text"}),
    ]
    return [
        rows(
            "Selections",
            "The values of A and B, with their streams. (automatic): A has the value with most streams, B the next one. By time, B is the "
            "chosen range and A the range of equal length before it.",
            SELECTED,
            height=5,
        ),
        beside.override_by_name("result", result),
    ]


def _charts() -> list[Any]:
    """Distributions and curves."""
    return [
        distribution(
            "Per-stream p99 gaps of A and B",
            "The share of each side's streams by their p99 gap, each bar 19 % longer than the one before. A shift of all bars: every gap "
            "is longer. More bars only at the right end: a few streams stall.",
            GAPS,
            "p99 gap up to",
            unit="percentunit",
        ),
        distribution(
            "TTFT of A and B",
            "The share of each side's streams by the time to their first token, each bar 19 % longer than the one before.",
            FIRSTS,
            "TTFT up to",
            unit="percentunit",
            empty="No stream of this range with the selected values had a token.",
        ),
        lines(
            "Per-stream p99 gap over time, A and B",
            "Median and p95 over streams of each stream's p99 gap. Points with fewer than 2 streams (median) or 20 (p95) are left out. By "
            "time, A is the range before, moved to this one.",
            OVER_TIME,
            "s",
            scale="gap",
            width=24,
        ),
    ]


def _reasons() -> list[Any]:
    """Causes, what else differs, and streams to open."""
    return [
        rows(
            "Stalled time per 1,000 streams, by cause",
            "Time beyond healthy steps that was charged to each cause, per 1,000 streams of a side, largest difference first. The stalls "
            "of A and of B are numbers, not per 1,000; each counts for its main cause. n is streams. Those not judged yet are missing, "
            "and so is a side of servers with clients: its stalls are judged at the client.",
            BY_CAUSE,
            {"A": "s", "B": "s", "B − A": "s"},
            causes=("cause",),
            empty="No stall of A or B was judged. A stall is judged at one vantage, so vantages have no causes to compare.",
        ),
        rows(
            "What else differs",
            "For each other dimension, up to three values with the largest difference between their shares of A and of B. A large one can "
            "be the reason for a difference above: filter by that value at the top, and compare again.",
            CHANGED,
            _SHARES,
            width=12,
            height=11,
            empty="No other dimension has a value with different shares of A and B, or one of them has no streams.",
        ),
        rows(
            "What else differs in requests",
            "As in the table beside it, for what rollups do not have: from all streams of up to 60 minutes of each side, drawn at random. "
            "Tokens and load are in steps of 2. Load is the number of shown streams that the service began in the same minute.",
            REQUESTS,
            _SHARES,
            width=12,
            height=11,
            empty="No difference in tokens, load, engines or finish reasons, or one of A and B has no streams.",
        ),
        rows(
            "Longest gaps of A and B",
            "The 20 streams of each side with the longest gaps, out of the 20 minutes with the longest ones.",
            WORST,
            {"max gap": "s", "TTFT": "s"},
        ),
    ]


def board() -> Kit:
    """The dashboard."""
    kit = Kit(
        "legato-compare",
        "Legato · Compare",
        "Two selections of streams beside each other: releases, models, providers, services, or this range and the one before it.",
        variables=DIMENSIONS,
        empty="No stream of this range with the selected values belongs to A or B. Choose (automatic), or All at the top.",
        first={"vantage": "client"},
        others=[
            options("by", "Compare by", "The dimension of A and B; time: this range with the one before it.", NAMES, "release"),
            options("a", "A", "Values of the dimension; (automatic): the one with most streams.", VALUES, AUTOMATIC, multi=True),
            options("b", "B", "Values of the dimension; (automatic): the next one after A.", VALUES, AUTOMATIC, multi=True),
        ],
        refresh="5m",
    )
    kit.add(*_figures(), *_charts(), *_reasons())
    return kit
