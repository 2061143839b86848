"""The SQL of the rules on causes and on Legato itself: one row per subject, with ``firing`` (1 or 0) and figures.

These rules create tickets: they report conditions that may affect end users later or that make the data incomplete. Conditions that affect
end users now page by their burn rate (`burn`). The statements use no dashboard variables.
"""

from __future__ import annotations

__all__ = ["CHUNKING", "COLLECTOR", "INGEST", "PREEMPTION"]

# Preemptions in half of the minutes of an hour: the KV cache is too small for the load. A burst that affects end users pages by its
# burn rate.
PREEMPTION = """SELECT
    tenant, engine_id AS engine, toUInt8(countIf(preempted > 0) >= 30) AS firing, countIf(preempted > 0) AS minutes_preempting,
    sum(preempted) AS requests_preempted, round(max(kv_used_max_ppm) / 1e6, 3) AS kv_used_max
FROM engine_minutes FINAL
WHERE minute > now() - INTERVAL 1 HOUR AND minute <= now() AND steps > 0
GROUP BY tenant, engine
ORDER BY firing DESC, engine
LIMIT 1000
"""
# A change fires for a day after its detection.
CHUNKING = """SELECT
    tenant, service_name AS service, model, provider, route, vantage,
    toUInt8(argMax(found AND alarmed_at > now() - INTERVAL 1 DAY, changed_at)) AS firing,
    round(argMax(share_before, changed_at), 4) AS share_before, round(argMax(share_after, changed_at), 4) AS share_after,
    round(argMax(rate_ratio, changed_at), 3) AS rate_ratio, toUnixTimestamp(max(changed_at)) AS changed_s
FROM chunking_changes FINAL
WHERE found AND changed_at > now() - INTERVAL 30 DAY
GROUP BY tenant, service, model, provider, route, vantage
ORDER BY firing DESC, service, model
LIMIT 1000
"""
# The newest figures of each instance; those without a name are one. Self-monitoring has no tenant, so no tenant's sender can change them.
# An instance is followed if another one of its host began after its last sample: it was restarted.
_LATEST = """SELECT host, metric, value, at, last_at, max(began_at) OVER (PARTITION BY host) > last_at AS is_followed
        FROM
        (
            SELECT
                host, metric, value, at, max(at) OVER (PARTITION BY host, instance) AS last_at,
                min(since) OVER (PARTITION BY host, instance) AS began_at
            FROM
            (
                SELECT
                    host, attributes['service.instance.id'] AS instance, metric, argMax(value, recorded_at) AS value,
                    max(recorded_at) AS at, min(recorded_at) AS since
                FROM node_samples FINAL
                WHERE tenant = '' AND recorded_at > now() - INTERVAL 1 DAY AND metric IN
                    ('legato_rollup_lag_seconds', 'legato_attribution_lag_seconds', 'legato_trace_export_lag_seconds', 'legato_queue_bytes',
                    'legato_queue_bytes_max', 'legato_up')
                GROUP BY host, instance, metric
            )
        )"""
INGEST = f"""WITH
    every AS
    (
        {_LATEST}
    ),
    latest AS (SELECT * FROM every WHERE at > now() - INTERVAL 1 HOUR AND NOT is_followed),
    -- A counter appears with its first failure and restarts with its process; in both cases it counts from 0. A restarted one may have the
    -- value of before again, or a larger one: its start time shows the restart. A trace backend that is away for a moment costs no span, so
    -- its failures are left out: the lag shows whether it stays away.
    grown AS
    (
        SELECT host, sumIf(if(is_restarted, value, value - before), recorded_at > now() - INTERVAL 10 MINUTE) AS failures
        FROM
        (
            SELECT
                host, value, recorded_at, lagInFrame(value, 1, 0) OVER of_series AS before,
                value < before OR ifNull(start_time != lagInFrame(start_time) OVER of_series, false) AS is_restarted
            FROM node_samples FINAL
            WHERE tenant = '' AND metric = 'legato_errors_total' AND attributes['stage'] != 'trace_export'
                AND recorded_at > now() - INTERVAL 1 DAY
            WINDOW of_series AS (PARTITION BY tenant, series ORDER BY recorded_at ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)
        )
        GROUP BY host
    )
SELECT host, what, toUInt8(value > bound) AS firing, round(value, 3) AS value, bound
FROM
(
    SELECT host, 'rollups behind, s' AS what, maxIf(value, metric = 'legato_rollup_lag_seconds') AS value, 120. AS bound
    FROM latest
    GROUP BY host
    UNION ALL
    SELECT host, 'attribution behind, s', maxIf(value, metric = 'legato_attribution_lag_seconds'), 600. FROM latest GROUP BY host
    UNION ALL
    SELECT host, 'trace export behind, s', maxIf(value, metric = 'legato_trace_export_lag_seconds'), 900. FROM latest GROUP BY host
    UNION ALL
    SELECT
        host, 'queue in use',
        maxIf(value, metric = 'legato_queue_bytes') / nullIf(maxIf(value, metric = 'legato_queue_bytes_max'), 0) AS used, 0.5
    FROM latest
    GROUP BY host
    HAVING used IS NOT NULL
    UNION ALL
    -- A process that was stopped, as in a deploy, has 0 in its last sample of `legato_up`. One that was killed is silent for a day.
    SELECT host, 'silent, s', max(toFloat64(dateDiff('second', last_at, now()))), 300.
    FROM
    (
        SELECT host, last_at
        FROM every
        WHERE NOT is_followed
        GROUP BY host, last_at
        HAVING countIf(metric = 'legato_up' AND value = 0) = 0
    )
    GROUP BY host
    UNION ALL
    SELECT host, 'failures in 10 minutes', failures, 0. FROM grown
)
WHERE value IS NOT NULL
ORDER BY firing DESC, host, what
LIMIT 1000
"""
# The fullest queue of an exporter, which has one queue per signal. Collectors without a host name are evaluated separately by attributes.
COLLECTOR = """SELECT host, exporter, toUInt8(max(used) > 0.5) AS firing, max(used) AS in_use
FROM
(
    SELECT
        host, attributes['exporter'] AS exporter,
        argMaxIf(value, recorded_at, metric = 'otelcol_exporter_queue_size')
            / nullIf(argMaxIf(value, recorded_at, metric = 'otelcol_exporter_queue_capacity'), 0) AS used
    FROM node_samples FINAL
    WHERE recorded_at > now() - INTERVAL 10 MINUTE AND metric IN ('otelcol_exporter_queue_size', 'otelcol_exporter_queue_capacity')
    GROUP BY tenant, host, exporter, attributes
    HAVING used IS NOT NULL
)
GROUP BY host, exporter
ORDER BY firing DESC, host, exporter
LIMIT 1000
"""
