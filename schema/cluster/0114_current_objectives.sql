-- The objectives that apply now, in the order of `rank`: the first that matches a stream is the stream's objective. The columns that end in
-- `_like` are the patterns for LIKE. The last row matches every stream; its figures are the defaults of definitions.py, and it counts only while
-- the table `objectives` is empty, because each version there ends with a row that matches every stream. Each query of `streams` reads this
-- view, and most of that time is analysis: one scan and no nested query take half of the time of the view before.
CREATE OR REPLACE VIEW current_objectives ON CLUSTER '{cluster}' AS
(
    SELECT
        rank, tenant::String AS tenant, name, service, model, route,
        replaceAll(replaceRegexpAll(service, '([%_\\\\])', '\\\\\\1'), '*', '%') AS service_like,
        replaceAll(replaceRegexpAll(model, '([%_\\\\])', '\\\\\\1'), '*', '%') AS model_like,
        replaceAll(replaceRegexpAll(route, '([%_\\\\])', '\\\\\\1'), '*', '%') AS route_like,
        target, gap_limit_us, first_output_limit_us
    FROM objectives
    ORDER BY applied_at DESC
    LIMIT 1 WITH TIES
)
UNION ALL
SELECT toUInt16(65535), '*', 'default', '*', '*', '*', '%', '%', '%', 0.99, toUInt64(400000), toUInt64(2000000)
