"""The two sides of the dashboard `compare`, and its figures with intervals, in plain Python from raw rows.

The intervals are written from their formulas, independently of the SQL: ratios over the parts of the range, order statistics by exact
binomial probabilities.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from helpers.dashboards.panels import ALL, DIMENSIONS, Row, View

__all__ = ["BEFORE", "NOW", "Limits", "Rowed", "chosen_sides", "difference", "quantile_limits", "ratio_limits", "sided"]

BEFORE, NOW = "the range before", "this range"
AUTOMATIC = {ALL, "", "(automatic)"}
Z = 1.959964
T = {1: 12.706205, 2: 4.302653, 3: 3.182446, 4: 2.776445}


@dataclass(frozen=True)
class Rowed:
    """A raw row of one side: its value, the time of its row in the rollups (unix s), and that time moved to the chosen range."""

    side: str
    value: str
    stamp: int
    moved: int
    row: Row


def _dimension(view: View) -> str:
    by = view.chosen("by")[-1]
    return by if by in DIMENSIONS or by == "time" else "release"


def _range(view: View) -> tuple[int, int]:
    return view.span.from_ms // 1000, view.span.to_ms // 1000


def _found(rows: Iterable[Row], view: View) -> list[tuple[str, str, int, int, Row]]:
    """Part, value, minute moved by 0 or by the range's length, and the shift, of each row that the variables show."""
    low, high = _range(view)
    by = _dimension(view)
    made = []
    for row in rows:
        if not view.shows(row):
            continue
        if low <= row["minute"] < high:
            made.append((NOW, low, high, row))
        elif by == "time" and 2 * low - high <= row["minute"] < low:
            made.append((BEFORE, 2 * low - high, low, row))
    return [(part, part if by == "time" else row[DIMENSIONS[by]] or "(none)", start, end, row) for part, start, end, row in made]


def chosen_sides(streams: Iterable[Row], view: View) -> tuple[list[str], list[str]]:
    """The values of A and of B."""
    if _dimension(view) == "time":
        return [BEFORE], [NOW]
    counts = Counter(value for _, value, _, _, _ in _found(streams, view))
    ranked = sorted(counts, key=lambda value: (-counts[value], value))
    a_given, b_given = ([] if AUTOMATIC & set(view.chosen(name)) else view.chosen(name) for name in "ab")
    a = a_given or [value for value in ranked if value not in b_given][:1]
    return a, b_given or [value for value in ranked if value not in a][:1]


def sided(
    streams: Sequence[Row], view: View, rows: Sequence[Row] | None = None, *, series: bool = False, minutes: bool = False
) -> list[Rowed]:
    """The rows (default: the streams) of both sides. ``series``: hours only for points of whole hours; ``minutes``: no hours."""
    sides = dict(zip("AB", chosen_sides(streams, view), strict=True))
    low, high = _range(view)
    uses_hours = not minutes and high - low > 21_600 and not (series and view.point_s % 3600)
    made = []
    for part, value, start, end, row in _found(streams if rows is None else rows, view):
        minute = row["minute"]
        is_whole = uses_hours and (start + 3599) // 3600 * 3600 <= minute < end // 3600 * 3600
        stamp = minute // 3600 * 3600 if is_whole else minute
        moved = stamp + (high - low if part == BEFORE else 0)
        made += [Rowed(side, value, stamp, moved, row) for side, values in sides.items() if value in values]
    return made


@dataclass(frozen=True)
class Limits:
    """A figure of one side, with its 95 % interval; None where it is unknown."""

    value: float | None
    low: float | None
    high: float | None
    n: int


