-- Running streams stand still. Built by `python -m dashboards`.
WITH
    silent AS
    (
        SELECT
            tenant, service_name AS service, vantage, trace_id, silence_us,
            -- The incident pages once, at the vantage nearest to the end user.
            indexOf(['engine', 'server', 'gateway', 'client', 'screen'], vantage::String) < max(indexOf(['engine', 'server', 'gateway', 'client', 'screen'], vantage::String)) OVER (PARTITION BY tenant, trace_id) AS is_covered
        FROM stalled_streams
        WHERE reported_us >= 8000000 AND gap_start_us > 0
    ),
    flying AS
    (
        SELECT tenant, service_name AS service, vantage, sum(streams) AS running
        FROM streams_in_flight
        GROUP BY tenant, service, vantage
    )
SELECT
    tenant, service, vantage,
    toUInt8(stalled >= 3 AND stalled >= 0.1 * in_flight AND covered < 0.5 * stalled) AS firing,
    stalled, greatest(running, stalled) AS in_flight, round(longest_us / 1e6) AS longest_s, covered
FROM
(
    SELECT tenant, service, vantage, count() AS stalled, countIf(is_covered) AS covered, max(silence_us) AS longest_us
    FROM silent
    GROUP BY tenant, service, vantage
) AS standing
LEFT JOIN flying USING (tenant, service, vantage)
ORDER BY firing DESC, stalled DESC, service, vantage
LIMIT 1000
