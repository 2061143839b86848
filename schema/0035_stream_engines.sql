-- The engine that served a trace, as the server rows of the trace know it: one row per trace and day. A client's row of `streams` has no
-- engine; join it here by (tenant, trace_id), for example with ANY LEFT JOIN. Not part of `streams`, because a join there would read the
-- server rows of every day, also for queries that do not ask for the engine.
-- `day` is the date (UTC) on which the server row began. A condition on it prunes partitions, so every query should have one; a stream that
-- began before midnight may have reached its server after it.
-- Without FINAL: all revisions of a stream have the same engine, and grouping makes one row of them.
CREATE VIEW stream_engines AS
SELECT
    tenant, trace_id, toDate(start_time) AS day, arraySort(groupUniqArray(revs.engine_id::String)) AS engine_ids,
    if(length(engine_ids) = 1, engine_ids[1], '') AS engine_id
FROM stream_revs AS revs
WHERE revs.engine_id != '' AND vantage IN ('engine', 'server', 'gateway')
GROUP BY tenant, trace_id, day
