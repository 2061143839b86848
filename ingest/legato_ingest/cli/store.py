"""`legato backup`, `restore` and `move`: an embedded store's rows to a file, back, and to a ClickHouse server.

One idea: each proves what it did by counts and checksums and says so; it does none of it itself.
"""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from legato_ingest.errors import LegatoError

__all__ = ["register"]

StoreOption = Annotated[str | None, typer.Option(help="chdb:///absolute/path of the store [env: LEGATO_STORE]", show_default=False)]


def register(root: typer.Typer) -> None:
    """Add the commands to ``root``."""
    root.command()(backup)
    root.command()(restore)
    root.command()(move)


def backup(
    name: Annotated[str, typer.Argument(help="What to call it [default: legato- and the time]", show_default=False)] = "",
    store: StoreOption = None,
) -> None:
    """Back up the embedded store to a file, and prove that it can be restored: it is, beside the store, and counted.

    Goes through a running `legato serve`, which goes on meanwhile. The file and its manifest lie in the folder STORE.backups: copy both
    elsewhere. Needs room for the store twice more, for as long as it takes.

    Example: legato backup before-upgrade
    """
    from legato_ingest.cli.admin_client import backup as run
    from legato_ingest.settings import load

    with Console(stderr=True).status("backing up, restoring, comparing …"):
        done = run(load(store=store), name)
    typer.echo(f"{done['file']}: {done['rows']:,} rows of {done['tables']} tables, {done['bytes']:,} bytes; restored once, and the same")


def restore(
    file: Annotated[pathlib.Path, typer.Argument(help="The backup's file, with its manifest beside it", show_default=False)],
    store: StoreOption = None,
) -> None:
    """Restore a backup into a store that holds nothing, and compare with what was backed up. `legato serve` must not run on it.

    Example: legato restore legato-20261121T120000Z.tzst --store chdb:///var/lib/legato/restored
    """
    from legato_ingest.settings import load
    from legato_ingest.storage.backup import restore as run

    with Console(stderr=True).status("restoring, comparing …"):
        done = run(file, load(store=store).store_path)
    typer.echo(f"{done['store']}: {done['rows']:,} rows of {done['tables']} tables, the same as were backed up")


def move(
    to: Annotated[str, typer.Option(help="clickhouse://USER@HOST:8123/DATABASE, with LEGATO_STORE_PASSWORD", show_default=False)],
    store: StoreOption = None,
) -> None:
    """Copy the embedded store's rows into a ClickHouse server, and compare. `legato serve` must not run on the store.

    Applies the schema there. A move that was cut off goes on where it was when it is run again; the source stays as it is. Point `legato
    serve` at the server afterwards: what it was sent before the move is there, and is not judged anew.

    Example: legato move --to clickhouse://legato@clickhouse:8123/default
    """
    from legato_ingest.settings import load
    from legato_ingest.storage import EmbeddedStore, migrate, open_store
    from legato_ingest.storage.copy import copy_rows, partitions_of, tables_of
    from legato_ingest.storage.lock import StoreLock

    settings, target_settings = load(store=store), load(store=to)
    if target_settings.server is None:
        raise LegatoError("--to must be a ClickHouse server: clickhouse://USER@HOST:8123/DATABASE")
    with StoreLock(settings.store_path):
        source, target = EmbeddedStore(settings.store_path), open_store(target_settings)
        migrations = migrate.load(settings.schema_dir)
        for opened in (source, target):
            migrate.apply(opened, migrations)
        total = sum(len(partitions_of(source, table)) for table in tables_of(source))
        with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=Console(stderr=True)) as progress:
            task = progress.add_task("partitions", total=total)
            moved = []
            for each in copy_rows(source, target):
                moved.append(each)
                progress.update(task, advance=1, description=each.table)
        source.close()
        target.close()
    wrong = [each for each in moved if not each.same]
    copied, rows = sum(each.copied for each in moved), sum(each.source.rows for each in moved)
    for each in wrong:
        typer.echo(f"{each.table} {each.partition}: {each.source.rows:,} rows here, {each.target.rows:,} there, and not the same", err=True)
    if wrong:
        raise LegatoError(f"{len(wrong)} of {len(moved)} partitions differ: the server has rows of its own there")
    typer.echo(f"{len(moved)} partitions, {rows:,} rows: counts and checksums are the same on both sides ({copied} were copied now)")
