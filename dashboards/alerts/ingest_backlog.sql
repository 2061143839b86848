-- Legato is behind or failing. Built by `python -m dashboards`.
WITH
    every AS
    (
        SELECT host, metric, value, at, last_at, max(began_at) OVER (PARTITION BY host) > last_at AS is_followed
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
        )
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
