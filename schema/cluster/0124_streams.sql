-- One row per stream and vantage: its newest revision. A stream is `abandoned` if its newest revision is a snapshot and the next snapshot
-- is 30 s overdue. All revisions of a stream share one start time and therefore one partition, so FINAL can merge each partition
-- separately.
-- Computed columns: `trace`, the trace id in hexadecimal digits; `objective`, `gap_limit_us` and `first_output_limit_us`, the objective
-- that applies to the stream (view `current_objectives`); `good`, 1 or 0, and NULL for a stream that cannot be judged, because its timeline
-- is not known, or because it runs and may still be good. A good stream has no gap over the limit (`gap_max_us` includes the wait before a
-- cancel or an error), a first output within its limit, and no error at its end. Without text the first output is the first content, and
-- without content the stream's end; content at an unknown time after the request (flag `start_unknown`) counts as in time. A running stream
-- that has broken a limit is 0: what follows cannot make it good, and streams that hang would be judged only after their time-out. Left out
-- are rows that a richer row of the same response, from another emitter, has superseded.
CREATE OR REPLACE VIEW streams ON CLUSTER '{cluster}' AS
SELECT
    * EXCEPT (matched),
    lower(hex(trace_id)) AS trace,
    matched.1 AS objective, matched.2 AS gap_limit_us, matched.3 AS first_output_limit_us,
    multiIf(
        content_chunks IS NULL, NULL,
        coalesce(gap_max_us, 0) > gap_limit_us
        OR coalesce(
            ttfo_us, ttft_us,
            if(content_chunks > 0 OR (outcome = 'running' AND has(flags, 'start_unknown')), 0, intDiv(duration_ns, 1000))
        ) > first_output_limit_us
        OR outcome IN ('timeout', 'upstream_error', 'engine_abort', 'abandoned'), 0,
        outcome = 'running', NULL,
        1) AS good
FROM
(
    WITH
        (
            SELECT arraySort(groupArray((rank, tenant, service_like, model_like, route_like, (name, gap_limit_us, first_output_limit_us))))
            FROM current_objectives
        ) AS listed
    SELECT
        * EXCEPT (outcome),
        if(ended, outcome::String,
           if(now64(3) > addMicroseconds(start_time, next_due_us) + INTERVAL 30 SECOND, 'abandoned', 'running')) AS outcome,
        arrayFirst(row -> row.2 IN ('*', tenant) AND service_name LIKE row.3 AND model LIKE row.4 AND route LIKE row.5, listed).6 AS matched
    FROM stream_revs AS revs FINAL
    WHERE revs.outcome != 'superseded'
)
SETTINGS do_not_merge_across_partitions_select_final = 1
