"""The SQL of what a burn-rate rule says about a row: likely cause, place, start, one of the worst streams, and a sentence.

It continues the statement of ``burn``: its common table expressions read ``each_window`` and ``judgements``. The rollups give causes,
models, releases and engines. Rows of single streams are read only while a row burns: to find one of the worst streams, and the vantages
that recorded the same streams, because one incident is one page. The module decides no burn rate.
"""

from __future__ import annotations

from legato_ingest.causes import CAUSES
from legato_ingest.definitions import VANTAGES
from legato_ingest.quoting import literal

__all__ = ["SLOT_S", "context", "result"]

SLOT_S = 300


def context(causes: str, worst: str) -> str:
    """Return the common table expressions: the top cause, engine, model and release, the vantages of the same streams, a bad stream.

    ``causes``: the condition on causes that the rule may name. ``worst``: the expression that orders streams by how bad they are.
    """
    return _tops(causes) + _BURNING + _SAME + _WORST.replace("{worst}", worst)


def _tops(causes: str) -> str:
    """Return the common table expression ``tops``: for each window the cause, engine, model and release with the largest share.

    Causes and engines are weighted by stalled time, models and releases by bad streams.
    """
    return f"""    weights AS
    (
        SELECT
            tenant, service, vantage, slot, arrayJoin([('model', model::String), ('release', release::String)]) AS what, 1 AS counts,
            toUInt64(arraySum(mapValues(own)) + arraySum(mapValues(path))) AS weight
        FROM minutes
        UNION ALL
        SELECT
            tenant, service_name, vantage, intDiv(dateDiff('second', minute, at), {SLOT_S}),
            arrayJoin([('cause', cause::String), ('engine', engine_id::String)]), {causes}, excess_us
        FROM stall_minutes FINAL
        WHERE minute > at - INTERVAL 3 DAY AND minute <= at AND stalls > 0
    ),
    tops AS
    (
        SELECT
            tenant, service, vantage, window, mapFromArrays(groupArray(kind), groupArray(name)) AS top,
            mapFromArrays(groupArray(kind), groupArray(part)) AS share
        FROM
        (
            SELECT
                tenant, service, vantage, window, what.1 AS kind, argMaxIf(what.2, heavy, counts) AS name,
                maxIf(heavy, counts) / sum(heavy) AS part
            FROM
            (
                SELECT tenant, service, vantage, window, what, counts, sum(weight) AS heavy
                FROM weights
                INNER JOIN each_window USING (tenant, service, vantage)
                WHERE slot < window.3 AND weight > 0
                GROUP BY tenant, service, vantage, window, what, counts
            )
            GROUP BY tenant, service, vantage, window, kind
        )
        GROUP BY tenant, service, vantage, window
    ),
"""


