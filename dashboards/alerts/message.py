"""The SQL of what a burn-rate rule says about a row: likely cause, place, start, one of the worst streams, and a sentence.

It continues the statement of ``burn``: its common table expressions read ``each_window`` and ``judgements``. The rollups give causes,
models, releases and engines. Rows of single streams are read only while a row burns: to find one of the worst streams, and the vantages
that recorded the same streams, because one incident is one page. The module decides no burn rate.
"""

from __future__ import annotations

from collections.abc import Sequence

from legato_ingest.causes import CAUSES, sql_list
from legato_ingest.definitions import ERRORS, STALL_MS, VANTAGES
from legato_ingest.objectives import DEFAULT, NAME
from legato_ingest.quoting import literal

__all__ = ["BUDGET", "SLOT_S", "context", "once", "result"]

SLOT_S = 300
BUDGET = ("tenant", "service", "vantage", "objective")
"""The columns that name a budget."""


def once(name: str, columns: Sequence[str], select: str) -> str:
    """Return the common table expression ``name`` with the rows of a statement, as the array ``every_<name>``, which is computed once.

    ClickHouse plans a common table expression again at each use. ``columns``: those of the statement, at most ten thousands of rows.
    """
    values = ", ".join(f"{column}::String" if column in BUDGET else column for column in columns)
    named = ", ".join(f"each.{number} AS {column}" for number, column in enumerate(columns, 1))
    return f"""(SELECT groupArray(({values})) FROM ({select}
    )) AS every_{name},
    {name} AS (SELECT {named} FROM (SELECT arrayJoin(every_{name}) AS each)),"""


def context(causes: str, worst: str, bad: str) -> str:
    """Return the common table expressions: the top cause, engine, model and release, the vantages of the same streams, a bad stream.

    ``causes``: the condition on causes that the rule may name. ``worst``: the expression that orders streams by how bad they are. ``bad``:
    the condition on `streams` for those that the rule counts as bad, or nearly.
    """
    return _tops(causes) + _BURNING + _SAME.replace("{bad}", bad) + _LENT.replace("{causes}", causes) + _WORST.replace("{worst}", worst)


def _tops(causes: str) -> str:
    """Return the common table expression ``tops``: for each window the cause, engine, model and release with the largest share.

    Causes and engines are weighted by stalled time, models and releases by bad streams.
    """
    budget = ", ".join(BUDGET)
    tops = f"""
        SELECT
            {budget}, window, mapFromArrays(groupArray(kind), groupArray(name)) AS top,
            mapFromArrays(groupArray(kind), groupArray(part)) AS share
        FROM
        (
            SELECT
                {budget}, window, what.1 AS kind, argMaxIf(what.2, heavy, counts) AS name, maxIf(heavy, counts) / sum(heavy) AS part
            FROM
            (
                SELECT {budget}, window, what, counts, sum(weight) AS heavy
                FROM weights
                INNER JOIN each_window USING ({budget})
                WHERE slot < window.3
                GROUP BY {budget}, window, what, counts
            )
            GROUP BY {budget}, window, kind
        )
        GROUP BY {budget}, window"""
    return f"""    weights AS
    (
        SELECT
            {budget}, slot, arrayJoin([('model', model::String), ('release', release::String)]) AS what, 1 AS counts,
            toUInt64(arraySum(mapValues(own)) + arraySum(mapValues(path))) AS weight
        FROM minutes
        WHERE notEmpty(own) OR notEmpty(path)
        UNION ALL
        SELECT
            tenant, service_name, vantage, objective, intDiv(dateDiff('second', minute, at), {SLOT_S}),
            arrayJoin([('cause', cause::String), ('engine', engine_id::String)]), {causes}, excess_us
        FROM stall_minutes FINAL
        WHERE minute > at - INTERVAL 3 DAY AND minute <= at AND stalls > 0 AND excess_us > 0
    ),
    {once("tops", (*BUDGET, "window", "top", "share"), tops)}
"""


# The rows that burn, as one array, which is computed once: ClickHouse plans a common table expression again at each use, and `judgements`
# is two thirds of the statement. While the array is empty, no row of a stream is read.
_BURNING = """    (
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
"""
# Of the traces of a paging row's bad streams, the share and the number that are also bad in a paging row nearer to the end user.
# That one pages: it has the verdicts.
_SAME = f"""    same AS
    (
        SELECT page.1 AS tenant, page.2 AS service, page.3 AS vantage, page.4 AS objective,
            avg(arrayExists(other -> other > place, places)) AS covered, sum(arrayExists(other -> other > place, places)) AS hidden
        FROM
        (
            SELECT
                groupUniqArray((tenant::String, service_name::String, vantage::String, objective)) AS pages,
                arrayMap(each -> indexOf({list(VANTAGES)}, each.3), pages) AS places
            FROM streams
            WHERE length(paging) > 1 AND start_time > at - INTERVAL 1 HOUR AND start_time <= at AND good = 0 AND {{bad}}
                AND has(paging, (tenant::String, service_name::String, vantage::String, objective))
            GROUP BY tenant, trace_id
        )
        ARRAY JOIN pages AS page, places AS place
        GROUP BY page
    ),
"""
# The cause of a row without verdicts: that of the verdicts on the same traces, which are on the clients' stalls. Those count for a server
# only if its gap was a stall, too, and the cause is not behind it.
_BEHIND = sql_list(cause.name for cause in CAUSES if cause.group in ("path", "client") or cause.name == "delivery")
_LENT = f"""    (
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
                SELECT tenant, service_name AS service, vantage, {NAME} AS objective, trace_id, max(start_time) AS begun
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
                    evidence['server_gap_us'] >= {round(1000 * STALL_MS)} AND cause NOT IN {_BEHIND} AS is_of_server
                FROM verdicts FINAL
                WHERE notEmpty(causeless) AND start_time > at - INTERVAL 73 HOUR AND cause != 'base' AND {{causes}}
                GROUP BY tenant, trace_id, cause, is_of_server
            ) AS judged_causes USING (tenant, trace_id)
            WHERE begun > at - toIntervalSecond(window_s) AND (is_of_server OR vantage NOT IN ('engine', 'server'))
            GROUP BY tenant, service, vantage, objective, window, lent_name
        )
        GROUP BY tenant, service, vantage, objective, window
    ),
"""
_FAILED = f"outcome IN {ERRORS}"
_WORST = f"""    worst AS
    (
        SELECT tenant, service_name AS service, vantage, {NAME} AS objective, lower(hex(argMax(trace_id, {{worst}}))) AS trace,
            -- Empty if there is none: an application that was killed left only snapshots.
            argMaxIf(lower(hex(trace_id)), start_time, {_FAILED}) AS failed_trace,
            topKIf(1)(error_type::String, {_FAILED} AND error_type != '')[1] AS error_type
        FROM stream_revs
        WHERE notEmpty(burning) AND start_time > at - INTERVAL 6 HOUR AND start_time <= at
            AND has(
                arrayMap(each -> (each.1, each.2, each.3, each.4), burning),
                (tenant::String, service_name::String, vantage::String, objective)
            )
        GROUP BY tenant, service, vantage, objective
    )
"""


