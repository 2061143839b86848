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

from dashboards.alerts.message import BUDGET, SLOT_S, context, once, result
from legato_ingest.causes import END_USER, FIRST_OUTPUT, NETWORK_PATH, sql_list
from legato_ingest.definitions import ERRORS, FIRST_OUTPUT_US
from legato_ingest.objectives import LISTED, TARGET, TARGETS

__all__ = ["END_USERS", "ITL", "TTFT", "burn"]

# (severity, burn rate, long window, short window): the workbook's table, windows in slots of 5 minutes.
_PAGES = (("page", 14.4, 12, 1), ("page", 6.0, 72, 6))
_TICKET = (("ticket", 1.0, 864, 72),)
_DAY_SLOTS = 288
# A short window without an ended stream ends at the newest one, so many slots back at most: all streams may take long.
_BACK_SLOTS = 12
_SERVICE, _LATE_STARTS = "bad_service_clients", "bad_late_clients"
# What a stream without has at most a late start.
_FAULTY = f"(coalesce(gap_max_us, 0) > gap_limit_us OR outcome IN {ERRORS})"
# So large a share of bad streams counts as a burn over each limit: with a target of 0.8 a burn of 6 would be more than all streams.
_OUTAGE_SHARE = 0.9
# So many streams have three bad ones with a probability of 90 % at the limit. Under a stricter target than 99 % no more are needed: the
# stricter its target, the later would a service with all streams bad page.
_ENOUGH = "ceil(5.32 / ({limit} * greatest(allowed, 0.01)))"
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
    bad = _FAULTY if own == _SERVICE else f"NOT {_FAULTY}"
    rates = _windows(own, path, failed, windows) + _totals(connection) + _rates()
    # No verdict is about a late first output.
    unknown = "" if own == _LATE_STARTS else " Likely cause: not known."
    return rates + context(causes, worst, bad) + result(unknown)


def _windows(own: str, path: str, failed: str, windows: tuple[tuple[str, float, int, int], ...]) -> str:
    """Return the common table expressions for the streams of each service in slots of five minutes, and for its windows."""
    listed = ", ".join(f"('{severity}', {rate}, {long}, {short})" for severity, rate, long, short in windows)
    pages = any(severity == "page" for severity, *_ in windows)
    # With too few streams for a page, the window is instead as long as it takes to hold n_min streams, up to a day; it creates a ticket.
    counted = "if(n_hour < n_min AND place > 0, [('ticket', 14.4, place, place)], [])" if pages else "[]"
    budget = ", ".join(BUDGET)
    histories = f"""
        SELECT {budget}, arraySort(groupArray((slot, n, own_bad, own_bad + path_bad))) AS history
        FROM slots
        GROUP BY {budget}"""
    return f"""WITH
    now() AS at,
    {LISTED} AS objectives,
    {TARGETS} AS targets,
    minutes AS
    (
        SELECT
            tenant, service_name AS service, vantage, objective,
            intDiv(dateDiff('second', minute, at), {SLOT_S}) AS slot,
            model, service_version AS release, judged, judged_clients AS seen, {own} AS own, {path} AS path,
            toInt64({failed}) AS failed
        FROM stream_minutes FINAL
        WHERE minute > at - INTERVAL 3 DAY AND minute <= at AND judged > 0
    ),
    slots AS
    (
        SELECT
            {budget}, slot, sum(judged) AS n, sum(arraySum(mapValues(own))) AS own_bad, sum(arraySum(mapValues(path))) AS path_bad
        FROM minutes
        GROUP BY {budget}, slot
    ),
    {once("histories", (*BUDGET, "history"), histories)}
    windows AS
    (
        SELECT
            {budget}, round(1 - {TARGET}, 9) AS allowed, history, {_ENOUGH.format(limit=14.4)} AS n_min,
            arrayFilter(each -> each.1 < {_DAY_SLOTS}, history) AS day, arraySum(each -> if(each.1 < 12, each.2, 0), history) AS n_hour,
            arrayFirstIndex(seen -> seen >= n_min, arrayCumSum(day.2)) AS enough, if(enough > 0, day[enough].1 + 1, 0) AS place,
            history[1].1 AS newest,
            arrayJoin(arrayMap(
                each -> (each.1, each.2, each.3, each.4, if(newest BETWEEN each.4 AND {_BACK_SLOTS - 1}, newest, 0)),
                arrayConcat([{listed}], {counted}))) AS window
        FROM histories
    ),
    each_window AS (SELECT {budget}, window FROM windows),
"""


