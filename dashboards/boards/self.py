"""Self-monitoring: what Legato received, stored, rejected and dropped, its lag, and the size of its store."""

from __future__ import annotations

from typing import Any

from dashboards.panels import Kit, bars, lines, number, rows
from dashboards.sample_sql import growth, values
from dashboards.scales import word
from dashboards.sql_fragments import SECONDS_OF_POINT, in_whole_minutes, rolled
from legato_ingest.emitters import EMITTERS
from legato_ingest.quoting import parameter

__all__ = ["board"]


def _gauge(metric: str, label: str = "") -> str:
    named = f"attributes['{label}']" if label else f"'{metric}'"
    return f"""
SELECT $__timeInterval(at) AS time, {named} AS what, max(value_max) AS value
FROM {values(f"'{metric}'")}
GROUP BY time, what
ORDER BY time, what"""


# A counter with labels has no sample before its first event: where its series begins after its process, it grew from 0. Of the 5-minute
# rollup, a row of a series that begins within the process's first period has fewer samples than the process.
_INSTANCE = "host, attributes['service.instance.id'] AS instance"
_PROCESSES = f"""
    SELECT tenant, {_INSTANCE}, min(at) AS began_at, argMin(samples, at) AS samples_then
    FROM {values("'legato_up'")}
    GROUP BY tenant, host, instance"""
_IS_NEW = "before IS NULL AND samples_then > 0 AND (at > began_at OR samples < samples_then)"


def _rates(metrics: str, named: str) -> str:
    return f"""
SELECT $__timeInterval(at) AS time, what, 60 * sum(grown + if({_IS_NEW}, first_value, 0)) / {SECONDS_OF_POINT} AS "per minute"
FROM
({growth(metrics, f"{named} AS what, tenant, {_INSTANCE}, first_value")}
) AS counters
LEFT JOIN
({_PROCESSES}
) AS processes USING (tenant, host, instance)
WHERE {in_whole_minutes("at")}
GROUP BY time, what
ORDER BY time, what"""


STORED = f"""
SELECT sum(streams) AS streams, sum(chunks) AS "n chunks"
{rolled("stream", "streams", only="true")}
HAVING streams > 0"""
REJECTED = f"""
SELECT count() AS rejected, if(rejected = 0, NULL, {word("rejections", "rejected")}) AS state, uniqExact(reason) AS "n reasons"
FROM rejected FINAL
WHERE $__timeFilter_ms(received_at)"""
LAST_ROLLUP = """
SELECT dateDiff('second', max(ran_at), now()) AS "ago", sum(minutes) AS "n minutes"
FROM rollup_runs
WHERE $__timeFilter_ms(ran_at)
HAVING count() > 0"""
SIZE = """
SELECT sum(bytes_on_disk) AS "on disk", sum(rows) AS "n rows"
FROM system.parts
WHERE active AND database = currentDatabase()
HAVING "n rows" > 0"""
RECEIVED = _rates(
    "'legato_received_spans_total', 'legato_stored_spans_total', 'legato_duplicate_spans_total', 'legato_ignored_spans_total'",
    "replaceRegexpOne(metric, '^legato_(.*)_spans_total$', '\\\\1')",
)
POINTS = _rates("'legato_points_total'", "attributes['outcome']")
REJECTIONS = _rates(
    "'legato_rejected_spans_total', 'legato_rejected_points_total'",
    "concat(if(metric LIKE '%points%', 'points: ', 'spans: '), attributes['reason'])",
)
ERRORS = _rates("'legato_errors_total'", "concat(attributes['stage'], ': ', attributes['type'])")
REPLIES = _rates(
    "'legato_requests_total', 'legato_queries_total'",
    "concat(if(metric LIKE '%queries%', 'read ', 'OTLP '), attributes['status'], attributes['result'])",
)
COMMIT_LAG = """
SELECT
    $__timeInterval(received_at) AS time, quantileExact(0.5)(late) AS "median", quantileExact(0.99)(late) AS "p99"
FROM
(
    SELECT received_at, greatest(0, dateDiff('millisecond', addNanoseconds(start_time, duration_ns), received_at)) / 1000 AS late
    FROM stream_revs
    WHERE $__timeFilter_ms(received_at) AND ended AND outcome != 'superseded'
        AND received_at >= $__toTime_ms - INTERVAL 1 HOUR
)
GROUP BY time
ORDER BY time"""
LAGS = f"""
SELECT $__timeInterval(at) AS time, replaceRegexpOne(metric, '^legato_(.*)_lag_seconds$', '\\\\1') AS what, max(value_max) AS seconds
FROM {values("'legato_rollup_lag_seconds', 'legato_attribution_lag_seconds'")}
GROUP BY time, what
ORDER BY time, what"""
COLLECTOR = f"""
SELECT
    $__timeInterval(at) AS time, concat(if(host = '', '(none)', host), ' · ', attributes['exporter']) AS exporter,
    maxOrNullIf(value_max, metric LIKE '%queue_size%') / nullIf(maxIf(value_max, metric LIKE '%capacity%'), 0) AS "queue in use"
FROM {values("'otelcol_exporter_queue_size', 'otelcol_exporter_queue_capacity'")}
GROUP BY time, exporter
HAVING countIf(metric LIKE '%capacity%') > 0
ORDER BY time, exporter"""
REASONS = """
SELECT reason, detail, if(emitter = '', '(none)', emitter) AS emitter, service_name AS service, count() AS n, max(received_at) AS newest
FROM rejected FINAL
WHERE $__timeFilter_ms(received_at)
GROUP BY reason, detail, emitter, service
ORDER BY n DESC, reason, detail
LIMIT 200"""
_NAMES = [each.name for each in EMITTERS]
_MISSING = [each.missing for each in EMITTERS]
SENDERS = f"""
SELECT
    service_name AS service, if(emitter = '', concat(scope, ' ', scope_version), emitter) AS "emitter or scope",
    sumIf(spans, result = 'stored') AS stored, sumIf(spans, result = 'same_response') AS "of a stored response",
    sumIf(spans, result = 'ignored') AS ignored,
    arrayStringConcat(arraySort(groupUniqArrayIf(reason, result = 'ignored')), ', ') AS reasons,
    transform(splitByChar('/', emitter)[1], {parameter(_NAMES)}, {parameter(_MISSING)}, '') AS "its rows cannot say"
FROM emitter_spans
WHERE $__timeFilter_ms(received_at)
GROUP BY service, "emitter or scope", "its rows cannot say"
ORDER BY stored DESC, ignored DESC, service, "emitter or scope"
LIMIT 200"""
TABLES = """
SELECT table, sum(rows) AS n, sum(bytes_on_disk) AS "on disk", count() AS parts, nullIf(min(min_time), toDateTime(0)) AS oldest
FROM system.parts
WHERE active AND database = currentDatabase()
GROUP BY table
ORDER BY "on disk" DESC, table"""


