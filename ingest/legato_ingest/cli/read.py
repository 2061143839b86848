"""The reading commands of `legato`: `report`, `streams`, `stream`, `blame`, `slo`.

Each command queries the read endpoint and prints a view, or the same as JSON. The commands open no store, so they work while `legato serve`
runs, and with any reachable endpoint. The SLO's limits are the server's unless an option sets them.
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

from legato_ingest.cli.client import DEFAULT_URL, DEFAULT_USER, Reader, SloLimits
from legato_ingest.cli.format import milliseconds, seconds_of
from legato_ingest.errors import LegatoError

__all__ = ["JsonOption", "UrlOption", "register"]

_WIDTH_WITHOUT_TERMINAL = 120
# Recordings of one response under several traces start at most this far apart.
_APART_NS = 60_000_000_000
_HEX = re.compile(r"[0-9a-f]{8,32}")

UrlOption = Annotated[str, typer.Option(envvar="LEGATO_READ_URL", help="URL of the read endpoint of `legato serve`")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text")]
SinceOption = Annotated[str, typer.Option(help="Time span before now: 90s, 15m, 1h, 7d, 2w, or all")]
ModelOption = Annotated[str, typer.Option(help="Only this requested model", show_default=False)]
ServiceOption = Annotated[str, typer.Option(help="Only this service.name", show_default=False)]
VantageOption = Annotated[str, typer.Option(help="Only this vantage: engine, server, gateway, client, screen", show_default=False)]
GapOption = Annotated[
    int | None, typer.Option(min=1, help="A good stream has no gap above this many ms [default: the server's limit]", show_default=False)
]
FirstOption = Annotated[
    int | None,
    typer.Option(min=1, help="A good stream has its first output within this many ms [default: the server's limit]", show_default=False),
]


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
    gap_ms: GapOption = None,
    first_ms: FirstOption = None,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Show goodput, gaps, jitter and first tokens, by model, service and vantage.

    A stream is good if it has no gap above the SLO's limit (LEGATO_SLO_GAP_MS of the server, 400 ms by default), a first output within
    LEGATO_SLO_FIRST_OUTPUT_MS (2 s by default), and no error at its end. A cancelled stream is good unless such a gap (including the wait
    before the cancel) or such a start preceded the cancel. Running streams are not judged yet.

    Every figure has its n, the number of streams with a known value: a stream without a timeline has no known gaps and is left out, never
    counted as 0.

    Examples: legato report; legato report --since 7d --vantage client; legato report --json | jq '.groups[].goodput'
    """
    from legato_ingest.cli import report as view

    with _querying():
        reader = _reader(url)
        limits = _limits(reader, gap_ms, first_ms)
        query = view.ReportQuery(seconds_of(since), model, service, vantage, limits.gap_ms, limits.first_output_ms)
        rows = view.fetch(reader, query)
    _show(view.as_json(rows, query) if as_json else view.render(rows, query))


