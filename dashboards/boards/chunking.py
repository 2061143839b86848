"""Chunking and contract: how providers cut text into chunks, how end users see that at the same token rate, and when it changed."""

from __future__ import annotations

from typing import Any

from dashboards.panels import Kit, lines, rows
from dashboards.scales import word
from dashboards.sql_fragments import DIMENSIONS, chosen_number, filters, rolled

__all__ = ["board"]

_FROM, _SERIES = rolled("stream", "streams"), rolled("stream", "streams", series=True)
# Strata have no release and no transport: the detector combines all of them.
_STRATA = ("tenant", "service", "model", "provider", "route", "vantage")
_KEPT = tuple(name for name in DIMENSIONS if name not in _STRATA)

TOKENS_PER_CHUNK = f"""
SELECT $__timeInterval(minute) AS time, if(provider = '', '(none)', provider) AS sender,
    sum(tokens) / sum(token_chunks) AS "tokens per chunk"
{_SERIES}
WHERE token_chunks > 0
GROUP BY time, sender
ORDER BY time, sender"""
MULTI_TOKEN = f"""
SELECT
    $__timeInterval(minute) AS time, if(provider = '', '(none)', provider) AS sender,
    sum(multi_token_share_sum) / sum(share_streams) AS "chunks with several tokens"
{_SERIES}
WHERE share_streams > 0
GROUP BY time, sender
ORDER BY time, sender"""
ENVELOPE = f"""
SELECT
    $__timeInterval(minute) AS time, if(provider = '', '(none)', provider) AS sender,
    (sum(enveloped_wire_bytes) - sum(enveloped_content_bytes)) / sum(enveloped_content_bytes) AS "envelope bytes per text byte"
{_SERIES}
GROUP BY time, sender
HAVING sum(enveloped_content_bytes) > 0
ORDER BY time, sender"""
RATES = f"""
SELECT
    $__timeInterval(minute) AS time, if(provider = '', '(none)', provider) AS sender,
    exp(sum(log_rate_sum) / sum(log_rate_streams)) AS "tokens per second",
    exp(sum(log_rate_sum) / sum(log_rate_streams)) / (sum(tokens) / sum(token_chunks)) AS "chunks per second"
{_SERIES}
GROUP BY time, sender
HAVING sum(log_rate_streams) > 0 AND sum(token_chunks) > 0
ORDER BY time, sender"""
# Intervals in which a provider's mean token rate met the contract, and the share of their streams with a gap over the limit.
PERCEPTUAL = f"""
SELECT time, sender, frozen AS "contract met, stream froze"
FROM
(
    SELECT
        $__timeInterval(minute) AS time, if(provider = '', '(none)', provider) AS sender, sum(bad_gap) / sum(judged) AS frozen,
        exp(sum(log_rate_sum) / sum(log_rate_streams)) AS rate
    {_SERIES}
    GROUP BY time, sender
    HAVING sum(log_rate_streams) > 0 AND sum(judged) > 0
)
WHERE rate >= {chosen_number("tokens_per_s")}
ORDER BY time, sender"""
HEAD_BURST = f"""
SELECT
    $__timeInterval(minute) AS time, if(provider = '', '(none)', provider) AS sender,
    sum(head_bursts) / sum(head_streams) AS "streams with an initial burst"
{_SERIES}
WHERE head_streams > 0
GROUP BY time, sender
ORDER BY time, sender"""
WEEKS = f"""
SELECT
    toMonday(minute) AS week, if(provider = '', '(none)', provider) AS sender, model, sum(streams) AS n,
    sum(tokens) / nullIf(sum(token_chunks), 0) AS "tokens per chunk",
    sum(multi_token_share_sum) / nullIf(sum(share_streams), 0) AS "chunks with several tokens",
    exp(sum(log_rate_sum) / nullIf(sum(log_rate_streams), 0)) AS "tokens per second",
    (sum(enveloped_wire_bytes) - sum(enveloped_content_bytes)) / nullIf(sum(enveloped_content_bytes), 0) AS "envelope bytes per text byte",
    sum(head_bursts) / nullIf(sum(head_streams), 0) AS "initial burst", sum(good) / nullIf(sum(judged), 0) AS goodput,
    {word("goodput", "goodput")} AS state
{_FROM}
GROUP BY week, sender, model
ORDER BY week DESC, sender, model
LIMIT 500"""
CHANGES = f"""
SELECT
    changed_at AS changed, kind, direction, if(provider = '', '(none)', provider) AS sender, service_name AS service, model, vantage,
    share_before AS "several tokens, before", share_after AS "after", tokens_per_chunk_before AS "tokens per chunk, before",
    tokens_per_chunk_after AS "now", rate_ratio AS "speed, ratio", streams_before AS "n before", streams_after AS "n after",
    alarmed_at AS alarmed
FROM chunking_changes FINAL
WHERE found AND $__timeFilter(changed_at)
    AND {filters(without=_KEPT)}
ORDER BY changed DESC, service, model, vantage
LIMIT 200"""


