-- First outputs are late. Built by `python -m dashboards`.
WITH
    now() AS at,
    (
        SELECT arraySort(groupArray((rank, tenant, service_like, model_like, route_like, name))) FROM current_objectives
    ) AS objectives,
    (
        SELECT (groupArray(name), groupArray(first_target))
        FROM (SELECT name, argMin(target, rank) AS first_target FROM current_objectives GROUP BY name)
    ) AS targets,
    minutes AS
    (
        SELECT
            tenant, service_name AS service, vantage, objective, round(1 - transform(objective::String, targets.1, targets.2, targets.2[indexOf(targets.1, 'default')]), 9) AS allowed,
            intDiv(dateDiff('second', minute, at), 300) AS slot,
            model, service_version AS release, judged, judged_clients AS seen, bad_late_clients AS own, CAST(map(), 'Map(UInt64, UInt32)') AS path,
            toInt64(0) AS failed
        FROM stream_minutes FINAL
        WHERE minute > at - INTERVAL 3 DAY AND minute <= at AND judged > 0
    ),
    slots AS
    (
        SELECT
            tenant, service, vantage, objective, allowed, slot, sum(judged) AS n,
            sum(arraySum(mapValues(own))) AS own_bad, sum(arraySum(mapValues(path))) AS path_bad
        FROM minutes
        GROUP BY tenant, service, vantage, objective, allowed, slot
    ),
    windows AS
    (
        SELECT
            tenant, service, vantage, objective, allowed, ceil(5.32 / (14.4 * allowed)) AS n_min,
            arraySort(groupArray((slot, n, own_bad, own_bad + path_bad))) AS history,
            sumIf(n, slot < 12) AS n_hour, arrayFilter(each -> each.1 < 288, history) AS day,
            arrayFirstIndex(seen -> seen >= n_min, arrayCumSum(day.2)) AS enough, if(enough > 0, day[enough].1 + 1, 0) AS place,
            arrayJoin(arrayConcat([('page', 14.4, 12, 1), ('page', 6.0, 72, 6), ('ticket', 1.0, 864, 72)], if(n_hour < n_min AND place > 0, [('ticket', 14.4, place, place)], []))) AS window
        FROM slots
        GROUP BY tenant, service, vantage, objective, allowed
    ),
    -- One array, which is computed once: ClickHouse plans a common table expression again at each use.
    (SELECT groupArray((tenant::String, service::String, vantage::String, objective, window)) FROM windows) AS every_window,
    each_window AS
    (
        SELECT each.1 AS tenant, each.2 AS service, each.3 AS vantage, each.4 AS objective, each.5 AS window
        FROM (SELECT arrayJoin(every_window) AS each)
    ),
    counted AS
    (
        SELECT
            tenant, service, vantage, objective, window,
            sum(judged) AS n_long, sumIf(judged, slot < window.4) AS n_short, sum(others) AS unknown, sum(failed) AS failed_long,
            sumForEach([own_n, own_n + path_n]) AS bad_long, sumForEachIf([own_n, own_n + path_n], slot < window.4) AS bad_short,
            sumForEach([own_others, own_others + path_others]) AS bad_unknown,
            uniqExactArray(known) AS users, uniqExactArray(path_known) + sum(path_others) AS path_users,
            [uniqExactArray(own_known), uniqExactArray(bad_known)] AS bad_users,
            uniqExactArray(arrayMap(client -> sipHash64(client, slot), known)) AS known_slots,
            [uniqExactArray(arrayMap(client -> sipHash64(client, slot), own_known)),
                uniqExactArray(arrayMap(client -> sipHash64(client, slot), bad_known))] AS bad_slots
        FROM
        (
            SELECT
                tenant, service, vantage, objective, slot, toInt64(judged) AS judged, failed,
                arrayFilter(client -> client != 0, mapKeys(own)) AS own_known,
                arrayFilter(client -> client != 0, mapKeys(path)) AS path_known,
                arrayConcat(own_known, path_known) AS bad_known,
                arrayConcat(arrayFilter(client -> client != 0, mapKeys(seen)), bad_known) AS known,
                toInt64(arraySum(mapValues(own))) AS own_n, toInt64(arraySum(mapValues(path))) AS path_n,
                toInt64(own[0]) AS own_others, toInt64(path[0]) AS path_others,
                judged - toInt64(arraySum(mapValues(seen))) + toInt64(seen[0]) AS others
            FROM minutes
        ) AS minutes_of_users
        INNER JOIN each_window USING (tenant, service, vantage, objective)
        WHERE slot < window.3
        GROUP BY tenant, service, vantage, objective, window
    ),
    totals AS
    (
        SELECT
            tenant, service, vantage, objective, window, n_long, n_short, unknown, failed_long, toInt64(users) AS users,
            if(path_users >= 2, 2, 1) AS which,
            bad_long[which] AS k_long, bad_short[which] AS k_short, bad_unknown[which] AS unknown_bad,
            toInt64(bad_users[which]) AS users_bad,
            toInt64(known_slots) + unknown AS slots, toInt64(bad_slots[which]) + unknown_bad AS slots_bad,
            users_bad = 1 AND unknown_bad = 0 AS one_user
        FROM counted
    ),
    -- The streams of the end user who has all bad streams, where there is only one.
    single AS
    (
        SELECT tenant, service, vantage, objective, window, toInt64(sum(seen[one[1]])) AS own_n, toInt64(sum(seen[one[2]])) AS any_n
        FROM minutes
        INNER JOIN
        (
            SELECT
                tenant, service, vantage, objective, window,
                [max(arrayMax(mapKeys(own))), max(arrayMax(arrayConcat(mapKeys(own), mapKeys(path))))] AS one
            FROM minutes
            INNER JOIN each_window USING (tenant, service, vantage, objective)
            WHERE slot < window.3
            GROUP BY tenant, service, vantage, objective, window
            HAVING uniqExactArray(mapKeys(own)) = 1 OR uniqExactArray(arrayConcat(mapKeys(own), mapKeys(path))) = 1
        ) AS alone USING (tenant, service, vantage, objective)
        WHERE slot < window.3
        GROUP BY tenant, service, vantage, objective, window
    ),
    rates AS
    (
        SELECT
            *, greatest([own_n, any_n][greatest(which, 1)], k_long) AS user_n, window.1 AS severity, window.2 AS limit,
            300 * window.3 AS window_s, least(limit * allowed, 0.9) - 1e-9 AS p_limit,
            k_long / greatest(n_long, 1) AS p_long, k_short / nullIf(n_short, 0) AS p_short,
            if(slots_bad <= slots * allowed, 1., least(1., exp(lgamma(slots + 1) - lgamma(slots_bad + 1) - lgamma(slots - slots_bad + 1) + slots_bad * log(allowed) + (slots - slots_bad) * log(1 - allowed)) / (1 - (slots - slots_bad) * allowed / ((slots_bad + 1) * (1 - allowed))))) AS chance,
            users * if(k_long <= user_n * allowed, 1., least(1., exp(lgamma(user_n + 1) - lgamma(k_long + 1) - lgamma(user_n - k_long + 1) + k_long * log(allowed) + (user_n - k_long) * log(1 - allowed)) / (1 - (user_n - k_long) * allowed / ((k_long + 1) * (1 - allowed))))) AS user_chance,
            k_long > 0 AND p_long >= p_limit AS long_burns,
            if(n_short >= ceil(5.32 / (limit * allowed)), k_short >= 3 AND p_short >= p_limit, k_short >= 1) AS short_burns,
            severity = 'page' AND n_long < ceil(5.32 / (limit * allowed)) AS too_few,
            k_long >= 3 AND users_bad + unknown_bad >= 2 AND chance <= if(severity = 'page', 0.001, 0.01) AS is_shared,
            k_long >= 3 AND one_user AND severity = 'ticket' AND user_chance <= 0.01 AS is_private
        FROM windows
        LEFT JOIN totals USING (tenant, service, vantage, objective, window)
        LEFT JOIN single USING (tenant, service, vantage, objective, window)
    ),
    judgements AS
    (
        SELECT
            *, long_burns AND short_burns AND NOT too_few AND (is_shared OR is_private) AS burns,
            multiIf(NOT long_burns OR burns, '',
                one_user AND severity = 'page', 'all bad streams are of one end user',
                too_few, 'too few streams for a page',
                NOT is_shared AND NOT is_private, 'so few can be chance',
                'the short window does not burn any more') AS reason,
            max(burns AND severity = 'page') OVER (PARTITION BY tenant, service, vantage, objective) AS has_page
        FROM rates
        ORDER BY burns DESC, if(burns, limit, p_long / allowed / limit) DESC, window_s
        LIMIT 1 BY tenant, service, vantage, objective, severity
    ),
    weights AS
    (
        SELECT
            tenant, service, vantage, objective, slot,
            arrayJoin([('model', model::String), ('release', release::String)]) AS what, 1 AS counts,
            toUInt64(arraySum(mapValues(own)) + arraySum(mapValues(path))) AS weight
        FROM minutes
        UNION ALL
        SELECT
            tenant, service_name, vantage, objective, intDiv(dateDiff('second', minute, at), 300),
            arrayJoin([('cause', cause::String), ('engine', engine_id::String)]), cause IN ('queue'), excess_us
        FROM stall_minutes FINAL
        WHERE minute > at - INTERVAL 3 DAY AND minute <= at AND stalls > 0
    ),
    tops AS
    (
        SELECT
            tenant, service, vantage, objective, window, mapFromArrays(groupArray(kind), groupArray(name)) AS top,
            mapFromArrays(groupArray(kind), groupArray(part)) AS share
        FROM
        (
            SELECT
                tenant, service, vantage, objective, window, what.1 AS kind, argMaxIf(what.2, heavy, counts) AS name,
                maxIf(heavy, counts) / sum(heavy) AS part
            FROM
            (
                SELECT tenant, service, vantage, objective, window, what, counts, sum(weight) AS heavy
                FROM weights
                INNER JOIN each_window USING (tenant, service, vantage, objective)
                WHERE slot < window.3 AND weight > 0
                GROUP BY tenant, service, vantage, objective, window, what, counts
            )
            GROUP BY tenant, service, vantage, objective, window, kind
        )
        GROUP BY tenant, service, vantage, objective, window
    ),
    (
        SELECT groupArray((tenant::String, service::String, vantage::String, objective, severity, window, window_s))
        FROM judgements
        WHERE burns
    ) AS burning,
    burning_windows AS
    (
        SELECT each.1 AS tenant, each.2 AS service, each.3 AS vantage, each.4 AS objective, each.6 AS window, each.7 AS window_s
        FROM (SELECT arrayJoin(burning) AS each)
    ),
    arrayMap(each -> (each.1, each.2, each.3, each.4), arrayFilter(each -> each.5 = 'page', burning)) AS paging,
    same AS
    (
        SELECT page.1 AS tenant, page.2 AS service, page.3 AS vantage, page.4 AS objective,
            avg(arrayExists(other -> other > place, places)) AS covered
        FROM
        (
            SELECT
                groupUniqArray((tenant::String, service_name::String, vantage::String, arrayFirst(row -> row.2 IN ('*', tenant) AND service_name LIKE row.3::String AND model LIKE row.4::String AND route LIKE row.5::String, objectives).6)) AS pages,
                arrayMap(each -> indexOf(['engine', 'server', 'gateway', 'client', 'screen'], each.3), pages) AS places
            FROM stream_revs
            WHERE length(paging) > 1 AND start_time > at - INTERVAL 1 HOUR AND start_time <= at
                AND has(paging, (tenant::String, service_name::String, vantage::String, arrayFirst(row -> row.2 IN ('*', tenant) AND service_name LIKE row.3::String AND model LIKE row.4::String AND route LIKE row.5::String, objectives).6))
            GROUP BY tenant, trace_id
        )
        ARRAY JOIN pages AS page, places AS place
        GROUP BY page
    ),
    (
        SELECT groupArray((tenant, service, vantage, objective))
        FROM burning_windows
        LEFT JOIN tops USING (tenant, service, vantage, objective, window)
        WHERE top['cause'] = ''
    ) AS causeless,
    lent AS
    (
        SELECT tenant, service, vantage, objective, window, argMax(lent_name, heavy) AS lent_cause, max(heavy) / sum(heavy) AS lent_share
        FROM
        (
            SELECT tenant, service, vantage, objective, window, cause::String AS lent_name, sum(excess_us) AS heavy
            FROM
            (
                SELECT tenant, service_name AS service, vantage, arrayFirst(row -> row.2 IN ('*', tenant) AND service_name LIKE row.3::String AND model LIKE row.4::String AND route LIKE row.5::String, objectives).6 AS objective, trace_id, max(start_time) AS begun
                FROM stream_revs
                WHERE notEmpty(causeless) AND start_time > at - INTERVAL 3 DAY AND start_time <= at AND stalls_250ms > 0
                    AND has(causeless, (tenant::String, service_name::String, vantage::String, objective))
                GROUP BY tenant, service, vantage, objective, trace_id
            ) AS stalled
            INNER JOIN burning_windows USING (tenant, service, vantage, objective)
            INNER JOIN
            (
                SELECT tenant, trace_id, cause, sum(excess_us) AS excess_us
                FROM verdicts FINAL
                WHERE notEmpty(causeless) AND start_time > at - INTERVAL 73 HOUR AND cause != 'base' AND cause IN ('queue')
                GROUP BY tenant, trace_id, cause
            ) AS judged_causes USING (tenant, trace_id)
            WHERE begun > at - toIntervalSecond(window_s)
            GROUP BY tenant, service, vantage, objective, window, lent_name
        )
        GROUP BY tenant, service, vantage, objective, window
    ),
    worst AS
    (
        SELECT tenant, service_name AS service, vantage, arrayFirst(row -> row.2 IN ('*', tenant) AND service_name LIKE row.3::String AND model LIKE row.4::String AND route LIKE row.5::String, objectives).6 AS objective, lower(hex(argMax(trace_id, coalesce(ttfo_us, ttft_us, if(content_chunks > 0, 0, intDiv(duration_ns, 1000)))))) AS trace,
            -- Empty if there is none: an application that was killed left only snapshots.
            argMaxIf(lower(hex(trace_id)), start_time, outcome IN ('timeout', 'upstream_error', 'engine_abort', 'abandoned')) AS failed_trace,
            topKIf(1)(error_type::String, outcome IN ('timeout', 'upstream_error', 'engine_abort', 'abandoned') AND error_type != '')[1] AS error_type
        FROM stream_revs
        WHERE notEmpty(burning) AND start_time > at - INTERVAL 6 HOUR AND start_time <= at
            AND has(
                arrayMap(each -> (each.1, each.2, each.3, each.4), burning),
                (tenant::String, service_name::String, vantage::String, objective)
            )
        GROUP BY tenant, service, vantage, objective
    )
