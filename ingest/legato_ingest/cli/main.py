"""The command `legato`: its subcommands and their options.

Each subcommand parses its options, calls one function of another module and prints the result. Errors that Legato raises on purpose are
printed as one line, with exit status 1. Only commands that open a store import the store's engine (200 MB).
"""

from __future__ import annotations

import errno
import os
import pathlib
import sys
from importlib import metadata
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from legato_ingest.cli import dashboards, launch, objectives, read, store, tokens
from legato_ingest.cli.doctor import command
from legato_ingest.cli.layout import Column, FittedTable, console, print_json, print_line
from legato_ingest.cli.options import seconds_of
from legato_ingest.cli.store_choice import StoreOption, store_settings
from legato_ingest.errors import LegatoError
from legato_ingest.visible import visible

__all__ = ["app", "main"]

_NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))

app = typer.Typer(
    name="legato",
    help="Record every chunk of streamed LLM responses, and find the causes of stalls.\n\n"
    "Start `legato serve`, send it OTLP, then run `legato report`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
schema_app = typer.Typer(name="schema", help="The store's schema: numbered SQL files, applied in order.", no_args_is_help=True)
app.add_typer(schema_app)
read.register(app)
dashboards.register(app)
tokens.register(app)
objectives.register(app)
command.register(app)
store.register(app)
launch.register(app)


def _print_version(asked: bool) -> None:
    if asked:
        print_line(f"legato {metadata.version('legato-ingest')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit", callback=_print_version, is_eager=True)] = False,
) -> None:
    """The options of the command itself."""


OwnStoreOption = Annotated[str | None, typer.Option(help="chdb:///absolute/path of the store (env: LEGATO_STORE)", show_default=False)]


@app.command()
def serve(
    store: OwnStoreOption = None,
    otlp_port: Annotated[int | None, typer.Option(help="OTLP port (env: LEGATO_OTLP_PORT, default 4318)")] = None,
    read_port: Annotated[int | None, typer.Option(help="Read port (env: LEGATO_READ_PORT, default 8123)")] = None,
) -> None:
    """Receive OTLP, store streams, and answer queries: by default in an embedded store and on loopback.

    Point any OTLP exporter at http://127.0.0.1:4318 (HTTP) or http://127.0.0.1:4317 (gRPC). Read with `legato report`, or with any
    ClickHouse client on port 8123. Settings are environment variables (docs/reference.md); these options take precedence.
    """
    from legato_ingest.serve import serve as run
    from legato_ingest.settings import load

    run(load(store=store, otlp_port=otlp_port, read_port=read_port))


@app.command()
@app.command("attribute", hidden=True)
def reattribute(
    since: Annotated[str, typer.Option(help="Streams that started within this time span: 90s, 15m, 1h, 7d, 2w, or all")],
    store: StoreOption = None,
) -> None:
    """Attribute stalls again, after a threshold was lowered or Legato was upgraded.

    `legato serve` attributes every stream by itself, also when evidence arrives late; this command is for streams that already have
    verdicts. The newest verdict counts. Gaps below a raised threshold keep their verdicts.
    If a running `legato serve` holds the store, the command runs inside it, with its settings.

    Example: legato reattribute --since 1d
    """
    from legato_ingest.cli.admin_client import attribute as run

    settings = store_settings(store)
    with Console(stderr=True).status("attributing …"):
        done = run(settings, seconds_of(since))
    print_line(f"{done['streams']:,} stalled streams attributed, {done['verdicts']:,} verdicts, {done['seconds']:.1f} s")


@app.command()
def rollup(
    since: Annotated[str, typer.Option(help="Rollups within this time span: 90s, 15m, 1h, 7d, 2w, or all")],
    store: StoreOption = None,
) -> None:
    """Recompute the rollups that dashboards and alerts read, such as after an upgrade that corrects a figure.

    `legato serve` keeps the rollups up to date by itself, also for late data and new verdicts. After a change of the objectives,
    `legato objectives apply` computes them.
    If a running `legato serve` holds the store, the command runs inside it, with its settings.

    Example: legato rollup --since all
    """
    from legato_ingest.cli.admin_client import rollup as run

    settings = store_settings(store)
    with Console(stderr=True).status("computing …"):
        done = run(settings, seconds_of(since))
    print_line(f"{done['minutes']:,} minutes computed, {done['rows']:,} rows, {done['seconds']:.1f} s")


@schema_app.command("apply")
def schema_apply(store: StoreOption = None) -> None:
    """Apply the missing files. If a running `legato serve` holds the store, the command runs inside it."""
    from legato_ingest.cli.admin_client import schema_apply as run

    applied = run(store_settings(store, creates=True))
    for name in applied:
        print_line(f"applied {name}")
    print_line(f"{len(applied)} applied; the schema is current")


@schema_app.command("status")
def schema_status(store: StoreOption = None, as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False) -> None:
    """Show which schema files are applied."""
    from legato_ingest.cli.admin_client import schema_status as run

    status = run(store_settings(store))
    if as_json:
        print_json(status)
        return
    table = FittedTable([Column("number"), Column("name", folds=24), Column("state", folds=16)])
    for file in status["files"]:
        state = "changed since it was applied" if file["changed"] else "applied" if file["applied"] else "missing"
        table.add_row(f"{file['number']:04}", file["name"], state)
    console().print(table)
    if status["note"]:
        print_line(status["note"])


def main() -> None:
    """Run the command; print errors that Legato raises on purpose as one line."""
    try:
        app()
    except LegatoError as error:
        # One line, also where the text of a server is part of the error.
        _fail(visible(str(error)))
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        # What is left in the buffer would be written, and fail, again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(f"cannot write{f' {visible(str(error.filename))}' if error.filename else ''}: {error.strerror}")


def _fail(reason: str) -> NoReturn:
    print_line(f"{pathlib.Path(sys.argv[0]).name}: {reason}", error=True)
    sys.exit(1)
