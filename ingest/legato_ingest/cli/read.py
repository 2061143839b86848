"""The commands of `legato` that read: `report`, `streams`, `stream`, `blame`.

One idea: each asks the read endpoint one or two questions and prints a page, or the same as JSON. They open no store, so they work
beside a running `legato serve`, and against any of them that can be reached.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console

from legato_ingest.cli.client import DEFAULT_URL, DEFAULT_USER, Reader
from legato_ingest.cli.durations import seconds_of
from legato_ingest.errors import LegatoError

__all__ = ["register"]

_WIDTH_WITHOUT_TERMINAL = 120
_HEX = re.compile(r"[0-9a-f]{8,32}")

UrlOption = Annotated[str, typer.Option(envvar="LEGATO_READ_URL", help="Where `legato serve` answers queries")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a page")]
SinceOption = Annotated[str, typer.Option(help="How far back: 90s, 15m, 1h, 7d, 2w, or all")]
ModelOption = Annotated[str, typer.Option(help="Only this requested model", show_default=False)]
ServiceOption = Annotated[str, typer.Option(help="Only this service.name", show_default=False)]
VantageOption = Annotated[str, typer.Option(help="Only this vantage: engine, server, gateway, client, screen", show_default=False)]
GapOption = Annotated[int, typer.Option(min=1, help="A good stream has no gap over this many ms")]
FirstOption = Annotated[int, typer.Option(min=1, help="A good stream shows something within this many ms")]


def register(app: typer.Typer) -> None:
    """Add the reading commands to ``app``."""
    app.command()(report)
    app.command()(streams)
    app.command()(stream)
    app.command()(blame)
    app.command()(slo)


def report(
    since: SinceOption = "1h",
    model: ModelOption = "",
    service: ServiceOption = "",
    vantage: VantageOption = "",
    gap_ms: GapOption = 400,
    first_ms: FirstOption = 2_000,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """How streams felt, by model, service and vantage.

    A stream is good when no visible gap exceeded 400 ms, its first output came within 2 s and it did not end in an error. A user's cancel
    is good, unless it followed such a gap (the wait before the cancel counts) or such a start. Running streams are not judged yet.

    Every figure stands with n, the number of streams that know it: a span without a timeline knows no gaps and is left out, never
    counted as 0.

    Examples: legato report; legato report --since 7d --vantage client; legato report --json | jq '.groups[].goodput'
    """
    from legato_ingest.cli import report as page

    question = page.Question(seconds_of(since), model, service, vantage, gap_ms, first_ms)
    with _asking():
        rows = page.fetch(_reader(url), question)
    _show(page.as_json(rows, question) if as_json else page.render(rows, question))


def streams(
    since: SinceOption = "1h",
    model: ModelOption = "",
    service: ServiceOption = "",
    vantage: VantageOption = "",
    outcome: Annotated[str, typer.Option(help="Only this outcome, as in client_cancel", show_default=False)] = "",
    stalled: Annotated[bool, typer.Option("--stalled", help="Only streams with a gap of 250 ms or more")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="How many at most")] = 20,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """The latest streams, one line each: when, where, how it ended, TTFT, worst gap, and its gaps over its time.

    Examples: legato streams; legato streams --stalled --vantage client; legato streams --outcome client_cancel --since 1d
    """
    from legato_ingest.cli import report as report_page
    from legato_ingest.cli import streams as page
    from legato_ingest.cli.queries import STREAMS

    question = report_page.Question(seconds_of(since), model, service, vantage, groups_max=limit)
    with _asking():
        rows = _reader(url).rows(STREAMS, {**question.parameters(), "outcome": outcome, "stalled": int(stalled)})
    if as_json:
        _show(rows[:limit])
    elif rows:
        _show(page.render_list(rows[:limit], len(rows) > limit))
    elif outcome or stalled:
        _show("no stream matches: ask for more with --since, or leave a filter out")
    else:
        _show(report_page.nothing(question))


def stream(
    id: Annotated[
        str, typer.Argument(help="A trace id (8 hex digits of its start are enough), a span id, or a response id", show_default=False)
    ],
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """One stream, its vantages under each other: facts, timelines, every stall of 250 ms or more and what came after it.

    Vantages that share a clock (one host) are drawn on one time axis; others each from its own start. What a vantage cannot know is said.

    Examples: legato stream 4bf92f3577b3; legato stream chatcmpl-9f2c; legato stream 4bf92f3577b3 --json
    """
    from legato_ingest.cli import streams as page
    from legato_ingest.cli.queries import VANTAGES_MAX

    with _asking():
        rows = _vantages(_reader(url), id.strip())
    if len(rows) == VANTAGES_MAX:
        typer.echo(f"the first {VANTAGES_MAX} recordings of this trace, in the order of their starts; there may be more", err=True)
    _show(page.as_json(rows) if as_json else page.render_stream(rows, _console().width))


def blame(
    since: SinceOption = "1h",
    model: ModelOption = "",
    service: ServiceOption = "",
    engine: Annotated[str, typer.Option(help="Only stalls of this engine's streams, by legato.engine.id", show_default=False)] = "",
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="How many engine events at most")] = 10,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """What stalled client streams: causes by the time they took, and the engine events behind them, each with its n.

    Every nanosecond of every judged stall is charged to a cause. What fixing one alone would remove is found by replaying each stream
    without it, all else as it was; a range, where that depends on what cannot be seen. Causes overlap, so these do not add up.
    Stalls without evidence are called generation, delivery or unknown, and counted.

    Examples: legato blame; legato blame --since 1d --engine 10.0.0.5:8000; legato blame --json | jq '.causes[0]'
    """
    from legato_ingest.cli import causes as page

    question = page.Question(seconds_of(since), model, service, engine, limit)
    with _asking():
        answer = page.fetch(_reader(url), question)
    _show(page.as_json(answer) if as_json else page.render(answer))


def slo(
    objective: Annotated[float, typer.Option(min=0.5, max=0.99999, help="Share of streams that are to be good")] = 0.99,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """How fast each service spends the streams that its objective lets be bad: what the alert rules see.

    A burn rate of 1 spends the budget exactly. A rule fires when a long and a short window burn beyond its limit, with three bad streams of
    two readers or more: a page at 14.4 over 1 h and 5 min, or at 6 over 6 h and 30 min; a ticket at 1 over 3 days and 6 h.
    A bad stream burns one budget: the readers' own when its stalls lie with them, that of first outputs when nothing else was wrong.

    Examples: legato slo; legato slo --objective 0.995; legato slo --json | jq '.[] | select(.firing)'
    """
    from legato_ingest.cli import slo as page
    from legato_ingest.settings import load

    with _asking():
        rows = page.fetch(_reader(url), load().dashboards_dir, objective)
    _show(page.as_json(rows) if as_json else page.render(rows, objective))


def _reader(url: str) -> Reader:
    """The reader of the endpoint. The password comes from the environment alone: others on the host can see a command's words."""
    return Reader(url, os.environ.get("LEGATO_READ_USER", DEFAULT_USER), os.environ.get("LEGATO_READ_PASSWORD", ""))


