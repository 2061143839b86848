-- A Collector cannot deliver. Built by `python -m dashboards`.
WITH
    latest AS
    (
        SELECT host, attributes['exporter'] AS exporter, metric, argMax(value, recorded_at) AS value
        FROM node_samples FINAL
        WHERE recorded_at > now() - INTERVAL 10 MINUTE AND metric IN ('otelcol_exporter_queue_size', 'otelcol_exporter_queue_capacity')
        GROUP BY host, exporter, metric
    )
SELECT
    host, exporter, toUInt8(coalesce(in_use, 0) > 0.5) AS firing,
    maxIf(value, metric = 'otelcol_exporter_queue_size') / nullIf(maxIf(value, metric = 'otelcol_exporter_queue_capacity'), 0) AS in_use
FROM latest
GROUP BY host, exporter
HAVING in_use IS NOT NULL
ORDER BY firing DESC, host, exporter
LIMIT 1000
