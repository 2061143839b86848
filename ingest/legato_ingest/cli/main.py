"""The command `legato`: what can be typed, and nothing else.

One idea: each command parses its options, calls one function of another module, and prints. Errors that Legato raises on purpose are
one line and exit status 1. The store's engine (200 MB) is imported only by the commands that open a store.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from legato_ingest.cli import dashboards, read, store, tokens
from legato_ingest.cli.doctor import command
from legato_ingest.errors import LegatoError

__all__ = ["app", "main"]

app = typer.Typer(
    name="legato",
    help="What a streamed LLM response felt like, and why.\n\nStart `legato serve`, send it OTLP, then ask `legato report`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
schema_app = typer.Typer(name="schema", help="The store's schema: numbered SQL files, applied in order.", no_args_is_help=True)
app.add_typer(schema_app)
read.register(app)
dashboards.register(app)
tokens.register(app)
command.register(app)
store.register(app)

StoreOption = Annotated[str | None, typer.Option(help="chdb:///absolute/path of the store [env: LEGATO_STORE]", show_default=False)]


@app.command()
def serve(
    store: StoreOption = None,
    otlp_port: Annotated[int | None, typer.Option(help="OTLP port [env: LEGATO_OTLP_PORT, default 4318]")] = None,
    read_port: Annotated[int | None, typer.Option(help="Read port [env: LEGATO_READ_PORT, default 8123]")] = None,
) -> None:
    """Receive OTLP, keep streams in an embedded store, and answer queries, all on loopback.

    Point any OTLP/HTTP exporter at http://127.0.0.1:4318. Read with `legato report`, or with any ClickHouse client on port 8123.
    Settings come from the environment (docs/reference.md); the options here win.
    """
    from legato_ingest.serve import serve as run
    from legato_ingest.settings import load

    run(load(store=store, otlp_port=otlp_port, read_port=read_port))


@app.command()
def attribute(
    since: Annotated[str, typer.Option(help="Streams that started in the last 90s, 15m, 1h, 7d, 2w, or all")],
    store: StoreOption = None,
) -> None:
    """Judge stalls again: after a lower threshold was set, or with a version that knows more.

    `legato serve` judges every stream by itself, also when evidence comes late: this is for what has been judged. The newest verdict
    counts. Gaps below a threshold that was raised keep the verdict that they have.
    Goes through a running `legato serve` when one holds the store, and then by that one's settings.

    Example: legato attribute --since 1d
    """
    from legato_ingest.cli.admin_client import attribute as run
    from legato_ingest.cli.durations import seconds_of
    from legato_ingest.settings import load

    with Console(stderr=True).status("judging …"):
        done = run(load(store=store), seconds_of(since))
    typer.echo(f"{done['streams']:,} stalled streams judged, {done['verdicts']:,} verdicts, {done['seconds']:.1f} s")


@app.command()
def rollup(
    since: Annotated[str, typer.Option(help="Minutes of the last 90s, 15m, 1h, 7d, 2w, or all")],
    store: StoreOption = None,
) -> None:
    """Compute minutes again, which dashboards and alerts read: after LEGATO_SLO_GAP_MS or LEGATO_SLO_FIRST_OUTPUT_MS was changed.

    `legato serve` keeps them true by itself, also for late data and new verdicts.
    Goes through a running `legato serve` when one holds the store, and then by that one's settings.

    Example: legato rollup --since all
    """
    from legato_ingest.cli.admin_client import rollup as run
    from legato_ingest.cli.durations import seconds_of
    from legato_ingest.settings import load

    with Console(stderr=True).status("computing …"):
        done = run(load(store=store), seconds_of(since))
    typer.echo(f"{done['minutes']:,} minutes computed, {done['rows']:,} rows, {done['seconds']:.1f} s")


@schema_app.command("apply")
def schema_apply(store: StoreOption = None) -> None:
    """Apply the files that the store lacks. Goes through a running `legato serve` when one holds the store."""
    from legato_ingest.cli.admin_client import schema_apply as run
    from legato_ingest.settings import load

    applied = run(load(store=store))
    for name in applied:
        typer.echo(f"applied {name}")
    typer.echo(f"{len(applied)} applied; the schema is current")


@schema_app.command("status")
def schema_status(store: StoreOption = None, as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False) -> None:
    """Show which files are applied."""
    from legato_ingest.cli.admin_client import schema_status as run
    from legato_ingest.settings import load

    status = run(load(store=store))
    if as_json:
        typer.echo(json.dumps(status))
        return
    table = Table("number", "name", "state")
    for file in status["files"]:
        state = "changed since it was applied" if file["changed"] else "applied" if file["applied"] else "missing"
        table.add_row(f"{file['number']:04}", file["name"], state)
    Console().print(table)
    if status["note"]:
        typer.echo(status["note"])


def main() -> None:
    """Run the command; Legato's own errors are one line."""
    try:
        app()
    except LegatoError as error:
        print(f"{pathlib.Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(1)
