"""SQL for node samples over any range: from the 5-minute rollup where a point covers complete periods of it, otherwise from the samples.

Both add up to the same, so a panel's figures do not depend on the choice; samples that arrive late are missing until their period is
computed again, within a minute. Periods that may still change are read from the samples: the newest one of the rollup, and everything after
it. The rollup of a tenant is computed from its first period on, so nothing of it before the newest one is missing. Only who reads all
tenants may miss periods of one for which the store has too little memory, until they are computed. The module holds SQL only; `boards/` has
the panels.
"""

from __future__ import annotations

from legato_ingest.definitions import counter_growth

__all__ = ["MEAN", "growth", "observed", "seen", "values"]

MEAN = "sum(value_sum) / sum(samples)"
"""The mean of the values of ``values``."""
# The complete periods of the range that the rollup has. A period from `_LOW` begins after the range does, even if that has a fraction of a
# second, which macros leave out.
_LOW = "toStartOfFiveMinutes($__fromTime + INTERVAL 300 SECOND)"
_NEWEST = "(SELECT max(minute) FROM node_samples_5min WHERE minute < toStartOfFiveMinutes(now()))"
_HIGH = f"greatest({_LOW}, least(toStartOfFiveMinutes($__toTime), {_NEWEST}))"

# What a single sample has for these columns of the rollup is its value.
_SAME = ("value_sum", "value_max", "first_value", "last_value")


def _rolled(high: str) -> str:
    return f"minute >= {_LOW} AND minute < {high}"


def _raw(high: str) -> str:
    low, high = (f"toDateTime64({each}, 9, 'UTC')" for each in (_LOW, high))
    return f"$__timeFilter_ms(recorded_at) AND (recorded_at < {low} OR recorded_at >= {high})"


def _either(metrics: str, only: str, rolled: str, raw: str, alive: str, condition: str) -> str:
    """Return both sources of the metrics. ``rolled``, ``raw``: their columns after the key. ``alive``, ``condition``: which rows count."""
    high = f"if($__interval_s % 300 = 0, {_HIGH}, {_LOW})"
    return f"""(
        SELECT tenant, metric, engine_id, host, series, toDateTime64(minute, 9, 'UTC') AS at, attributes, {rolled}
        FROM node_samples_5min FINAL
        WHERE metric IN ({metrics}) AND {_rolled(high)} AND {alive}
            AND {only}
        UNION ALL
        SELECT tenant, metric, engine_id, host, series, recorded_at AS at, attributes, {raw}
        FROM node_samples FINAL
        WHERE metric IN ({metrics}) AND {_raw(high)} AND {condition}
            AND {only}
    )"""


def values(metrics: str, only: str = "true") -> str:
    """Return a source of the values of gauges and counters: one row per sample, or per five minutes of a series.

    Its columns are the key and the attributes of ``node_samples``, ``at``, and those of the rollup. ``only``: a condition on the key and
    the attributes.
    """
    rolled = "samples, positive, value_sum, value_max, first_value, last_value, grown AS grown_within"
    each = "assumeNotNull(value)"
    raw = f"1 AS samples, {each} > 0 AS positive, {', '.join(f'{each} AS {name}' for name in _SAME)}, 0. AS grown_within"
    return _either(metrics, only, rolled, raw, "samples > 0", "value IS NOT NULL")


def observed(metrics: str, only: str = "true") -> str:
    """Return a source of the observations of histograms with delta temporality: their number ``observations``, and ``observed_sum``."""
    raw = "assumeNotNull(count) AS observations, assumeNotNull(sum) AS observed_sum"
    condition = "temporality = 'delta' AND count > 0 AND sum IS NOT NULL"
    return _either(metrics, only, "observations, observed_sum", raw, "observations > 0", condition)


def growth(metrics: str, columns: str, only: str = "true") -> str:
    """Return the rows of ``values`` of counters with ``grown``, their growth since the last sample of the series' row before.

    ``before`` is the value of that sample; NULL for the first row of the range.
    """
    return f"""
        SELECT
            {columns}, metric, at, samples, positive, value_sum,
            {counter_growth("at", "first_value", "last_value", "grown_within")}
        FROM {values(metrics, only)}"""


def seen(columns: str, metrics: str, only: str = "true") -> str:
    """Return a source of the ``columns`` of everything with a sample in the range, and of the ``minute``, for variables."""
    return f"""(
    SELECT {columns}, minute FROM node_samples_5min
    WHERE metric IN ({metrics}) AND {_rolled(_HIGH)}
        AND {only}
    UNION ALL
    SELECT {columns}, toStartOfMinute(recorded_at) AS sampled_minute FROM node_samples
    WHERE metric IN ({metrics}) AND {_raw(_HIGH)}
        AND {only}
)"""
