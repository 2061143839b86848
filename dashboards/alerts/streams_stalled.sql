-- Running streams stand still. Built by `python -m dashboards`.
WITH
    flying AS
    (
        SELECT tenant, service_name::String AS service, vantage::String AS vantage, sum(streams) AS running
        FROM streams_in_flight
        GROUP BY tenant, service, vantage
    ),
    silent AS
    (
        SELECT tenant, service_name AS service, vantage, trace_id, silence_us, indexOf(['engine', 'server', 'gateway', 'client', 'screen'], vantage::String) AS place
        FROM stalled_streams
        WHERE reported_us >= 8000000 AND gap_start_us > 0
    ),
    counted AS
    (
        SELECT
            tenant, service, vantage, trace_id, silence_us, place,
            count() OVER (PARTITION BY tenant, service, vantage) AS standing, greatest(coalesce(running, 0), standing) AS flown,
            standing >= 3 AND standing >= 0.1 * flown AS is_enough
        FROM silent
        LEFT JOIN flying USING (tenant, service, vantage)
    )
SELECT
    tenant, service, vantage, toUInt8(any(is_enough) AND covered < 0.5 * stalled) AS firing,
    any(standing) AS stalled, any(flown) AS in_flight, round(max(silence_us) / 1e6) AS longest_s, countIf(place < nearest) AS covered
FROM
(
    -- The incident pages once, at the vantage nearest to the end user that has enough of these streams: a frozen backend behind a larger
    -- client pages itself.
    SELECT *, max(if(is_enough, place, 0)) OVER (PARTITION BY tenant, trace_id) AS nearest FROM counted
)
GROUP BY tenant, service, vantage
ORDER BY firing DESC, stalled DESC, service, vantage
LIMIT 1000
