"""Two sides of a comparison, A and B, in SQL: which values they have, and FROM clauses with the rows of each side.

The variable ``by`` names a dimension, ``a`` and ``b`` values of it. Without a choice, A is the most frequent value of the range and B the
next one. For ``by`` = time, B is the chosen range and A the range of equal length directly before it. The statistics are in
`intervals.py`, the panels in `boards/compare.py`.
"""

from __future__ import annotations

from dashboards.sql_fragments import IN_RANGE, chosen, chosen_last, every, filters, rolled, whole_hours

__all__ = ["AUTOMATIC", "BEGAN", "BY", "NAMES", "VALUES", "picks", "sides", "streams_of"]

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
_LOW = f"if(by_name = 'time', $__fromTime - {_LENGTH}, $__fromTime)"
# Complete hours of either range. Only ranges over 6 hours use them, so that a short one has many parts in time, too.
_WHOLE = f"""{_LENGTH} > 21600 AND ({whole_hours(_LOW, "$__fromTime")}
        OR {whole_hours("$__fromTime", "$__toTime")})"""
_BEFORE, _NOW = "the range before", "this range"


# The value of a row's dimension; `part` is the range that it is in.
_CASES = ", ".join(f"by_name = '{name}', {column}::String" for name, column in BY.items() if name != "release")
_VALUE = f"ifNull(nullIf(multiIf(by_name = 'time', part, {_CASES}, {BY['release']}::String), ''), '(none)')"


VALUES = f"""
WITH
    (SELECT {_BY_NAME}) AS by_name, '' AS part
SELECT arrayJoin(arrayConcat(['{AUTOMATIC}'], arraySort(groupUniqArray(1000)(value)))) AS name
FROM
(
    SELECT {_VALUE} AS value
    FROM stream_minutes
    WHERE {IN_RANGE} AND by_name != 'time'
        AND {filters()}
    GROUP BY value
)"""
"""The statement for the values of the variables ``a`` and ``b``."""


def _automatic(variable: str) -> str:
    return f"({every(variable)} OR has({chosen(variable)}, '{AUTOMATIC}'))"


def picks() -> str:
    """Return the beginning of a statement: WITH and the names that ``sides`` needs, ``a_values`` and ``b_values`` among them."""
    a_given, b_given, a_automatic, b_automatic = chosen("a"), chosen("b"), _automatic("a"), _automatic("b")
    wanted = f"({a_automatic} OR {b_automatic}) AND by_name != 'time'"
    ranking = rolled("stream", "streams", only=f"{wanted} AND {filters()}")
    first = f"arraySlice(arrayFilter(name -> {b_automatic} OR NOT has({b_given}, name), ranked), 1, 1)"
    second = "arraySlice(arrayFilter(name -> NOT has(a, name), ranked), 1, 1)"
    # One scalar subquery for both sides: ClickHouse analyzes it wherever a name of it is used.
    return f"""WITH
    (SELECT {_BY_NAME}) AS by_name,
    (
        SELECT (a, multiIf(by_name = 'time', ['{_NOW}'], {b_automatic}, {second}, {b_given}))
        FROM
        (
            SELECT ranked, multiIf(by_name = 'time', ['{_BEFORE}'], {a_automatic}, {first}, {a_given}) AS a
            FROM
            (
                SELECT groupArray(value) AS ranked
                FROM
                (
                    SELECT {_VALUE} AS value, sum(streams) AS n
                    FROM (SELECT *, '' AS part {ranking})
                    GROUP BY value
                    ORDER BY n DESC, value
                    LIMIT 1001
                )
            )
        )
    ) AS picked, picked.1 AS a_values, picked.2 AS b_values"""


_SIDE = "arrayConcat(if(has(a_values, value), ['A'], []), if(has(b_values, value), ['B'], []))"


def sides(stem: str, alive: str, *, series: bool = False, minutes: bool = False) -> str:
    """Return a FROM clause: the rollups of both sides, with ``side`` (A or B) and ``value``. Needs the names of ``picks``.

    A value of both sides counts for both. ``series``: for curves, with ``moved_minute``: the minute, moved to this range if it is of the
    range before.
    ``minutes``: no hours.
    """
    hours = "false" if minutes else f"$__interval_s % 3600 = 0 AND {_WHOLE}" if series else _WHOLE
    tables = "\n        UNION ALL\n".join(
        f"""        SELECT * FROM {stem}_{table} FINAL
        WHERE minute >= {_LOW} AND minute < $__toTime AND {condition} AND {alive} > 0
        AND {filters()}"""
        for table, condition in (("minutes", f"NOT ({hours})"), ("hours", f"({hours})"))
    )
    # Not called ``minute``: a name that a statement gives is not read as the column of a key (query.key_ranges of the ingest).
    moved = f"*, if(minute < $__fromTime, minute + toIntervalSecond({_LENGTH}), minute) AS moved_minute" if series else "*"
    return f"""FROM
(
    SELECT {moved}, {_VALUE} AS value
    FROM
    (
        SELECT *, if(minute < $__fromTime, '{_BEFORE}', '{_NOW}') AS part
        FROM
        (
{tables}
        )
    )
)
ARRAY JOIN {_SIDE} AS side"""


BEGAN = f"start_time >= {_LOW} AND start_time < $__toTime + INTERVAL 1 MINUTE"
"""The condition that a stream began in one of the two ranges. Needs the names of ``picks``."""


def streams_of(minutes: str, columns: str) -> str:
    """Return a FROM clause: the streams of both sides that began in these minutes (a subquery), with ``side`` and ``value``."""
    part = f"if(toStartOfMinute(start_time) < $__fromTime, '{_BEFORE}', '{_NOW}')"
    return f"""FROM
(
    SELECT {columns}, {part} AS part, {_VALUE} AS value
    FROM streams
    WHERE {BEGAN} AND toStartOfMinute(start_time) IN
        (
            {minutes}
        )
        AND {filters()}
)
ARRAY JOIN {_SIDE} AS side"""
