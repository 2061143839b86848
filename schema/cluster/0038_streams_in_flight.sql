-- The number of streams that run now, by service, vantage and model, as the SDK reports it every 5 s (gauge `legato.stream.in_flight`). The
-- newest sample of each process counts. A process without a sample for 15 s has ended, or has no stream in flight.
CREATE VIEW streams_in_flight ON CLUSTER '{cluster}' AS
SELECT tenant, service_name, vantage, model, toUInt64(sum(newest)) AS streams, max(sampled_at) AS sampled_at
FROM
(
    SELECT
        tenant, series, attributes['service.name'] AS service_name, attributes['legato.stream.vantage'] AS vantage,
        attributes['gen_ai.request.model'] AS model, argMax(value, recorded_at) AS newest, max(received_at) AS sampled_at
    FROM node_samples
    WHERE metric = 'legato.stream.in_flight' AND recorded_at > now64(9) - INTERVAL 1 DAY AND received_at > now64(3) - INTERVAL 15 SECOND
    GROUP BY tenant, series, service_name, vantage, model
)
GROUP BY tenant, service_name, vantage, model
