"""Backups of an embedded store: one file, written while `legato serve` runs, and verified by restoring it once.

ClickHouse's BACKUP writes a consistent copy. The file is then restored into a second database of the same store, and the row checksum
of each table goes into a manifest next to the file; a restore compares with the manifest. Files are in ``STORE.backups``, the only
folder that the engine may write to; copying them to another machine is up to the operator.
"""

from __future__ import annotations

import json
import logging
import os
import pathlib
import re
import shutil
from datetime import UTC, datetime
from typing import Any

from legato_ingest.errors import LegatoError
from legato_ingest.quoting import literal
from legato_ingest.storage.chdb import EmbeddedStore, unfinished_restore
from legato_ingest.storage.copy import RowChecksum, checksum_of, tables_of
from legato_ingest.storage.lock import StoreLock
from legato_ingest.storage.store import Store

__all__ = ["backup", "drop_unfinished", "restore"]

_log = logging.getLogger("legato")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,100}")
_SUFFIX = ".tzst"
_CHECK = "legato_backup_check"
# The definition of the database itself differs between releases of the engine and does not matter.
_HOW = "SETTINGS allow_different_database_def = 1"


def backup(store: Store, folder: pathlib.Path, name: str = "") -> dict[str, Any]:
    """Back up ``store`` to a file in ``folder`` and verify it. Return file, bytes, tables and rows.

    Raises ``LegatoError``, also for a store without tables: its backup would look like one of an unused store.
    """
    name = name or datetime.now(UTC).strftime("legato-%Y%m%dT%H%M%SZ")
    if not _NAME.fullmatch(name):
        raise LegatoError("a backup's name has 1 to 100 letters, digits, `_`, `.` and `-`")
    if not store.select("SELECT 1 FROM system.tables WHERE database = currentDatabase() LIMIT 1"):
        raise LegatoError(
            "the store has no tables, so there is nothing to back up: set LEGATO_STORE or --store to the store of `legato serve`"
        )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{name}{_SUFFIX}"
    if path.exists():
        raise LegatoError(f"{path} exists already: choose another name")
    try:
        store.command(f"BACKUP DATABASE default TO File({literal(str(path))})")
        checksums = _restored_once(store, path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    manifest = {
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "tables": {table: list(each) for table, each in checksums.items()},
    }
    _write(_manifest(path), json.dumps(manifest, indent=1))
    rows = sum(each.rows for each in checksums.values())
    return {"file": str(path), "bytes": path.stat().st_size, "tables": len(checksums), "rows": rows}


def drop_unfinished(store: Store) -> None:
    """Drop what a killed backup left in an embedded store: the tables into which it was restored, as large as the store."""
    if store.select(f"SELECT 1 FROM system.databases WHERE name = {literal(_CHECK)}"):
        store.command(f"DROP DATABASE IF EXISTS {_CHECK} SYNC")
        _log.warning("a backup did not end, and its temporary tables were dropped: a file %s without its .json is not verified", _SUFFIX)


def restore(path: pathlib.Path, store_path: pathlib.Path) -> dict[str, Any]:
    """Restore a file into the store at ``store_path``, which must be unused and empty, and compare. Raises ``LegatoError``.

    Until the end the store has a mark with which it is opened by nothing else. What a restore that was cut off left is removed.
    """
    path = path.absolute()
    if not path.is_file() or not _manifest(path).is_file():
        raise LegatoError(f"{path} is no backup of Legato: expected this file, and {_manifest(path).name} next to it")
    wanted = {table: RowChecksum(*each) for table, each in json.loads(_manifest(path).read_text(encoding="utf-8"))["tables"].items()}
    with StoreLock(store_path):
        mark = unfinished_restore(store_path)
        if mark.exists():
            _empty(store_path, mark)
        store = EmbeddedStore(store_path, backups=path.parent)
        try:
            if store.select("SELECT 1 FROM system.tables WHERE database = 'default'"):
                raise LegatoError(f"the store {store_path} holds tables already: restore into a new one (--store chdb:///new/folder)")
            _write(mark, f"{path}\n")
            found = _restore_without_merges(store, path, "default")
        finally:
            store.close()
        if wrong := sorted(table for table in wanted.keys() | found.keys() if wanted.get(table) != found.get(table)):
            raise LegatoError(f"restored, but {', '.join(wrong)} differ from what was backed up: do not use {store_path}")
        mark.unlink()
    return {"store": str(store_path), "tables": len(found), "rows": sum(each.rows for each in found.values())}


def _empty(store_path: pathlib.Path, mark: pathlib.Path) -> None:
    """Remove all that is in a store, the mark last."""
    for each in store_path.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        elif each != mark:
            each.unlink()
    mark.unlink()


def _restored_once(store: Store, path: pathlib.Path) -> dict[str, RowChecksum]:
    """Return the row checksums of the file's tables, from a restore into a temporary database."""
    store.command(f"DROP DATABASE IF EXISTS {_CHECK} SYNC")
    try:
        return _restore_without_merges(store, path, _CHECK)
    finally:
        store.command(f"DROP DATABASE IF EXISTS {_CHECK} SYNC")


def _restore_without_merges(store: Store, path: pathlib.Path, database: str) -> dict[str, RowChecksum]:
    """Restore into a database and return the row checksums.

    Merges are stopped until the rows are counted, because a merge drops rows older than the retention. They can only be stopped for tables
    that exist, so the tables are restored first and their rows after that. Merges of the store's other tables continue.
    """
    source = f"RESTORE DATABASE default AS {database} FROM File({literal(str(path))}) {_HOW}"
    store.command(f"{source}, structure_only = 1")
    tables = tables_of(store, database)
    for table in tables:
        store.command(f"SYSTEM STOP MERGES {database}.{table}")
    store.command(source)
    found = {table: checksum_of(store, f"{database}.{table}", merged) for table, merged in tables.items()}
    for table in tables:
        store.command(f"SYSTEM START MERGES {database}.{table}")
    return found


def _manifest(path: pathlib.Path) -> pathlib.Path:
    return path.with_suffix(".json")


def _write(path: pathlib.Path, text: str) -> None:
    """Write a file that only its owner can read, and sync it."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