SELECT
    tenant, service, vantage, objective, target, severity, firing, reason, burn_rate, burn_limit, bad, streams, users_bad, users,
    unknown_bad, unknown,
    window_s, since, multiIf(is_failing, '', top['cause'] = '', lent_cause, top['cause'])::String AS cause,
    round(multiIf(is_failing, 0, top['cause'] = '', lent_share, share['cause']), 3) AS cause_share, top['engine'] AS engine,
    top['model'] AS model, top['release'] AS release, ifNull(if(is_failing AND failed_trace != '', failed_trace, trace), '') AS trace,
    toString(1000 * toUnixTimestamp(since)) AS from_ms, toString(1000 * toUnixTimestamp(at)) AS to_ms,
    multiIf(users = 0, 'end users unknown', concat(replaceRegexpOne(reverse(replaceRegexpAll(reverse(toString(users_bad)), '([0-9]{3})', '\\1,')), '^,', ''), ' of ', replaceRegexpOne(reverse(replaceRegexpAll(reverse(toString(users)), '([0-9]{3})', '\\1,')), '^,', ''), ' end users',
        if(unknown_bad > 0, concat(' and ', replaceRegexpOne(reverse(replaceRegexpAll(reverse(toString(unknown_bad)), '([0-9]{3})', '\\1,')), '^,', ''), ' streams of unknown ones'), ''))) AS end_users,
    if(bad = 0, '', concat(replaceRegexpOne(reverse(replaceRegexpAll(reverse(toString(bad)), '([0-9]{3})', '\\1,')), '^,', ''), ' of ', replaceRegexpOne(reverse(replaceRegexpAll(reverse(toString(streams)), '([0-9]{3})', '\\1,')), '^,', ''), ' streams were bad in the last ', multiIf(window_s >= 172800, concat(toString(round(window_s / 86400)), ' days'),
            window_s >= 7200, concat(toString(round(window_s / 3600)), ' hours'),
            window_s >= 120, concat(toString(round(window_s / 60)), ' minutes'), 'a minute'),
        ' (', end_users, '), most of them since ',
        if(dateDiff('hour', since, at) < 20, formatDateTime(since, '%H:%i'), formatDateTime(since, '%F %H:%i')), ' UTC: ',
        'a month''s error budget in ', multiIf(2592000 / burn_rate >= 172800, concat(toString(round(2592000 / burn_rate / 86400)), ' days'),
            2592000 / burn_rate >= 7200, concat(toString(round(2592000 / burn_rate / 3600)), ' hours'),
            2592000 / burn_rate >= 120, concat(toString(round(2592000 / burn_rate / 60)), ' minutes'), 'a minute'), '.',
        if(objective = 'default', '', concat(' Objective: ', objective, ', ', toString(round(100 * target, 4)), ' % good.')),
        if(top['model'] = '', '', concat(' Model with most bad streams: ', top['model'], ' (', toString(round(100 * share['model'])), ' %).')), if(top['release'] = '', '', concat(' Release: ', top['release'], ' (', toString(round(100 * share['release'])), ' %).')),
        if(failed = 0, '', concat(' ', replaceRegexpOne(reverse(replaceRegexpAll(reverse(toString(failed)), '([0-9]{3})', '\\1,')), '^,', ''), ' of them ended in an error',
            if(error_type = '', '.', concat(', mostly ', error_type, '.')))),
        multiIf(is_failing, '', cause = '', ' Likely cause: not known.', concat(' Likely cause: ',
            transform(cause, ['base', 'scheduling', 'kv_pressure', 'gpu_clock', 'host', 'front_end', 'coalescing', 'connection', 'slow_reader', 'consumer', 'generation', 'delivery', 'unknown', 'mixed', 'speculation', 'queue', 'render'], ['healthy step (base)', 'prefill of others (scheduling)', 'KV cache pressure (kv_pressure)', 'GPU throttling (gpu_clock)', 'engine\'s host (host)', 'front end (front_end)', 'buffer (coalescing)', 'connection (connection)', 'unread socket (slow_reader)', 'application (consumer)', 'generated late (generation)', 'delivered late (delivery)', 'unknown (unknown)', 'several causes (mixed)', 'rejected drafts (speculation)', 'queue (queue)', 'rendering (render)'], cause), ', ', toString(round(100 * cause_share)),
            ' % of the stalled time in this window', if(top['cause'] = '', ' at the clients of these streams.', '.'))),
        if(is_failing, '', if(top['engine'] = '', '', concat(' Engine with most stalled time: ', top['engine'], ' (', toString(round(100 * share['engine'])), ' %).'))))) AS message
