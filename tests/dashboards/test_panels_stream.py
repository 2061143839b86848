"""The dashboard `stream`: each panel equals a loop over the rows of one stream, its engine's steps and its verdicts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest

from helpers.dashboards.panels import Asked, Past, Row, View, panels, same

BOARD = "stream"
PLACES = ("screen", "client", "gateway", "server", "engine")
Expected = Callable[[Past, list[Row]], list[Row]]


def _s(us: float | None, per_s: float = 1e6) -> float | None:
    return None if us is None else us / per_s


def _mine(past: Past, asked_for: str) -> list[Row]:
    """The rows with this trace id or response id, at most 20, the earliest first."""
    name = asked_for.strip(" ")
    rows = [row for row in past.streams if row["trace_id"].hex() == name.lower() or (name and row["response_id"] == name)]
    return sorted(rows, key=lambda row: row["start_time"])[:20]


def vantages(past: Past, mine: list[Row]) -> list[Row]:
    """One row per vantage, from the screen to the engine."""
    made = []
    for row in sorted(mine, key=lambda row: (PLACES.index(row["vantage"]), row["start_time"])):
        made.append(
            {
                "vantage": row["vantage"],
                "service": row["service_name"],
                "release": row["service_version"],
                "model": row["model"],
                "provider": row["provider"],
                "outcome": row["outcome"],
                "started": row["start_time"],
                "TTFB": _s(row["ttfb_us"]),
                "TTFT": _s(row["ttft_us"]),
                "duration": row["duration_ns"] / 1e9,
                "chunks": row["chunks"],
                "tokens": row["output_tokens"],
                **{f"gap {name}": _s(row[f"gap_{name}_us"]) for name in ("p50", "p99")},
                "max gap": _s(row["gap_max_us"]),
                "open gap": _s(row["gap_open_us"]),
                "stalls": row["stalls_250ms"],
                "engine": row["engine_id"],
                "response": row["response_id"],
                "trace": row["trace_id"].hex(),
                "emitter": row["emitter"],
            }
        )
    return made


def arrivals(past: Past, mine: list[Row]) -> list[Row]:
    """Cumulative bytes per vantage, or cumulative chunks if the sizes are unknown."""
    made = []
    for row in mine:
        sizes = row["chunk_bytes"] or [1] * len(row["dt_us"])
        for at, total in zip(accumulate(row["dt_us"]), accumulate(sizes), strict=True):
            made.append({"time": row["start_time"] + 1000 * at, "vantage": row["vantage"], "bytes": total})
    return made


def gaps(past: Past, mine: list[Row]) -> list[Row]:
    """Chunks with content, each with the time since the previous one."""
    made = []
    for row in mine:
        ats = [at for at, kind in zip(accumulate(row["dt_us"]), row["chunk_kind"], strict=True) if kind in (1, 2, 3)]
        waited = [0, *(later - earlier for earlier, later in pairwise(ats))]
        made += [
            {"time": row["start_time"] + 1000 * at, "vantage": row["vantage"], "gap_s": gap / 1e6}
            for at, gap in zip(ats, waited, strict=False)
        ]
    return made


def _span(mine: list[Row]) -> tuple[int, int]:
    return min(row["start_time"] for row in mine), max(row["start_time"] + row["duration_ns"] for row in mine)


def _steps(past: Past, mine: list[Row]) -> list[Row]:
    if not mine:
        return []
    engines, (low, high) = {row["engine_id"] for row in mine} - {""}, _span(mine)
    rows = [row for row in past.steps if row["engine_id"] in engines and low <= row["recorded_at"] <= high]
    return sorted(rows, key=lambda row: (row["recorded_at"], row["engine_id"]))


def steps(past: Past, mine: list[Row]) -> list[Row]:
    """The engine's steps while the stream ran."""
    return [
        {
            "time": row["recorded_at"],
            "engine": row["engine_id"],
            "step": _s(row["interval_us"]),
            "longest wait of a request": _s(row["interval_max_us"]),
        }
        for row in _steps(past, mine)
    ]


