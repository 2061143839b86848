-- The objectives that apply now, in the order of `rank`: the first that matches a stream is the stream's objective. The columns that end in
-- `_like` are the patterns for LIKE. The last row matches every stream; its figures are the defaults of definitions.py, and it counts only while
-- the table `objectives` is empty, because each version there ends with a row that matches every stream.
CREATE VIEW current_objectives ON CLUSTER '{cluster}' AS
SELECT
    rank, tenant, name, service, model, route,
    replaceAll(replaceRegexpAll(service, '([%_\\\\])', '\\\\\\1'), '*', '%') AS service_like,
    replaceAll(replaceRegexpAll(model, '([%_\\\\])', '\\\\\\1'), '*', '%') AS model_like,
    replaceAll(replaceRegexpAll(route, '([%_\\\\])', '\\\\\\1'), '*', '%') AS route_like,
    target, gap_limit_us, first_output_limit_us
FROM
(
    SELECT rank, tenant::String AS tenant, name, service, model, route, target, gap_limit_us, first_output_limit_us
    FROM objectives
    WHERE applied_at = (SELECT max(applied_at) FROM objectives)
    UNION ALL
    SELECT toUInt16(65535), '*', 'default', '*', '*', '*', 0.99, toUInt64(400000), toUInt64(2000000)
)