FROM
(
    SELECT
        tenant, service, vantage, objective, severity, window_s, top, share, trace, covered, lent_cause, lent_share,
        toUInt8(burns AND NOT (severity = 'ticket' AND has_page) AND NOT (covered >= 0.5 AND severity = 'page')) AS firing,
        multiIf(firing = 1, '',
            burns AND covered >= 0.5, 'the same streams page at a vantage nearer to the end user',
            burns, 'a page of the same service fires', reason) AS reason,
        round(1 - allowed, 9) AS target, round(p_long / allowed, 2) AS burn_rate,
        limit AS burn_limit, toUInt64(k_long) AS bad, toUInt64(n_long) AS streams,
        toUInt64(failed_long) AS failed, 2 * failed_long >= k_long AND failed_long > 0 AS is_failing,
        ifNull(failed_trace, '') AS failed_trace, ifNull(error_type, '') AS error_type,
        toUInt64(users_bad) AS users_bad, toUInt64(users) AS users, toUInt64(unknown_bad) AS unknown_bad, toUInt64(unknown) AS unknown,
        arrayFilter(each -> each.1 < window.3, history) AS within,
        -- The start of the incident: since then most streams more were bad than the limit allows (the largest suffix sum, as in CUSUM;
        -- Page, Biometrika 41, 1954).
        arrayCumSum(each -> if(which = 2, each.4, each.3) - p_limit * each.2, within) AS surplus,
        toStartOfMinute(at - toIntervalSecond(300 * within[indexOf(surplus, arrayMax(surplus))].1 + 240)) AS since
    FROM judgements
    LEFT JOIN tops USING (tenant, service, vantage, objective, window)
    LEFT JOIN same USING (tenant, service, vantage, objective)
    LEFT JOIN worst USING (tenant, service, vantage, objective)
    LEFT JOIN lent USING (tenant, service, vantage, objective, window)
)
ORDER BY firing DESC, severity, burn_rate DESC, service, vantage, objective
LIMIT 1000
