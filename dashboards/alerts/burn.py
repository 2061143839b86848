"""The SQL of the burn-rate rules: how fast a service uses up its error budget of bad streams, with guards for small counts.

Burn rate = bad streams / streams / (1 - objective), in a long window and in a short one (Google's SRE workbook, ch. 5). The guards count
user slots: a known end user in five minutes, or a stream of an unknown end user. The streams of one end user fail together, so they are one
observation. A page needs the burn in both windows, bad streams of two or more end users, and a probability of at most 0.1 % that a service
on budget has so many bad user slots (binomial tail); a ticket needs 1 %. Bad streams of a single end user are at most a ticket.

A bad stream burns exactly one budget: the service's for gaps and errors, the end users' for stalls on their side, the first output's for a
late start without another fault. Each objective (table `objectives`) has budgets for each service and vantage, so the result has one row
per service, vantage, objective and severity. ``firing`` is 1 or 0, and ``reason`` says why a
row over its limit does not fire; the other figures describe the shortest window that burns. Rates come from the rollups alone; `message`
adds what an alert says. The statements use no dashboard variables.
"""

from __future__ import annotations

from dashboards.alerts.message import SLOT_S, context, result
from legato_ingest.causes import END_USER, FIRST_OUTPUT, NETWORK_PATH, sql_list
from legato_ingest.definitions import FIRST_OUTPUT_US
from legato_ingest.objectives import LISTED, TARGET, TARGETS

__all__ = ["END_USERS", "ITL", "TTFT", "burn"]

# (severity, burn rate, long window, short window): the workbook's table, windows in slots of 5 minutes.
_PAGES = (("page", 14.4, 12, 1), ("page", 6.0, 72, 6))
_TICKET = (("ticket", 1.0, 864, 72),)
_DAY_SLOTS = 288
_SERVICE = "bad_service_clients"
# So large a share of bad streams counts as a burn over each limit: with a target of 0.8 a burn of 6 would be more than all streams.
_OUTAGE_SHARE = 0.9
# The largest probability of so many bad user slots on budget at which a page or a ticket fires.
_CHANCE_PAGE, _CHANCE_TICKET = 1e-3, 1e-2


def burn(own: str, connection: str, windows: tuple[tuple[str, float, int, int], ...], causes: str, worst: str) -> str:
    """Return the statement of a rule. ``own``: the column of `stream_minutes` with its bad streams by end user.

    ``connection``: when the rule also counts streams with a connection fault: ``shared``, if the fault affected two or more end users in a
    window; ``private``, if it affected only one; empty, never. ``causes``: the condition on causes that the rule may name. ``worst``: the
    expression that orders streams by how bad they are.
    """
    path = "bad_connection_clients" if connection else "CAST(map(), 'Map(UInt64, UInt32)')"
    # Errors burn the service's budget alone.
    failed = "bad_error" if own == _SERVICE else "0"
    rates = _windows(own, path, failed, windows) + _totals(connection) + _rates()
    return rates + context(causes, worst) + result()


def _windows(own: str, path: str, failed: str, windows: tuple[tuple[str, float, int, int], ...]) -> str:
    """Return the common table expressions for the streams of each service in slots of five minutes, and for its windows."""
    listed = ", ".join(f"('{severity}', {rate}, {long}, {short})" for severity, rate, long, short in windows)
    pages = any(severity == "page" for severity, *_ in windows)
    # With too few streams for a page, the window is instead as long as it takes to hold n_min streams, up to a day; it creates a ticket.
    counted = "if(n_hour < n_min AND place > 0, [('ticket', 14.4, place, place)], [])" if pages else "[]"
    return f"""WITH
    now() AS at,
    {LISTED} AS objectives,
    {TARGETS} AS targets,
    minutes AS
    (
        SELECT
            tenant, service_name AS service, vantage, objective, round(1 - {TARGET}, 9) AS allowed,
            intDiv(dateDiff('second', minute, at), {SLOT_S}) AS slot,
            model, service_version AS release, judged, judged_clients AS seen, {own} AS own, {path} AS path,
            toInt64({failed}) AS failed
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
            sumIf(n, slot < 12) AS n_hour, arrayFilter(each -> each.1 < {_DAY_SLOTS}, history) AS day,
            arrayFirstIndex(seen -> seen >= n_min, arrayCumSum(day.2)) AS enough, if(enough > 0, day[enough].1 + 1, 0) AS place,
            arrayJoin(arrayConcat([{listed}], {counted})) AS window
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
"""


