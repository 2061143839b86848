"""Chunking and contract: how providers cut text into chunks, what that does to readers while tokens/s stay the same, and since when."""

from __future__ import annotations

from typing import Any

from dashboards.panels import Kit, lines, rows
from dashboards.sql_fragments import DIMENSIONS, chosen_number, filters, rolled

__all__ = ["board"]

_FROM, _SERIES = rolled("stream", "streams"), rolled("stream", "streams", series=True)
# What a change was found in has no release and no transport: it is looked for over all of them.
_STRATA = ("tenant", "service", "model", "provider", "route", "vantage")
_KEPT = tuple(name for name in DIMENSIONS if name not in _STRATA)

TOKENS_PER_CHUNK = f"""
SELECT $__timeInterval(minute) AS time, if(provider = '', '(none)', provider) AS sender, sum(tokens) / sum(token_chunks) AS "tokens a chunk"
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
    (sum(enveloped_wire_bytes) - sum(enveloped_content_bytes)) / sum(enveloped_content_bytes) AS "envelope bytes a text byte"
{_SERIES}
GROUP BY time, sender
HAVING sum(enveloped_content_bytes) > 0
ORDER BY time, sender"""
RATES = f"""
SELECT
    $__timeInterval(minute) AS time, if(provider = '', '(none)', provider) AS sender,
    exp(sum(log_rate_sum) / sum(log_rate_streams)) AS "tokens a second",
    exp(sum(log_rate_sum) / sum(log_rate_streams)) / (sum(tokens) / sum(token_chunks)) AS "chunks a second"
{_SERIES}
GROUP BY time, sender
HAVING sum(log_rate_streams) > 0 AND sum(token_chunks) > 0
ORDER BY time, sender"""
# Points in which a provider's mean speed met what was bought, and of their streams those whose reader saw a gap over the limit.
PERCEPTUAL = f"""
SELECT time, sender, frozen AS "bought speed met, reader saw a freeze"
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
    sum(head_bursts) / sum(head_streams) AS "streams that began in a lump"
{_SERIES}
WHERE head_streams > 0
GROUP BY time, sender
ORDER BY time, sender"""
WEEKS = f"""
SELECT
    toMonday(minute) AS week, if(provider = '', '(none)', provider) AS sender, model, sum(streams) AS n,
    sum(tokens) / nullIf(sum(token_chunks), 0) AS "tokens a chunk",
    sum(multi_token_share_sum) / nullIf(sum(share_streams), 0) AS "chunks with several tokens",
    exp(sum(log_rate_sum) / nullIf(sum(log_rate_streams), 0)) AS "tokens a second",
    (sum(enveloped_wire_bytes) - sum(enveloped_content_bytes)) / nullIf(sum(enveloped_content_bytes), 0) AS "envelope bytes a text byte",
    sum(head_bursts) / nullIf(sum(head_streams), 0) AS "began in a lump", sum(good) / nullIf(sum(judged), 0) AS goodput
{_FROM}
GROUP BY week, sender, model
ORDER BY week DESC, sender, model
LIMIT 500"""
CHANGES = f"""
SELECT
    changed_at AS changed, kind, direction, if(provider = '', '(none)', provider) AS sender, service_name AS service, model, vantage,
    share_before AS "several tokens, before", share_after AS "after", tokens_per_chunk_before AS "tokens a chunk, before",
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
            "Tokens a chunk",
            "By provider. A step up at the same speed: it began to send several tokens at once, and gaps between chunks grew.",
            TOKENS_PER_CHUNK,
            "short",
        ),
        lines(
            "Chunks with several tokens",
            "Mean over streams of the share of their chunks that held more than one token.",
            MULTI_TOKEN,
            "percentunit",
        ),
        lines(
            "Token rate against chunk rate",
            "Tokens a second (geometric mean over streams) is what is bought; chunks a second is what is seen. When they part, text "
            "comes in lumps.",
            RATES,
            "short",
        ),
        lines(
            "Contract met, reader froze",
            "Where the provider's tokens a second met what was bought: the share of streams with a gap over the limit. "
            "This is what a "
            "contract in tokens a second does not cover.",
            PERCEPTUAL,
            "percentunit",
            limits="share",
        ),
    ]


def _tables() -> list[Any]:
    """Tables."""
    return [
        lines(
            "Envelope bytes a text byte",
            "SSE framing, JSON, ids: what is paid to carry one byte of text. Falls when chunks get larger.",
            ENVELOPE,
            "short",
        ),
        lines(
            "Began in a lump",
            "Streams whose first 200 ms brought more than three times what their middle brings: the beginning was held back (TTFT too "
            "late) or came "
            "from a cache.",
            HEAD_BURST,
            "percentunit",
            limits="share",
        ),
        rows(
            "Changes in chunking",
            "Found by a sequential test over each service, model, provider, route and vantage (one false alarm in 10,000 minutes at "
            "most on average, "
            "after a day of reference). The date is where the two means part best. `rate change`: the speed moved as well.",
            CHANGES,
            {"several tokens, before": "percentunit", "after": "percentunit", "speed, ratio": "percentunit"},
            height=7,
        ),
        rows(
            "By provider and week",
            "The same figures week by week, n streams.",
            WEEKS,
            {"chunks with several tokens": "percentunit", "began in a lump": "percentunit", "goodput": "percentunit"},
            limits={"goodput": "goodput"},
        ),
    ]


def board() -> Kit:
    """The dashboard."""
    kit = Kit(
        "legato-chunking",
        "Legato · Chunking and contract",
        "Tokens per second can be met with text that comes in lumps. What the provider changed, and when.",
        variables=DIMENSIONS,
        first={"vantage": "client"},
        settings=[("tokens_per_s", "Tokens a second bought", "The speed that the contract names.", "20")],
        since="now-14d",
        refresh="5m",
    )
    kit.add(*_curves(), *_tables())
    return kit
