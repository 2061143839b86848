"""The dashboard `attribution`: each panel equals a loop over the verdicts and counterfactuals of the shown streams."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from helpers.dashboards.panels import Asked, Past, Row, View, by, check, grouped, panels, panels_in, ratio, same, shown, views
from legato_ingest.causes import NAMES

BOARD = "attribution"


def _stalls(past: Past, view: View) -> list[Row]:
    return shown(past.stalls, view)


def _us(rows: list[Row], name: str = "excess_us") -> int:
    return sum(row[name] for row in rows)


def judged(past: Past, view: View) -> list[Row]:
    """The number of verdicts next to the number of long gaps: the clients', and those of servers without a client."""
    rows, stalls = shown(past.streams, view), _stalls(past, view)
    gaps = {side: [gap for row in rows if row["vantage"] == side for gap in row["all_gaps"]] for side in ("client", "server")}
    long = {side: sum(gap >= 250_000 for gap in each) for side, each in gaps.items()}
    at_servers = sum(row["vantage"] == "server" for row in stalls)
    has_clients = any(row["vantage"] == "client" for row in rows)
    return [{"judged": len(stalls), "of stalls": long["client"] + at_servers if has_clients else long["server"]}]


def charged(past: Past, view: View) -> list[Row]:
    """Stalled time in excess of healthy steps."""
    rows = _stalls(past, view)
    return [{"beyond healthy steps": _us(rows) / 1e6 if rows else None, "n": len(rows)}]


def _state(share: float | None) -> str | None:
    if share is None:
        return None
    return "explained" if share < 0.05 else "partly explained" if share < 0.25 else "poorly explained"


def _share_of_time(causes: tuple[str, ...]) -> Callable[[Past, View], list[Row]]:
    def expected(past: Past, view: View) -> list[Row]:
        rows = _stalls(past, view)
        share = ratio(_us([row for row in rows if row["cause"] in causes]), _us(rows))
        return [{"of stalled time": share, "state": _state(share), "n": len(rows)}]

    return expected


def a_vantage_missing(past: Past, view: View) -> list[Row]:
    """The share of stalls with a missing vantage."""
    rows = _stalls(past, view)
    share = ratio(sum(bool(row["missing"]) for row in rows), len(rows))
    return [{"of judged stalls": share, "n": len(rows)}]


def time_by_cause(past: Past, view: View) -> list[Row]:
    """The time of every part of every stall, by cause."""
    parts: dict[tuple[int, str], int] = defaultdict(int)
    for row in _stalls(past, view):
        for cause, ns in dict(row["parts"]).items():
            parts[view.point(row["minute"]), cause] += max(ns, 0)
    kept = {key: ns for key, ns in parts.items() if key[1] != "base" and ns > 0}
    return _in_order([{"time": at, "cause": cause, "seconds": ns / 1e9} for (at, cause), ns in kept.items()])


def stalls_by_cause(past: Past, view: View) -> list[Row]:
    """The number of stalls by the cause of their verdict."""
    rows = grouped(
        _stalls(past, view),
        lambda row: (view.point(row["minute"]), row["cause"]),
        lambda key, rows: {"time": key[0], "cause": key[1], "stalls": len(rows)},
    )
    return _in_order(rows)


def _in_order(rows: list[Row]) -> list[Row]:
    """By time, then as the table of causes has them, so a cause is at the same height in every bar."""
    return sorted(rows, key=lambda row: (row["time"], NAMES.index(row["cause"])))


def causes(past: Past, view: View) -> list[Row]:
    """One row per cause, with the number of stalls by confidence."""

    def made(cause: str, rows: list[Row]) -> Row:
        sure = Counter(row["confidence"] for row in rows)
        named = {name: sure[name] for name in ("proven", "strong", "likely")}
        return {
            "cause": cause,
            "named": len(rows),
            **named,
            "weaker": len(rows) - sum(named.values()),
            "beyond healthy": _us(rows) / 1e6,
            "in these stalls": _us(rows, "gap_us") / 1e6,
        }

    return sorted(grouped(_stalls(past, view), lambda row: row["cause"], made), key=lambda row: (-row["beyond healthy"], row["cause"]))


def but_for(past: Past, view: View) -> list[Row]:
    """The stalls that would be left without one cause, and the share of stalled time that would be saved."""
    rows = shown(past.left, view)
    as_they_were = [
        group[0] for group in by(rows, lambda row: (row["tenant"], row["start_time"], row["trace_id"], row["span_id"])).values()
    ]
    stalls, stalled = _us(as_they_were, "stalls"), _us(as_they_were, "stalled_us")

    def made(cause: str, group: list[Row]) -> Row:
        saved = {end: _us(group, "stalled_us") - _us(group, f"stalled_{end}_us") for end in ("max", "min")}
        return {
            "cause": cause,
            "n": len(group),
            "stalls as they were": stalls,
            "left at least": stalls - _us(group, "stalls") + _us(group, "stalls_min"),
            "left at most": min(stalls, stalls - _us(group, "stalls") + _us(group, "stalls_max")),
            "time saved at least": ratio(max(0, saved["max"]), stalled),
            "time saved at most": ratio(max(0, saved["min"]), stalled),
        }

    return sorted(grouped(rows, lambda row: row["cause"], made), key=lambda row: (-(row["time saved at most"] or 0), row["cause"]))


def missing_vantages(past: Past, view: View) -> list[Row]:
    """The number of verdicts that lacked each vantage."""
    rows = _stalls(past, view)
    counts = Counter(name for row in rows for name in row["missing"])
    return [
        {"missing vantages": name, "stalls": count, "share": count / len(rows)}
        for name, count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    ]