def load(past: Past, mine: list[Row]) -> list[Row]:
    """The load of the engine in these steps."""
    return [
        {
            "time": row["recorded_at"],
            "engine": row["engine_id"],
            "prefill tokens": row["prefill_tokens"],
            "running": row["running"],
            "waiting": row["waiting"],
            "preempted": row["preempted"],
            "KV used": _s(row["kv_used_ppm"]),
        }
        for row in _steps(past, mine)
    ]


def _key(row: Row) -> Any:
    return row["start_time"], row["trace_id"], row["span_id"]


def _ms(ns: int) -> str:
    """Format ns as ms with one decimal as ClickHouse does, without the decimal if it is 0."""
    rounded = float(np.rint(ns / 1e6 * 10) / 10)
    return f"{name} ms" if (name := f"{rounded:.1f}".removesuffix(".0")) != "-0" else "-0 ms"


def verdicts(past: Past, mine: list[Row]) -> list[Row]:
    """The verdicts of the stream's stalls, with maps and lists as text."""
    own = {_key(row) for row in mine}
    rows = [row for row in past.verdicts if row["cause"] != "base" and _key(row) in own]
    made = [
        {
            "gap start": row["start_time"] + 1000 * row["gap_start_us"],
            "gap": row["gap_us"] / 1e6,
            "beyond healthy": row["excess_us"] / 1e6,
            "cause": row["cause"],
            "confidence": row["confidence"],
            "parts": ", ".join(f"{name} {_ms(ns)}" for name, ns in dict(row["parts"]).items()),
            "evidence": ", ".join(f"{name} = {value}" for name, value in dict(row["evidence"]).items()),
            "excluded": "; ".join(f"not {name}: {why}" for name, why in dict(row["excluded"]).items()),
            "missing vantages": ", ".join(row["missing"]),
            "within": row["error_us"] / 1e6,
            "root-cause step": row["culprit_step"],
            "culprits": ", ".join(row["culprit_responses"]),
            "engine": row["engine_id"],
        }
        for row in rows
    ]
    return sorted(made, key=lambda row: row["gap start"])


def but_for(past: Past, mine: list[Row]) -> list[Row]:
    """The counterfactuals of the newest attribution run."""
    own = {_key(row) for row in mine}
    clients = {_key(row) for row in mine if row["vantage"] == "client"}
    newest = max((row["judged_at"] for row in past.verdicts if _key(row) in clients), default=0)
    rows = [row for row in past.replays if _key(row) in own and row["judged_at"] == newest]
    made = [
        {
            "cause": row["cause"],
            "stalls as they were": row["stalls"],
            "left at least": row["stalls_min"],
            "left at most": row["stalls_max"],
            "stalled as it was": row["stalled_us"] / 1e6,
            "at least left": row["stalled_min_us"] / 1e6,
            "at most left": row["stalled_max_us"] / 1e6,
        }
        for row in rows
    ]
    return sorted(made, key=lambda row: row["cause"])


def simultaneous(past: Past, mine: list[Row]) -> list[Row]:
    """Stalls of other streams on the same engine while this stream ran."""
    if not mine:
        return []
    engines, traces, (low, high) = {row["engine_id"] for row in mine} - {""}, {row["trace_id"] for row in mine}, _span(mine)
    made = []
    for row in past.verdicts:
        since = row["start_time"] + 1000 * row["gap_start_us"]
        meets = since <= high and since + 1000 * row["gap_us"] >= low and low - 300 * 10**9 <= row["start_time"] <= high
        if row["cause"] != "base" and row["engine_id"] in engines and row["trace_id"] not in traces and meets:
            made.append(
                {
                    "stream": row["trace_id"].hex(),
                    "gap start": since,
                    "gap": row["gap_us"] / 1e6,
                    "cause": row["cause"],
                    "confidence": row["confidence"],
                    "engine": row["engine_id"],
                }
            )
    return sorted(made, key=lambda row: (-row["gap"], row["stream"]))[:50]


EXPECTED: dict[str, Expected] = {
    "Vantages": vantages,
    "Bytes at each vantage": arrivals,
    "Gaps": gaps,
    "Engine steps": steps,
    "Engine load": load,
    "Stalls, verdicts and evidence": verdicts,
    "Counterfactual: without one cause": but_for,
    "Simultaneous stalls on the engine": simultaneous,
}


