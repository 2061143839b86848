"""Trace cost per chunk: the cost of tracing streams, by service, compared with other encodings, and why it changed."""

from __future__ import annotations

from dashboards.panels import Kit, bars, lines, number, rows
from dashboards.sample_sql import growth
from dashboards.sql_fragments import DIMENSIONS, chosen_number, rolled
from dashboards.storage_sql import AT_REST as AT_REST_SQL
from dashboards.storage_sql import BY_COLUMN, LEVERS, STORED_CHUNKS
from legato_ingest.definitions import ERRORS

__all__ = ["board"]

_FROM, _SERIES = rolled("stream", "streams"), rolled("stream", "streams", series=True)
_BEFORE = rolled("stream", "streams", before=True)
_PRICE_RECEIVED, _PRICE_KEPT, _MONTHS = (chosen_number(name) for name in ("price_received", "price_kept", "months_kept"))
_EVENT_BYTES, _SPAN_BYTES = chosen_number("event_bytes"), chosen_number("span_bytes")

# Bytes per chunk are those of emitters that send the times of chunks: another library's spans without chunks have bytes only.
_OF_CHUNKS = f"""
FROM (SELECT sum(otlp_bytes) AS bytes, sum(chunks) AS n_chunks {_FROM} GROUP BY service_name, emitter)
WHERE n_chunks > 0"""
RECEIVED = f"""
SELECT sum(bytes) / nullIf(sum(n_chunks), 0) AS "bytes per chunk", sum(n_chunks) AS "n chunks"
{_OF_CHUNKS}"""
AT_REST = f"""
SELECT {AT_REST_SQL} AS "bytes per chunk", {STORED_CHUNKS} AS "n chunks"
WHERE "n chunks" > 0"""
MONEY = f"""
SELECT
    1e6 / nullIf(sum(n_chunks), 0)
        * (sum(bytes) / 1e9 * {_PRICE_RECEIVED} + sum(n_chunks) * {AT_REST_SQL} / 1e9 * {_PRICE_KEPT} * {_MONTHS}) AS "per million chunks",
    sum(n_chunks) AS "n chunks"
{_OF_CHUNKS}"""
RATIO = f"""
SELECT {_EVENT_BYTES} * sum(n_chunks) / nullIf(sum(bytes), 0) AS "times, as span events",
    {_SPAN_BYTES} * sum(n_chunks) / nullIf(sum(bytes), 0) AS "times, as one span per chunk", sum(n_chunks) AS "n chunks"
{_OF_CHUNKS}"""
BY_EMITTER = f"""
SELECT
    service, sender AS emitter, n_streams AS streams, n_chunks AS chunks, bytes / n_streams AS "received per stream",
    bytes / nullIf(n_chunks, 0) AS "received per chunk",
    at_rest AS "at rest per chunk", n_chunks / n_streams AS "chunks per stream",
    (bytes / 1e9 * {_PRICE_RECEIVED} + n_chunks * at_rest / 1e9 * {_PRICE_KEPT} * {_MONTHS}) AS cost,
    cost / nullIf(n_chunks, 0) * 1e6 AS "cost per million chunks", cost / n_streams AS "cost per stream",
    n_chunks * {_EVENT_BYTES} / 1e9 * {_PRICE_RECEIVED} AS "received as span events",
    n_chunks * {_SPAN_BYTES} / 1e9 * {_PRICE_RECEIVED} AS "as one span per chunk"
FROM
(
    SELECT
        service_name AS service, emitter AS sender, sum(streams) AS n_streams, sum(chunks) AS n_chunks, sum(otlp_bytes) AS bytes,
        {AT_REST_SQL} AS at_rest
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
SELECT $__timeInterval(minute) AS time, service_name AS service, sum(otlp_bytes) / sum(chunks) AS "received per chunk"
{_SERIES}
WHERE chunks > 0
GROUP BY time, service
ORDER BY time, service"""
# bytes = tokens x chunks per token x bytes per chunk. Each factor's share of the difference is the logarithmic mean of the two costs times
# the logarithm of the factor's ratio (LMDI, Ang 2004): the three add up to the difference, without a remainder.
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
    if(b1 = b0, b1, (toFloat64(b1) - b0) / log(b1 / b0)) * log((b1 / c1) / (b0 / c0)) AS "more bytes per chunk",
    b0 AS "bytes before", b1 AS "bytes now", t0 / c0 AS "tokens per chunk before", t1 / c1 AS "tokens per chunk now"
FROM sums
ORDER BY abs("bytes more") DESC, service
LIMIT 200"""
_FAILED = " + ".join(f"outcomes['{outcome}']" for outcome in ERRORS if outcome != "abandoned")
CANCELLED = f"""
SELECT
    service_name AS service, sum(streams) AS n, sum(outcomes['client_cancel']) AS cancelled, sum(outcomes['abandoned']) AS abandoned,
    sum({_FAILED}) AS failed
{_FROM}
GROUP BY service
ORDER BY cancelled DESC, service
LIMIT 200"""
# The time of a process cannot be divided by service, so all chunks share it.
PROCESSOR = f"""
SELECT
    process, sum(grown) AS "processor time", (SELECT sum(chunks) {rolled("stream", "streams", only="true")}) AS "n chunks",
    "processor time" / nullIf("n chunks", 0) AS "per chunk"