def _figures() -> list[Any]:
    """Single figures."""
    return [
        number(
            "Streams stored",
            "Streams that began in the range, at all vantages, and their chunks.",
            STORED,
            "short",
            width=6,
            empty="no stream began in this range",
        ),
        number(
            "Rejected",
            "Spans and points rejected in the range. The reasons are below, each with what was expected.",
            REJECTED,
            "short",
            "rejections",
            width=6,
            empty="nothing rejected",
        ),
        number(
            "Newest rollup",
            "Dashboards and alerts read rollups, which are computed when data arrives. An old rollup is healthy if no data arrives.",
            LAST_ROLLUP,
            "s",
            width=6,
            empty="no rollup in this range",
        ),
        number("Store", "Bytes and rows on disk.", SIZE, "decbytes", width=6, empty="the store is empty"),
    ]


def _curves() -> list[Any]:
    """Curves."""
    return [
        lines(
            "Spans",
            "Spans per minute, by what happened to them. duplicate: sent again after a retry, stored once. ignored: of no kind that Legato "
            "stores.",
            RECEIVED,
            "short",
        ),
        lines(
            "Data points",
            "Data points of metrics per minute (engines, GPUs, hosts, Collectors), by what happened to them.",
            POINTS,
            "short",
        ),
        bars(
            "Rejections over time",
            "Spans and points that were not stored, by reason. The usual cause is a new release of an emitter.",
            REJECTIONS,
            "short",
            empty="Nothing was rejected in this range, or legato serve was not running.",
        ),
        bars(
            "Errors by stage and type",
            "Errors of Legato itself or of its disk. There should be none; the log of legato serve has the details.",
            ERRORS,
            "short",
            empty="No error in this range, or legato serve was not running.",
        ),
        lines(
            "Responses",
            "Replies to senders (OTLP) and readers (read) per minute. 429 and 503: the store cannot keep up, and senders retry. `denied`: "
            "wrong password.",
            REPLIES,
            "short",
        ),
        lines(
            "Delay from stream end to row",
            "Senders batch for a second, and an insert gathers requests for up to 8 s, without readers 50 s. A delay of minutes: a sender "
            "or a Collector could not deliver. Covers the last hour of the range.",
            COMMIT_LAG,
            "s",
            empty="No stream was stored in the last hour of this range.",
        ),
        lines("Worker lag", "Seconds that rollups and attribution are behind the data in the store.", LAGS, "s"),
        lines(
            "Insert queue",
            "Bytes of requests that wait for their insert. At LEGATO_QUEUE_BYTES_MAX senders receive 429.",
            _gauge("legato_queue_bytes"),
            "decbytes",
        ),
        lines(
            "Collector queues",
            "Share of each exporter's queue in use. At 100 % the Collector replies 503, and senders keep what they can.",
            COLLECTOR,
            "percentunit",
            scale="queue",
            empty="No Collector sent its own metrics in this range. collector/README.md describes how a Collector exports them.",
        ),
        lines("Store size", "Bytes on disk by table.", _gauge("legato_store_bytes", "table"), "decbytes"),
    ]


def _tables() -> list[Any]:
    """Tables."""
    return [
        rows(
            "Rejected by reason",
            "What was wrong with each span or point, with names and types but never with values.",
            REASONS,
            width=12,
            empty="Nothing was rejected in this range.",
        ),
        rows("Tables", "Rows, bytes and parts by table.", TABLES, {"on disk": "decbytes"}, width=12),
        rows(
            "Emitters",
            "Spans of other libraries than Legato's, by what became of them. Of a stored response: another row of it is richer. "
            "Counts of receipts: a request that was sent twice counts twice.",
            SENDERS,
            width=24,
            empty="No other library than Legato's sent spans in this range.",
        ),
    ]


def board() -> Kit:
    """The dashboard."""
    kit = Kit(
        "legato-self",
        "Legato · Self-monitoring",
        "Is what the other dashboards show complete, and how fresh is it?",
        variables={},
        empty="legato serve recorded no metrics about itself in this range: it was not running.",
        annotated=False,
        since="now-3h",
        refresh="30s",
    )
    kit.add(*_figures(), *_curves(), *_tables())
    return kit