def _totals(connection: str) -> str:
    """Return the common table expressions for the streams, bad streams, end users and bad user slots of each window.

    What depends on the bad streams is an array of two: without and with the streams that had a connection fault. Client 0 is an unknown end
    user. A minute that an earlier version computed does not have the end users of its good streams; these count as unknown. ``someone`` is
    one of the end users with bad streams.
    """
    budget = ", ".join(BUDGET)
    counted = f"""
        SELECT
            {budget}, window, sum(judged) AS n_long, sumIf(judged, is_short) AS n_short, sum(others) AS unknown, sum(failed) AS failed_long,
            [sum(own_n), sum(own_n + path_n)] AS bad_long,
            [sumIf(own_n, is_short), sumIf(own_n + path_n, is_short)] AS bad_short,
            [sum(own_others), sum(own_others + path_others)] AS bad_unknown,
            uniqExactArray(known) AS users, uniqExactArray(path_known) + sum(path_others) AS path_users,
            [uniqExactArray(own_known), uniqExactArray(bad_known)] AS bad_users,
            [uniqExactArray({_user_slots("own_known")}), uniqExactArray({_user_slots("bad_known")})] AS bad_slots,
            [maxArray(own_known), maxArray(bad_known)] AS someone
        FROM
        (
            SELECT
                {budget}, arrayJoin(arrayFilter(each -> slot < each.3, all_windows)) AS window, slot,
                slot >= window.5 AND slot < window.5 + window.4 AS is_short, toInt64(judged) AS judged, failed,
                arrayFilter(client -> client != 0, mapKeys(own)) AS own_known,
                arrayFilter(client -> client != 0, mapKeys(path)) AS path_known,
                arrayConcat(own_known, path_known) AS bad_known,
                arrayConcat(arrayFilter(client -> client != 0, mapKeys(seen)), bad_known) AS known,
                toInt64(arraySum(mapValues(own))) AS own_n, toInt64(arraySum(mapValues(path))) AS path_n,
                toInt64(own[0]) AS own_others, toInt64(path[0]) AS path_others,
                judged - toInt64(arraySum(mapValues(seen))) + toInt64(seen[0]) AS others
            FROM minutes
            INNER JOIN (SELECT {budget}, groupArray(window) AS all_windows FROM windows GROUP BY {budget}) AS of_budget USING ({budget})
        )
        GROUP BY {budget}, window"""
    figures = ("n_long", "n_short", "unknown", "failed_long", "bad_long", "bad_short", "bad_unknown")
    users = ("users", "path_users", "bad_users", "bad_slots", "someone")
    return f"""    {once("counted", (*BUDGET, "window", *figures, *users), counted)}
    totals AS
    (
        SELECT
            {budget}, window, n_long, n_short, unknown, failed_long, toInt64(users) AS users,
            if(path_users {"<" if connection == "private" else ">="} 2, 2, 1) AS which,
            bad_long[which] AS k_long, bad_short[which] AS k_short, bad_unknown[which] AS unknown_bad,
            toInt64(bad_users[which]) AS users_bad, toInt64(bad_slots[which]) + unknown_bad AS slots_bad,
            users_bad = 1 AND unknown_bad = 0 AS one_user, someone[which] AS client
        FROM counted
    ),
"""


def _user_slots(clients: str) -> str:
    return f"arrayMap(client -> sipHash64(client, slot), {clients})"


def _tail(k: str, n: str) -> str:
    """Return the expression for P(X >= k), where X is binomial with ``n`` trials and the share ``allowed``.

    The first term of the tail times a geometric series that bounds the rest from above: never too small.
    """
    first = f"lgamma({n} + 1) - lgamma({k} + 1) - lgamma({n} - {k} + 1) + {k} * log(allowed) + ({n} - {k}) * log(1 - allowed)"
    ratio = f"({n} - {k}) * allowed / (({k} + 1) * (1 - allowed))"
    return f"if({k} <= {n} * allowed, 1., least(1., exp({first}) / (1 - {ratio})))"


