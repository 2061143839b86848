"""`legato backup`, `restore` and `copy`: the rows of an embedded store to a file, back, and to a ClickHouse server.

Each command verifies its result by counts and checksums and prints them. The work is done in ``storage``.
"""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from legato_ingest.cli.layout import print_line
from legato_ingest.cli.store_choice import StoreOption, store_settings
from legato_ingest.errors import LegatoError

__all__ = ["register"]

NewStoreOption = Annotated[str | None, typer.Option("--store", help="chdb:///absolute/path (env: LEGATO_STORE)", show_default=False)]


def register(root: typer.Typer) -> None:
    """Add the commands to ``root``."""
    root.command()(backup)
    root.command()(restore)
    root.command()(copy)
    root.command("move", hidden=True)(copy)


def backup(
    name: Annotated[str, typer.Argument(help="Name of the backup (default: legato- and the time)", show_default=False)] = "",
    store: StoreOption = None,
) -> None:
    """Back up the embedded store to a file, and verify the file: it is restored next to the store and compared.

    A running `legato serve` continues meanwhile. The file and its manifest are in the folder STORE.backups: copy both to another host.
    While it runs, the command needs twice the size of the store as free disk space.

    Example: legato backup before-upgrade
    """
    from legato_ingest.cli.admin_client import backup as run

    settings = store_settings(store)
    with Console(stderr=True).status("backing up, restoring, comparing …"):
        done = run(settings, name)
    print_line(f"{done['file']}: {done['rows']:,} rows of {done['tables']} tables, {done['bytes']:,} bytes; restored once, and identical")
    # A server of an earlier version does not say.
    if aside := done.get("aside"):
        print_line(f"legato: {aside}", error=True)


def restore(
    file: Annotated[pathlib.Path, typer.Argument(help="File of the backup, with its manifest in the same folder", show_default=False)],
    store: NewStoreOption = None,
) -> None:
    """Restore a backup into an empty store, and compare it with the manifest. No `legato serve` may run on this store.

    Example: legato restore legato-20261121T120000Z.tzst --store chdb:///var/lib/legato/restored
    """
    from legato_ingest.settings import load
    from legato_ingest.storage.backup import restore as run

    with Console(stderr=True).status("restoring, comparing …"):
        done = run(file, load(store=store).store_path)
    print_line(f"{done['store']}: {done['rows']:,} rows of {done['tables']} tables, identical to the backup")


def copy(
    to: Annotated[str, typer.Option(help="clickhouse://USER@HOST:8123/DATABASE, with LEGATO_STORE_PASSWORD", show_default=False)],
    store: StoreOption = None,
) -> None:
    """Copy the rows of the embedded store to a ClickHouse server, and compare both. No `legato serve` may run on the store.

    The command applies the schema on the server. Run an interrupted copy again to continue it; the source is not changed. Then set
    LEGATO_STORE of `legato serve` to the server: copied streams are not attributed again.

    Example: legato copy --to clickhouse://legato@clickhouse:8123/default
    """
    from legato_ingest.settings import load
    from legato_ingest.storage import EmbeddedStore, migrate, open_store
    from legato_ingest.storage.copy import copy_rows, partitions_of, tables_of
    from legato_ingest.storage.lock import StoreLock
    from legato_ingest.storage.wal import expect_all_stored, left_aside

    target_settings = load(store=to)
    if target_settings.server is None:
        raise LegatoError("--to must be a ClickHouse server: clickhouse://USER@HOST:8123/DATABASE")
    settings = store_settings(store)
    with StoreLock(settings.store_path):
        expect_all_stored(settings.store_path)
        aside = left_aside(settings.store_path)
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
        print_line(
            f"{each.table} {each.partition}: {each.source.rows:,} rows here, {each.target.rows:,} on the server, with different contents",
            error=True,
        )
    if wrong:
        raise LegatoError(f"{len(wrong)} of {len(moved)} partitions differ: the server has other rows in them; copy into an empty database")
    print_line(
        f"{len(moved)} partitions, {rows:,} rows: counts and checksums are equal on both sides ({copied} partitions were copied now)"
    )
    if aside:
        raise LegatoError(f"{aside}; `legato serve` on {settings.store_path} tries them again at its start: then repeat the copy")