def _vantages(reader: Reader, given: str) -> list[dict[str, Any]]:
    """The rows of the stream that the id means. Raises ``LegatoError`` when it means none, or several."""
    from legato_ingest.cli.queries import FIND_STREAM, FIND_TRACE, FINISHED, VANTAGES, VERDICTS

    as_hex = given.lower().replace("-", "")
    is_hex = bool(_HEX.fullmatch(as_hex))
    found = reader.rows(FIND_TRACE, {"id": as_hex}) if is_hex and len(as_hex) == 32 else []
    found = found or reader.rows(FIND_STREAM, {"id": as_hex, "given": given, "hex": int(is_hex)})
    if not found:
        raise LegatoError(f"no stream has the id {given!r} (trace id, span id or response id); `legato streams` lists the latest")
    ones = [row for row in found if row["is_one"]]
    traces = sorted({row["trace"] for row in ones or found})
    if len(traces) > 1 and not ones:
        raise LegatoError(
            f"{len(traces)} traces start with {given}: {', '.join(traces[:5])}{' …' if len(traces) > 5 else ''}; give more digits"
        )
    responses = sorted({row["response_id"] for row in ones or found} - {""})
    where: dict[str, str | int | float | Sequence[str]] = {
        "traces": traces,
        "first_ns": min(int(row["first_ns"]) for row in found),
        "last_ns": max(int(row["last_ns"]) for row in found),
    }
    rows = reader.rows(VANTAGES, {**where, "responses": responses, "gap_us": 400_000, "first_us": 2_000_000})
    verdicts = reader.rows(VERDICTS, where)
    told = sorted({row["response_id"] for row in rows} - {""})
    finished = {row["response_id"]: row for row in (reader.rows(FINISHED, {"responses": told}) if told else [])}
    for row in rows:
        row["request"] = finished.get(row["response_id"])
        row["verdicts"] = [verdict for verdict in verdicts if (verdict["trace"], verdict["span"]) == (row["trace"], row["span"])]
    # A trace may hold many streams (an agent's calls). Who named one of them sees that one, and what has no response id of its own.
    return [row for row in rows if not (ones and responses) or row["response_id"] in ("", *responses)]


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH_WITHOUT_TERMINAL, highlight=False)


@contextlib.contextmanager
def _asking() -> Iterator[None]:
    """A spinner on the terminal's error stream while the store answers, so that output can be piped."""
    with Console(stderr=True).status("asking the store …"):
        yield


def _show(page: Any) -> None:
    if isinstance(page, dict | list):
        typer.echo(json.dumps(page))
    else:
        _console().print(page, markup=False)
