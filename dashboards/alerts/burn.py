"""The SQL of the burn-rate rules: how fast a service uses up its error budget of bad streams, with guards for small counts.

A rule evaluates a long window and a short one, and trusts a rate only if it rests on enough streams of enough end users (references:
Google's SRE workbook, ch. 5; Wilson, J. Am. Stat. Assoc. 22, 1927). A bad stream burns exactly one budget: the service's for gaps and
errors, the end users' for stalls on their side, the first output's for a late start without another fault. So one incident is one page.

The result has one row per service, vantage and severity. ``firing`` is 1 or 0; the other figures describe the window that burns fastest.
The statements read only the rollups and use no dashboard variables.
"""

from __future__ import annotations

from legato_ingest.causes import END_USER, FIRST_OUTPUT, NAMES, NETWORK_PATH, sql_list

__all__ = ["ITL", "END_USERS", "TTFT", "burn"]

_SLOT_S = 300
# (severity, burn rate, long window, short window): the workbook's table, windows in slots of 5 minutes.
_PAGES = (("page", 14.4, 12, 1), ("page", 6.0, 72, 6))
_TICKET = (("ticket", 1.0, 864, 72),)
_DAY_SLOTS = 288


def burn(own: str, connection: str, windows: tuple[tuple[str, float, int, int], ...], causes: str) -> str:
    """Return the statement of a rule. ``own``: the column of `stream_minutes` with its bad streams by end user.

    ``connection``: when the rule also counts streams with a connection fault: ``shared``, if the fault affected two or more end users in a
    window; ``private``, if it affected only one; empty, never. ``causes``: the condition on causes that the rule may name.
    """
    return _streams(own, connection, windows) + _hits(connection) + _RATES + _likely_cause(causes) + _RESULT


def _streams(own: str, connection: str, windows: tuple[tuple[str, float, int, int], ...]) -> str:
    """Return the common table expressions for the streams of each service in slots of five minutes, and for its windows."""
    listed = ", ".join(f"('{severity}', {rate}, {long}, {short})" for severity, rate, long, short in windows)
    pages = any(severity == "page" for severity, *_ in windows)
    # With too few streams for a page, the window is instead as long as it takes to hold n_min streams, up to a day; it creates a ticket.
    counted = "if(n_hour < n_min AND place > 0, [('ticket', 14.4, place, place)], [])" if pages else "[]"
    path = "bad_connection_clients" if connection else "CAST(map(), 'Map(UInt64, UInt32)')"
    return f"""WITH
    0.99 AS objective,
    now() AS at,
    round(1 - objective, 9) AS allowed,
    ceil(5.32 / (14.4 * allowed)) AS n_min,
    minutes AS
    (
        SELECT
            tenant, service_name AS service, vantage, intDiv(dateDiff('second', minute, at), {_SLOT_S}) AS slot, judged,
            {own} AS own, {path} AS path
        FROM stream_minutes FINAL
        WHERE minute > at - INTERVAL 3 DAY AND minute <= at AND judged > 0
    ),
    slots AS
    (
        SELECT tenant, service, vantage, slot, sum(judged) AS n
        FROM minutes
        GROUP BY tenant, service, vantage, slot
    ),
    windows AS
    (
        SELECT
            tenant, service, vantage, sumIf(n, slot < 12) AS n_hour, arraySort(groupArrayIf((slot, n), slot < {_DAY_SLOTS})) AS day,
            arrayFirstIndex(seen -> seen >= n_min, arrayCumSum(day.2)) AS enough, if(enough > 0, day[enough].1 + 1, 0) AS place,
            arrayJoin(arrayConcat([{listed}], {counted})) AS window
        FROM slots
        GROUP BY tenant, service, vantage
    ),
"""


def _hits(connection: str) -> str:
    """Return the common table expressions for the bad streams in each window, and for the number of end users affected."""
    return f"""    -- The bad streams of one end user in five minutes count once; if the end user is unknown, each stream counts.
    -- ``bad`` holds two counts: without and with the streams that had a connection fault.
    hits AS
    (
        SELECT
            tenant, service, vantage, slot, client, sum(own[client]) AS own_bad, sum(path[client]) AS path_bad,
            if(client = 0, [own_bad, own_bad + path_bad], [toUInt64(own_bad > 0), 1]) AS bad
        FROM minutes
        ARRAY JOIN arrayDistinct(arrayConcat(mapKeys(own), mapKeys(path))) AS client
        GROUP BY tenant, service, vantage, slot, client
    ),
    counts AS
    (
        SELECT
            tenant, service, vantage, window,
            uniqExactIf(client, slot < window.3 AND client != 0 AND path_bad > 0)
                + sumIf(path_bad, slot < window.3 AND client = 0) AS path_clients,
            if(path_clients {"<" if connection == "private" else ">="} 2, 2, 1) AS which,
            sumForEachIf(bad, slot < window.3)[which] AS k_long, sumForEachIf(bad, slot < window.4)[which] AS k_short,
            uniqExactIf(client, slot < window.3 AND client != 0 AND bad[1] > 0) AS own_clients,
            if(which = 1, own_clients, uniqExactIf(client, slot < window.3 AND client != 0))
                + sumForEachIf(bad, slot < window.3 AND client = 0)[which] AS clients
        FROM hits
        INNER JOIN windows USING (tenant, service, vantage)
        GROUP BY tenant, service, vantage, window
    ),
"""


