"""SQL fragments that panels share: filters by variables, quantiles of sparse histograms.

A variable's value is inserted into a statement percent-encoded, inside a literal, so no input can become SQL; ClickHouse decodes it.
Grafana's `queryparam` format is the only one that escapes both quotes and backslashes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

__all__ = [
    "DIMENSIONS",
    "ENGINE",
    "IN_RANGE",
    "SECONDS_OF_POINT",
    "bar_bound",
    "chosen",
    "chosen_number",
    "chosen_last",
    "chosen_text",
    "every",
    "filters",
    "gap_quantile",
    "middle",
    "order_statistic",
    "quantile",
    "rolled",
    "up_to_worst",
    "weighted_quantile",
    "in_whole_minutes",
    "whole_hours",
    "with_chosen",
    "worst_minutes",
]

# The variables that filter streams, and their columns.
DIMENSIONS = {
    "tenant": "tenant",
    "service": "service_name",
    "release": "service_version",
    "model": "model",
    "provider": "provider",
    "route": "route",
    "vantage": "vantage",
    "transport": "transport",
}
ENGINE = {"tenant": "tenant", "engine": "engine_id"}
IN_RANGE = "minute >= $__fromTime AND minute < $__toTime"
"""The condition that a row's minute begins in the range. $__timeFilter would take the minute that begins at the end of the range, too."""
# The whole minutes of the range: a rate leaves out the minute that still runs.
_FIRST_WHOLE, _LAST_WHOLE = "toStartOfMinute($__fromTime + INTERVAL 59 SECOND)", "toStartOfMinute($__toTime)"
SECONDS_OF_POINT = f"(least(time + INTERVAL $__interval_s second, {_LAST_WHOLE}) - greatest(time, {_FIRST_WHOLE}))"
"""The length in s of the whole minutes that are in the point ``time`` of a curve: less than an interval at both ends of a range."""
_FINE, _COARSE = 16, 4
# Grafana writes the values of a variable as `var-NAME=value&var-NAME=value`, percent-encoded. `shown` has the empty name, too, if `(none)`
# is chosen. The dollar is in brackets, because Grafana's plugin would expand $__all as a macro.
_DEFINITIONS = {
    "chosen": "arrayMap(value -> decodeURLFormComponent(value), extractAll('{0}', '=([^&]*)'))",
    "every": "match('{0}', '^$|=(&|$)|=([$]|%24)__all(&|$)')",
    "shown": "arrayMap(value -> decodeURLFormComponent(value), extractAll(concat('{0}', if(match('{0}', '=%28none%29(&|$)'), '&=', '')), "
    "'=([^&]*)'))",
}
_NAME = re.compile(r"\b(?:chosen|every|shown)_\w+\b")


def chosen(variable: str) -> str:
    """Return the values of a variable, an array of strings. ``with_chosen`` defines the name."""
    return f"chosen_{variable}"


def chosen_text(variable: str) -> str:
    """Return the only value of a variable."""
    return f"trimBoth({chosen(variable)}[1])"


def chosen_last(variable: str) -> str:
    """Return the last value of a variable with one value: Legato's page appends what a user ticks to what was ticked before."""
    return f"{chosen(variable)}[-1]"


def chosen_number(variable: str) -> str:
    """Return the only value of a variable as a number; 0 if it is not a number."""
    return f"toFloat64OrZero({chosen_text(variable)})"


def every(variable: str) -> str:
    """Return the condition that a variable is at All or has no value. ``with_chosen`` defines the name."""
    return f"every_{variable}"


def _filter(variable: str, column: str) -> str:
    return f"({every(variable)} OR has(shown_{variable}, {column}))"


def with_chosen(sql: str) -> str:
    """Return a statement, without space before it, with definitions of the names of ``chosen``, ``every`` and ``filters`` at its beginning.

    A statement names a variable up to twenty times, and ClickHouse analyzes an expression wherever it is: with the expressions themselves
    this took 10 of the 20 ms of a panel.
    """
    names = dict.fromkeys(match[0] for match in _NAME.finditer(sql))
    if not names:
        return sql
    defined = ",\n    ".join(map(_definition, names))
    body = f",{sql.removeprefix('WITH')}" if sql.startswith("WITH") else f"\n{sql}"
    return f"WITH\n    {defined}{body}"


def _definition(name: str) -> str:
    kind, _, variable = name.partition("_")
    return f"{_DEFINITIONS[kind].format(f'${{{variable}:queryparam}}')} AS {name}"


def filters(variables: dict[str, str] | Sequence[str] = (), without: Sequence[str] = ()) -> str:
    """Return the condition that the column of each variable has one of its values. ``(none)`` stands for the empty name."""
    columns = variables if isinstance(variables, dict) else DIMENSIONS
    return "\n    AND ".join(_filter(variable, column) for variable, column in columns.items() if variable not in without)


def in_whole_minutes(time: str) -> str:
    """Return the condition that a time is in the minutes for which ``SECONDS_OF_POINT`` is the length."""
    return f"{time} >= {_FIRST_WHOLE} AND {time} < {_LAST_WHOLE}"


