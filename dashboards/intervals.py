"""Figures of two sides with their 95 % intervals, in SQL. It is no test of hypotheses: no interval is corrected for the number of figures.

Streams of the same minutes share incidents, so an interval for independent streams would be far too narrow. The range is cut into parts,
and the spread of a figure over the parts gives its design effect: the variance of the ratio of two sums over clusters, divided by that for
independent streams, at least 1. The effective number of streams is n divided by it, and by (t/z)² for the number of parts (Korn and
Graubard 1998). With that number:

* a share has Wilson's interval, a rate of events the score interval of a Poisson mean;
* a quantile has the interval between two order statistics, from exact binomial ranks, out to the edges of their buckets;
* a share of time has the interval of a ratio (± t standard errors).

The interval of a difference adds the distances to the limits in squares (Newcombe 1998; Zou and Donner 2008), as for independent sides.
Sides that share incidents differ less than that, so the interval is then too wide, never too narrow. One part has no spread and therefore
no interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["PART", "Figure", "compared"]

_Z = 1.959964
# The 97.5 % quantiles of Student's t for 1 to 4 degrees of freedom; the expansion after it is within 1 % for more.
_T = "[12.706205, 4.302653, 3.182446, 2.776445]"
# More effective streams change a rank by less than a bucket.
_EFFECTIVE_MAX = 100_000
PART = "intDiv(toUnixTimestamp(minute), greatest(if($__toTime - $__fromTime > 21600, 3600, 60), intDiv($__toTime - $__fromTime, 30)))"
"""The part of the range that a row of a rollup is in: about thirty of them, each at least one row long."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a side. ``above`` / ``below``: the two sums of which it is the ratio, over ``n`` streams; or ``buckets`` and a ``level``.

    ``better``: whether high or low values are good. ``unit``: share, rate or s (of which buckets are in µs).
    """

    name: str
    kind: Literal["count", "share", "rate", "time", "quantile"]
    better: Literal["high", "low", ""] = "low"
    above: str = "0"
    below: str = "0"
    n: str = ""
    buckets: str = ""
    level: float = 0.0

    @property
    def unit(self) -> str:
        """How its values are written."""
        return {"count": "count", "rate": "rate", "quantile": "s"}.get(self.kind, "share")

    def row(self, number: int) -> str:
        """The tuple of the figure for one part of one side."""
        buckets = f"sumMap({self.buckets})" if self.buckets else "CAST(map(), 'Map(UInt16, UInt64)')"
        sums = ", ".join(f"toFloat64(sum({each}))" for each in (self.above, self.below, self.n or self.below))
        return f"({number}, '{self.name}', '{self.kind}', '{self.better}', '{self.unit}', {self.level}, {sums}, {buckets})"


_NAMES = ("number", "figure", "kind", "better", "unit", "level", "above", "below", "amount", "buckets")
_COUNT = "arraySum(mapValues({0}))"
_UP_TO_IT = "arraySum((key, count) -> if(key <= bucket, toFloat64(count), 0), mapKeys(each), mapValues(each))"
_PLACE = "arrayFirstIndex(seen -> seen >= {0} - 1e-6, arrayCumSum(mapValues(total)))"
# P(X <= k) of a binomial X with `m` trials, for k from `k_first` on; what lies further out is below 1e-15.
_TRIALS = f"if(m IS NULL, 0, floor(least(m, {_EFFECTIVE_MAX})))"
_SPREAD = "(9 * sqrt(trials * level * (1 - level)) + 12)"
_CHANCES = """arrayCumSum(k -> exp(lgamma(trials + 1) - lgamma(k + 1) - lgamma(trials - k + 1) + k * log(level)
        + (trials - k) * log(1 - level)), range(k_first, toUInt64(least(toFloat64(trials), ceil(trials * level + spread)) + 1)))"""


def _parts(figures: Sequence[Figure], source: str) -> str:
    """One row per figure and side: its sums in each part, and the counts of all buckets."""
    listed = ",\n            ".join(figure.row(number) for number, figure in enumerate(figures))
    fields = ", ".join(f"row.{place} AS {name}" for place, name in enumerate(_NAMES, 1))
    return f"""
        SELECT
            side, number, any(figure) AS figure, any(kind) AS kind, any(better) AS better, any(unit) AS unit, any(level) AS level,
            groupArray(above) AS aboves, groupArray(below) AS belows, groupArray(buckets) AS maps, sumMap(buckets) AS total,
            if(kind = 'quantile', toFloat64({_COUNT.format("total")}), sum(amount)) AS n
        FROM
        (
            SELECT side, {fields}
            FROM
            (
                SELECT side, {PART} AS cut, [
            {listed}] AS listed
                {source}
                GROUP BY side, cut
            )
            ARRAY JOIN listed AS row
        )
        GROUP BY side, number"""


def _spread(figures: Sequence[Figure], source: str) -> str:
    """The ratio of each figure, and the effective number of its streams. For a quantile: the share up to its bucket."""
    return f"""
    SELECT
        *, mapKeys(total)[{_PLACE.format("level * n")}] AS bucket,
        if(kind = 'quantile', arrayMap(each -> {_UP_TO_IT}, maps), aboves) AS ups,
        if(kind = 'quantile', arrayMap(each -> toFloat64({_COUNT.format("each")}), maps), belows) AS downs,
        arrayCount(down -> down > 0, downs) AS cuts, arraySum(downs) AS whole, if(whole = 0, 0, arraySum(ups) / whole) AS ratio,
        cuts / nullIf(cuts - 1, 0) * arraySum((up, down) -> pow(up - ratio * down, 2), ups, downs) / nullIf(pow(whole, 2), 0) AS variance,
        multiIf(kind IN ('share', 'quantile'), ratio * (1 - ratio) / n, kind = 'rate', ratio / n, NULL) AS alone,
        greatest(1, ifNull(variance / nullIf(alone, 0), 1)) AS effect,
        if(cuts <= 5, {_T}[cuts - 1], {_Z} + {(_Z**3 + _Z) / 4} / (cuts - 1)
            + {(5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96} / pow(cuts - 1, 2)) AS t,
        if(cuts < 2, NULL, n / effect * pow({_Z} / t, 2)) AS m
    FROM
    ({_parts(figures, source)}
    )"""


def _limits(figures: Sequence[Figure], source: str) -> str:
    """The value of each figure of each side with its limits; NULL where it has too few streams."""
    z2, half = _Z**2, _Z**2 / 2
    score = "ratio * (1 - ratio)"
    return f"""
    SELECT
        side, number, figure, kind, better, unit, n,
        if(kind = 'quantile', toUInt64(assumeNotNull({_TRIALS})), 0) AS trials, {_SPREAD} AS spread,
        toUInt64(greatest(0, floor(trials * level - spread))) AS k_first, {_CHANCES} AS chances,
        k_first + arrayCount(chance -> chance <= 0.025, chances) AS rank_low,
        k_first + arrayFirstIndex(chance -> chance >= 0.975, chances) AS rank_high,
        mapKeys(total)[{_PLACE.format("greatest(1, floor(rank_low * n / trials))")}] AS bucket_low,
        mapKeys(total)[{_PLACE.format("ceil(rank_high * n / trials)")}] AS bucket_high,
        multiIf(
            kind = 'count', n,
            kind = 'quantile', if(n * (1 - level) >= 1 - 1e-9, pow(2, (bucket + 0.5) / 16) / 1e6, NULL),
            whole > 0, ratio, NULL) AS figured,
        multiIf(
            kind = 'quantile', if(trials = 0 OR rank_low = 0, NULL, pow(2, bucket_low / 16) / 1e6),
            kind = 'share', (ratio + {half} / m - {_Z} * sqrt({score} / m + {z2 / 4} / m / m)) / (1 + {z2} / m),
            kind = 'rate', ratio + {half} / m - {_Z} * sqrt(ratio / m + {z2 / 4} / m / m),
            kind = 'time' AND ratio > 0 AND cuts > 1, greatest(0, ratio - t * sqrt(variance)), NULL) AS low,
        multiIf(
            kind = 'quantile', if(trials = 0 OR rank_high > trials, NULL, pow(2, (bucket_high + 1) / 16) / 1e6),
            kind = 'share', (ratio + {half} / m + {_Z} * sqrt({score} / m + {z2 / 4} / m / m)) / (1 + {z2} / m),
            kind = 'rate', ratio + {half} / m + {_Z} * sqrt(ratio / m + {z2 / 4} / m / m),
            kind = 'time' AND ratio > 0 AND cuts > 1, ratio + t * sqrt(variance), NULL) AS high
    FROM
    ({_spread(figures, source)}
    )"""


def _text(value: str, sign: str = "''") -> str:
    """A value as text in the unit of its row; NULL stays NULL."""
    number = f"multiIf(unit = 'share', round(100 * {value}, 2), unit = 'rate', round(1000 * {value}, 1), unit = 'count', {value}, "
    number += f"abs({value}) >= 1, round({value}, 2), round(1000 * {value}, 1))"
    suffix = f"multiIf(unit = 'share', ' %', unit IN ('rate', 'count'), '', abs({value}) >= 1, ' s', ' ms')"
    return f"concat({sign}, toString({number}), {suffix})"


def _signed(value: str) -> str:
    return _text(value, f"if({value} > 0, '+', '')")


def _between(low: str, high: str, text: str = "plain") -> str:
    write = _signed if text == "signed" else _text
    ends = [f"ifNull({write(each)}, '?')" for each in (low, high)]
    return f"if({low} IS NULL AND {high} IS NULL, NULL, concat({ends[0]}, ' to ', {ends[1]}))"


RESULTS = {"B is better": "green", "B is worse": "red", "no difference shown": "text", "too few streams": "text"}
"""What a comparison of a figure can say, and its colour."""


def compared(figures: Sequence[Figure], source: str) -> str:
    """Return a statement: a row per figure with both sides, their intervals, the difference B - A and its interval.

    ``source``: a FROM clause with ``side``, ``minute`` and the columns of the figures.
    """
    sides = ", ".join(
        f"anyIf({column}, side = '{side}') AS {side.lower()}_{short}"
        for side in "AB"
        for short, column in (("value", "figured"), ("low", "low"), ("high", "high"))
    )
    return f"""SELECT
    figure, {_text("a_value")} AS "A", {_text("b_value")} AS "B", {_signed("more")} AS "B − A",
    {_between("more_low", "more_high", "signed")} AS "95 % interval of B − A",
    multiIf(
        kind = 'count', NULL,
        more IS NULL, 'too few streams',
        ifNull(more_low > 0, false), if(better = 'high', 'B is better', 'B is worse'),
        ifNull(more_high < 0, false), if(better = 'high', 'B is worse', 'B is better'),
        more_low IS NULL OR more_high IS NULL, 'too few streams', 'no difference shown') AS result,
    {_between("a_low", "a_high")} AS "A, 95 %", {_between("b_low", "b_high")} AS "B, 95 %", n_a AS "n of A", n_b AS "n of B"
FROM
(
    SELECT
        number, any(figure) AS figure, any(kind) AS kind, any(better) AS better, any(unit) AS unit, {sides},
        toUInt64(sumIf(n, side = 'A')) AS n_a, toUInt64(sumIf(n, side = 'B')) AS n_b,
        b_value - a_value AS more, more - sqrt(pow(b_value - b_low, 2) + pow(a_high - a_value, 2)) AS more_low,
        more + sqrt(pow(b_high - b_value, 2) + pow(a_value - a_low, 2)) AS more_high
    FROM
    ({_limits(figures, source)}
    )
    GROUP BY number
)
WHERE n_a + n_b > 0
ORDER BY number"""