# Which windows burn. For each severity the window that burns fastest is returned.
_RATES = f"""    totals AS
    (
        SELECT tenant, service, vantage, window, sumIf(n, slot < window.3) AS n_long, sumIf(n, slot < window.4) AS n_short
        FROM slots
        INNER JOIN windows USING (tenant, service, vantage)
        GROUP BY tenant, service, vantage, window
    ),
    rates AS
    (
        SELECT
            tenant, service, vantage, window.1 AS severity, window.2 AS limit, {_SLOT_S} * window.3 AS window_s,
            n_long, n_short, k_long, k_short, clients, greatest(n_long, 1) AS n,
            k_long / n AS p_long, k_short / nullIf(n_short, 0) AS p_short, limit * allowed - 1e-9 AS p_limit, 2.3263478740408408 AS z,
            sqrt(p_long * (1 - p_long) / n + z * z / (4 * n * n)) AS spread,
            (p_long + z * z / (2 * n) - z * spread) / (1 + z * z / n) AS least,
            k_long >= 3 AND clients >= 2 AND p_long >= p_limit AND least > allowed AS long_burns,
            if(n_short >= ceil(5.32 / (limit * allowed)), k_short >= 3 AND p_short >= p_limit, k_short >= 1) AS short_burns,
            severity = 'page' AND n_long < ceil(5.32 / (limit * allowed)) AS too_few
        FROM totals
        LEFT JOIN counts USING (tenant, service, vantage, window)
    ),
    judgements AS
    (
        SELECT *, long_burns AND short_burns AND NOT too_few AS burns
        FROM rates
        ORDER BY burns DESC, p_long / allowed / limit DESC, window_s
        LIMIT 1 BY tenant, service, vantage, severity
    ),
    pages AS (SELECT tenant, service, vantage FROM judgements WHERE burns AND severity = 'page'),
"""


def _likely_cause(causes: str) -> str:
    """Return the expression for the cause with the most stalled time in the last hour, among the causes that the rule may name."""
    return f"""    likely AS
    (
        SELECT
            tenant, service, vantage, argMaxIf(cause, excess, ours) AS cause, maxIf(excess, ours) / nullIf(sum(excess), 0) AS share
        FROM
        (
            SELECT tenant, service_name AS service, vantage, cause, sum(excess_us) AS excess, {causes} AS ours
            FROM stall_minutes FINAL
            WHERE minute > at - INTERVAL 1 HOUR AND minute <= at AND stalls > 0
            GROUP BY tenant, service, vantage, cause
        )
        GROUP BY tenant, service, vantage
    )
"""


_RESULT = f"""SELECT
    tenant, service, vantage, severity,
    toUInt8(burns AND NOT (severity = 'ticket' AND (tenant, service, vantage) IN (pages))) AS firing,
    round(p_long / allowed, 2) AS burn_rate, limit AS burn_limit, k_long AS bad, n_long AS streams, clients, window_s,
    indexOf([{", ".join(f"'{name}'" for name in NAMES)}], cause) AS cause_number, round(coalesce(share, 0), 3) AS cause_share
FROM judgements
LEFT JOIN likely USING (tenant, service, vantage)
ORDER BY firing DESC, burn_rate DESC, service, vantage, severity
LIMIT 1000
"""

ITL = burn("bad_service_clients", "shared", _PAGES + _TICKET, f"cause NOT IN {sql_list(END_USER)}")
TTFT = burn("bad_late_clients", "", _PAGES + _TICKET, f"cause IN {sql_list(FIRST_OUTPUT)}")
END_USERS = burn("bad_reader_clients", "private", (("ticket", 6.0, 72, 6), *_TICKET), f"cause IN {sql_list((*END_USER, *NETWORK_PATH))}")