def whole_hours(low: str, high: str) -> str:
    """Return the condition that ``minute`` is in an hour of the rollups, which are hours of UTC, that lies between two times (SQL)."""
    return f"minute >= toStartOfHour({low} + INTERVAL 3599 SECOND, 'UTC') AND minute < toStartOfHour({high}, 'UTC')"


def rolled(stem: str, alive: str, *, series: bool = False, before: bool = False, only: str = "") -> str:
    """Return a FROM clause: rollups of the range that match the variables, complete hours from `STEM_hours`, the rest from `STEM_minutes`.

    Both tables add up to the same, so a panel's figures do not depend on the choice. ``alive``: the column that is 0 in rows of vanished
    keys. ``series``: for curves, which use hours only if a point covers complete hours. ``before``: the range of equal length before.
    ``only``: a condition instead of the variables' filters.
    """
    only = only or filters()
    low, high = ("$__fromTime - ($__toTime - $__fromTime)", "$__fromTime") if before else ("$__fromTime", "$__toTime")
    within = f"minute >= {low} AND minute < {high}"
    whole = whole_hours(low, high)
    hours = f"$__interval_s % 3600 = 0 AND {whole}" if series else whole
    return f"""FROM
(
    SELECT * FROM {stem}_minutes FINAL
    WHERE {within} AND NOT ({hours}) AND {alive} > 0
    AND {only}
    UNION ALL
    SELECT * FROM {stem}_hours FINAL
    WHERE {within} AND {hours} AND {alive} > 0
    AND {only}
)"""


def middle(bucket: str, per_doubling: int = _FINE) -> str:
    """Return the geometric middle of a bucket of a log histogram."""
    return f"pow(2, ({bucket} + 0.5) / {per_doubling})"


def bar_bound(bar: str) -> str:
    """Return the upper bound of a bar of four fine buckets, 19 % wide, as text."""
    bound = f"pow(2, ({bar} + 1) / 4)"
    return f"""multiIf(
        {bound} >= 1e6, concat(toString(round({bound} / 1e6, 2)), ' s'),
        {bound} >= 1e3, concat(toString(round({bound} / 1e3, 1)), ' ms'),
        concat(toString(round({bound}, 1)), ' µs'))"""


def order_statistic(level: float, buckets: str, per_doubling: int) -> str:
    """Return the middle of the bucket that holds the value at rank ⌈level n⌉ of a sparse histogram (map bucket → count); NULL if empty.

    ``buckets`` names a column. A bucket's middle is within 2.2 % (16 per doubling) or 9.1 % (4 per doubling) of every value in it.
    """
    counts = f"mapValues({buckets})"
    place = f"arrayFirstIndex(seen -> seen >= {level} * arraySum({counts}) - 1e-6, arrayCumSum({counts}))"
    return f"if(empty({buckets}), NULL, {middle(f'mapKeys({buckets})[{place}]', per_doubling)})"


def quantile(level: float, buckets: str) -> str:
    """``order_statistic`` for a figure that a stream or step has once."""
    return order_statistic(level, buckets, _FINE)


def gap_quantile(level: float, buckets: str) -> str:
    """``order_statistic`` for pooled gaps."""
    return order_statistic(level, buckets, _COARSE)


def weighted_quantile(level: float, buckets: str) -> str:
    """Return the smallest gap such that gaps up to it hold this share of the time spent in gaps; NULL if empty."""
    weights = f"arrayMap((bucket, count) -> count * {middle('bucket', _COARSE)}, mapKeys({buckets}), mapValues({buckets}))"
    place = f"arrayFirstIndex(seen -> seen >= {level} * arraySum({weights}) * (1 - 1e-9), arrayCumSum({weights}))"
    return f"if(empty({buckets}), NULL, {middle(f'mapKeys({buckets})[{place}]', _COARSE)})"


def up_to_worst(level: float, buckets: str, of: Callable[[float, str], str] = quantile) -> str:
    """Return a quantile in s that is at most ``worst_us``, the largest of the same values: the middle of a bucket can be above it.

    ``of``: one of the quantiles in µs of this module. NULL if empty.
    """
    return f"if(empty({buckets}), NULL, least({of(level, buckets)}, toFloat64(worst_us))) / 1e6"


def worst_minutes(only: str = "true") -> str:
    """Return a subquery: the minutes in which the 50 streams of the range with the longest gaps began. ``only``: a condition.

    The 50 streams are in the 50 minutes with the longest gaps, which are in the 50 such hours, so a query for them reads only these.
    """
    hours = f"SELECT toStartOfHour(minute) AS hour {rolled('stream', 'streams', only=only)} GROUP BY hour"
    return f"""SELECT minute
        FROM stream_minutes FINAL
        WHERE {IN_RANGE} AND streams > 0 AND toStartOfHour(minute) IN
            ({hours} ORDER BY max(gap_max_us) DESC, hour DESC LIMIT 50)
            AND {only}
        GROUP BY minute
        ORDER BY max(gap_max_us) DESC, minute DESC
        LIMIT 50"""
