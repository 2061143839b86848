"""Backups of an embedded store: one file, made while `legato serve` goes on, and restored once before it is called one.

One idea: ClickHouse's own BACKUP takes what is there at one moment; the file is then restored beside the store, counted and hashed, and
what was found goes into a manifest next to it. A restore compares with that. Files lie in ``STORE.backups``, where the engine may write;
copy them elsewhere.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
from datetime import UTC, datetime
from typing import Any

from legato_ingest.errors import LegatoError
from legato_ingest.storage.chdb import Store
from legato_ingest.storage.lock import StoreLock
from legato_ingest.storage.tallies import Tally, tables_of, tally_of

__all__ = ["backup", "restore"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,100}")
_SUFFIX = ".tzst"
_CHECK = "legato_backup_check"
# The database's own definition is the engine's matter, and differs from release to release.
_HOW = "SETTINGS allow_different_database_def = 1"


def backup(store: Store, folder: pathlib.Path, name: str = "") -> dict[str, Any]:
    """Back up ``store`` to a file in ``folder`` and prove that it can be restored; file, rows and bytes. Raises ``LegatoError``."""
    name = name or datetime.now(UTC).strftime("legato-%Y%m%dT%H%M%SZ")
    if not _NAME.fullmatch(name):
        raise LegatoError("a backup's name has 1 to 100 letters, digits, `_`, `.` and `-`")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{name}{_SUFFIX}"
    if path.exists():
        raise LegatoError(f"{path} is there already: give another name")
    try:
        store.command(f"BACKUP DATABASE default TO File({_literal(path)})")
        tallies = _restored(store, path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    manifest = {
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "tables": {table: list(each) for table, each in tallies.items()},
    }
    _write(_manifest(path), json.dumps(manifest, indent=1))
    return {"file": str(path), "bytes": path.stat().st_size, "tables": len(tallies), "rows": sum(each.rows for each in tallies.values())}


def restore(path: pathlib.Path, store_path: pathlib.Path) -> dict[str, Any]:
    """Restore a file into the store at ``store_path``, which nobody uses and which holds nothing, and compare. Raises ``LegatoError``."""
    path = path.absolute()
    if not path.is_file() or not _manifest(path).is_file():
        raise LegatoError(f"{path} is no backup of Legato's: expected it, and {_manifest(path).name} beside it")
    wanted = {table: Tally(*each) for table, each in json.loads(_manifest(path).read_text(encoding="utf-8"))["tables"].items()}
    with StoreLock(store_path):
        store = Store(store_path, backups=path.parent)
        try:
            if store.select("SELECT 1 FROM system.tables WHERE database = 'default'"):
                raise LegatoError(f"the store {store_path} holds tables already: restore into a new one (--store chdb:///new/folder)")
            found = _restore_still(store, path, "default")
        finally:
            store.close()
    if wrong := sorted(table for table in wanted.keys() | found.keys() if wanted.get(table) != found.get(table)):
        raise LegatoError(f"restored, but {', '.join(wrong)} differ from what was backed up: do not use {store_path}")
    return {"store": str(store_path), "tables": len(found), "rows": sum(each.rows for each in found.values())}


def _restored(store: Store, path: pathlib.Path) -> dict[str, Tally]:
    """The tallies of what the file holds, by restoring it beside the store."""
    store.command(f"DROP DATABASE IF EXISTS {_CHECK} SYNC")
    try:
        return _restore_still(store, path, _CHECK)
    finally:
        store.command(f"DROP DATABASE IF EXISTS {_CHECK} SYNC")


def _restore_still(store: Store, path: pathlib.Path, database: str) -> dict[str, Tally]:
    """Restore into a database and count, before anything there merges: merges drop what is older than the retention.

    Tables first, as merges can only be stopped of tables that are there; those of the store itself go on.
    """
    source = f"RESTORE DATABASE default AS {database} FROM File({_literal(path)}) {_HOW}"
    store.command(f"{source}, structure_only = 1")
    tables = tables_of(store, database)
    for table in tables:
        store.command(f"SYSTEM STOP MERGES {database}.{table}")
    store.command(source)
    found = {table: tally_of(store, f"{database}.{table}", merged) for table, merged in tables.items()}
    for table in tables:
        store.command(f"SYSTEM START MERGES {database}.{table}")
    return found


def _manifest(path: pathlib.Path) -> pathlib.Path:
    return path.with_suffix(".json")


def _literal(path: pathlib.Path) -> str:
    return "'" + str(path).replace("\\", "\\\\").replace("'", "\\'") + "'"


def _write(path: pathlib.Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