def streams(
    since: SinceOption = "1h",
    model: ModelOption = "",
    service: ServiceOption = "",
    vantage: VantageOption = "",
    outcome: Annotated[str, typer.Option(help="Only this outcome, such as client_cancel", show_default=False)] = "",
    stalled: Annotated[bool, typer.Option("--stalled", help="Only streams with a gap of 250 ms or more")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Number of streams to list")] = 20,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """List the newest streams, one line each: start, model, outcome, TTFT, worst gap, and the gaps over the stream's time.

    Examples: legato streams; legato streams --stalled --vantage client; legato streams --outcome client_cancel --since 1d
    """
    from legato_ingest.cli import report as report_view
    from legato_ingest.cli import streams as view
    from legato_ingest.cli.queries import STREAMS

    with _querying():
        reader = _reader(url)
        limits = _limits(reader)
        span = seconds_of(since)
        query = report_view.ReportQuery(span, model, service, vantage, limits.gap_ms, limits.first_output_ms, groups_max=limit)
        rows = reader.rows(STREAMS, {**query.parameters(), "outcome": outcome, "stalled": int(stalled)})
    if as_json:
        _show(rows[:limit])
    elif rows:
        _show(view.render_list(rows[:limit], len(rows) > limit))
    elif outcome or stalled:
        _show("no stream matches: use a longer --since, or remove a filter")
    else:
        _show(report_view.no_streams(query))


def stream(
    id: Annotated[str, typer.Argument(help="A trace id (or its first 8 or more hex digits), span id, or response id", show_default=False)],
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Show one stream with all its vantages: facts, timelines, every stall (250 ms or more by default) and what followed it.

    Vantages with one clock (one host) are drawn on one time axis, other vantages each from its own start. Facts that a vantage cannot
    measure are listed.

    Examples: legato stream 4bf92f3577b3; legato stream chatcmpl-9f2c; legato stream 4bf92f3577b3 --json
    """
    from legato_ingest.cli import streams as view
    from legato_ingest.cli.queries import VANTAGES_MAX

    with _querying():
        reader = _reader(url)
        limits = _limits(reader)
        rows = _vantages(reader, id.strip(), limits)
    if len(rows) == VANTAGES_MAX:
        typer.echo(f"the first {VANTAGES_MAX} recordings of this trace, ordered by start; there may be more", err=True)
    stall_us = round(limits.stall_ms * 1_000)
    _show(view.as_json(rows, stall_us) if as_json else view.render_stream(rows, _console().width, stall_us))


def blame(
    since: SinceOption = "1h",
    model: ModelOption = "",
    service: ServiceOption = "",
    engine: Annotated[str, typer.Option(help="Only stalls of this engine's streams, by legato.engine.id", show_default=False)] = "",
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Number of engine events to list")] = 10,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Show what stalled client streams: causes by the time charged to them, and the engine events behind them, each with its n.

    Every nanosecond of every judged stall is charged to a cause. The effect of fixing one cause alone is computed by replaying each stream
    without this cause, all else unchanged; it is a range where the result depends on facts that were not recorded. Causes overlap, so these
    effects do not add up. Stalls without evidence are charged to generation, delivery or unknown, and counted.

    Examples: legato blame; legato blame --since 1d --engine 10.0.0.5:8000; legato blame --json | jq '.causes[0]'
    """
    from legato_ingest.cli import causes as view

    with _querying():
        reader = _reader(url)
        query = view.BlameQuery(seconds_of(since), model, service, engine, limit, _limits(reader).first_output_ms)
        found = view.fetch(reader, query)
    _show(view.as_json(found) if as_json else view.render(found))


def slo(
    objective: Annotated[float, typer.Option(min=0.5, max=0.99999, help="Share of streams that should be good")] = 0.99,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Show the burn rates that the alert rules see: how fast each service uses up the bad streams that its objective allows.

    A burn rate of 1 uses up the budget exactly. A rule fires when a long and a short window both exceed its limit, with at least three bad
    streams of at least two end users: a page at 14.4 over 1 h and 5 min, or at 6 over 6 h and 30 min; a ticket at 1 over 3 days and 6 h.
    A bad stream burns one budget: the end users' own budget when its stalls are on their side, the budget of first outputs when nothing
    else was bad.

    Examples: legato slo; legato slo --objective 0.995; legato slo --json | jq '.[] | select(.firing)'
    """
    from legato_ingest.cli import slo as view
    from legato_ingest.settings import load

    with _querying():
        rows = view.fetch(_reader(url), load().dashboards_dir, objective)
    _show(view.as_json(rows) if as_json else view.render(rows, objective))


def _reader(url: str) -> Reader:
    """The client of the endpoint. The password comes from the environment only: other users of the host can see a command's arguments."""
    return Reader(url, os.environ.get("LEGATO_READ_USER", DEFAULT_USER), os.environ.get("LEGATO_READ_PASSWORD", ""))


def _limits(reader: Reader, gap_ms: float | None = None, first_ms: float | None = None) -> SloLimits:
    """The server's limits, or those of the options. One request per command, and none when both options are set."""
    if gap_ms is not None and first_ms is not None:
        return SloLimits(gap_ms, first_ms)
    limits = reader.slo()
    if not limits.from_server:
        typer.echo(
            "this server does not report its SLO (an older version): using the defaults, "
            f"{milliseconds(limits.gap_ms)} and {milliseconds(limits.first_output_ms)}",
            err=True,
        )
    gap_ms = limits.gap_ms if gap_ms is None else gap_ms
    first_ms = limits.first_output_ms if first_ms is None else first_ms
    return SloLimits(gap_ms, first_ms, limits.stall_ms, limits.from_server)


def _vantages(reader: Reader, given: str, limits: SloLimits) -> list[dict[str, Any]]:
    """The rows of the stream with this id. Raises ``LegatoError`` when no stream has it, or several streams start with it."""
    from legato_ingest.cli.queries import FINISHED, VANTAGES, VERDICTS

    found = _newest(_found(reader, given), given)
    named = [row for row in found if row["is_one"]]
    traces = sorted({row["trace"] for row in named or found})
    if len(traces) > 1 and not named:
        raise LegatoError(
            f"{len(traces)} traces start with {given}: {', '.join(traces[:5])}{' …' if len(traces) > 5 else ''}; give more digits"
        )
    responses = sorted({row["response_id"] for row in named or found} - {""})
    first_ns, last_ns = min(int(row["first_ns"]) for row in found), max(int(row["last_ns"]) for row in found)
    where: dict[str, str | int | float | Sequence[str]] = {"traces": traces, "first_ns": first_ns, "last_ns": last_ns}
    slo_limits = {"gap_us": round(limits.gap_ms * 1_000), "first_us": round(limits.first_output_ms * 1_000)}
    rows = reader.rows(VANTAGES, {**where, "responses": responses, **slo_limits})
    rows = [row for row in rows if row["trace"] in traces or first_ns - _APART_NS <= int(row["start_ns"]) <= last_ns + _APART_NS]
    verdicts = reader.rows(VERDICTS, where)
    with_id = sorted({row["response_id"] for row in rows} - {""})
    finished = {row["response_id"]: row for row in (reader.rows(FINISHED, {"responses": with_id}) if with_id else [])}
    for row in rows:
        row["request"] = finished.get(row["response_id"])
        row["verdicts"] = [verdict for verdict in verdicts if (verdict["trace"], verdict["span"]) == (row["trace"], row["span"])]
    # A trace may hold many streams (the calls of an agent). A response id selects its stream, and rows without a response id.
    return [row for row in rows if not (named and responses) or row["response_id"] in ("", *responses)]


def _newest(found: list[dict[str, Any]], given: str) -> list[dict[str, Any]]:
    """Of several streams with this response id, the newest. Vantages of one stream start within a minute; a replayed id starts later."""
    named = [row for row in found if row["is_one"]]
    newest_ns = max((int(row["first_ns"]) for row in named), default=0)
    older = [row for row in named if int(row["first_ns"]) < newest_ns - _APART_NS]
    if older:
        traces = ", ".join(sorted({row["trace"] for row in older})[:5])
        typer.echo(
            f"{len(older)} earlier recordings have the id {given}; this is the newest stream. The others are in the traces {traces}",
            err=True,
        )
    return [row for row in found if row not in older]


def _found(reader: Reader, given: str) -> list[dict[str, Any]]:
    """The traces and responses that an id matches. Raises ``LegatoError`` when there are none."""
    from legato_ingest.cli.queries import FIND_STREAM, FIND_TRACE

    as_hex = given.lower().replace("-", "")
    is_hex = bool(_HEX.fullmatch(as_hex))
    found = reader.rows(FIND_TRACE, {"id": as_hex}) if is_hex and len(as_hex) == 32 else []
    found = found or reader.rows(FIND_STREAM, {"id": as_hex, "given": given, "hex": int(is_hex)})
    if not found:
        raise LegatoError(f"no stream has the id {given!r} (trace id, span id or response id); `legato streams` lists the newest")
    return found


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH_WITHOUT_TERMINAL, highlight=False)


@contextlib.contextmanager
def _querying() -> Iterator[None]:
    """A spinner on standard error while the store answers, so that the output can be piped."""
    with Console(stderr=True).status("querying the store …"):
        yield


def _show(view: Any) -> None:
    if isinstance(view, dict | list):
        typer.echo(json.dumps(view))
    else:
        _console().print(view, markup=False)