def _parts(rows: Sequence[Rowed], view: View, above: Callable[[Row], float], below: Callable[[Row], float]) -> list[tuple[float, float]]:
    low, high = _range(view)
    part_s = max(3600 if high - low > 21_600 else 60, (high - low) // 30)
    sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for each in rows:
        sums[each.stamp // part_s][0] += above(each.row)
        sums[each.stamp // part_s][1] += below(each.row)
    return [(up, down) for up, down in sums.values() if down > 0]


def _t(degrees: int) -> float:
    terms = (Z**3 + Z) / 4 / degrees, (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96 / degrees**2
    return T.get(degrees, Z + sum(terms))


def _effective(parts: Sequence[tuple[float, float]], n: int, kind: str) -> tuple[float | None, float]:
    """The effective number of streams, and the half width of an interval by the spread alone."""
    if len(parts) < 2:
        return None, math.nan
    total = math.fsum(down for _, down in parts)
    ratio = math.fsum(up for up, _ in parts) / total
    variance = len(parts) / (len(parts) - 1) * math.fsum((up - ratio * down) ** 2 for up, down in parts) / total**2
    alone = ratio / n if kind == "rate" else ratio * (1 - ratio) / n
    effect = max(1.0, variance / alone) if alone > 0 else 1.0
    t = _t(len(parts) - 1)
    return n / effect * (Z / t) ** 2, t * math.sqrt(variance)


def ratio_limits(
    rows: Sequence[Rowed], view: View, kind: str, above: Callable[[Row], float], below: Callable[[Row], float], n: int
) -> Limits:
    """A ratio of two sums: a share of streams, a rate of events per stream, or a share of time."""
    parts = _parts(rows, view, above, below)
    total = math.fsum(down for _, down in parts)
    if not total:
        return Limits(None, None, None, n)
    ratio = math.fsum(up for up, _ in parts) / total
    m, half = _effective(parts, n, kind)
    if m is None or (kind == "time" and ratio == 0):
        return Limits(ratio, None, None, n)
    if kind == "time":
        return Limits(ratio, max(0.0, ratio - half), ratio + half, n)
    noise = ratio if kind == "rate" else ratio * (1 - ratio)
    center, width = ratio + Z**2 / 2 / m, Z * math.sqrt(noise / m + Z**2 / 4 / m**2)
    scale = 1 if kind == "rate" else 1 + Z**2 / m
    return Limits(ratio, (center - width) / scale, (center + width) / scale, n)


def _bucket(value: float) -> int:
    return math.floor(math.log2(max(value, 1)) * 16)


def _ranks(trials: int, level: float) -> tuple[int, int]:
    """The greatest l with P(X < l) <= 2.5 %, and the least u with P(X < u) >= 97.5 %."""
    seen, low, high = 0.0, 0, 0
    for k in range(trials + 1):
        logarithm = math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        seen += math.exp(logarithm + k * math.log(level) + (trials - k) * math.log(1 - level))
        low = k + 1 if seen <= 0.025 else low
        if seen >= 0.975:
            high = k + 1
            break
    return low, high


def quantile_limits(rows: Sequence[Rowed], view: View, figure: str, level: float) -> Limits:
    """The order statistic at rank ⌈level n⌉ in s, and the edges of the buckets of two order statistics around it."""
    known = [each for each in rows if each.row[figure] is not None]
    ordered = sorted(_bucket(each.row[figure]) for each in known)
    n = len(ordered)
    if not n:
        return Limits(None, None, None, 0)
    bucket = ordered[math.ceil(round(level * n, 6)) - 1]
    value = 2 ** ((bucket + 0.5) / 16) / 1e6 if n * (1 - level) >= 1 - 1e-9 else None
    m, _ = _effective(_parts(known, view, lambda row: _bucket(row[figure]) <= bucket, lambda row: 1), n, "share")
    trials = math.floor(m or 0)
    if not trials:
        return Limits(value, None, None, n)
    low, high = _ranks(trials, level)
    lowest = None if low == 0 else 2 ** (ordered[max(1, math.floor(low * n / trials)) - 1] / 16) / 1e6
    highest = None if high > trials else 2 ** ((ordered[math.ceil(high * n / trials) - 1] + 1) / 16) / 1e6
    return Limits(value, lowest, highest, n)


def difference(a: Limits, b: Limits) -> tuple[float | None, float | None, float | None]:
    """B - A with its limits: the distances to the limits of both sides, added in squares."""
    if a.value is None or b.value is None:
        return None, None, None
    more = b.value - a.value
    low = None if b.low is None or a.high is None else more - math.hypot(b.value - b.low, a.high - a.value)
    high = None if b.high is None or a.low is None else more + math.hypot(b.high - b.value, a.value - a.low)
    return more, low, high
