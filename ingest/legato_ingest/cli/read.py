"""The reading commands of `legato`: `report`, `streams`, `stream`, `live`, `blame`, `incident`,
`slo`.

Each command queries the read endpoint and prints a view, or the same as JSON. The commands open no store, so they work while `legato serve`
runs, and with any reachable endpoint. Whether a stream is good is what its objective says, unless an option sets other limits.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Console, Group

from legato_ingest.causes import HEALTHY
from legato_ingest.cli.client import DEFAULT_URL, DEFAULT_USER, Reader
from legato_ingest.cli.layout import console, print_json, print_line
from legato_ingest.cli.options import one_of
from legato_ingest.cli.time_range import moment_of, time_range
from legato_ingest.definitions import OUTCOMES, UNKNOWN_OUTCOME, VANTAGES
from legato_ingest.errors import LegatoError

__all__ = ["JsonOption", "UrlOption", "querying", "reader_of", "register", "show"]

_OUTCOMES = (*sorted(OUTCOMES), "running", UNKNOWN_OUTCOME)

UrlOption = Annotated[str, typer.Option(envvar="LEGATO_READ_URL", help="URL of the read endpoint of `legato serve`")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text")]
SinceOption = Annotated[str, typer.Option(help="Time span before now: 90s, 15m, 1h, 7d, 2w, or all")]
FromOption = Annotated[
    str,
    typer.Option(
        "--from", help="Streams since this time, instead of --since: 2026-11-23T14:05 or 14:05 (UTC), '14:05 local'", show_default=False
    ),
]
ToOption = Annotated[str, typer.Option("--to", help="Streams before this time, in the same forms", show_default=False)]
TenantOption = Annotated[str, typer.Option(help="Only this tenant, for a reader of all tenants", show_default=False)]
ModelOption = Annotated[str, typer.Option(help="Only this requested model", show_default=False)]
ServiceOption = Annotated[str, typer.Option(help="Only this service.name", show_default=False)]
VantageOption = Annotated[
    str, typer.Option(help=f"Only this vantage: {', '.join(VANTAGES)}", callback=one_of(VANTAGES), show_default=False)
]
GapOption = Annotated[
    int | None,
    typer.Option(min=1, help="A good stream has no gap above this many ms (default: its objective's limit)", show_default=False),
]
FirstOption = Annotated[
    int | None,
    typer.Option(min=1, help="A good stream has its first output within this many ms (default: its objective's limit)", show_default=False),
]


def register(app: typer.Typer) -> None:
    """Add the reading commands to ``app``."""
    app.command()(report)
    app.command()(streams)
    app.command()(stream)
    app.command()(live)
    app.command()(blame)
    app.command()(incident)
    app.command()(slo)


def report(
    since: SinceOption = "1h",
    from_: FromOption = "",
    to: ToOption = "",
    model: ModelOption = "",
    service: ServiceOption = "",
    vantage: VantageOption = "",
    gap_ms: GapOption = None,
    first_ms: FirstOption = None,
    tenant: TenantOption = "",
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Show goodput, gaps, jitter and first tokens, by model, service and vantage.

    A stream is good if it has no gap above the limit of its objective (400 ms by default; see `legato objectives`), a first output within
    the limit (2 s by default), and no error at its end. A cancelled stream is good unless such a gap (including the wait
    before the cancel) or such a start preceded the cancel. Running streams are not judged yet.

    Every figure has its n, the number of streams with a known value: a stream without a timeline has no known gaps and is left out, never
    counted as 0.

    Examples: legato report; legato report --since 7d --vantage client; legato report --json | jq '.groups[].goodput'
    """
    from legato_ingest.cli import report as view

    with querying():
        reader = reader_of(url)
        when = time_range(since, from_, to)
        query = view.ReportQuery(when, model, service, vantage, gap_ms or 0, first_ms or 0, tenant=tenant)
        rows = view.fetch(reader, query)
    if rows or as_json:
        show(view.as_json(rows, query) if as_json else view.render(rows, query))
    else:
        show(view.no_streams(query, _has_streams(url)))