def _rates() -> str:
    """Return the common table expressions for the windows that burn; of each severity the one with the highest limit is kept.

    ``chance``: the probability of so many bad user slots on budget. ``chance_max`` bounds it from above: no stream has more than one user
    slot. Only where the bound does not decide, all user slots of the window are counted, to 0.1 %. ``user_chance``: the probability of so
    many bad streams of the only end user with bad ones, times the number of end users (Bonferroni).
    """
    budget = ", ".join(BUDGET)
    doubtful = f"""
        SELECT {budget}, window, client
        FROM rates
        WHERE long_burns AND NOT too_few AND (is_single OR is_several AND chance_max > chance_limit)"""
    looks = f"""
        SELECT
            {budget}, window, uniqCombined64Array(20)({_user_slots("arrayFilter(each -> each != 0, arrayConcat(seen_keys, bad_keys))")})
                AS known_slots,
            sum(toInt64(seen[client])) AS user_streams
        FROM
        (
            SELECT *, mapKeys(seen) AS seen_keys, arrayConcat(mapKeys(own), mapKeys(path)) AS bad_keys
            FROM minutes
            WHERE has(doubtful_budgets, ({budget}))
        ) AS doubtful_minutes
        INNER JOIN doubtful USING ({budget})
        WHERE slot < window.3
        GROUP BY {budget}, window"""
    return f"""    rates AS
    (
        SELECT
            *, window.1 AS severity, window.2 AS limit, {SLOT_S} * window.3 AS window_s,
            least(limit * allowed, {_OUTAGE_SHARE}) - 1e-9 AS p_limit, {_ENOUGH.format(limit="limit")} AS n_enough,
            k_long / greatest(n_long, 1) AS p_long, k_short / nullIf(n_short, 0) AS p_short,
            if(severity = 'page', {_CHANCE_PAGE}, {_CHANCE_TICKET}) AS chance_limit,
            {_tail("slots_bad", "(n_long + slots_bad)")} AS chance_max,
            k_long > 0 AND p_long >= p_limit AS long_burns,
            if(n_short >= n_enough, k_short >= 3 AND p_short >= p_limit, k_short >= 1) AS short_burns,
            severity = 'page' AND n_long < n_enough AS too_few,
            k_long >= 3 AND users_bad + unknown_bad >= 2 AS is_several,
            k_long >= 3 AND one_user AND severity = 'ticket' AS is_single
        FROM windows
        LEFT JOIN totals USING ({budget}, window)
    ),
    {once("doubtful", (*BUDGET, "window", "client"), doubtful)}
    arrayMap(each -> (each.1, each.2, each.3, each.4), every_doubtful) AS doubtful_budgets,
    {once("looks", (*BUDGET, "window", "known_slots", "user_streams"), looks)}
    judgements AS
    (
        SELECT
            *, toInt64(known_slots) + unknown AS slots, greatest(user_streams, k_long) AS user_n,
            {_tail("slots_bad", "slots")} AS chance,
            users * {_tail("k_long", "user_n")} AS user_chance,
            is_several AND (chance_max <= chance_limit OR known_slots + unknown > 0 AND chance <= chance_limit) AS is_shared,
            is_single AND user_chance <= {_CHANCE_TICKET} AS is_private,
            long_burns AND short_burns AND NOT too_few AND (is_shared OR is_private) AS burns,
            multiIf(NOT long_burns OR burns, '',
                one_user AND severity = 'page', 'all bad streams are of one end user',
                too_few, 'too few streams for a page',
                NOT is_shared AND NOT is_private, 'so few can be chance',
                n_short = 0, 'no stream of the short window has ended',
                'the short window does not burn any more') AS reason,
            max(burns AND severity = 'page') OVER (PARTITION BY {budget}) AS has_page
        FROM rates
        LEFT JOIN looks USING ({budget}, window)
        ORDER BY burns DESC, if(burns, limit, p_long / allowed / limit) DESC, window_s
        LIMIT 1 BY {budget}, severity
    ),
"""


_GAP = "gap_max_us"
_FROZEN, _LATE = f"cause NOT IN {sql_list(END_USER)}", f"cause IN {sql_list(FIRST_OUTPUT)}"
_OWN = f"cause IN {sql_list((*END_USER, *NETWORK_PATH))}"
ITL = burn(_SERVICE, "shared", _PAGES + _TICKET, _FROZEN, _GAP)
TTFT = burn(_LATE_STARTS, "", _PAGES + _TICKET, _LATE, FIRST_OUTPUT_US)
END_USERS = burn("bad_reader_clients", "private", (("ticket", 6.0, 72, 6), *_TICKET), _OWN, _GAP)