# The rows that burn, as one array. While it is empty, no row of a stream is read.
_BURNING = """    (
        SELECT groupArray((tenant::String, service::String, vantage::String, severity)) FROM judgements WHERE burns
    ) AS burning,
    arrayMap(each -> (each.1, each.2, each.3), arrayFilter(each -> each.4 = 'page', burning)) AS paging,
"""
# The share of a paging row's traces that page at a vantage nearer to the end user, too. That one pages: it has the verdicts.
_SAME = f"""    same AS
    (
        SELECT page.1 AS tenant, page.2 AS service, page.3 AS vantage, avg(arrayExists(other -> other > place, places)) AS covered
        FROM
        (
            SELECT
                groupUniqArray((tenant::String, service_name::String, vantage::String)) AS pages,
                arrayMap(each -> indexOf({list(VANTAGES)}, each.3), pages) AS places
            FROM stream_revs
            WHERE length(paging) > 1 AND start_time > at - INTERVAL 1 HOUR AND start_time <= at
                AND has(paging, (tenant::String, service_name::String, vantage::String))
            GROUP BY tenant, trace_id
        )
        ARRAY JOIN pages AS page, places AS place
        GROUP BY page
    ),
"""
_WORST = """    worst AS
    (
        SELECT tenant, service_name AS service, vantage, lower(hex(argMax(trace_id, {worst}))) AS trace
        FROM stream_revs
        WHERE notEmpty(burning) AND start_time > at - INTERVAL 6 HOUR AND start_time <= at
            AND has(arrayMap(each -> (each.1, each.2, each.3), burning), (tenant::String, service_name::String, vantage::String))
        GROUP BY tenant, service, vantage
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


def result() -> str:
    """Return the end of the statement: one row per service, vantage and severity."""
    return f"""SELECT
    tenant, service, vantage, severity, firing, reason, burn_rate, burn_limit, bad, streams, users_bad, users, unknown_bad, unknown,
    window_s, since, top['cause'] AS cause, round(share['cause'], 3) AS cause_share, top['engine'] AS engine, top['model'] AS model,
    top['release'] AS release, ifNull(trace, '') AS trace,
    toString(1000 * toUnixTimestamp(since)) AS from_ms, toString(1000 * toUnixTimestamp(at)) AS to_ms,
    multiIf(users = 0, 'end users unknown', concat({_count("users_bad")}, ' of ', {_count("users")}, ' end users',
        if(unknown_bad > 0, concat(' and ', {_count("unknown_bad")}, ' streams of unknown ones'), ''))) AS end_users,
    if(bad = 0, '', concat({_count("bad")}, ' of ', {_count("streams")}, ' streams were bad in the last ', {_duration("window_s")},
        ' (', end_users, '), most of them since ',
        if(dateDiff('hour', since, at) < 20, formatDateTime(since, '%H:%i'), formatDateTime(since, '%F %H:%i')), ' UTC: ',
        'a month''s error budget in ', {_duration("2592000 / burn_rate")}, '.',
        {_share("model", "Model with most bad streams:")}, {_share("release", "Release:")},
        if(top['cause'] = '', ' Likely cause: not known.', concat(' Likely cause: ',
            transform(top['cause'], [{_NAMES}], [{_LABELS}], top['cause']), ', ', toString(round(100 * share['cause'])),
            ' % of the stalled time in this window.')),
        {_share("engine", "Engine with most stalled time:")})) AS message
FROM
(
    SELECT
        tenant, service, vantage, severity, window_s, top, share, trace, covered,
        toUInt8(burns AND NOT (severity = 'ticket' AND has_page) AND NOT (covered >= 0.5 AND severity = 'page')) AS firing,
        multiIf(firing = 1, '',
            burns AND covered >= 0.5, 'the same streams page at a vantage nearer to the end user',
            burns, 'a page of the same service fires', reason) AS reason,
        round(p_long / allowed, 2) AS burn_rate, limit AS burn_limit, toUInt64(k_long) AS bad, toUInt64(n_long) AS streams,
        toUInt64(users_bad) AS users_bad, toUInt64(users) AS users, toUInt64(unknown_bad) AS unknown_bad, toUInt64(unknown) AS unknown,
        arrayFilter(each -> each.1 < window.3, history) AS within,
        -- The start of the incident: since then most streams more were bad than the limit allows (the largest suffix sum, as in CUSUM;
        -- Page, Biometrika 41, 1954).
        arrayCumSum(each -> if(which = 2, each.4, each.3) - p_limit * each.2, within) AS surplus,
        toStartOfMinute(at - toIntervalSecond({SLOT_S} * within[indexOf(surplus, arrayMax(surplus))].1 + {SLOT_S - 60})) AS since
    FROM judgements
    LEFT JOIN tops USING (tenant, service, vantage, window)
    LEFT JOIN same USING (tenant, service, vantage)
    LEFT JOIN worst USING (tenant, service, vantage)
)
ORDER BY firing DESC, severity, burn_rate DESC, service, vantage
LIMIT 1000
"""
