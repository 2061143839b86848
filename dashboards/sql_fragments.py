"""Pieces of SQL that panels share: filters by variables, quantiles of sparse histograms.

One idea: a variable's value comes into a statement percent-encoded, inside a literal, so whatever somebody types stays a value; the engine
decodes it. Grafana's `queryparam` format is the only one that escapes quotes and backslashes alike. It knows no panel.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "DIMENSIONS",
    "ENGINE",
    "chosen",
    "chosen_number",
    "chosen_text",
    "filters",
    "gap_quantile",
    "growth",
    "middle",
    "order_statistic",
    "quantile",
    "rolled",
    "weighted_quantile",
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
_FINE, _COARSE = 16, 4


def chosen(variable: str) -> str:
    """The values of a variable, an array of strings. Grafana writes ``var-NAME=value&var-NAME=value``."""
    each = "decodeURLFormComponent(substring(pair, position(pair, '=') + 1))"
    return f"arrayMap(pair -> {each}, splitByChar('&', '${{{variable}:queryparam}}'))"


def chosen_text(variable: str) -> str:
    """The one value of a variable."""
    return f"trimBoth({chosen(variable)}[1])"


def chosen_number(variable: str) -> str:
    """The one value of a variable, as a number; 0 when it is none."""
    return f"toFloat64OrZero({chosen_text(variable)})"


def _filter(variable: str, column: str) -> str:
    # Two pieces, so that no macro of Grafana's plugin is seen in it.
    every = "['', concat('$', '__all')]"
    return f"(hasAny({chosen(variable)}, {every}) OR has({chosen(variable)}, if({column} = '', '(none)', {column}::String)))"


def filters(variables: dict[str, str] | Sequence[str] = (), without: Sequence[str] = ()) -> str:
    """The condition that every variable's column has one of its values; an empty name is called ``(none)``."""
    columns = variables if isinstance(variables, dict) else DIMENSIONS
    return "\n    AND ".join(_filter(variable, column) for variable, column in columns.items() if variable not in without)


def rolled(stem: str, alive: str, *, series: bool = False, before: bool = False, only: str = "") -> str:
    """A source of rows: those of `STEM_minutes` in the range that the variables leave, hours that lie whole in it from `STEM_hours`.

    Both add up to the same, so a panel's figures do not depend on which was read. ``series``: for points over time, which take hours only
    where a point is whole hours. ``before``: of the range of equal length before. ``alive``: the figure that a row of nothing has at 0.
    ``only``: another condition than that all variables have one of their values.
    """
    only = only or filters()
    low, high = ("$__fromTime - ($__toTime - $__fromTime)", "$__fromTime") if before else ("$__fromTime", "$__toTime")
    within = f"minute >= {low} AND minute < {high}" if before else "$__timeFilter(minute)"
    whole = f"minute >= toStartOfHour({low} + INTERVAL 3599 SECOND) AND minute < toStartOfHour({high})"
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


def growth(metrics: str, columns: str, only: str = "true") -> str:
    """The rows of counters with ``grown``: the difference to the one before of the same series, a fall being a restart from 0."""
    window = "PARTITION BY tenant, series ORDER BY recorded_at ROWS BETWEEN 1 PRECEDING AND CURRENT ROW"
    return f"""
    SELECT *, if(before IS NULL, 0, if(value >= before, value - before, value)) AS grown
    FROM
    (
        SELECT {columns}, metric, recorded_at, value, lagInFrame(toNullable(value)) OVER ({window}) AS before
        FROM node_samples FINAL
        WHERE metric IN ({metrics}) AND $__timeFilter_ms(recorded_at) AND value IS NOT NULL
            AND {only}
    )"""


def middle(bucket: str, per_doubling: int = _FINE) -> str:
    """The geometric middle of a bucket of a log histogram."""
    return f"pow(2, ({bucket} + 0.5) / {per_doubling})"


def order_statistic(level: float, buckets: str, per_doubling: int) -> str:
    """The middle of the bucket that holds the value at rank ⌈level n⌉ of a sparse histogram (a map bucket → count); NULL when empty.

    ``buckets`` is the name of a column. A bucket's middle is within 2.2 % (16 a doubling) or 9.1 % (4) of every value in it.
    """
    counts = f"mapValues({buckets})"
    place = f"arrayFirstIndex(seen -> seen >= {level} * arraySum({counts}) - 1e-6, arrayCumSum({counts}))"
    return f"if(empty({buckets}), NULL, {middle(f'mapKeys({buckets})[{place}]', per_doubling)})"


def quantile(level: float, buckets: str) -> str:
    """As ``order_statistic``, of a figure that a stream or step has once."""
    return order_statistic(level, buckets, _FINE)


def gap_quantile(level: float, buckets: str) -> str:
    """As ``order_statistic``, of pooled gaps."""
    return order_statistic(level, buckets, _COARSE)


def weighted_quantile(level: float, buckets: str) -> str:
    """The smallest gap such that gaps up to it hold this share of the time that is spent in gaps; NULL when empty."""
    weights = f"arrayMap((bucket, count) -> count * {middle('bucket', _COARSE)}, mapKeys({buckets}), mapValues({buckets}))"
    place = f"arrayFirstIndex(seen -> seen >= {level} * arraySum({weights}) * (1 - 1e-9), arrayCumSum({weights}))"
    return f"if(empty({buckets}), NULL, {middle(f'mapKeys({buckets})[{place}]', _COARSE)})"
