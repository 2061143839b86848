"""Brings a store's schema up to the numbered files of `schema/`.

One idea: a file holds one statement and is applied once, in order; what was applied is written down with the file's hash. A file that
changed after it was applied, or a store that knows files which this version lacks, is refused: guessing would lose data. Killed
between a statement and its note, the next run finds the object there and only writes the note.
"""

from __future__ import annotations

import hashlib
import pathlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from legato_ingest.errors import SchemaError, StoreRefused
from legato_ingest.storage.chdb import Store

__all__ = ["Migration", "applied", "apply", "is_current", "load"]

_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
_ALREADY_EXISTS = 57
_UNKNOWN_TABLE = 60


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file."""

    number: int
    name: str
    statement: str
    sha256: str


def load(folder: pathlib.Path) -> list[Migration]:
    """The files of a schema folder by number. Raises ``SchemaError`` when there are none, or numbers are missing or double."""
    found = []
    for path in sorted(folder.glob("*.sql")):
        match = _NAME.fullmatch(path.name)
        if match is None:
            raise SchemaError(f"{path} is not named like 0001_name.sql")
        text = path.read_text(encoding="utf-8")
        found.append(Migration(int(match.group(1)), match.group(2), text, hashlib.sha256(text.encode()).hexdigest()))
    if not found:
        raise SchemaError(f"{folder} holds no numbered SQL files: set LEGATO_SCHEMA_DIR to the repository's schema folder")
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise SchemaError(f"the files in {folder} are not numbered 1 to {len(found)} without a hole")
    return found


def applied(store: Store) -> dict[int, str]:
    """What the store says was applied: number → SHA-256. Empty for a new store."""
    try:
        rows = store.select("SELECT number, sha256 FROM schema_migrations FINAL ORDER BY number")
    except StoreRefused as error:
        if error.code == _UNKNOWN_TABLE:
            return {}
        raise
    return {int(number): str(sha256) for number, sha256 in rows}


def is_current(store: Store, migrations: list[Migration]) -> bool:
    """Whether exactly these files were applied."""
    return applied(store) == {migration.number: migration.sha256 for migration in migrations}


def apply(store: Store, migrations: list[Migration]) -> list[Migration]:
    """Apply what is missing and return it. Raises ``SchemaError`` before it changes anything that it should not."""
    done = applied(store)
    newest = max(done, default=0)
    if newest > len(migrations):
        raise SchemaError(
            f"the store's schema is at {newest}, this version of Legato knows {len(migrations)}: use the newer version, or another store"
        )
    for migration in migrations:
        if migration.number in done and done[migration.number] != migration.sha256:
            raise SchemaError(
                f"{migration.number:04}_{migration.name}.sql was applied with another text: restore it and add a new file instead"
            )
    missing = [migration for migration in migrations if migration.number not in done]
    for migration in missing:
        _apply_one(store, migration)
    store.keep_sources()
    return missing


def _apply_one(store: Store, migration: Migration) -> None:
    try:
        store.command(migration.statement)
    except StoreRefused as error:
        if error.code != _ALREADY_EXISTS:
            raise
    note = {
        "number": pa.array([migration.number], pa.uint32()),
        "name": pa.array([migration.name]),
        "sha256": pa.array([migration.sha256]),
        "applied_at": pa.array([datetime.now(UTC)], pa.timestamp("ms", "UTC")),
    }
    store.insert("schema_migrations", pa.table(note))
