-- ITL goodput burns its budget. Built by `python -m dashboards`.
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
            tenant, service_name AS service, vantage, objective,
            intDiv(dateDiff('second', minute, at), 300) AS slot,
            model, service_version AS release, judged, judged_clients AS seen, bad_service_clients AS own, bad_connection_clients AS path,
            toInt64(bad_error) AS failed
        FROM stream_minutes FINAL
        WHERE minute > at - INTERVAL 3 DAY AND minute <= at AND judged > 0
    ),
    slots AS
    (
        SELECT
            tenant, service, vantage, objective, slot, sum(judged) AS n, sum(arraySum(mapValues(own))) AS own_bad, sum(arraySum(mapValues(path))) AS path_bad
        FROM minutes
        GROUP BY tenant, service, vantage, objective, slot
    ),
    (SELECT groupArray((tenant::String, service::String, vantage::String, objective::String, history)) FROM (
        SELECT tenant, service, vantage, objective, arraySort(groupArray((slot, n, own_bad, own_bad + path_bad))) AS history
        FROM slots
        GROUP BY tenant, service, vantage, objective
    )) AS every_histories,
    histories AS (SELECT each.1 AS tenant, each.2 AS service, each.3 AS vantage, each.4 AS objective, each.5 AS history FROM (SELECT arrayJoin(every_histories) AS each)),
    windows AS
    (
        SELECT
            tenant, service, vantage, objective, round(1 - transform(objective::String, targets.1, targets.2, targets.2[indexOf(targets.1, 'default')]), 9) AS allowed, history, ceil(5.32 / (14.4 * greatest(allowed, 0.01))) AS n_min,
            arrayFilter(each -> each.1 < 288, history) AS day, arraySum(each -> if(each.1 < 12, each.2, 0), history) AS n_hour,
            arrayFirstIndex(seen -> seen >= n_min, arrayCumSum(day.2)) AS enough, if(enough > 0, day[enough].1 + 1, 0) AS place,
            history[1].1 AS newest,
            arrayJoin(arrayMap(
                each -> (each.1, each.2, each.3, each.4, if(newest BETWEEN each.4 AND 11, newest, 0)),
                arrayConcat([('page', 14.4, 12, 1), ('page', 6.0, 72, 6), ('ticket', 1.0, 864, 72)], if(n_hour < n_min AND place > 0, [('ticket', 14.4, place, place)], [])))) AS window
        FROM histories
    ),
    each_window AS (SELECT tenant, service, vantage, objective, window FROM windows),
    (SELECT groupArray((tenant::String, service::String, vantage::String, objective::String, window, n_long, n_short, unknown, failed_long, bad_long, bad_short, bad_unknown, users, path_users, bad_users, bad_slots, someone)) FROM (
        SELECT
            tenant, service, vantage, objective, window, sum(judged) AS n_long, sumIf(judged, is_short) AS n_short, sum(others) AS unknown, sum(failed) AS failed_long,
            [sum(own_n), sum(own_n + path_n)] AS bad_long,
            [sumIf(own_n, is_short), sumIf(own_n + path_n, is_short)] AS bad_short,
            [sum(own_others), sum(own_others + path_others)] AS bad_unknown,
            uniqExactArray(known) AS users, uniqExactArray(path_known) + sum(path_others) AS path_users,
            [uniqExactArray(own_known), uniqExactArray(bad_known)] AS bad_users,
            [uniqExactArray(arrayMap(client -> sipHash64(client, slot), own_known)), uniqExactArray(arrayMap(client -> sipHash64(client, slot), bad_known))] AS bad_slots,
            [maxArray(own_known), maxArray(bad_known)] AS someone
        FROM
        (
            SELECT
                tenant, service, vantage, objective, arrayJoin(arrayFilter(each -> slot < each.3, all_windows)) AS window, slot,
                slot >= window.5 AND slot < window.5 + window.4 AS is_short, toInt64(judged) AS judged, failed,
                arrayFilter(client -> client != 0, mapKeys(own)) AS own_known,
                arrayFilter(client -> client != 0, mapKeys(path)) AS path_known,
                arrayConcat(own_known, path_known) AS bad_known,
                arrayConcat(arrayFilter(client -> client != 0, mapKeys(seen)), bad_known) AS known,
                toInt64(arraySum(mapValues(own))) AS own_n, toInt64(arraySum(mapValues(path))) AS path_n,
                toInt64(own[0]) AS own_others, toInt64(path[0]) AS path_others,
                judged - toInt64(arraySum(mapValues(seen))) + toInt64(seen[0]) AS others
            FROM minutes
            INNER JOIN (SELECT tenant, service, vantage, objective, groupArray(window) AS all_windows FROM windows GROUP BY tenant, service, vantage, objective) AS of_budget USING (tenant, service, vantage, objective)
        )
        GROUP BY tenant, service, vantage, objective, window
    )) AS every_counted,
    counted AS (SELECT each.1 AS tenant, each.2 AS service, each.3 AS vantage, each.4 AS objective, each.5 AS window, each.6 AS n_long, each.7 AS n_short, each.8 AS unknown, each.9 AS failed_long, each.10 AS bad_long, each.11 AS bad_short, each.12 AS bad_unknown, each.13 AS users, each.14 AS path_users, each.15 AS bad_users, each.16 AS bad_slots, each.17 AS someone FROM (SELECT arrayJoin(every_counted) AS each)),
    totals AS
    (
        SELECT
            tenant, service, vantage, objective, window, n_long, n_short, unknown, failed_long, toInt64(users) AS users,
            if(path_users >= 2, 2, 1) AS which,
            bad_long[which] AS k_long, bad_short[which] AS k_short, bad_unknown[which] AS unknown_bad,
            toInt64(bad_users[which]) AS users_bad, toInt64(bad_slots[which]) + unknown_bad AS slots_bad,
            users_bad = 1 AND unknown_bad = 0 AS one_user, someone[which] AS client
        FROM counted
    ),
    rates AS
    (
        SELECT
            *, window.1 AS severity, window.2 AS limit, 300 * window.3 AS window_s,
            least(limit * allowed, 0.9) - 1e-9 AS p_limit, ceil(5.32 / (limit * greatest(allowed, 0.01))) AS n_enough,
            k_long / greatest(n_long, 1) AS p_long, k_short / nullIf(n_short, 0) AS p_short,
            if(severity = 'page', 0.001, 0.01) AS chance_limit,
            if(slots_bad <= (n_long + slots_bad) * allowed, 1., least(1., exp(lgamma((n_long + slots_bad) + 1) - lgamma(slots_bad + 1) - lgamma((n_long + slots_bad) - slots_bad + 1) + slots_bad * log(allowed) + ((n_long + slots_bad) - slots_bad) * log(1 - allowed)) / (1 - ((n_long + slots_bad) - slots_bad) * allowed / ((slots_bad + 1) * (1 - allowed))))) AS chance_max,
            k_long > 0 AND p_long >= p_limit AS long_burns,
            if(n_short >= n_enough, k_short >= 3 AND p_short >= p_limit, k_short >= 1) AS short_burns,
            severity = 'page' AND n_long < n_enough AS too_few,
            k_long >= 3 AND users_bad + unknown_bad >= 2 AS is_several,
            k_long >= 3 AND one_user AND severity = 'ticket' AS is_single
        FROM windows
        LEFT JOIN totals USING (tenant, service, vantage, objective, window)
    ),
    (SELECT groupArray((tenant::String, service::String, vantage::String, objective::String, window, client)) FROM (
        SELECT tenant, service, vantage, objective, window, client
        FROM rates
        WHERE long_burns AND NOT too_few AND (is_single OR is_several AND chance_max > chance_limit)
    )) AS every_doubtful,
    doubtful AS (SELECT each.1 AS tenant, each.2 AS service, each.3 AS vantage, each.4 AS objective, each.5 AS window, each.6 AS client FROM (SELECT arrayJoin(every_doubtful) AS each)),
    arrayMap(each -> (each.1, each.2, each.3, each.4), every_doubtful) AS doubtful_budgets,
    (SELECT groupArray((tenant::String, service::String, vantage::String, objective::String, window, known_slots, user_streams)) FROM (
        SELECT
            tenant, service, vantage, objective, window, uniqCombined64Array(20)(arrayMap(client -> sipHash64(client, slot), arrayFilter(each -> each != 0, arrayConcat(seen_keys, bad_keys))))
                AS known_slots,
            sum(toInt64(seen[client])) AS user_streams
        FROM
        (
            SELECT *, mapKeys(seen) AS seen_keys, arrayConcat(mapKeys(own), mapKeys(path)) AS bad_keys
            FROM minutes
            WHERE has(doubtful_budgets, (tenant, service, vantage, objective))
        ) AS doubtful_minutes
        INNER JOIN doubtful USING (tenant, service, vantage, objective)
        WHERE slot < window.3
        GROUP BY tenant, service, vantage, objective, window
    )) AS every_looks,
    looks AS (SELECT each.1 AS tenant, each.2 AS service, each.3 AS vantage, each.4 AS objective, each.5 AS window, each.6 AS known_slots, each.7 AS user_streams FROM (SELECT arrayJoin(every_looks) AS each)),
    judgements AS
    (
        SELECT
            *, toInt64(known_slots) + unknown AS slots, greatest(user_streams, k_long) AS user_n,
            if(slots_bad <= slots * allowed, 1., least(1., exp(lgamma(slots + 1) - lgamma(slots_bad + 1) - lgamma(slots - slots_bad + 1) + slots_bad * log(allowed) + (slots - slots_bad) * log(1 - allowed)) / (1 - (slots - slots_bad) * allowed / ((slots_bad + 1) * (1 - allowed))))) AS chance,
            users * if(k_long <= user_n * allowed, 1., least(1., exp(lgamma(user_n + 1) - lgamma(k_long + 1) - lgamma(user_n - k_long + 1) + k_long * log(allowed) + (user_n - k_long) * log(1 - allowed)) / (1 - (user_n - k_long) * allowed / ((k_long + 1) * (1 - allowed))))) AS user_chance,
            is_several AND (chance_max <= chance_limit OR known_slots + unknown > 0 AND chance <= chance_limit) AS is_shared,
            is_single AND user_chance <= 0.01 AS is_private,
            long_burns AND short_burns AND NOT too_few AND (is_shared OR is_private) AS burns,
            multiIf(NOT long_burns OR burns, '',
                one_user AND severity = 'page', 'all bad streams are of one end user',
                too_few, 'too few streams for a page',
                NOT is_shared AND NOT is_private, 'so few can be chance',
                n_short = 0, 'no stream of the short window has ended',
                'the short window does not burn any more') AS reason,
            max(burns AND severity = 'page') OVER (PARTITION BY tenant, service, vantage, objective) AS has_page
        FROM rates
        LEFT JOIN looks USING (tenant, service, vantage, objective, window)
        ORDER BY burns DESC, if(burns, limit, p_long / allowed / limit) DESC, window_s
        LIMIT 1 BY tenant, service, vantage, objective, severity
    ),
    weights AS
    (
        SELECT
            tenant, service, vantage, objective, slot, arrayJoin([('model', model::String), ('release', release::String)]) AS what, 1 AS counts,
            toUInt64(arraySum(mapValues(own)) + arraySum(mapValues(path))) AS weight
        FROM minutes
        WHERE notEmpty(own) OR notEmpty(path)
        UNION ALL
        SELECT
            tenant, service_name, vantage, objective, intDiv(dateDiff('second', minute, at), 300),
            arrayJoin([('cause', cause::String), ('engine', engine_id::String)]), cause NOT IN ('slow_reader', 'consumer', 'render'), excess_us
        FROM stall_minutes FINAL
        WHERE minute > at - INTERVAL 3 DAY AND minute <= at AND stalls > 0 AND excess_us > 0
    ),
    (SELECT groupArray((tenant::String, service::String, vantage::String, objective::String, window, top, share)) FROM (
        SELECT
            tenant, service, vantage, objective, window, mapFromArrays(groupArray(kind), groupArray(name)) AS top,
            mapFromArrays(groupArray(kind), groupArray(part)) AS share
        FROM
        (
            SELECT
                tenant, service, vantage, objective, window, what.1 AS kind, argMaxIf(what.2, heavy, counts) AS name, maxIf(heavy, counts) / sum(heavy) AS part
            FROM
            (
                SELECT tenant, service, vantage, objective, window, what, counts, sum(weight) AS heavy
                FROM weights
                INNER JOIN each_window USING (tenant, service, vantage, objective)
                WHERE slot < window.3
                GROUP BY tenant, service, vantage, objective, window, what, counts
            )
            GROUP BY tenant, service, vantage, objective, window, kind
        )
        GROUP BY tenant, service, vantage, objective, window
    )) AS every_tops,
    tops AS (SELECT each.1 AS tenant, each.2 AS service, each.3 AS vantage, each.4 AS objective, each.5 AS window, each.6 AS top, each.7 AS share FROM (SELECT arrayJoin(every_tops) AS each)),
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
            avg(arrayExists(other -> other > place, places)) AS covered, sum(arrayExists(other -> other > place, places)) AS hidden
        FROM
        (
            SELECT
                groupUniqArray((tenant::String, service_name::String, vantage::String, objective)) AS pages,
                arrayMap(each -> indexOf(['engine', 'server', 'gateway', 'client', 'screen'], each.3), pages) AS places
            FROM streams
            WHERE length(paging) > 1 AND start_time > at - INTERVAL 1 HOUR AND start_time <= at AND good = 0 AND (coalesce(gap_max_us, 0) > gap_limit_us OR outcome IN ('timeout', 'upstream_error', 'engine_abort', 'abandoned'))
                AND has(paging, (tenant::String, service_name::String, vantage::String, objective))
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
                SELECT
                    tenant, trace_id, cause, sum(excess_us) AS excess_us,
                    evidence['server_gap_us'] >= 250000 AND cause NOT IN ('coalescing', 'connection', 'slow_reader', 'consumer', 'delivery') AS is_of_server
                FROM verdicts FINAL
                WHERE notEmpty(causeless) AND start_time > at - INTERVAL 73 HOUR AND cause != 'base' AND cause NOT IN ('slow_reader', 'consumer', 'render')
                GROUP BY tenant, trace_id, cause, is_of_server
            ) AS judged_causes USING (tenant, trace_id)
            WHERE begun > at - toIntervalSecond(window_s) AND (is_of_server OR vantage NOT IN ('engine', 'server'))
            GROUP BY tenant, service, vantage, objective, window, lent_name
        )
        GROUP BY tenant, service, vantage, objective, window
    ),
    worst AS
    (
        SELECT tenant, service_name AS service, vantage, arrayFirst(row -> row.2 IN ('*', tenant) AND service_name LIKE row.3::String AND model LIKE row.4::String AND route LIKE row.5::String, objectives).6 AS objective, lower(hex(argMax(trace_id, gap_max_us))) AS trace,
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
        -- A ticket fires beside a page that does not, if it burns without the streams that page elsewhere.
        if(severity = 'page', covered >= 0.5, hidden > 0 AND (k_long - hidden) / n_long < p_limit) AS is_covered,
        severity = 'ticket' AND has_page AND covered < 0.5 AS is_replaced,
        toUInt8(burns AND NOT is_covered AND NOT is_replaced) AS firing,
        multiIf(firing = 1, '',
            burns AND is_replaced, 'a page of the same service fires',
            burns, 'the same streams page at a vantage nearer to the end user', reason) AS reason,
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
