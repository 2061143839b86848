"""`legato token`: add, list and remove tokens for writing and reading.

The commands change a file and contact no server; a running `legato serve` applies the change within 1 s. A token is printed only once, when
it is added.
"""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from legato_ingest.auth.tokens import READ, WRITE
from legato_ingest.cli.layout import Column, FittedTable, console, print_line
from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import SettingsError

__all__ = ["register"]

app = typer.Typer(
    name="token",
    help="Manage the tokens for writing and reading, each bound to a tenant. LEGATO_TOKENS_FILE stores their hashes.",
    no_args_is_help=True,
)
FileOption = Annotated[
    pathlib.Path | None, typer.Option("--file", help="File of token hashes (env: LEGATO_TOKENS_FILE)", show_default=False)
]
Name = Annotated[str, typer.Argument(help="Name of the token, such as shop-app-2026-11", show_default=False)]


def register(root: typer.Typer) -> None:
    """Add the commands to ``root``."""
    root.add_typer(app)


def _file(given: pathlib.Path | None) -> pathlib.Path:
    from legato_ingest.settings import load

    path = given or load().tokens_file
    if path is None:
        raise SettingsError("no file of tokens: set LEGATO_TOKENS_FILE (as for `legato serve`), or use --file")
    return path


@app.command()
def add(
    name: Name,
    tenant: Annotated[str, typer.Option(help="Tenant that it writes or reads as; `*` reads the rows of all tenants", show_default=False)],
    write: Annotated[bool, typer.Option("--write", help="May write: for emitters and Collectors")] = False,
    read: Annotated[bool, typer.Option("--read", help="May read: for the CLI, Grafana and other clients")] = False,
    origin: Annotated[
        str,
        typer.Option(help="Origin of the web pages that may send it, such as https://shop.example", show_default=False),
    ] = "",
    file: FileOption = None,
) -> None:
    """Create a token and print it. Only its hash is stored, so the token cannot be printed again.

    Several tokens of a tenant are valid at once. To replace one, add a new token, give it to all users, then remove the old token. With a
    Collector, first wait until its queue is empty: data that it sends with a removed token is refused and lost.

    Example: legato token add shop-app --tenant shop --write
    """
    from legato_ingest.auth import tokens

    if write == read:
        raise SettingsError("set exactly one of --write and --read")
    path = _file(file)
    print_line(tokens.add(path, name, tenant, WRITE if write else READ, origin.lower().rstrip("/")))
    print_line(f"{name} may {'write' if write else 'read'} as {tenant}; its hash is in {path}", error=True)


@app.command("list")
def list_(file: FileOption = None) -> None:
    """List the tokens by name, without their secrets."""
    from legato_ingest.auth import tokens

    table = FittedTable([Column("name", folds=16), Column("tenant", folds=16), Column("may"), Column("origin", folds=16)])
    for token in tokens.load(_file(file)):
        table.add_row(token.name, "all tenants" if token.tenant == ALL_TENANTS else token.tenant, token.may, token.origin or "any")
    console().print(table)


@app.command()
def remove(name: Name, file: FileOption = None) -> None:
    """Remove a token: a running `legato serve` refuses it within 1 s.

    Example: legato token remove shop-app
    """
    from legato_ingest.auth import tokens

    tokens.remove(_file(file), name)
    print_line(f"removed {name}")