def streams(
    since: SinceOption = "1h",
    from_: FromOption = "",
    to: ToOption = "",
    model: ModelOption = "",
    service: ServiceOption = "",
    vantage: VantageOption = "",
    outcome: Annotated[
        str,
        typer.Option(help=f"Only this outcome: {', '.join(_OUTCOMES)}", callback=one_of(_OUTCOMES), show_default=False),
    ] = "",
    stalled: Annotated[bool, typer.Option("--stalled", help="Only streams with a gap of 250 ms or more")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Number of streams to list")] = 20,
    tenant: TenantOption = "",
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """List the newest streams, one line each: start, model, outcome, TTFT, worst gap, and the gaps over the stream's time.

    Examples: legato streams; legato streams --stalled --vantage client; legato streams --outcome client_cancel --since 1d
    """
    from legato_ingest.cli import report as report_view
    from legato_ingest.cli import streams as view
    from legato_ingest.reports.queries import STREAMS

    with querying():
        reader = reader_of(url)
        when = time_range(since, from_, to)
        query = report_view.ReportQuery(when, model, service, vantage, groups_max=limit, tenant=tenant)
        rows = reader.rows(STREAMS, {**query.parameters(), "outcome": outcome, "stalled": int(stalled)})
    if as_json:
        show(rows[:limit])
    elif rows:
        show(view.render_list(rows[:limit], len(rows) > limit))
    else:
        show(report_view.no_streams(query, _has_streams(url), also=bool(outcome or stalled)))


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

    with querying():
        reader = reader_of(url)
        stall_us = round(reader.slo().stall_ms * 1_000)
        rows, notes = _recordings(reader, id.strip())
    for note in notes:
        print_line(note, error=True)
    show(view.as_json(rows, stall_us) if as_json else view.render_stream(rows, console().width, stall_us))


def live(
    service: ServiceOption = "",
    model: ModelOption = "",
    once: Annotated[
        bool, typer.Option("--once", help="Print the present state and exit; the default where the output is no terminal")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Number of stalled streams to list")] = 20,
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Show what runs now: streams in flight, streams that are stalled with their growing gap, and the state of their engines.

    A running stream is stalled if it has had no content for 2 s. The SDK reports that after 2 s, 8 s and 30 s, then at three times the
    length, but at least every five minutes. It reports the streams in flight every 5 s. Ctrl-C ends the command.

    Examples: legato live; legato live --service chat --once; legato live --json | jq '.stalled | length'
    """
    from legato_ingest.cli import live as view
    from legato_ingest.reports import live as data

    query = data.LiveQuery(service, model, limit)
    if console().is_terminal and not (as_json or once):
        # Without `querying`: its line would be drawn over the last line of the view.
        with contextlib.suppress(KeyboardInterrupt):
            view.follow(reader_of(url), query, console())
        return
    with querying():
        result = data.fetch(reader_of(url).rows, query)
    show(data.as_json(result) if as_json else view.render(result, query))


def blame(
    since: SinceOption = "1h",
    from_: FromOption = "",
    to: ToOption = "",
    model: ModelOption = "",
    service: ServiceOption = "",
    engine: Annotated[str, typer.Option(help="Only stalls of this engine's streams, by legato.engine.id", show_default=False)] = "",
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Number of engine events to list")] = 10,
    tenant: TenantOption = "",
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Show what stalled streams: causes by the time charged to them, and the engine events behind them, each with its n.

    Every nanosecond of every judged stall is charged to a cause. The effect of fixing one cause alone is computed by replaying each stream
    without this cause, all else unchanged; it is a range where the result depends on facts that were not recorded. Causes overlap, so these
    effects do not add up. Stalls without evidence are charged to generation, delivery or unknown, and counted.

    Examples: legato blame; legato blame --since 1d --engine 10.0.0.5:8000; legato blame --json | jq '.causes[0]'
    """
    from legato_ingest.cli import causes as view
    from legato_ingest.reports import blame as data

    with querying():
        reader = reader_of(url)
        query = data.BlameQuery(time_range(since, from_, to), model, service, engine, limit, tenant)
        found = data.fetch(reader.rows, query)
    show(data.as_json(found) if as_json else view.render(found))


def incident(
    from_: Annotated[str, typer.Option("--from", help="Begin: 2026-11-23T14:05 or 14:05 (UTC), '14:05 local'", show_default=False)],
    to: Annotated[str, typer.Option("--to", help="End, in the same forms (default: now)", show_default=False)] = "",
    service: ServiceOption = "",
    tenant: TenantOption = "",
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Write one page of Markdown about a time: what broke, which services, since when, causes, worst streams, what changed.

    Piped or redirected, it is Markdown for a ticket; in a terminal, its tables fit the width. It compares with the time of equal length
    before.

    Examples: legato incident --from 14:05 --to 14:40; legato incident --from '2026-11-23 14:05' --service chat > incident.md
    """
    from legato_ingest.cli import markdown_view
    from legato_ingest.reports import incident as data

    begin, end = moment_of(from_, "--from"), moment_of(to, "--to") if to else time.time_ns()
    if begin >= end:
        raise typer.BadParameter("it is not after --from", param_hint="--to")
    with querying():
        reader = reader_of(url)
        found = data.fetch(reader.rows, data.IncidentQuery(begin, end, service, tenant))
    page, screen = data.render(found), console()
    if screen.is_terminal:
        screen.print(markdown_view.view(page, data.LEFT_OUT))
    else:
        print_line(page.removesuffix("\n"))


def slo(
    service: ServiceOption = "",
    tenant: TenantOption = "",
    at: Annotated[
        str,
        typer.Option(
            help="What the rules saw at this time: 2026-11-23T14:05, 14:05 (UTC), '14:05 local' (default: now)", show_default=False
        ),
    ] = "",
    as_json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Show the burn rates that the alert rules see: how fast each service uses up the bad streams that its objective allows.
    `legato objectives show` lists the objectives.

    A burn rate of 1 uses up the budget exactly. A rule fires when a long and a short window both exceed its limit, with at least three bad
    streams of at least two end users: a page at 14.4 over 1 h and 5 min, or at 6 over 6 h and 30 min; a ticket at 1 over 3 days and 6 h,
    also for many bad streams of a single end user.
    A bad stream burns one budget: the end users' own budget when its stalls are on their side, the budget of first outputs when nothing
    else was bad.

    Examples: legato slo; legato slo --service chat --at 14:05; legato slo --json | jq '.[] | select(.firing)'
    """
    from legato_ingest.cli import slo as view
    from legato_ingest.settings import load

    with querying():
        at_s = moment_of(at, "--at") // 1_000_000_000 if at else 0
        rows = view.fetch(reader_of(url), load().dashboards_dir, service, tenant, at_s)
    show(view.as_json(rows) if as_json else view.render(rows))


def _has_streams(url: str) -> bool:
    """Whether the store has any stream that this reader sees."""
    with querying():
        return bool(reader_of(url).rows("SELECT 1 FROM stream_revs LIMIT 1"))


def reader_of(url: str) -> Reader:
    """The client of the endpoint. The password comes from the environment only: other users of the host can see a command's arguments."""
    return Reader(url, os.environ.get("LEGATO_READ_USER", DEFAULT_USER), os.environ.get("LEGATO_READ_PASSWORD", ""))


def _recordings(reader: Reader, given: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The recordings of the stream with this id, each with its verdicts and the engine's record of its request, and notes for the user.

    Raises ``LegatoError``.
    """
    from legato_ingest.reports.find_stream import RECORDINGS_MAX, NoSuchStream, find_stream, requests_of
    from legato_ingest.reports.verdicts import verdicts_on

    try:
        found = find_stream(reader.rows, given)
    except NoSuchStream as error:
        raise LegatoError(f"{error}; `legato streams` lists the newest") from None
    notes = []
    if found.earlier_traces:
        notes.append(
            f"{len(found.earlier_traces)} earlier recordings have the id {given}; this is the newest stream. The others are in the traces "
            f"{', '.join(sorted(set(found.earlier_traces))[:5])}"
        )
    if found.is_cut:
        notes.append(f"the first {RECORDINGS_MAX} recordings of this trace, ordered by start; there may be more")
    requests = requests_of(reader.rows, found.rows)
    verdicts = [verdict for verdict in verdicts_on(reader.rows, found.rows) if verdict["cause"] != HEALTHY]
    for row in found.rows:
        row["request"] = requests.get(row["response_id"])
        row["verdicts"] = [verdict for verdict in verdicts if (verdict["trace"], verdict["span"]) == (row["trace"], row["span"])]
    return found.rows, notes


@contextlib.contextmanager
def querying() -> Iterator[None]:
    """A spinner on standard error while the store answers, so that the output can be piped."""
    with Console(stderr=True).status("querying the store …"):
        yield


def show(view: Any) -> None:
    """Print a view; data as JSON."""
    if isinstance(view, dict | list):
        print_json(view)
    else:
        console().print(Group(view))