def _totals(connection: str) -> str:
    """Return the common table expressions for the streams, bad streams, end users and user slots of each window.

    What depends on the bad streams is an array of two: without and with the streams that had a connection fault. Client 0 is an unknown end
    user. A minute that an earlier version computed does not have the end users of its good streams; these count as unknown.
    """
    return f"""    counted AS
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
            if(path_users {"<" if connection == "private" else ">="} 2, 2, 1) AS which,
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
"""


def _tail(k: str, n: str) -> str:
    """Return the expression for P(X >= k), where X is binomial with ``n`` trials and the share ``allowed``.

    The first term of the tail times a geometric series that bounds the rest from above: never too small.
    """
    first = f"lgamma({n} + 1) - lgamma({k} + 1) - lgamma({n} - {k} + 1) + {k} * log(allowed) + ({n} - {k}) * log(1 - allowed)"
    ratio = f"({n} - {k}) * allowed / (({k} + 1) * (1 - allowed))"
    return f"if({k} <= {n} * allowed, 1., least(1., exp({first}) / (1 - {ratio})))"


def _rates() -> str:
    """Return the common table expressions for the windows that burn; of each severity the one with the highest limit is kept.

    ``chance``: the probability of so many bad user slots on budget. ``user_chance``: that of so many bad streams of the only end user with
    bad ones, times the number of end users (Bonferroni).
    """
    return f"""    rates AS
    (
        SELECT
            *, greatest([own_n, any_n][greatest(which, 1)], k_long) AS user_n, window.1 AS severity, window.2 AS limit,
            {SLOT_S} * window.3 AS window_s, least(limit * allowed, {_OUTAGE_SHARE}) - 1e-9 AS p_limit,
            k_long / greatest(n_long, 1) AS p_long, k_short / nullIf(n_short, 0) AS p_short,
            {_tail("slots_bad", "slots")} AS chance,
            users * {_tail("k_long", "user_n")} AS user_chance,
            k_long > 0 AND p_long >= p_limit AS long_burns,
            if(n_short >= ceil(5.32 / (limit * allowed)), k_short >= 3 AND p_short >= p_limit, k_short >= 1) AS short_burns,
            severity = 'page' AND n_long < ceil(5.32 / (limit * allowed)) AS too_few,
            k_long >= 3 AND users_bad + unknown_bad >= 2 AND chance <= if(severity = 'page', {_CHANCE_PAGE}, {_CHANCE_TICKET}) AS is_shared,
            k_long >= 3 AND one_user AND severity = 'ticket' AND user_chance <= {_CHANCE_TICKET} AS is_private
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
"""


_GAP = "gap_max_us"
_FROZEN, _LATE = f"cause NOT IN {sql_list(END_USER)}", f"cause IN {sql_list(FIRST_OUTPUT)}"
_OWN = f"cause IN {sql_list((*END_USER, *NETWORK_PATH))}"
ITL = burn(_SERVICE, "shared", _PAGES + _TICKET, _FROZEN, _GAP)
TTFT = burn("bad_late_clients", "", _PAGES + _TICKET, _LATE, FIRST_OUTPUT_US)
END_USERS = burn("bad_reader_clients", "private", (("ticket", 6.0, 72, 6), *_TICKET), _OWN, _GAP)