def _asked_for(past: Past) -> dict[str, str]:
    """Values of the dashboard's variable `stream`, valid and invalid, by a short description."""
    worst = max((row for row in past.stalls if row["cause"] == "kv_pressure"), key=lambda row: row["gap_us"])
    (served,) = [row for row in past.streams if row["trace_id"] == worst["trace_id"] and row["vantage"] == "server"]
    mobile = next(row for row in past.stalls if row["cause"] == "coalescing")
    alone = next(row for row in past.streams if row["outcome"] == "client_cancel" and not row["chunk_bytes"] and row["dt_us"])
    return {
        "a preempted one": worst["trace_id"].hex(),
        "typed by hand": f"  {worst['trace_id'].hex().upper()} ",
        "by its response": served["response_id"],
        "delayed": mobile["trace_id"].hex(),
        "without sizes": alone["trace_id"].hex(),
        "without a timeline": next(row for row in past.streams if not row["dt_us"])["trace_id"].hex(),
        "abandoned": next(row for row in past.streams if row["outcome"] == "abandoned")["trace_id"].hex(),
        "unknown": "f" * 32,
        "no hexadecimal digits": "ü" * 16,
        "SQL": "' OR 1=1 --",
        "too short": worst["trace_id"].hex()[:31],
        "nothing": "",
        "blanks": "   ",
        "all": "$__all",
    }


@pytest.mark.parametrize("title", EXPECTED)
def test_a_panel_matches_the_stream(asked: Asked, title: str) -> None:
    """The panel returns the expected rows and columns for streams of every kind, and no rows for unknown or invalid ids."""
    compared = 0
    for name, wanted in _asked_for(asked.past).items():
        view = View(name, asked.past.view("", 4, 60).span, {"stream": wanted})
        mine = _mine(asked.past, wanted)
        answer = asked.panel(BOARD, title, view)
        expected = EXPECTED[title](asked.past, mine)
        if title in ("Bytes at each vantage", "Gaps"):
            # Points with the same time may be in any order.
            times = [row[0] for row in answer.rows]
            assert times == sorted(times), name
            answer = type(answer)(200, "", answer.columns, tuple(sorted(answer.rows)))
            expected = sorted(expected, key=lambda row: tuple(row.values()))
        same(answer, expected, f"{title}, {name}")
        compared += len(expected)
    assert compared


def test_an_id_finds_all_vantages(asked: Asked) -> None:
    """A trace id in any notation and a response id find the same client and server rows."""
    names = _asked_for(asked.past)
    found = [len(_mine(asked.past, names[name])) for name in ("a preempted one", "typed by hand", "by its response")]
    assert found == [2, 2, 2]
    assert not any(_mine(asked.past, names[name]) for name in ("unknown", "SQL", "too short", "nothing", "blanks", "all"))


def test_every_panel_is_expected() -> None:
    """Every panel of the dashboard has an expectation in this module."""
    assert EXPECTED.keys() | {"Worst streams of this range"} == panels(BOARD).keys()


@pytest.mark.parametrize("chosen", ["", "f" * 32, "' OR 1=1 --"])
def test_the_worst_streams_can_be_opened(asked: Asked, chosen: str) -> None:
    """The 20 streams of the range with the longest gaps, of all services and vantages, whatever stream is chosen."""
    for view in (asked.past.view("", hours, 60, {"stream": chosen}) for hours in (1, 4, 15 * 24)):
        rows = [row for row in asked.past.streams if view.has_ns(row["start_time"]) and row["gap_max_us"] and row["outcome"] != "running"]
        made = {(row["trace_id"].hex(), row["vantage"]): row for row in rows}
        found = asked.panel(BOARD, "Worst streams of this range", view).as_rows()
        assert [row["max gap"] for row in found] == sorted((row["gap_max_us"] / 1e6 for row in rows), reverse=True)[:20]
        for row in found:
            own = made[row["stream"], row["vantage"]]
            figures = ("started", "start_time"), ("service", "service_name"), ("model", "model"), ("stalls", "stalls_250ms")
            assert all(row[name] == own[column] for name, column in (*figures, ("outcome", "outcome")))
