"""The dashboard `streams`: each panel equals a loop over the raw streams."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from dashboards.sql_fragments import SECONDS_OF_POINT, in_whole_minutes
from helpers.dashboards.panels import Asked, Past, Row, View, check, grouped, panels, quantile, ratio, same, shown, views
from legato_ingest.dashboards.macros import Range

BOARD = "streams"


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value / by


def _ended(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["is_over"]]


def _timed(rows: list[Row], name: str) -> list[Any]:
    return [row[name] for row in rows if row["is_timed"]]


def _good(rows: list[Row]) -> int:
    return sum(row["is_judged"] and not row["bad"] for row in rows)


def _judged(rows: list[Row]) -> int:
    return sum(row["is_judged"] for row in rows)


def _seconds(values: list[Any], level: float) -> float | None:
    return _scaled(quantile(values, level), 1e6)


def _gap_s(values: list[Any], level: float, worst: list[Any] | None = None) -> float | None:
    """A quantile of gaps: it is at most the longest gap, also where the middle of its bucket is above it."""
    found = _seconds(values, level)
    return None if found is None else min(found, max(values if worst is None else worst) / 1e6)


def _jitter(rows: list[Row]) -> float | None:
    permille = [row["jitter_ratio"] * 1000 for row in _ended(rows) if row["jitter_ratio"] is not None]
    return _scaled(quantile(permille, 0.5), 1000)


WORDS = {
    "goodput": {0.0: "bad", 0.95: "below objective", 0.99: "good"},
    "gap": {0.0: "smooth", 0.25: "visible", 0.4: "frozen"},
    "jitter": {0.0: "even", 5.0: "uneven", 10.0: "in bursts"},
    "first": {0.0: "in time", 1.0: "slow", 2.0: "late"},
}


BUDGET = {float("-inf"): "used up", 0.0: "nearly used up", 0.25: "within budget"}


def _state(scale: str, value: float | None) -> str | None:
    """The word of a figure: that of the highest bound that it reaches."""
    return None if value is None else [word for since, word in WORDS[scale].items() if value >= since][-1]


def _number(title: str, value: float | None, n: int, scale: str = "") -> list[Row]:
    return [{title: value, **({"state": _state(scale, value)} if scale else {}), "n": n}]


def traffic(past: Past, view: View) -> list[Row]:
    """Streams that began per minute, over the complete minutes of a point."""
    return grouped(
        [row for row in shown(past.streams, view) if view.has_whole_minute(row["minute"])],
        lambda row: (view.point(row["minute"]), f"{row['service_name']} · {row['vantage']}"),
        lambda key, rows: {"time": key[0], "service": key[1], "streams per minute": 60 * len(rows) / view.seconds_of(key[0])},
    )


def goodput(past: Past, view: View) -> list[Row]:
    """The share of judged streams without a long gap, an error or a late start."""
    rows = shown(past.streams, view)
    return _number("goodput", ratio(_good(rows), _judged(rows)), _judged(rows), "goodput")


def gap_p99_p99(past: Past, view: View) -> list[Row]:
    """The p99 over ended streams with gaps of their p99 gap."""
    rows = shown(past.streams, view)
    values = _timed(rows, "gap_p99_us")
    return _number("p99", _gap_s(values, 0.99, _timed(rows, "gap_max_us")), len(values), "gap")


def gap_max_p99(past: Past, view: View) -> list[Row]:
    """The p99 over ended streams with gaps of their longest gap."""
    values = _timed(shown(past.streams, view), "gap_max_us")
    return _number("p99", _gap_s(values, 0.99), len(values), "gap")


def jitter(past: Past, view: View) -> list[Row]:
    """The median jitter ratio of streams with enough gaps."""
    rows = shown(past.streams, view)
    return _number("median", _jitter(rows), sum(row["jitter_ratio"] is not None for row in _ended(rows)), "jitter")


def ttft_p95(past: Past, view: View) -> list[Row]:
    """The p95 of TTFT over streams with a first token."""
    values = [row["ttft_us"] for row in _ended(shown(past.streams, view)) if row["ttft_us"] is not None]
    return _number("p95", _seconds(values, 0.95), len(values), "first")


def disconnects(past: Past, view: View) -> list[Row]:
    """The share of ended streams that were cancelled or abandoned."""
    rows = _ended(shown(past.streams, view))
    left = sum(row["outcome"] in ("client_cancel", "abandoned") for row in rows)
    return _number("disconnected", ratio(left, len(rows)), len(rows))


def goodput_over_time(past: Past, view: View) -> list[Row]:
    """One goodput curve per service and vantage."""
    rows = [row for row in shown(past.streams, view) if row["is_judged"]]

    def made(key: Any, group: list[Row]) -> Row:
        return {"time": key[0], "service": key[1], "goodput": _good(group) / len(group)}

    return grouped(rows, lambda row: (view.point(row["minute"]), f"{row['service_name']} · {row['vantage']}"), made)


def longest_gaps(past: Past, view: View) -> list[Row]:
    """Quantiles over streams of the longest gap and the p99 gap."""

    def made(at: int, rows: list[Row]) -> Row:
        longest, p99 = _timed(rows, "gap_max_us"), _timed(rows, "gap_p99_us")
        return {
            "time": at,
            "max gap, median stream": _gap_s(longest, 0.5),
            "max gap, p99 of streams": _gap_s(longest, 0.99),
            "p99 gap, p99 of streams": _gap_s(p99, 0.99, longest),
        }

    return grouped(shown(past.streams, view), lambda row: view.point(row["minute"]), made)


def firsts(past: Past, view: View) -> list[Row]:
    """p50 and p95 of TTFB, TTFT and TTFO."""

    def made(at: int, rows: list[Row]) -> Row:
        out: Row = {"time": at}
        for level in (0.5, 0.95):
            for name in ("ttfb", "ttft", "ttfo"):
                out[f"{name.upper()} p{round(level * 100)}"] = _seconds([row[f"{name}_us"] for row in _ended(rows)], level)
        return out

    return grouped(shown(past.streams, view), lambda row: view.point(row["minute"]), made)


def outcomes(past: Past, view: View) -> list[Row]:
    """The number of streams by outcome."""
    rows = shown(past.streams, view)
    return grouped(
        rows,
        lambda row: (view.point(row["minute"]), row["outcome"]),
        lambda key, group: {"time": key[0], "outcome": key[1], "streams": len(group)},
    )


def not_good(past: Past, view: View) -> list[Row]:
    """Bad streams by their first reason."""

    def made(at: int, rows: list[Row]) -> Row:
        why = Counter(row["bad"] for row in rows)
        return {"time": at, "gap over the limit": why["gap"], "ended in an error": why["error"], "first output late": why["late"]}

    return grouped(shown(past.streams, view), lambda row: view.point(row["minute"]), made)


DIMENSIONS = ("service_name", "service_version", "model", "provider", "route", "vantage", "transport")
COLUMN_TITLES = {"service_name": "service", "service_version": "release"}


def by_service(past: Past, view: View) -> list[Row]:
    """One row per combination of dimensions, the one with most streams first."""

    def made(key: Any, rows: list[Row]) -> Row:
        gaps, p99, first = _timed(rows, "gap_max_us"), _timed(rows, "gap_p99_us"), [row["ttft_us"] for row in _ended(rows)]
        over = _ended(rows)
        return {
            **dict(zip((COLUMN_TITLES.get(name, name) for name in DIMENSIONS), key, strict=True)),
            "n": len(rows),
            "goodput": ratio(_good(rows), _judged(rows)),
            "state": _state("goodput", ratio(_good(rows), _judged(rows))),
            "p99 of p99 gap": _gap_s(p99, 0.99, gaps),
            "p99 max gap": _gap_s(gaps, 0.99),
            "worst gap": max(gaps) / 1e6 if gaps else None,
            "jitter ratio": _jitter(rows),
            "TTFT p50": _seconds(first, 0.5),
            "TTFT p95": _seconds(first, 0.95),
            "disconnect rate": ratio(sum(row["outcome"] in ("client_cancel", "abandoned") for row in over), len(over)),
            "stalled streams": ratio(
                sum(row["stalls_250ms"] > 0 for row in rows if row["is_judged"]), sum(row["is_judged"] for row in rows)
            ),
        }

    made_rows = grouped(shown(past.streams, view), lambda row: tuple(row[name] for name in DIMENSIONS), made)
    order = ("service", "release", "model", "provider", "route", "vantage", "transport")
    return sorted(made_rows, key=lambda row: (-row["n"], *(row[name] for name in order)))[:500]


def budgets(past: Past, view: View) -> list[Row]:
    """The budget of the default objective by service and vantage, whatever the range: one bad stream in a hundred."""

    def made(key: Any, rows: list[Row]) -> Row:
        n, bad = len(rows), len(rows) - _good(rows)
        left = 1 - bad / (n * (1 - 0.99))
        state = [word for since, word in BUDGET.items() if left >= since][-1]
        names = {"service": key[0], "vantage": key[1], "objective": "default", "target": 0.99}
        return {**names, "state": state, "budget left": left, "streams": n, "bad": bad}

    judged = [row for row in past.streams if row["is_judged"] and view.shows(row)]
    made_rows = grouped(judged, lambda row: (row["service_name"], row["vantage"]), made)
    return sorted(made_rows, key=lambda row: (row["budget left"], -row["streams"], row["service"], row["vantage"]))[:50]


EXPECTED = {
    "Error budget left": budgets,
    "Traffic": traffic,
    "Goodput": goodput,
    "p99 of per-stream p99 gap": gap_p99_p99,
    "p99 of the longest gap": gap_max_p99,
    "Jitter ratio, median": jitter,
    "TTFT p95": ttft_p95,
    "Disconnect rate": disconnects,
    "Goodput by service and vantage": goodput_over_time,
    "Longest gaps": longest_gaps,
    "First byte, first token, first output": firsts,
    "Streams by outcome": outcomes,
    "Bad streams by reason": not_good,
    "By service, release, model, provider, route, vantage, transport": by_service,
}
SEPARATE = {"In flight now", "Stalled time by cause", "Worst streams"}


@pytest.mark.parametrize("title", EXPECTED)
def test_a_panel_matches_the_streams(asked: Asked, title: str) -> None:
    """The panel returns the expected rows and columns in every view."""
    check(asked, BOARD, title, EXPECTED[title])


def test_every_panel_is_expected() -> None:
    """Every panel of the dashboard has an expectation in this module."""
    assert EXPECTED.keys() | SEPARATE == panels(BOARD).keys()


@pytest.mark.parametrize("point_s", [60, 120, 600, 3600])
@pytest.mark.parametrize("to_s", [0, 1, 30, 59])
def test_a_constant_rate_is_a_constant_curve(asked: Asked, point_s: int, to_s: int) -> None:
    """At both ends of a range, wherever they are in a point or in a minute."""
    low, high = 1_790_000_000 // 3600 * 3600 + 757, 1_790_000_000 // 3600 * 3600 + 3600 * 3 + 60 * 17 + to_s
    sql = f"""SELECT $__timeInterval(minute) AS time, 60 * 7 * count() / {SECONDS_OF_POINT} AS rate
    FROM (SELECT toDateTime({low // 60 * 60 - 600} + 60 * number, 'UTC') AS minute FROM numbers(300))
    WHERE {in_whole_minutes("minute")} GROUP BY time"""
    answer = asked.sql(sql, View("", Range(low * 1000, high * 1000, point_s * 1000)))
    assert len(answer.rows) >= (high - low) // point_s - 1 and {rate for _, rate in answer.rows} == {7.0}


@pytest.mark.parametrize(("title", "other"), [("Stalled time by cause", "attribution"), ("In flight now", "now")])
def test_the_first_row_shows_panels_of_other_boards(title: str, other: str) -> None:
    """The same statement as on the other board, of which the test module compares the rows."""
    assert panels(BOARD)[title] == panels(other)[title]


def _worst(row: Row) -> Row:
    return {
        "stream": row["trace_id"].hex(),
        "started": row["start_time"],
        "service": row["service_name"],
        "model": row["model"],
        "vantage": row["vantage"],
        "outcome": row["outcome"],
        "max gap": row["gap_max_us"] / 1e6,
        "open gap": _scaled(row["gap_open_us"], 1e6),
        "stalls": row["stalls_250ms"],
        "TTFT": _scaled(row["ttft_us"], 1e6),
        "duration": row["duration_ns"] / 1e9,
        "chunks": row["chunks"],
    }


def test_the_worst_streams_are_the_worst(asked: Asked) -> None:
    """The 50 ended streams with the longest gaps, each with its figures; among equal ones any may be listed."""
    for view in views(asked.past):
        rows = [row for row in shown(asked.past.streams, view) if view.has_ns(row["start_time"]) and row["gap_max_us"]]
        rows = [row for row in rows if row["outcome"] != "running"]
        made = {(row["trace_id"].hex(), row["vantage"]): _worst(row) for row in rows}
        answer = asked.panel(BOARD, "Worst streams", view)
        found = answer.as_rows()
        assert [row["max gap"] for row in found] == sorted((row["max gap"] for row in made.values()), reverse=True)[:50], view.name
        same(answer, [made[row["stream"], row["vantage"]] for row in found], view.name)
        ordered = [(-row["max gap"], row["stream"], row["vantage"]) for row in found]
        assert ordered == sorted(ordered)


def test_the_widest_view_has_streams_of_every_kind(asked: Asked) -> None:
    """The widest view has streams with every outcome, with and without gaps, judged and not, so the comparisons cover them."""
    rows = shown(asked.past.streams, views(asked.past)[0])
    assert len({row["outcome"] for row in rows}) == 7
    assert {row["bad"] for row in rows} == {"", "gap", "error", "late"}
    assert {row["is_timed"] for row in rows} == {row["is_judged"] for row in rows} == {True, False}
    assert all((row["gap_max_us"] is not None) == row["is_timed"] for row in rows if row["is_over"])
    assert all(sum(row["all_gaps"]) == row["gap_sum_us"] for row in rows if row["is_timed"])
