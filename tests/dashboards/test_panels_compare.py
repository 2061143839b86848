"""The dashboard `compare`: each panel equals a computation over the raw streams of both sides."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest

from helpers.dashboards.compared import Limits, Rowed, chosen_sides, difference, quantile_limits, ratio_limits, sided
from helpers.dashboards.panel_past import NASTY
from helpers.dashboards.panels import ALL, DIMENSIONS, Asked, Past, Row, View, by, none, panels, quantile, ratio, same, statements, views
from legato_ingest.causes import NAMES

BOARD = "compare"
OF_TIME: dict[str, list[str]] = {"by": ["time"]}


def compare_views(past: Past) -> list[View]:
    """Ranges and filters by release, then other dimensions, chosen values, names that need escaping, and sides without streams."""
    chosen: dict[str, dict[str, list[str]]] = {
        "time": OF_TIME,
        "time, other values": {"by": ["time"], "a": ["0.9"], "b": ["no such value"]},
        "models": {"by": ["model"], "a": ["demo-7b", ""]},
        "several": {"by": ["service"], "a": ["shop", "mobile"], "b": ["chat", "voice", "no such value"]},
        "one in both": {"by": ["vantage"], "a": ["client"], "b": ["client", "server"]},
        "ticked twice": {"by": ["release", "transport"], "b": ["(none)"]},
        "unknown": {"by": ["no such dimension"], "a": [ALL], "b": ["1.0"]},
        "nasty": {"by": ["service"], "a": [NASTY[0], NASTY[3]], "b": [NASTY[5], NASTY[12]]},
        "no A": {"by": ["release"], "a": ["no such release"]},
        "neither": {"by": ["model"], "a": ["no such model"], "b": ["') OR (''='"]},
    }
    made = [past.view(name, (1.5, 26)[place % 2], 300, values) for place, (name, values) in enumerate(chosen.items())]
    of_time = [replace(view, name=f"{view.name}, by time", values={**view.values, **OF_TIME}) for view in views(past)[:4]]
    return [*views(past), *of_time, *made]


def _split(rows: list[Rowed]) -> dict[str, list[Rowed]]:
    return {side: [each for each in rows if each.side == side] for side in "AB"}


def _dimension(view: View) -> str:
    name = view.chosen("by")[-1]
    return name if name in DIMENSIONS or name == "time" else "release"


# What is compared.


def selections(past: Past, view: View) -> list[Row]:
    """One row per side and value, the one with most streams first."""
    made = []
    for (side, value), group in by(sided(past.streams, view), lambda each: (each.side, each.value)).items():
        judged = sum(each.row["is_judged"] for each in group)
        row = {"side": side, "dimension": _dimension(view), "value": value, "n": len(group), "n judged": judged}
        made.append({**row, "first minute": min(each.stamp for each in group), "last minute or hour": max(each.stamp for each in group)})
    return sorted(made, key=lambda row: (row["side"], -row["n"], row["value"]))


# Figures with intervals.


def _count(rows: list[Rowed], name: str) -> int:
    return sum(bool(each.row[name]) for each in rows)


def _share(above: Callable[[Row], float], below: str, kind: str = "share") -> Callable[[list[Rowed], View], Limits]:
    return lambda rows, view: ratio_limits(
        [each for each in rows if each.row[below]], view, kind, above, lambda row: 1, _count(rows, below)
    )


def _level(figure: str, condition: str, level: float) -> Callable[[list[Rowed], View], Limits]:
    return lambda rows, view: quantile_limits([each for each in rows if each.row[condition]], view, figure, level)


def _in_gaps(rows: list[Rowed], view: View) -> Limits:
    timed = [each for each in rows if each.row["is_timed"]]
    return ratio_limits(timed, view, "time", lambda row: row["excess_250ms_us"], lambda row: row["gap_sum_us"], len(timed))


FIGURES: dict[str, tuple[str, Callable[[list[Rowed], View], Limits]]] = {
    "goodput": ("high", _share(lambda row: not row["bad"], "is_judged")),
    "TTFT p50": ("low", _level("ttft_us", "is_over", 0.5)),
    "TTFT p95": ("low", _level("ttft_us", "is_over", 0.95)),
    "per-stream p99 gap, median": ("low", _level("gap_p99_us", "is_timed", 0.5)),
    "per-stream p99 gap, p99": ("low", _level("gap_p99_us", "is_timed", 0.99)),
    "longest gap, p99": ("low", _level("gap_max_us", "is_timed", 0.99)),
    "stalls per 1,000 streams": ("low", _share(lambda row: row["stalls_250ms"], "is_judged", "rate")),
    "streams with a stall": ("low", _share(lambda row: row["stalls_250ms"] > 0, "is_judged")),
    "time over 250 ms in gaps, of all gaps": ("low", _in_gaps),
    "disconnect rate": ("low", _share(lambda row: row["outcome"] in ("client_cancel", "abandoned"), "is_over")),
    "error rate": ("low", _share(lambda row: row["outcome"] in ("timeout", "upstream_error", "engine_abort"), "is_over")),
}
UNITS = {" %": 0.01, " ms": 0.001, " s": 1.0, "": 0.001}


def _result(better: str, more: float | None, low: float | None, high: float | None) -> str:
    if more is None:
        return "too few streams"
    if low is not None and low > 0:
        return "B is better" if better == "high" else "B is worse"
    if high is not None and high < 0:
        return "B is worse" if better == "high" else "B is better"
    return "too few streams" if low is None or high is None else "no difference shown"


def _agrees(text: str | None, value: float | None) -> bool:
    """Whether a text has this value, within half a unit of its last digit."""
    if text is None or value is None:
        return text in (None, "?") and value is None
    match = re.fullmatch(r"([+-]?[\d.]+(?:e-?\d+)?)( %| ms| s|)", text)
    assert match, text
    scale = UNITS[match.group(2)]
    digits = 2 if match.group(2) in (" %", " s") else 1
    return abs(float(match.group(1)) * scale - value) <= 0.51 * scale * 0.1**digits


def _interval_agrees(text: str | None, low: float | None, high: float | None) -> bool:
    if text is None:
        return low is None and high is None
    return all(_agrees(part, end) for part, end in zip(text.split(" to "), (low, high), strict=True))


def test_the_figures_match_the_streams(asked: Asked) -> None:
    """Values, intervals, differences and results, for every dimension and for time, and no row without any stream."""
    results = Counter[str]()
    for view in compare_views(asked.past):
        sides = _split(sided(asked.past.streams, view))
        found = {row["figure"]: row for row in asked.panel(BOARD, "Side by side", view).as_rows()}
        counted = found.pop("streams", {"n of A": 0, "n of B": 0})
        assert (counted["n of A"], counted["n of B"]) == (len(sides["A"]), len(sides["B"])), view.name
        for figure, (better, made) in FIGURES.items():
            a, b = (made(sides[side], view) for side in "AB")
            if not a.n + b.n:
                assert figure not in found
                continue
            row = found.pop(figure)
            more = difference(a, b)
            where = (view.name, figure, row, a, b, more)
            assert (row["n of A"], row["n of B"]) == (a.n, b.n), where
            assert _agrees(row["A"], a.value) and _agrees(row["B"], b.value) and _agrees(row["B − A"], more[0]), where
            assert _interval_agrees(row["A, 95 %"], a.low, a.high) and _interval_agrees(row["B, 95 %"], b.low, b.high), where
            assert _interval_agrees(row["95 % interval of B − A"], *more[1:]), where
            assert row["result"] == _result(better, *more), where
            results[row["result"]] += 1
        assert not found, view.name
    assert results.keys() == {"B is better", "B is worse", "no difference shown", "too few streams"}


def test_a_quantile_needs_enough_streams(asked: Asked) -> None:
    """A p95 needs 20 streams, a p99 needs 100: with fewer it would be the maximum."""
    for view in compare_views(asked.past):
        for row in asked.panel(BOARD, "Side by side", view).as_rows():
            least = {"p50": 1, "median": 1, "p95": 20, "p99": 100}.get(row["figure"].split()[-1], 0)
            for side in "AB":
                assert row[side] is None or row[f"n of {side}"] >= least


# Distributions and curves.


def _number(value: float, digits: int) -> str:
    return f"{round(value, digits):.6f}".rstrip("0").rstrip(".")


def _bound(us: float) -> str:
    unit, scale, digits = ("s", 1e6, 2) if us >= 1e6 else ("ms", 1e3, 1) if us >= 1e3 else ("µs", 1, 1)
    return f"{_number(us / scale, digits)} {unit}"


def _bars(figure: str, condition: str, along: str) -> Callable[[Past, View], list[Row]]:
    def expected(past: Past, view: View) -> list[Row]:
        sides = _split([each for each in sided(past.streams, view) if each.row[condition] and each.row[figure] is not None])
        counts = {side: Counter(math.floor(math.log2(max(each.row[figure], 1)) * 4) for each in rows) for side, rows in sides.items()}
        all_bars = [*counts["A"], *counts["B"]]
        shown = range(min(all_bars), max(all_bars) + 1) if all_bars else range(0)
        return [
            {along: _bound(2 ** ((bar + 1) / 4)), **{side: ratio(counts[side][bar], len(sides[side])) for side in "AB"}} for bar in shown
        ]

    return expected


def over_time(past: Past, view: View) -> list[Row]:
    """The median of at least 2 streams and the p95 of at least 20; the range before is moved to this one."""

    def curve(rows: list[Rowed], level: float, least: int) -> float | None:
        values = [each.row["gap_p99_us"] for each in rows if each.row["is_timed"]]
        found = quantile(values, level) if len(values) >= least else None
        return None if found is None else found / 1e6

    made = []
    for at, rows in by(sided(past.streams, view, series=True), lambda each: view.point(each.moved)).items():
        row: Row = {"time": at}
        for side, own in _split(rows).items():
            row |= {f"{side}, median": curve(own, 0.5, 2), f"{side}, p95": curve(own, 0.95, 20)}
        made.append(row)
    return made


# Causes, and what else differs.


def by_cause(past: Past, view: View) -> list[Row]:
    """The time of all parts of all stalls per 1,000 streams, and the stalls by their main cause."""
    streams, stalls = _split(sided(past.streams, view)), _split(sided(past.streams, view, past.stalls))
    n = {side: _count(rows, "is_judged") for side, rows in streams.items()}
    named = {side: Counter(each.row["cause"] for each in rows) for side, rows in stalls.items()}
    time: dict[str, dict[str, int]] = {side: defaultdict(int) for side in "AB"}
    for side, rows in stalls.items():
        # A sum below 0 of the stalls of one cause counts as 0, as in rollups.
        for _, group in by(rows, lambda each: each.row["cause"]).items():
            sums = Counter[str]()
            for each in group:
                sums.update({name: max(ns, 0) for name, ns in dict(each.row["parts"]).items()})
            for name, ns in sums.items():
                time[side][name] += ns
    if view.chosen("by")[-1] == "vantage":
        return []
    # The stalls of a server with a client are judged at the client: there is no verdict, which is not a time of 0.
    known = {
        side: bool(named[side].total()) or not sum(each.row["stalls_250ms"] or 0 for each in streams[side] if each.row["is_over"])
        for side in "AB"
    }
    made = []
    for cause in {*time["A"], *time["B"], *named["A"], *named["B"]} - {"base"}:
        if not any(each[side][cause] for each in (time, named) for side in "AB"):
            continue
        per = {side: 1000 * time[side][cause] / 1e9 / n[side] if n[side] and known[side] else None for side in "AB"}
        counts = {f"stalls of {side}": named[side][cause] if known[side] else None for side in "AB"}
        more = None if per["A"] is None or per["B"] is None else per["B"] - per["A"]
        made.append({"cause": cause, **per, "B − A": more, **counts, "n of A": n["A"], "n of B": n["B"]})
    return sorted(made, key=lambda row: (-_size_of(row), NAMES.index(row["cause"])))


def _size_of(row: Row) -> float:
    """The difference, or the time of the side that has streams."""
    known = [value for value in (row["B − A"], row["A"], row["B"]) if value is not None]
    return abs(float(known[0]))


def _differing(values: dict[str, dict[str, Counter[str]]], dimension: str) -> list[Row]:
    """Up to three values of each dimension with the largest difference of share."""
    made: list[Row] = []
    for name, sides in values.items():
        a, b = sides["A"], sides["B"]
        n_a, n_b = a.total(), b.total()
        ranked = sorted({*a, *b}, key=lambda value: (-abs(b[value] * n_a - a[value] * n_b), value))[:3]
        for value in ranked if n_a and n_b and name != dimension else ():
            row = {"dimension": name, "value": value, "share of A": a[value] / n_a, "share of B": b[value] / n_b}
            if row["share of A"] != row["share of B"]:
                more = b[value] / n_b - a[value] / n_a
                made.append({**row, "B − A": more, "A": a[value], "B": b[value], "n of A": n_a, "n of B": n_b})
    largest = {name: max(abs(row["B − A"]) for row in rows) for name, rows in by(made, lambda row: row["dimension"]).items()}
    return sorted(made, key=lambda row: (-largest[row["dimension"]], row["dimension"], -abs(row["B − A"]), row["value"]))


def differing(past: Past, view: View) -> list[Row]:
    """Shares of all values of the other dimensions of the rollups."""
    columns = {**DIMENSIONS, "emitter": "emitter", "objective": "objective"}
    sides = _split(sided(past.streams, view))

    def counted(column: str) -> dict[str, Counter[str]]:
        return {side: Counter(each.row[column] or "(none)" for each in rows) for side, rows in sides.items()}

    return _differing({name: counted(column) for name, column in columns.items()}, _dimension(view))


def _drawn(rows: list[Rowed]) -> set[int]:
    """Sixty minutes of each side by a hash of the minute."""
    made = set[int]()
    for side in _split(rows).values():
        minutes = sorted({each.row["minute"] for each in side}, key=lambda minute: minute // 60 * 2654435761 % 2**32)
        made |= set(minutes[:60])
    return made


def _up_to(value: int | None) -> str:
    return "(unknown)" if value is None else f"up to {2 ** math.ceil(math.log2(max(value, 1)))}"


def _place(row: Row) -> tuple[Any, ...]:
    return row["tenant"], row["vantage"], row["service_name"], row["minute"]


def requests(past: Past, view: View) -> list[Row]:
    """Shares of tokens, load, engines and finish reasons, of the streams of the drawn minutes."""
    rows = sided(past.streams, view, minutes=True)
    drawn = _drawn(rows)
    load = Counter(_place(row) for row in past.streams if row["minute"] in drawn and view.shows(row))
    served = {(row["tenant"], row["trace_id"]): row["engine_id"] for row in past.streams if row["minute"] in drawn and row["engine_id"]}
    values: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: {"A": Counter(), "B": Counter()})
    for each in rows:
        row = each.row
        if row["minute"] not in drawn:
            continue
        engine = row["engine_id"] or served.get((row["tenant"], row["trace_id"]), "")
        named = {"prompt tokens": _up_to(row["input_tokens"]), "output tokens": _up_to(row["output_tokens"])}
        named |= {"streams per minute of the service": _up_to(load[_place(row)]), "engine": engine, "finish reason": row["finish_reason"]}
        for name, value in named.items():
            values[name][each.side][value or "(none)"] += 1
    return _differing(values, _dimension(view))


EXPECTED = {
    "Selections": selections,
    "Per-stream p99 gaps of A and B": _bars("gap_p99_us", "is_timed", "p99 gap up to"),
    "TTFT of A and B": _bars("ttft_us", "is_over", "TTFT up to"),
    "Per-stream p99 gap over time, A and B": over_time,
    "Stalled time per 1,000 streams, by cause": by_cause,
    "What else differs": differing,
    "What else differs in requests": requests,
}
SEPARATE = {"Side by side", "Longest gaps of A and B"}


@pytest.mark.parametrize("title", EXPECTED)
def test_a_panel_matches_the_streams(asked: Asked, title: str) -> None:
    """The panel returns the expected rows and columns in half of the views: the first panel in the even ones, the next in the odd ones."""
    shown = 0
    for view in compare_views(asked.past)[[*EXPECTED].index(title) % 2 :: 2]:
        should = EXPECTED[title](asked.past, view)
        same(asked.panel(BOARD, title, view), should, f"{title}, {view.name}, {view.values}")
        shown += bool(should)
    assert shown >= 3


def test_every_panel_is_expected() -> None:
    """Every panel of the dashboard has an expectation in this module."""
    assert EXPECTED.keys() | SEPARATE == panels(BOARD).keys()


def test_the_longest_gaps(asked: Asked) -> None:
    """Twenty streams of each side with the longest gaps; among equal ones any may be listed."""
    for view in compare_views(asked.past):
        rows = [each for each in sided(asked.past.streams, view) if each.row["is_timed"] and each.row["gap_max_us"]]
        found = asked.panel(BOARD, "Longest gaps of A and B", view).as_rows()
        for side, own in _split(rows).items():
            listed = [row for row in found if row["side"] == side]
            longest = sorted((each.row["gap_max_us"] / 1e6 for each in own), reverse=True)[:20]
            assert [row["max gap"] for row in listed] == longest, view.name
            known = {(each.row["trace_id"].hex(), each.row["vantage"], each.value) for each in own}
            assert {(row["stream"], row["vantage"], row["value"]) for row in listed} <= known
        assert [side for side, _ in groupby(row["side"] for row in found)] in ([], ["A"], ["B"], ["A", "B"])


def test_both_sides_are_chosen_from_the_values(asked: Asked) -> None:
    """Without a choice, A is the most frequent release and B the next one. The lists begin with (automatic) and have all values."""
    view = asked.past.view("", 4, 60)
    a, b = chosen_sides(asked.past.streams, view)
    assert [(row["side"], row["value"]) for row in asked.panel(BOARD, "Selections", view).as_rows()] == [("A", a[0]), ("B", b[0])]
    listed = statements(BOARD)
    names = [name for (name,) in asked.sql(listed["variable by"], view).rows]
    assert names[0] == "release" and names[-1] == "time" and set(names) == {*DIMENSIONS, "time"}
    for name in names:
        found = [value for (value,) in asked.sql(listed["variable a"], replace(view, values={"by": [name]})).rows]
        column = DIMENSIONS.get(name)
        values = {row[column] or "(none)" for row in asked.past.streams if column and view.has_minute(row["minute"])}
        assert found == ["(automatic)", *sorted(values)], name


def test_sides_without_streams_are_empty(asked: Asked) -> None:
    """No panel shows a row if neither side has a stream; with one side, values of the other are missing, not 0."""
    neither = asked.past.view("", 4, 300, {"by": ["model"], "a": ["no such model"], "b": ["') OR (''='"]})
    assert all(none(asked.panel(BOARD, title, neither)) for title in panels(BOARD))
    one = asked.past.view("", 4, 300, {"by": ["model"], "a": ["no such model"], "b": ["demo-7b"]})
    rows = asked.panel(BOARD, "Side by side", one).as_rows()[1:]
    assert rows and all(row["A"] is None and row["result"] == "too few streams" and row["n of A"] == 0 for row in rows)
