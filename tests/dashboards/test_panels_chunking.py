"""The dashboard `chunking`: each panel equals a loop over the streams or over the detector's findings."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from helpers.dashboards.panels import DIMENSIONS, Asked, Past, Row, View, by, check, grouped, panels, ratio, shown

BOARD = "chunking"
BOUGHT = 20.0
SETTINGS = {"tokens_per_s": "20"}


def _sender(row: Row) -> str:
    return row["provider"] or "(none)"


def _with_tokens(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["output_tokens"] is not None and (row["content_chunks"] or 0) > 0]


def _per_chunk(rows: list[Row]) -> float | None:
    counted = _with_tokens(rows)
    return ratio(sum(row["output_tokens"] for row in counted), sum(row["content_chunks"] for row in counted))


def _several(rows: list[Row]) -> float | None:
    shares = [row["multi_token_share"] for row in rows if row["is_over"] and row["multi_token_share"] is not None]
    return ratio(math.fsum(shares), len(shares))


def _envelope(rows: list[Row]) -> float | None:
    known = [row for row in rows if row["wire_bytes"] is not None and row["content_bytes"] is not None]
    text = sum(row["content_bytes"] for row in known)
    return ratio(sum(row["wire_bytes"] for row in known) - text, text)


def _rate(rows: list[Row]) -> float | None:
    """The geometric mean of the tokens per second after the first token."""
    logs = []
    for row in rows:
        if row["is_over"] and (row["output_tokens"] or 0) > 1 and row["ttft_us"] is not None:
            after_us = row["duration_ns"] // 1000 - row["ttft_us"]
            if after_us > 0:
                logs.append(math.log(row["output_tokens"] / (after_us / 1e6)))
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def _lump(rows: list[Row]) -> float | None:
    heads = [row["head_burst"] for row in rows if row["is_over"] and row["head_burst"] is not None]
    return ratio(sum(head > 3 for head in heads), len(heads))


def _curve(figure: Any, name: str) -> Any:
    """One curve per provider, without points that have no known value."""

    def expected(past: Past, view: View) -> list[Row]:
        groups = by(shown(past.streams, view), lambda row: (view.point(row["minute"]), _sender(row)))
        made = [{"time": key[0], "sender": key[1], name: figure(rows)} for key, rows in groups.items()]
        return [row for row in made if row[name] is not None]

    return expected


def rates(past: Past, view: View) -> list[Row]:
    """Token rate and chunk rate, at points where both are known."""
    made = []
    for (at, sender), rows in by(shown(past.streams, view), lambda row: (view.point(row["minute"]), _sender(row))).items():
        rate, per_chunk = _rate(rows), _per_chunk(rows)
        if rate is not None and per_chunk:
            made.append({"time": at, "sender": sender, "tokens per second": rate, "chunks per second": rate / per_chunk})
    return made


def froze(past: Past, view: View) -> list[Row]:
    """The share of streams with a long gap, at points where the provider delivered the purchased rate."""
    made = []
    for (at, sender), rows in by(shown(past.streams, view), lambda row: (view.point(row["minute"]), _sender(row))).items():
        judged = [row for row in rows if row["is_judged"]]
        if (_rate(rows) or 0) >= BOUGHT and judged:
            share = sum(row["bad"] == "gap" for row in judged) / len(judged)
            made.append({"time": at, "sender": sender, "contract met, stream froze": share})
    return made


def _monday(row: Row) -> str:
    day = datetime.fromtimestamp(row["minute"], UTC).date()
    return (day - timedelta(days=day.weekday())).isoformat()


def weeks(past: Past, view: View) -> list[Row]:
    """One row per week, provider and model, the newest week first."""

    def made(key: Any, rows: list[Row]) -> Row:
        judged = [row for row in rows if row["is_judged"]]
        return {
            **dict(zip(("week", "sender", "model"), key, strict=True)),
            "n": len(rows),
            "tokens per chunk": _per_chunk(rows),
            "chunks with several tokens": _several(rows),
            "tokens per second": _rate(rows),
            "envelope bytes per text byte": _envelope(rows),
            "initial burst": _lump(rows),
            "goodput": (goodput := ratio(sum(not row["bad"] for row in judged), len(judged))),
            "state": None if goodput is None else "bad" if goodput < 0.95 else "below objective" if goodput < 0.99 else "good",
        }

    made_rows = grouped(shown(past.streams, view), lambda row: (_monday(row), _sender(row), row["model"]), made)
    return sorted(made_rows, key=lambda row: row["week"], reverse=True)


def changes(past: Past, view: View) -> list[Row]:
    """The detector's current findings, the newest change first. A finding has no release and no transport to filter by."""
    columns = {name: column for name, column in DIMENSIONS.items() if name not in ("release", "transport")}
    rows = [row for row in past.changes if row["found"] and view.has_minute(row["changed_at"]) and view.shows(row, columns)]
    rows.sort(key=lambda row: (-row["changed_at"], row["service_name"], row["model"], row["vantage"]))
    return [
        {
            "changed": row["changed_at"],
            "kind": row["kind"],
            "direction": row["direction"],
            "sender": _sender(row),
            "service": row["service_name"],
            "model": row["model"],
            "vantage": row["vantage"],
            "several tokens, before": row["share_before"],
            "after": row["share_after"],
            "tokens per chunk, before": row["tokens_per_chunk_before"],
            "now": row["tokens_per_chunk_after"],
            "speed, ratio": row["rate_ratio"],
            "n before": row["streams_before"],
            "n after": row["streams_after"],
            "alarmed": row["alarmed_at"],
        }
        for row in rows
    ]


EXPECTED = {
    "Tokens per chunk": _curve(_per_chunk, "tokens per chunk"),
    "Chunks with several tokens": _curve(_several, "chunks with several tokens"),
    "Token rate against chunk rate": rates,
    "Contract met, stream froze": froze,
    "Envelope bytes per text byte": _curve(_envelope, "envelope bytes per text byte"),
    "Initial bursts": _curve(_lump, "streams with an initial burst"),
    "Changes in chunking": changes,
    "By provider and week": weeks,
}


@pytest.mark.parametrize("title", EXPECTED)
def test_a_panel_matches_the_streams(asked: Asked, title: str) -> None:
    """The panel returns the expected rows and columns in every view."""
    check(asked, BOARD, title, EXPECTED[title], SETTINGS)


def test_every_panel_is_expected() -> None:
    """Every panel of the dashboard has an expectation in this module."""
    assert EXPECTED.keys() == panels(BOARD).keys()
