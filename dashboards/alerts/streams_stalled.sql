-- Running streams stand still. Built by `python -m dashboards`.
WITH
    flying AS
    (
        -- `running` is the number in flight now. `known` equals it, except where no sample arrived for a time. The newest sample that is
        -- older than 8 s shows since when: some processes have not reported again, and their numbers of before count.
        SELECT
            tenant, service, vantage, now64(3) - INTERVAL 15 SECOND AS since,
            toUInt64(sumIf(newest, sampled_at > since)) AS running,
            toUInt64(sumIf(newest, sampled_at > least(since, settled - INTERVAL 8 SECOND))) AS known
        FROM
        (
            SELECT tenant, service, vantage, newest, sampled_at, max(settled_at) OVER (PARTITION BY tenant, service, vantage) AS settled
            FROM
            (
                SELECT
                    tenant, series, attributes['service.name'] AS service, attributes['legato.stream.vantage'] AS vantage,
                    argMax(value, recorded_at) AS newest, max(received_at) AS sampled_at,
                    maxIf(received_at, received_at <= now64(3) - INTERVAL 8 SECOND) AS settled_at
                FROM node_samples
                WHERE metric = 'legato.stream.in_flight' AND recorded_at > now64(9) - INTERVAL 1 DAY
                    AND received_at > now64(3) - INTERVAL 120 SECOND
                GROUP BY tenant, series, service, vantage
            )
        )
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
            count() OVER (PARTITION BY tenant, service, vantage) AS standing, greatest(coalesce(known, 0), standing) AS flown,
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
