"""Trace cost per chunk: what tracing streams costs, by whom, against other ways of doing it, and why it changed."""

from __future__ import annotations

from dashboards.panels import Kit, bars, lines, number, rows
from dashboards.sql_fragments import DIMENSIONS, chosen_number, rolled

__all__ = ["board"]

_FROM, _SERIES = rolled("stream", "streams"), rolled("stream", "streams", series=True)
_BEFORE = rolled("stream", "streams", before=True)
# The whole store's bytes a chunk: a service's rows lie among others', so its chunks are charged at the mean.
_AT_REST = """(
    SELECT (SELECT sum(bytes_on_disk) FROM system.parts WHERE active AND database = currentDatabase() AND table = 'stream_revs')
        / nullIf((SELECT sum(chunks) FROM stream_hours FINAL), 0)
)"""
_PRICE_RECEIVED, _PRICE_KEPT, _MONTHS = (chosen_number(name) for name in ("price_received", "price_kept", "months_kept"))
_EVENT_BYTES, _SPAN_BYTES = chosen_number("event_bytes"), chosen_number("span_bytes")

RECEIVED = f"""
SELECT sum(otlp_bytes) / nullIf(sum(chunks), 0) AS "bytes a chunk", sum(chunks) AS "n chunks"
{_FROM}"""
AT_REST = f"""
SELECT {_AT_REST} AS "bytes a chunk", (SELECT sum(chunks) FROM stream_hours FINAL) AS "n chunks"
WHERE "n chunks" > 0"""
MONEY = f"""
SELECT
    (sum(otlp_bytes) / 1e9 * {_PRICE_RECEIVED} + sum(chunks) * any(at_rest) / 1e9 * {_PRICE_KEPT} * {_MONTHS}) / nullIf(sum(chunks),
    0) * 1e6
        AS "a million chunks",
    sum(chunks) AS "n chunks"
FROM (SELECT otlp_bytes, chunks, {_AT_REST} AS at_rest {_FROM})"""
RATIO = f"""
SELECT {_EVENT_BYTES} / nullIf(sum(otlp_bytes) / nullIf(sum(chunks), 0), 0) AS "span events",
    {_SPAN_BYTES} / nullIf(sum(otlp_bytes) / nullIf(sum(chunks), 0), 0)
    AS "a span a chunk", sum(chunks) AS "n chunks"
{_FROM}"""
BY_EMITTER = f"""
SELECT
    service, sender AS emitter, n_streams AS streams, n_chunks AS chunks, bytes / n_streams AS "received a stream",
    bytes / nullIf(n_chunks, 0) AS "received a chunk",
    at_rest AS "at rest a chunk", n_chunks / n_streams AS "chunks a stream",
    (bytes / 1e9 * {_PRICE_RECEIVED} + n_chunks * at_rest / 1e9 * {_PRICE_KEPT} * {_MONTHS}) AS cost,
    cost / nullIf(n_chunks, 0) * 1e6 AS "cost a million chunks", cost / n_streams AS "cost a stream",
    n_chunks * {_EVENT_BYTES} / 1e9 * {_PRICE_RECEIVED} AS "received as span events",
    n_chunks * {_SPAN_BYTES} / 1e9 * {_PRICE_RECEIVED} AS "as a span each"
FROM
(
    SELECT
        service_name AS service, emitter AS sender, sum(streams) AS n_streams, sum(chunks) AS n_chunks, sum(otlp_bytes) AS bytes,
        {_AT_REST} AS at_rest
    {_FROM}
    GROUP BY service, sender
)
ORDER BY bytes DESC, service, emitter
LIMIT 200"""
BYTES_OVER_TIME = f"""
SELECT $__timeInterval(minute) AS time, service_name AS service, sum(otlp_bytes) AS bytes
{_SERIES}
GROUP BY time, service
ORDER BY time, service"""
PER_CHUNK_OVER_TIME = f"""
SELECT $__timeInterval(minute) AS time, service_name AS service, sum(otlp_bytes) / sum(chunks) AS "received a chunk"
{_SERIES}
WHERE chunks > 0
GROUP BY time, service
ORDER BY time, service"""
# bytes = tokens x chunks a token x bytes a chunk. Each factor's share of the difference is the logarithmic mean of the two bills times the
# logarithm of the factor's ratio (LMDI, Ang 2004): the three add up to the difference, without a rest.
CHANGE = f"""
WITH
    sums AS
    (
        SELECT
            service_name AS service, sumIf(token_otlp_bytes, now) AS b1, sumIf(token_otlp_bytes, NOT now) AS b0,
            sumIf(tokens, now) AS t1, sumIf(tokens, NOT now) AS t0, sumIf(token_chunks, now) AS c1, sumIf(token_chunks, NOT now) AS c0
        FROM
        (
            SELECT service_name, token_otlp_bytes, tokens, token_chunks, true AS now {_FROM}
            UNION ALL
            SELECT service_name, token_otlp_bytes, tokens, token_chunks, false {_BEFORE}
        )
        GROUP BY service
        HAVING b0 > 0 AND b1 > 0 AND t0 > 0 AND t1 > 0 AND c0 > 0 AND c1 > 0
    )
SELECT
    service, toInt64(b1) - toInt64(b0) AS "bytes more", if(b1 = b0, b1,
    (toFloat64(b1) - b0) / log(b1 / b0)) * log(t1 / t0) AS "more tokens",
    if(b1 = b0, b1, (toFloat64(b1) - b0) / log(b1 / b0)) * log((c1 / t1) / (c0 / t0)) AS "smaller chunks",
    if(b1 = b0, b1, (toFloat64(b1) - b0) / log(b1 / b0)) * log((b1 / c1) / (b0 / c0)) AS "more bytes a chunk",
    b0 AS "bytes before", b1 AS "bytes now", t0 / c0 AS "tokens a chunk before", t1 / c1 AS "tokens a chunk now"
FROM sums
ORDER BY abs("bytes more") DESC, service
LIMIT 200"""
CANCELLED = f"""
SELECT
    service_name AS service, sum(streams) AS n, sum(outcomes['client_cancel']) AS cancelled, sum(outcomes['abandoned']) AS abandoned,
    sum(outcomes['timeout'] + outcomes['upstream_error'] + outcomes['engine_abort']) AS failed
{_FROM}
GROUP BY service
ORDER BY cancelled DESC, service
LIMIT 200"""


