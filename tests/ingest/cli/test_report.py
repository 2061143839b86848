"""Tests of the view of `legato report`: every figure with its n, dashes for unknown values, a hint for an empty store."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from legato_ingest.cli.report import ReportQuery, as_json, no_streams, render
from legato_ingest.reports.time_range import TimeRange


def row(**more: Any) -> dict[str, Any]:
    """A row of the report's query."""
    return {
        "model": "model-a", "service": "shop", "vantage": "client", "streams": 1_300, "running": 2, "judged": 1_200, "good": 1_199,
        "gap_limits_us": ["400000"], "first_limits_us": ["2000000"],
        "gap_n": 1_190, "gap_p99_p99_us": 612_000, "gap_worst_us": 4_100_000, "jitter_p50": 3.25, "jitter_n": 1_100,
        "ttft_p50_us": 310_000, "ttft_p95_us": 1_250_000, "ttft_n": 1_250, "stalls": 31, "stalled": 1, "excess_us": 5_600_000,
        "stalls_n": 1_200, "outcomes": {"client_cancel": 9, "complete": 1_291}, **more,
    }  # fmt: skip


UNKNOWN = row(
    judged=0, good=0, gap_n=0, gap_p99_p99_us=None, gap_worst_us=None, jitter_p50=None, jitter_n=0, stalls=None, stalled=0,
    excess_us=None, stalls_n=0,
)  # fmt: skip


def page(rows: list[dict[str, Any]], query: ReportQuery | None = None, width: int = 130) -> str:
    """The view as text."""
    out = io.StringIO()
    Console(width=width, file=out).print(render(rows, query or ReportQuery()))
    return out.getvalue()


def test_every_figure_has_its_n() -> None:
    """Goodput never rounds to 100 %, units fit, outcomes by size."""
    text = page([row()])
    for part in (
        "99.92 %",
        "n=1,200",
        "612 ms",
        "n=1,190",
        "4.10 s",
        "3.2",
        "n=1,100",
        "310 ms / 1.25 s",
        "n=1,250",
        "31 in 1 stream ",
        "5.60 s",
    ):
        assert part in text, part
    assert text.index("1,291 complete") < text.index("9 client_cancel") and "max " not in text.split("good:")[0]
    assert "in the last hour" in text and "400 ms" in text


def test_up_to_a_hundred_streams_have_a_maximum_and_no_p99() -> None:
    """The label names the statistic, in text and JSON."""
    few, many = row(gap_n=100), row(gap_n=101)
    assert "max 612 ms" in page([few]) and "max 612 ms" not in page([many])
    labels = [group["gap_p99_of_p99_ms"]["label"] for group in as_json([few, many], ReportQuery())["groups"]]
    assert labels == ["max", "p99"]


def test_unknown_is_a_dash_and_null() -> None:
    """Never 0, and never without its n."""
    text = page([UNKNOWN])
    assert text.count("n=0") >= 5 and "0 %" not in text and "0 ms\n" not in text
    (group,) = as_json([UNKNOWN], ReportQuery())["groups"]
    assert group["stalls_250ms"] == {"value": None, "streams": 0, "n": 0} and group["excess_250ms_ms"]["value"] is None


def test_no_stream_matches_is_not_no_streams_yet() -> None:
    """An empty store gives a hint how to record; a store with streams names the time and the filters that left none."""
    query = ReportQuery(TimeRange(7 * 86_400), model="m", vantage="client")
    hint, left = str(no_streams(query, store_has_streams=False)), str(no_streams(query, store_has_streams=True))
    assert hint.startswith("no streams yet\n") and "make demo" in hint
    # As the documentation has it: all libraries, not one alone.
    assert "python -m legato run app.py" in hint and "legato.instrument()" in hint and "openai" not in hint
    assert left.startswith("no stream matches in the last 7 days, model m, vantage client:") and "make demo" not in left
    assert "and the other filters" in str(no_streams(query, store_has_streams=True, also=True))
    assert as_json([], ReportQuery())["groups"] == []


def test_too_many_groups_are_cut() -> None:
    """The largest groups are shown, and a note."""
    rows = [row(model=f"model-{n}") for n in range(4)]
    text = page(rows, ReportQuery(groups_max=3))
    assert "model-2" in text and "model-3" not in text and "Only the 3 largest groups" in text
    assert as_json(rows, ReportQuery(groups_max=3))["more_groups"] is True


def test_markup_in_names_is_text() -> None:
    """Markup and escapes in received names are printed as text."""
    text = page([row(model="[red]x[/]\x1b[2J", service="[link=http://evil]s[/link]", outcomes={"[bold]o": 1})], width=160)
    assert "[red]x[/]" in text and "[link=http://evil]s[/link]" in text and "\x1b" not in text and "[bold]o" in text
