"""The commands that read: `legato report`, `legato streams`, `legato stream`.

One idea: they are clients of the read endpoint like any other; with ``--json`` they print what they know for programs. None opens a store.
"""

from __future__ import annotations

import json
import re
from typing import Annotated

import typer
from rich.console import Console
from rich.status import Status

__all__ = ["register", "seconds"]

Url = Annotated[
    str, typer.Option("--url", envvar="LEGATO_READ_URL", help="Where `legato serve` answers [default: http://127.0.0.1:LEGATO_READ_PORT]")
]
Since = Annotated[str, typer.Option(help="How far back: 90s, 15m, 6h, 2d")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON")]
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def _default_url() -> str:
    from legato_ingest.settings import load

    return f"http://127.0.0.1:{load().read_port}"


def seconds(text: str) -> int:
    """Seconds in a span like 15m. Raises ``typer.BadParameter``."""
    match = re.fullmatch(r"(\d{1,9})([smhdw])", text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no span of time: write a number and s, m, h, d or w, like 15m")
    return int(match.group(1)) * _UNITS[match.group(2)]


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.command()(report)
    app.command()(streams)
    app.command()(stream)


def report(
    since: Since = "24h",
    model: Annotated[str, typer.Option(help="Only this model")] = "",
    service: Annotated[str, typer.Option(help="Only this service")] = "",
    url: Url = "",
    as_json: Json = False,
) -> None:
    """What the streams felt like: goodput, gaps, jitter, first tokens, by vantage, service and model, each with its n."""
    from legato_ingest import report as page
    from legato_ingest.reader import Reader

    with Reader(url or _default_url()) as reader, _patience("asking for the report"):
        rows = page.figures(reader, since_s=seconds(since), model=model, service=service)
    if as_json:
        typer.echo(json.dumps(rows, ensure_ascii=False))
    else:
        Console().print(page.render(rows))


def streams(
    since: Since = "24h",
    model: Annotated[str, typer.Option(help="Only this model")] = "",
    service: Annotated[str, typer.Option(help="Only this service")] = "",
    outcome: Annotated[str, typer.Option(help="Only this outcome: complete, client_cancel, timeout, upstream_error, abandoned, …")] = "",
    vantage: Annotated[str, typer.Option(help="Only this vantage: client, server, …")] = "",
    stalled: Annotated[bool, typer.Option("--stalled", help="Only streams with a gap of 250 ms or more")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many")] = 40,
    url: Url = "",
    as_json: Json = False,
) -> None:
    """List streams, the newest first. Green is good, red is not."""
    from legato_ingest import report as page
    from legato_ingest.reader import Reader

    with Reader(url or _default_url()) as reader, _patience("listing streams"):
        rows = page.streams(
            reader,
            since_s=seconds(since),
            model=model,
            service=service,
            outcome=outcome,
            vantage=vantage,
            stalled=int(stalled),
            limit=limit,
        )
    if as_json:
        typer.echo(json.dumps(rows, ensure_ascii=False))
    else:
        Console().print(page.render_streams(rows))


def stream(
    wanted: Annotated[str, typer.Argument(metavar="ID", help="Trace, span or response id; 8 hex digits of the first two are enough")],
    url: Url = "",
    as_json: Json = False,
) -> None:
    """Show one stream: its vantages under each other, its stalls, and what nobody could know."""
    from legato_ingest import stream_page as page
    from legato_ingest.reader import Reader

    with Reader(url or _default_url()) as reader, _patience("looking for the stream"):
        rows = page.find(reader, wanted)
    if as_json:
        typer.echo(json.dumps([{**row, "stalls": page.stalls_of(row)} for row in rows], ensure_ascii=False))
    else:
        Console().print(page.render(rows))


def _patience(doing: str) -> Status:
    """A spinner on the terminal's error side while a query runs; nothing where nobody looks."""
    return Console(stderr=True).status(doing)