def _count(value: str) -> str:
    """Return the expression for a number with separators of thousands."""
    return f"replaceRegexpOne(reverse(replaceRegexpAll(reverse(toString({value})), '([0-9]{{3}})', '\\\\1,')), '^,', '')"


def _duration(seconds: str) -> str:
    """Return the expression for a duration in words, in days, hours or minutes."""
    return f"""multiIf({seconds} >= 172800, concat(toString(round({seconds} / 86400)), ' days'),
            {seconds} >= 7200, concat(toString(round({seconds} / 3600)), ' hours'),
            {seconds} >= 120, concat(toString(round({seconds} / 60)), ' minutes'), 'a minute')"""


def _share(kind: str, text: str) -> str:
    """Return the expression for a sentence with the top entry of a kind and its share; empty if the entry is not known."""
    return f"if(top['{kind}'] = '', '', concat(' {text} ', top['{kind}'], ' (', toString(round(100 * share['{kind}'])), ' %).'))"


_NAMES = ", ".join(literal(cause.name) for cause in CAUSES)
_LABELS = ", ".join(literal(f"{cause.label} ({cause.name})") for cause in CAUSES)


def result(unknown: str) -> str:
    """Return the end of the statement: one row per service, vantage, objective and severity.

    ``unknown``: the words where no cause is known.
    """
    return f"""SELECT
    tenant, service, vantage, objective, target, severity, firing, reason, burn_rate, burn_limit, bad, streams, users_bad, users,
    unknown_bad, unknown,
    window_s, since, multiIf(is_failing, '', top['cause'] = '', lent_cause, top['cause'])::String AS cause,
    round(multiIf(is_failing, 0, top['cause'] = '', lent_share, share['cause']), 3) AS cause_share, top['engine'] AS engine,
    top['model'] AS model, top['release'] AS release, ifNull(if(is_failing AND failed_trace != '', failed_trace, trace), '') AS trace,
    toString(1000 * toUnixTimestamp(since)) AS from_ms, toString(1000 * toUnixTimestamp(at)) AS to_ms,
    multiIf(users = 0, 'end users unknown', concat({_count("users_bad")}, ' of ', {_count("users")}, ' end users',
        if(unknown_bad > 0, concat(' and ', {_count("unknown_bad")}, ' streams of unknown ones'), ''))) AS end_users,
    if(bad = 0, '', concat({_count("bad")}, ' of ', {_count("streams")}, ' streams were bad in the last ', {_duration("window_s")},
        ' (', end_users, '), most of them since ',
        if(dateDiff('hour', since, at) < 20, formatDateTime(since, '%H:%i'), formatDateTime(since, '%F %H:%i')), ' UTC: ',
        'a month''s error budget in ', {_duration("2592000 / burn_rate")}, '.',
        if(objective = '{DEFAULT}', '', concat(' Objective: ', objective, ', ', toString(round(100 * target, 4)), ' % good.')),
        {_share("model", "Model with most bad streams:")}, {_share("release", "Release:")},
        if(failed = 0, '', concat(' ', {_count("failed")}, ' of them ended in an error',
            if(error_type = '', '.', concat(', mostly ', error_type, '.')))),
        multiIf(is_failing, '', cause = '', {literal(unknown)}, concat(' Likely cause: ',
            transform(cause, [{_NAMES}], [{_LABELS}], cause), ', ', toString(round(100 * cause_share)),
            ' % of the stalled time in this window', if(top['cause'] = '', ' at the clients of these streams.', '.'))),
        if(is_failing, '', {_share("engine", "Engine with most stalled time:")}))) AS message
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
        toStartOfMinute(at - toIntervalSecond({SLOT_S} * within[indexOf(surplus, arrayMax(surplus))].1 + {SLOT_S - 60})) AS since
    FROM judgements
    LEFT JOIN tops USING (tenant, service, vantage, objective, window)
    LEFT JOIN same USING (tenant, service, vantage, objective)
    LEFT JOIN worst USING (tenant, service, vantage, objective)
    LEFT JOIN lent USING (tenant, service, vantage, objective, window)
)
ORDER BY firing DESC, severity, burn_rate DESC, service, vantage, objective
LIMIT 1000
"""