def board() -> Kit:
    """The dashboard."""
    kit = Kit(
        "legato-cost",
        "Legato · Trace cost per chunk",
        "What tracing every chunk costs, on the wire and at rest, and what else it could cost.",
        variables=DIMENSIONS,
        settings=[
            ("price_received", "Price a GB received", "What your collector, network or vendor takes for a GB ingested.", "0.10"),
            ("price_kept", "Price a GB and month kept", "What a GB on disk costs a month.", "0.10"),
            ("months_kept", "Months kept", "How long rows stay: LEGATO_RETENTION_DAYS / 30.", "3"),
            ("event_bytes", "Bytes of a span event", "OTLP, with the same facts; measured by bench/wire.py.", "85"),
            ("span_bytes", "Bytes of a span a chunk", "OTLP, with the same facts; measured by bench/wire.py.", "106"),
        ],
        since="now-24h",
        refresh="5m",
    )
    money = {
        name: "currencyUSD" for name in ("cost", "cost a million chunks", "cost a stream", "received as span events", "as a span each")
    }
    kit.add(
        number(
            "Received",
            "OTLP bytes a chunk, all attributes included, before compression on the wire; of each stream's last span, without the "
            "snapshots before it.",
            RECEIVED,
            "decbytes",
            width=6,
        ),
        number(
            "At rest",
            "Bytes on disk a chunk: the table of streams over all chunks in it, statistics included.",
            AT_REST,
            "decbytes",
            width=6,
        ),
        number("Cost", "Received and kept, at the prices above.", MONEY, "currencyUSD", width=6),
        number("Against other ways", "So many times more bytes would the same chunks be on the wire.", RATIO, "x", width=6),
        bars("Bytes received by service", "A bill that grew: more streams, or smaller chunks? See below.", BYTES_OVER_TIME, "decbytes"),
        lines(
            "Bytes received a chunk",
            "Rises when streams get shorter (their attributes weigh more), falls with long ones.",
            PER_CHUNK_OVER_TIME,
            "decbytes",
        ),
        rows(
            "Why the bill changed",
            "This range against the one of equal length before it: bytes = tokens × chunks a token × bytes a chunk. The three parts add "
            "up to the "
            "difference. `smaller chunks` is what the provider's chunking costs you. Streams whose tokens are not known are left out.",
            CHANGE,
            {
                name: "decbytes"
                for name in ("bytes more", "more tokens", "smaller chunks", "more bytes a chunk", "bytes before", "bytes now")
            },
            height=7,
        ),
        rows(
            "By service and emitter",
            "n is streams and chunks. At rest is the whole store's mean. The last two columns: the same chunks as span "
            "events, or as a span each, received at the same price.",
            BY_EMITTER,
            {**money, "received a stream": "decbytes", "received a chunk": "decbytes", "at rest a chunk": "decbytes"},
        ),
        rows(
            "Streams that nobody read to the end",
            "Generated, paid for, and left. A rise after longer gaps: see Streams.",
            CANCELLED,
            height=6,
        ),
    )
    return kit
