-- The running streams that have had no content for 2 s or more, one row per stream and vantage. A stream is in the view until content
-- arrives (`resumed`), it ends, or its next report is overdue by 3 s. Each report says when the next one is due (`next_due_us`); those of
-- earlier SDKs, without it, follow after 2 s, 8 s, 30 s, and then at three times the length. `reported_us` is the length of the silence at
-- the last report; `silence_us` is the length now, by the server's clock, if the silence goes on. `gap_start_us` is the time of the last
-- content (µs from the start; 0: no content so far).
CREATE OR REPLACE VIEW stalled_streams ON CLUSTER '{cluster}' AS
SELECT
    tenant, start_time, trace_id, span_id, report.1 AS vantage, report.2 AS service_name, report.3 AS model, report.4 AS engine_id,
    reported_at, report.7 AS gap_start_us, report.5 AS reported_us,
    report.5 + toUInt64(greatest(0, dateDiff('microsecond', reported_at, now64(6)))) AS silence_us
FROM
(
    SELECT
        tenant, start_time, trace_id, span_id, max(received_at) AS reported_at,
        argMax((vantage, service_name, model, engine_id, silence_us, resumed, gap_start_us, next_due_us), (recorded_at, silence_us)) AS report,
        -- The time of the last report after the start, and the time from there to the next one.
        report.7 + report.5 AS reported_after_us,
        multiIf(
            report.8 > reported_after_us, least(report.8 - reported_after_us, 3600000000),
            report.8 > 0, 0,
            report.5 < 8000000, 8000000 - report.5,
            report.5 < 30000000, 30000000 - report.5,
            toInt64(2 * report.5)) AS next_us
    FROM stream_silences
    WHERE received_at > now64(3) - INTERVAL 1 HOUR
    GROUP BY tenant, start_time, trace_id, span_id
)
WHERE NOT report.6
    AND now64(6) < addMicroseconds(reported_at, 3000000 + next_us)
    AND (tenant, trace_id, span_id) NOT IN
    (
        SELECT tenant, trace_id, span_id
        FROM stream_revs
        WHERE ended AND received_at > now64(3) - INTERVAL 1 HOUR
            AND (tenant, trace_id) IN (SELECT tenant, trace_id FROM stream_silences WHERE received_at > now64(3) - INTERVAL 1 HOUR)
    )
