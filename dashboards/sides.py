"""Two sides of a comparison, A and B, in SQL: which values they have, and FROM clauses with the rows of each side.

The variable ``by`` names a dimension, ``a`` and ``b`` values of it. Without a choice, A is the most frequent value of the range and B the
next one. For ``by`` = time, B is the chosen range and A the range of equal length directly before it. The statistics are in
`intervals.py`, the panels in `boards/compare.py`.
"""

from __future__ import annotations

from dashboards.sql_fragments import chosen, chosen_last, filters, rolled

__all__ = ["AUTOMATIC", "BY", "COARSE", "NAMES", "SHIFT", "VALUES", "picks", "sides", "streams_of"]

# The dimensions that rollups of streams and of stalls have; each is also the name of the variable that filters it.
BY = {
    "release": "service_version",
    "model": "model",
    "provider": "provider",
    "service": "service_name",
    "route": "route",
    "vantage": "vantage",
    "transport": "transport",
    "tenant": "tenant",
}
"""The dimensions by which streams can be compared, and their columns; and the time."""
AUTOMATIC = "(automatic)"
_LISTED = f"[{', '.join(repr(name) for name in (*BY, 'time'))}]"
NAMES = f"SELECT arrayJoin({_LISTED}) AS name"
"""The statement for the values of the variable ``by``."""
_BY_NAME = f"if(has({_LISTED}, {chosen_last('by')}), {chosen_last('by')}, 'release')"
_LENGTH = "($__toTime - $__fromTime)"
COARSE = f"{_LENGTH} > 21600"
"""Only longer ranges use hours, so that also a short one has many parts in time."""
SHIFT = f"toIntervalSecond({_LENGTH})"
_BEFORE, _NOW = "the range before", "this range"


def _value(by_name: str = "by_name") -> str:
    """The value of a row's dimension; the release if the variable has none of the names."""
    cases = ", ".join(f"{by_name} = '{name}', {column}::String" for name, column in BY.items() if name != "release")
    return f"multiIf({by_name} = 'time', part, {cases}, {BY['release']}::String)"


def _named(value: str) -> str:
    return f"if({value} = '', '(none)', {value})"


VALUES = f"""
WITH
    {_BY_NAME} AS by_name, '' AS part
SELECT arrayJoin(arrayConcat(['{AUTOMATIC}'], arraySort(groupUniqArray(1000)(value)))) AS name
FROM
(
    SELECT {_named(_value())} AS value
    FROM stream_minutes
    WHERE $__timeFilter(minute) AND by_name != 'time'
        AND {filters()}
    GROUP BY value
)"""
"""The statement for the values of the variables ``a`` and ``b``."""


def _automatic(variable: str) -> str:
    # Two pieces, because Grafana's plugin would expand $__all as a macro.
    return f"hasAny({chosen(variable)}, ['', '{AUTOMATIC}', concat('$', '__all')])"


def picks() -> str:
    """Return the beginning of a statement: WITH and the names that ``sides`` needs, ``a_values`` and ``b_values`` among them."""
    wanted = "(a_automatic OR b_automatic) AND by_name != 'time'"
    ranking = rolled("stream", "streams", only=f"{wanted} AND {filters()}")
    return f"""WITH
    {_BY_NAME} AS by_name, {chosen("a")} AS a_given, {chosen("b")} AS b_given,
    {_automatic("a")} AS a_automatic, {_automatic("b")} AS b_automatic,
    (
        SELECT groupArray(value)
        FROM
        (
            SELECT {_named(_value())} AS value, sum(streams) AS n
            FROM (SELECT *, '' AS part {ranking})
            GROUP BY value
            ORDER BY n DESC, value
            LIMIT 1001
        )
    ) AS ranked,
    multiIf(
        by_name = 'time', ['{_BEFORE}'],
        a_automatic, arraySlice(arrayFilter(name -> b_automatic OR NOT has(b_given, name), ranked), 1, 1), a_given) AS a_values,
    multiIf(
        by_name = 'time', ['{_NOW}'],
        b_automatic, arraySlice(arrayFilter(name -> NOT has(a_values, name), ranked), 1, 1), b_given) AS b_values"""


_SIDE = "arrayConcat(if(has(a_values, value), ['A'], []), if(has(b_values, value), ['B'], []))"


def sides(stem: str, alive: str, *, series: bool = False, minutes: bool = False) -> str:
    """Return a FROM clause: the rollups of both sides, with ``side`` (A or B) and ``value``. Needs the names of ``picks``.

    A value of both sides counts for both. ``series``: for curves; the minutes of the range before are moved to this range.
    ``minutes``: no hours.
    """
    coarse = "false" if minutes else COARSE
    now = rolled(stem, alive, series=series, coarse=coarse)
    before = rolled(stem, alive, series=series, coarse=coarse, before=True, only=f"by_name = 'time' AND {filters()}")
    moved = f"* REPLACE (minute + {SHIFT} AS minute)" if series else "*"
    return f"""FROM
(
    SELECT *, {_named(_value())} AS value
    FROM
    (
        SELECT *, '{_NOW}' AS part {now}
        UNION ALL
        SELECT {moved}, '{_BEFORE}' AS part {before}
    )
)
ARRAY JOIN {_SIDE} AS side"""


def streams_of(minutes: str, columns: str) -> str:
    """Return a FROM clause: the streams of both sides that began in these minutes (a subquery), with ``side`` and ``value``."""
    part = f"if(toStartOfMinute(start_time) < $__fromTime, '{_BEFORE}', '{_NOW}')"
    low = f"if(by_name = 'time', $__fromTime - {SHIFT}, $__fromTime)"
    return f"""FROM
(
    SELECT {columns}, {part} AS part, {_named(_value())} AS value
    FROM streams
    WHERE start_time >= {low} AND start_time < $__toTime + INTERVAL 1 MINUTE AND toStartOfMinute(start_time) IN
        (
            {minutes}
        )
        AND {filters()}
)
ARRAY JOIN {_SIDE} AS side"""