FROM
({
    growth(
        "'legato_cpu_seconds_total', 'legato.agent.cpu.time'",
        "if(metric = 'legato.agent.cpu.time', 'legato-gpu-agent', 'legato serve') AS process",
    )
}
)
GROUP BY process
HAVING countIf(before IS NOT NULL OR samples > 1) > 0
ORDER BY process"""


def board() -> Kit:
    """The dashboard."""
    kit = Kit(
        "legato-cost",
        "Legato · Trace cost per chunk",
        "The cost of tracing every chunk, on the wire and at rest, and the cost of other encodings.",
        variables=DIMENSIONS,
        empty="No stream began in this range with the selected values. Choose a longer range, or All at the top.",
        settings=[
            ("price_received", "Price per GB received", "Price of your Collector, network or vendor per GB ingested.", "0.10"),
            ("price_kept", "Price per GB and month kept", "Price of a GB on disk per month.", "0.10"),
            ("months_kept", "Months kept", "Retention of rows: LEGATO_RETENTION_DAYS / 30.", "3"),
            ("event_bytes", "Bytes of a span event", "OTLP with the same attributes; measured by bench/wire.py.", "85"),
            ("span_bytes", "Bytes of one span per chunk", "OTLP with the same attributes; measured by bench/wire.py.", "106"),
        ],
        since="now-24h",
        refresh="5m",
    )
    _add_figures(kit)
    _add_tables(kit)
    _add_levers(kit)
    return kit


def _add_figures(kit: Kit) -> None:
    """The costs of this range as numbers and over time."""
    kit.add(
        number(
            "Received",
            "OTLP bytes per chunk with all attributes, before compression. Counts only the last span of each stream, not the "
            "snapshots before it.",
            RECEIVED,
            "decbytes",
            width=6,
            empty="no chunk in this range",
        ),
        number(
            "At rest",
            "Bytes on disk per chunk: the size of all tables (streams with their snapshots, steps, samples, verdicts, rollups), divided by "
            "the chunks of all stored streams. A reader of one tenant sees no sizes, and so neither this figure nor the cost.",
            AT_REST,
            "decbytes",
            width=6,
            empty="no chunk is stored",
        ),
        number(
            "Cost",
            "Cost of receiving and keeping a million chunks, at the prices in the fields at the top.",
            MONEY,
            "currencyUSD",
            width=6,
            empty="no chunk in this range",
        ),
        number(
            "Compared with other encodings",
            "How many times the received bytes the same chunks would take as span events, or as one span per chunk.",
            RATIO,
            "none",
            width=6,
            empty="no chunk in this range",
        ),
        bars(
            "Bytes received by service",
            "OTLP bytes over time. If they rose: Why the cost changed, below, separates more text from smaller chunks.",
            BYTES_OVER_TIME,
            "decbytes",
        ),
        lines(
            "Bytes received per chunk",
            "OTLP bytes per chunk by service. They rise when streams get shorter, because a stream's attributes weigh more, and fall when "
            "streams get longer.",
            PER_CHUNK_OVER_TIME,
            "decbytes",
        ),
    )


def _add_tables(kit: Kit) -> None:
    """Why the cost changed, and the cost by service, emitter and cancelled streams."""
    money = {
        name: "currencyUSD"
        for name in ("cost", "cost per million chunks", "cost per stream", "received as span events", "as one span per chunk")
    }
    kit.add(
        rows(
            "Why the cost changed",
            "This range compared with the one of equal length before it: bytes = tokens × chunks per token × bytes per chunk. The "
            "three parts add up to the difference. `smaller chunks` is the cost of the provider's chunking. Streams without known "
            "token counts are left out.",
            CHANGE,
            empty="There is nothing to compare: no service has streams with known token counts both in this range and in the one before.",
            units={
                name: "decbytes"
                for name in ("bytes more", "more tokens", "smaller chunks", "more bytes per chunk", "bytes before", "bytes now")
            },
            height=7,
        ),
        rows(
            "By service and emitter",
            "At rest is the mean of the entire store. The last two columns: cost of receiving the same chunks as span events, or as "
            "one span per chunk, at the same price.",
            BY_EMITTER,
            {**money, "received per stream": "decbytes", "received per chunk": "decbytes", "at rest per chunk": "decbytes"},
        ),
        rows(
            "Streams not read to the end",
            "Streams that were generated and paid for, and not read to the end, by how they ended. If they rise after longer gaps, see the "
            "dashboard Streams.",
            CANCELLED,
            height=6,
        ),
    )


def _add_levers(kit: Kit) -> None:
    """Where bytes and processor time go, and the settings that would save bytes."""
    kit.add(
        rows(
            "What would save bytes",
            "How much less the store would take with each setting. The savings do not add up. Timelines are charged to days by their "
            "number of streams. Replaced snapshots vanish in merges; on the wire they cost more. No figure: no part of 10 MB is stored "
            "yet, or no rollup.",
            LEVERS,
            {"saves": "decbytes", "saves per chunk": "decbytes", "share of the store": "percentunit"},
            width=14,
            height=8,
        ),
        rows(
            "Processor time per chunk",
            "Processor time in the range, divided by the chunks of all streams in the range. `legato serve` includes attribution, rollups "
            "and queries, and ClickHouse if the store is embedded. The SDK does not measure its time: bench/sdk.py has 1 µs per chunk. "
            "A process that reports no processor time (earlier versions) is not in the table.",
            PROCESSOR,
            {"processor time": "s", "per chunk": "s"},
            width=10,
            height=8,
        ),
        rows(
            "Where the bytes are",
            "The entire store by table and column. ClickHouse divides the size of a part by columns from 10 MB on; the rest of a table is "
            "one row.",
            BY_COLUMN,
            {"on disk": "decbytes", "per chunk": "decbytes", "share of the store": "percentunit"},
        ),
    )
