-- A Collector cannot deliver. Built by `python -m dashboards`.
SELECT host, exporter, toUInt8(max(used) > 0.5) AS firing, max(used) AS in_use
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