def engines(past: Past, view: View) -> list[Row]:
    """One row per engine, service and model, with the cause that has most stalled time."""

    def made(key: Any, rows: list[Row]) -> Row:
        time_of = {cause: _us(group) for cause, group in by(rows, lambda row: row["cause"]).items()}
        return {
            **dict(zip(("engine", "service", "model"), key, strict=True)),
            "n": len(rows),
            "beyond healthy": _us(rows) / 1e6,
            "cause of most": max(time_of, key=lambda cause: time_of[cause]),
        }

    made_rows = grouped(_stalls(past, view), lambda row: (row["engine_id"] or "(none)", row["service_name"], row["model"]), made)
    return sorted(made_rows, key=lambda row: (-row["beyond healthy"], row["engine"], row["service"], row["model"]))[:100]


EXPECTED = {
    "Stalls judged": judged,
    "Stalled time": charged,
    "Cause unknown": _share_of_time(("unknown",)),
    "Side known, cause unknown": _share_of_time(("generation", "delivery", "mixed")),
    "Stalls with a missing vantage": a_vantage_missing,
    "Stalled time by cause": time_by_cause,
    "Stalls by cause": stalls_by_cause,
    "Causes and confidence": causes,
    "Counterfactual: without one cause": but_for,
    "Missing vantages": missing_vantages,
    "By engine": engines,
}
SEPARATE = {"Root-cause events", "Longest stalls"}


@pytest.mark.parametrize("title", EXPECTED)
def test_a_panel_matches_the_verdicts(asked: Asked, title: str) -> None:
    """The panel returns the expected rows and columns in every view."""
    check(asked, BOARD, title, EXPECTED[title])


def test_every_panel_is_expected() -> None:
    """Every panel of the dashboard has an expectation in this module."""
    assert EXPECTED.keys() | SEPARATE == panels(BOARD).keys()


@pytest.mark.parametrize("board", [BOARD, "streams", "compare", "nodes"])
def test_no_panel_with_causes_says_that_there_are_no_stalls(board: str) -> None:
    """With only a server chosen it has no rows, because the stalls of streams with a client are judged at the client."""
    of_causes = [panel for panel in panels_in(board) if re.search("(stall|but_for)_minutes", str(panel.get("targets")))]
    words = {panel["title"]: panel["fieldConfig"]["defaults"]["noValue"] for panel in of_causes}
    assert words and not [title for title, text in words.items() if "no stalls" in text.lower()], words


def _of_worst_minutes(past: Past, view: View) -> list[Row]:
    """The stalls of the 60 minutes with the most stalled time; among equal minutes the newest are taken."""
    rows = _stalls(past, view)
    ranked = sorted(((_us(group), minute) for minute, group in by(rows, lambda row: row["minute"]).items()), reverse=True)
    worst = {minute for _, minute in ranked[:60]}
    return [row for row in rows if row["minute"] in worst and view.has_ns(row["start_time"])]


def _longest(row: Row) -> Row:
    return {
        "stream": row["trace_id"].hex(),
        "gap start": row["start_time"] + 1000 * row["gap_start_us"],
        "gap": row["gap_us"] / 1e6,
        "beyond healthy": row["excess_us"] / 1e6,
        "cause": row["cause"],
        "confidence": row["confidence"],
        "missing vantages": ", ".join(row["missing"]),
        "engine": row["engine_id"],
    }


def test_the_longest_stalls(asked: Asked) -> None:
    """At most 100 stalls, each with its verdict."""
    for view in views(asked.past):
        rows = _of_worst_minutes(asked.past, view)
        rows.sort(key=lambda row: (-row["excess_us"], row["trace_id"].hex(), row["gap_start_us"]))
        same(asked.panel(BOARD, "Longest stalls", view), [_longest(row) for row in rows[:100]], view.name)


def test_root_cause_events(asked: Asked) -> None:
    """Each event with the number of affected streams and one of the most affected. Events are identified by responses, else by time."""

    def event(row: Row) -> Any:
        return (
            row["tenant"],
            row["engine_id"],
            row["cause"],
            tuple(row["culprit_responses"]),
            0 if row["culprit_responses"] else row["culprit_at"],
        )

    seen = 0
    for view in views(asked.past):
        made, hit = [], []
        for rows in by((row for row in _of_worst_minutes(asked.past, view) if row["culprit_step"] is not None), event).values():
            hardest = max(row["excess_us"] for row in rows)
            named = rows[0]["culprit_responses"]
            made.append(
                {
                    "happened": min(row["culprit_at"] for row in rows),
                    "cause": rows[0]["cause"],
                    "engine": rows[0]["engine_id"],
                    "event": ", ".join(named) or f"step {min(row['culprit_step'] for row in rows)}",
                    "streams hit": len({(row["trace_id"], row["span_id"]) for row in rows}),
                    "stalls": len(rows),
                    "beyond healthy": _us(rows) / 1e6,
                    "longest": max(row["gap_us"] for row in rows) / 1e6,
                }
            )
            hit.append({row["trace_id"].hex() for row in rows if row["excess_us"] == hardest})
        order = sorted(range(len(made)), key=lambda place: (-made[place]["beyond healthy"], made[place]["happened"]))[:50]
        answer = asked.panel(BOARD, "Root-cause events", view)
        found = answer.as_rows()
        assert [row["stream"] in hit[place] for row, place in zip(found, order, strict=True)] == [True] * len(order)
        same(answer, [{**made[place], "stream": row["stream"]} for row, place in zip(found, order, strict=True)], view.name)
        seen += len(found)
    assert seen > 50
