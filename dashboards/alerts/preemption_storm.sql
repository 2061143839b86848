-- An engine preempts continuously. Built by `python -m dashboards`.
SELECT
    tenant, engine_id AS engine, toUInt8(countIf(preempted > 0) >= 30) AS firing, countIf(preempted > 0) AS minutes_preempting,
    sum(preempted) AS requests_preempted, round(max(kv_used_max_ppm) / 1e6, 3) AS kv_used_max
FROM engine_minutes FINAL
WHERE minute > now() - INTERVAL 1 HOUR AND minute <= now() AND steps > 0
GROUP BY tenant, engine
ORDER BY firing DESC, engine
LIMIT 1000
