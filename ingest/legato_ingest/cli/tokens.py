"""`legato token`: who may write and read.

One idea: these commands change a file and ask no server; a running one notices within a second. A token is printed once, when it is made.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from legato_ingest.auth.tokens import READ, WRITE
from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import SettingsError

__all__ = ["register"]

app = typer.Typer(
    name="token",
    help="Tokens: who may write or read, and as which tenant. Kept as hashes in the file of LEGATO_TOKENS_FILE.",
    no_args_is_help=True,
)
FileOption = Annotated[pathlib.Path | None, typer.Option("--file", help="The tokens' file [env: LEGATO_TOKENS_FILE]", show_default=False)]
Name = Annotated[str, typer.Argument(help="What you call it, as in shop-app-2026-11", show_default=False)]


def register(root: typer.Typer) -> None:
    """Add the commands to ``root``."""
    root.add_typer(app)


def _file(given: pathlib.Path | None) -> pathlib.Path:
    from legato_ingest.settings import load

    path = given or load().tokens_file
    if path is None:
        raise SettingsError("no file of tokens: set LEGATO_TOKENS_FILE (as for `legato serve`), or give --file")
    return path


@app.command()
def add(
    name: Name,
    tenant: Annotated[str, typer.Option(help="Whose rows it writes or reads; `*` reads those of all", show_default=False)],
    write: Annotated[bool, typer.Option("--write", help="May write: for emitters and Collectors")] = False,
    read: Annotated[bool, typer.Option("--read", help="May read: for the CLI, Grafana and other clients")] = False,
    file: FileOption = None,
) -> None:
    """Make a token and print it. Only its hash is kept: what is printed is nowhere else.

    Several tokens of a tenant are valid at once. To change one: add a new one, give it to its users, then remove the old one. Behind a
    Collector wait until its queue is empty first: what it sends with a token that is gone is refused for good.

    Example: legato token add shop-app --tenant shop --write
    """
    from legato_ingest.auth import tokens

    if write == read:
        raise SettingsError("say what it may do: --write or --read, one of them")
    path = _file(file)
    typer.echo(tokens.add(path, name, tenant, WRITE if write else READ))
    typer.echo(f"{name} may {'write' if write else 'read'} as {tenant}; its hash is in {path}", err=True)


@app.command("list")
def list_(file: FileOption = None) -> None:
    """Show the tokens by name, without anything that could be used."""
    from legato_ingest.auth import tokens

    table = Table("name", "tenant", "may")
    for token in tokens.load(_file(file)):
        table.add_row(token.name, "all tenants" if token.tenant == ALL_TENANTS else token.tenant, token.may)
    Console(file=sys.stdout).print(table)


@app.command()
def remove(name: Name, file: FileOption = None) -> None:
    """Take a token away: a running `legato serve` refuses it within a second.

    Example: legato token remove shop-app
    """
    from legato_ingest.auth import tokens

    tokens.remove(_file(file), name)
    typer.echo(f"{name} is gone")
