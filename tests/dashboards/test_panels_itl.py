"""The dashboard `itl`: each panel equals a loop over all gaps of all streams."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from helpers.dashboards.panels import Asked, Past, Row, View, check, gap_quantile, grouped, panels, quantile, shown, weighted_quantile

BOARD = "itl"


def _timed(past: Past, view: View) -> list[Row]:
    return [row for row in shown(past.streams, view) if row["is_timed"]]


def _judged(past: Past, view: View) -> list[Row]:
    """The streams with a known number of stalls: also those of one chunk, which have no gap."""
    return [row for row in shown(past.streams, view) if row["is_judged"]]


def _pooled(rows: list[Row]) -> list[int]:
    return [gap for row in rows for gap in row["all_gaps"]]


def _p99s(rows: list[Row]) -> list[int]:
    return [row["gap_p99_us"] for row in rows]


def _s(us: float | None, worst_us: float | None = None) -> float | None:
    """In seconds. The middle of the last bucket may be beyond the worst value, which is then shown."""
    return None if us is None else (us if worst_us is None else min(us, worst_us)) / 1e6


def heatmap(past: Past, view: View) -> list[Row]:
    """Thirty buckets of half a doubling in every interval; shorter gaps are in the first bucket, longer ones in the last."""
    made = []
    for at, rows in _by_point(past, view):
        counts = Counter(min(max(math.floor(math.log2(max(gap, 1)) * 2), 20), 49) for gap in _pooled(rows))
        made += [{"time": at, "le": _number(2 ** ((step + 1) / 2) / 1e6), "Value": counts[step]} for step in range(20, 50)]
    return made


def _number(value: float) -> str:
    text = f"{round(value, 6):.6f}".rstrip("0")
    return text.rstrip(".")


def _by_point(past: Past, view: View) -> list[tuple[int, list[Row]]]:
    groups = grouped(_timed(past, view), lambda row: view.point(row["minute"]), lambda at, rows: {"at": at, "rows": rows})
    return [(group["at"], group["rows"]) for group in groups]


def _bound(us: float) -> str:
    unit, scale, digits = ("s", 1e6, 2) if us >= 1e6 else ("ms", 1e3, 1) if us >= 1e3 else ("µs", 1, 1)
    return f"{_number(round(us / scale, digits))} {unit}"


def of_streams(past: Past, view: View) -> list[Row]:
    """The number of streams by their p99 gap, with four bars per doubling, from the first to the last bar with a stream."""
    bars: dict[int, Counter[str]] = {}
    for row in _timed(past, view):
        bars.setdefault(math.floor(math.log2(max(row["gap_p99_us"], 1)) * 4), Counter())[row["vantage"]] += 1
    made = []
    for bar in range(min(bars), max(bars) + 1) if bars else ():
        counts = bars.get(bar, Counter())
        own = {side: counts[side] for side in ("client", "server")}
        made.append({"p99 gap up to": _bound(2 ** ((bar + 1) / 4)), **own, "others": counts.total() - sum(own.values())})
    return made


def vantages(past: Past, view: View) -> list[Row]:
    """Quantiles of the pooled gaps of all streams, by model and vantage."""

    def made(key: Any, rows: list[Row]) -> Row:
        gaps = _pooled(rows)
        levels = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
        return {
            "model": key[0],
            "vantage": key[1],
            "gaps": len(gaps),
            "streams": len(rows),
            **{name: _s(gap_quantile(gaps, level), max(gaps)) for name, level in levels.items()},
            "longest": max(gaps) / 1e6,
        }

    return grouped(_timed(past, view), lambda row: (row["model"], row["vantage"]), made)


def _at_vantages(past: Past, view: View, made: Any, of: Any = _timed) -> list[Row]:
    def row_of(key: Any, rows: list[Row]) -> Row:
        return {"time": key[0], "vantage": key[1], **made(rows)}

    return grouped(of(past, view), lambda row: (view.point(row["minute"]), row["vantage"]), row_of)


def weighted(past: Past, view: View) -> list[Row]:
    """Quantiles of gaps, weighted by the time spent in them."""

    def made(rows: list[Row]) -> Row:
        gaps = _pooled(rows)
        return {
            "half of the time in gaps up to": _s(weighted_quantile(gaps, 0.5)),
            "90 % of the time in gaps up to": _s(weighted_quantile(gaps, 0.9)),
        }

    return _at_vantages(past, view, made)


def p99_of_p99(past: Past, view: View) -> list[Row]:
    """The p99 and the median over streams of the streams' p99 gaps."""
    return _at_vantages(
        past, view, lambda rows: {"p99 of p99": _s(quantile(_p99s(rows), 0.99)), "median p99": _s(quantile(_p99s(rows), 0.5))}
    )


def stall_rate(past: Past, view: View) -> list[Row]:
    """Gaps of at least 250 ms and 400 ms per 1,000 streams."""

    def made(rows: list[Row]) -> Row:
        gaps = _pooled(rows)
        return {f"{limit} ms or more": 1000 * sum(gap >= limit * 1000 for gap in gaps) / len(rows) for limit in (250, 400)}

    return _at_vantages(past, view, made, _judged)


def models(past: Past, view: View) -> list[Row]:
    """One row per model, release and vantage."""

    def made(key: Any, rows: list[Row]) -> Row:
        gaps = _pooled(rows)
        worst = max(gaps, default=None)
        rows_with_gaps = [row for row in rows if row["is_timed"]]
        return {
            **dict(zip(("model", "release", "vantage"), key, strict=True)),
            "streams": len(rows),
            "gaps": len(gaps),
            "ITL p50": _s(gap_quantile(gaps, 0.5), worst),
            "ITL p99": _s(gap_quantile(gaps, 0.99), worst),
            "time-weighted p50": _s(weighted_quantile(gaps, 0.5), worst),
            "median p99": _s(quantile(_p99s(rows_with_gaps), 0.5), worst),
            "p99 of p99": _s(quantile(_p99s(rows_with_gaps), 0.99), worst),
            "stalls per 1,000 streams": 1000 * sum(gap >= 250_000 for gap in gaps) / len(rows),
        }

    return grouped(_judged(past, view), lambda row: (row["model"], row["service_version"], row["vantage"]), made)


EXPECTED = {
    "Gaps between content reads": heatmap,
    "Distribution of per-stream p99 gaps": of_streams,
    "Server against client": vantages,
    "Time-weighted gaps": weighted,
    "Per-stream p99 gap over time": p99_of_p99,
    "Stalls per 1,000 streams": stall_rate,
    "By model and release": models,
}


@pytest.mark.parametrize("title", EXPECTED)
def test_a_panel_matches_the_gaps(asked: Asked, title: str) -> None:
    """The panel returns the expected rows and columns in every view."""
    check(asked, BOARD, title, EXPECTED[title])


def test_every_panel_is_expected() -> None:
    """Every panel of the dashboard has an expectation in this module."""
    assert EXPECTED.keys() == panels(BOARD).keys()
