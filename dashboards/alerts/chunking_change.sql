-- A provider changed its chunking. Built by `python -m dashboards`.
SELECT
    tenant, service_name AS service, model, provider, route, vantage,
    toUInt8(argMax(found AND alarmed_at > now() - INTERVAL 1 DAY, changed_at)) AS firing,
    round(argMax(share_before, changed_at), 4) AS share_before, round(argMax(share_after, changed_at), 4) AS share_after,
    round(argMax(rate_ratio, changed_at), 3) AS rate_ratio, toUnixTimestamp(max(changed_at)) AS changed_s
FROM chunking_changes FINAL
WHERE found AND changed_at > now() - INTERVAL 30 DAY
GROUP BY tenant, service, model, provider, route, vantage
ORDER BY firing DESC, service, model
LIMIT 1000
