-- Running streams stand still. Built by `python -m dashboards`.
WITH
    silent AS
    (
        SELECT tenant, service_name AS service, vantage, trace_id, silence_us, indexOf(['engine', 'server', 'gateway', 'client', 'screen'], vantage::String) AS place
        FROM stalled_streams
        WHERE reported_us >= 8000000 AND gap_start_us > 0
    ),
    flying AS
    (
        SELECT tenant, service_name AS service, vantage, sum(streams) AS running
        FROM streams_in_flight
        GROUP BY tenant, service, vantage
    ),
    standing AS
    (
        SELECT
            tenant, service, vantage, stalled, greatest(running, stalled) AS in_flight, longest_us,
            stalled >= 3 AND stalled >= 0.1 * in_flight AS is_enough
        FROM
        (
            SELECT tenant, service, vantage, count() AS stalled, max(silence_us) AS longest_us FROM silent GROUP BY tenant, service, vantage
        ) AS counted
        LEFT JOIN flying USING (tenant, service, vantage)
    ),
    -- The incident pages once, at the vantage nearest to the end user that has enough of these streams: a frozen backend behind a larger
    -- client pages itself.
    nearer AS
    (
        SELECT tenant, service, vantage, countIf(place < nearest) AS covered
        FROM
        (
            SELECT tenant, service, vantage, place, max(if(is_enough, place, 0)) OVER (PARTITION BY tenant, trace_id) AS nearest
            FROM silent
            INNER JOIN standing USING (tenant, service, vantage)
        )
        GROUP BY tenant, service, vantage
    )
SELECT
    tenant, service, vantage, toUInt8(is_enough AND covered < 0.5 * stalled) AS firing,
    stalled, in_flight, round(longest_us / 1e6) AS longest_s, covered
FROM standing
INNER JOIN nearer USING (tenant, service, vantage)
ORDER BY firing DESC, stalled DESC, service, vantage
LIMIT 1000