def _curves() -> list[Any]:
    """Curves over time."""
    return [
        lines(
            "Tokens per chunk",
            "By provider. A step up at the same token rate: the provider began to send several tokens per chunk, so the gaps between "
            "chunks grew.",
            TOKENS_PER_CHUNK,
            "short",
        ),
        lines(
            "Chunks with several tokens",
            "Share of a stream's chunks that hold more than one token; mean over streams.",
            MULTI_TOKEN,
            "percentunit",
        ),
        lines(
            "Token rate against chunk rate",
            "Tokens per second (geometric mean over streams) is what a contract names; chunks per second is what an end user sees. If "
            "the two diverge, text arrives in bursts.",
            RATES,
            "short",
        ),
        lines(
            "Contract met, stream froze",
            "The share of streams with a gap over the limit, in intervals in which the provider's tokens per second met the contract. A "
            "contract in tokens per second does not cover these.",
            PERCEPTUAL,
            "percentunit",
            scale="bad streams",
            empty="In no interval did a provider reach the tokens per second of the field Contract with streams that could be judged.",
        ),
    ]


def _tables() -> list[Any]:
    """Tables."""
    return [
        lines(
            "Envelope bytes per text byte",
            "Bytes of SSE framing, JSON and ids for each byte of text. The ratio falls when chunks get larger.",
            ENVELOPE,
            "short",
            empty="No stream of this range with the selected values has known sizes of its content and of the response body.",
        ),
        lines(
            "Initial bursts",
            "Share of streams with more than three times as many chunks in their first 200 ms as in 200 ms of their middle: the "
            "beginning was held back, so the TTFT is too late, or it came from a cache.",
            HEAD_BURST,
            "percentunit",
            empty="No stream of this range with the selected values was long enough to compare its beginning with its middle.",
        ),
        rows(
            "Changes in chunking",
            "Detected by a sequential test for each service, model, provider, route and vantage (on average at most one false alarm "
            "in 10,000 minutes, after a reference of one day). The date is the minute that best separates the two means. `rate "
            "change`: the token rate changed as well.",
            CHANGES,
            {"several tokens, before": "percentunit", "after": "percentunit", "speed, ratio": "percentunit"},
            height=7,
            empty="No change was detected in this range. The detector needs a reference of one day for each stratum.",
        ),
        rows(
            "By provider and week",
            "The same figures by week; n is streams.",
            WEEKS,
            {"chunks with several tokens": "percentunit", "initial burst": "percentunit", "goodput": "percentunit"},
            scales={"goodput": "goodput"},
        ),
    ]


def board() -> Kit:
    """The dashboard."""
    kit = Kit(
        "legato-chunking",
        "Legato · Chunking and contract",
        "How providers cut text into chunks, what they changed, and when. Text in bursts can meet a contract in tokens per second.",
        variables=DIMENSIONS,
        empty="No stream of this range with the selected values has known tokens per chunk. Choose a longer range, or All at the top.",
        first={"vantage": "client"},
        settings=[("tokens_per_s", "Contract, tokens per second", "The token rate that the contract names.", "20")],
        since="now-14d",
        refresh="5m",
    )
    kit.add(*_curves(), *_tables())
    return kit
