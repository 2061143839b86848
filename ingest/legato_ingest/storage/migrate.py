"""Apply the numbered files of `schema/` to a store.

A file holds one statement. The missing files are applied in order; then their numbers and SHA-256 are recorded in the table
`schema_migrations`, in one insert, because an insert takes longer than most of the statements. A file that was changed after it was
applied, or a store with more files than this version has, is an error: continuing would lose data. If the process is killed before the
record, the next run applies the same files again: each statement may run twice, and a CREATE then finds that its object exists. An instance
that applies the files at the same time and is killed may leave an older view than the records say, so each run compares the views.

`replaced.json` in the same folder lists the files that the numbered files replaced (a squash). A store with exactly these files applied
has the same tables, so only the new records are written. This module never drops or alters a table of data.
"""

from __future__ import annotations

import hashlib
import json
import logging
import pathlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from legato_ingest.errors import SchemaError, StoreError, StoreRefused
from legato_ingest.quoting import literal
from legato_ingest.storage.store import Store

__all__ = ["Migration", "applied", "apply", "is_current", "load", "status"]

_log = logging.getLogger("legato")
_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
_REPLACED = "replaced.json"
# Error codes of ClickHouse.
_ALREADY_EXISTS = 57
_UNKNOWN_TABLE = 60
_VIEW = re.compile(r"CREATE (?:OR REPLACE )?VIEW (\w+)(?: ON CLUSTER '\{cluster\}')? AS\s+(.*)", re.DOTALL)
# The views with another statement than given. ClickHouse adds the database to the names of tables, and has a layout of statements.
_OLDER_VIEWS = """
SELECT name FROM system.tables
WHERE database = currentDatabase() AND name IN {names}
    AND formatQuerySingleLine(replaceAll(as_select, database || '.', ''))
        != formatQuerySingleLine(replaceAll(transform(name, {names}, [{statements}], ''), database || '.', ''))
ORDER BY name
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file. ``replaces``: the files, with their SHA-256, that this file and all before it replaced; usually none."""

    number: int
    name: str
    statement: str
    sha256: str
    replaces: Mapping[str, str] = field(default_factory=dict)


def load(folder: pathlib.Path) -> list[Migration]:
    """Return the files of a schema folder by number. Raises ``SchemaError`` if there are none, or if numbers are missing or repeated."""
    baseline, replaces = _replaced(folder)
    found = []
    for path in sorted(folder.glob("*.sql")):
        match = _NAME.fullmatch(path.name)
        if match is None:
            raise SchemaError(f"{path} is not named like 0001_name.sql")
        text = path.read_text(encoding="utf-8")
        number, sha256 = int(match.group(1)), hashlib.sha256(text.encode()).hexdigest()
        found.append(Migration(number, match.group(2), text, sha256, replaces if number == baseline else {}))
    if not found:
        raise SchemaError(f"{folder} holds no numbered SQL files: unset LEGATO_SCHEMA_DIR, or set it to a folder like Legato's schema/")
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise SchemaError(f"the files in {folder} are not numbered 1 to {len(found)} without a hole")
    return found


def applied(store: Store) -> dict[int, str]:
    """Return the SHA-256 of each applied file by its number. Empty for a new store."""
    try:
        rows = store.select("SELECT number, sha256 FROM schema_migrations FINAL ORDER BY number")
    except StoreRefused as error:
        if error.code == _UNKNOWN_TABLE:
            return {}
        raise
    return {int(number): str(sha256) for number, sha256 in rows}


def is_current(store: Store, migrations: Sequence[Migration]) -> bool:
    """Return whether exactly these files were applied."""
    return applied(store) == {migration.number: migration.sha256 for migration in migrations}


def status(store: Store, migrations: Sequence[Migration]) -> dict[str, Any]:
    """Return the state of each file, the newest number in the store, and a ``note`` if the store has the files that these replaced."""
    done = applied(store)
    baseline = _baseline(migrations)
    has_replaced = baseline is not None and _has_replaced(done, baseline)
    files = [
        {
            "number": migration.number,
            "name": migration.name,
            "applied": not has_replaced and migration.number in done,
            "changed": not has_replaced and migration.number in done and done[migration.number] != migration.sha256,
        }
        for migration in migrations
    ]
    note = ""
    if baseline is not None and has_replaced:
        old, new = len(baseline.replaces), f"0001 to {baseline.number:04}"
        change = f"the store has the {old} files that {new} replaced: run `legato schema apply`, which records {new}"
        note = _fault(done, migrations, baseline) or change
    return {"files": files, "newest_applied": max(done, default=0), "note": note}


def apply(store: Store, migrations: Sequence[Migration]) -> list[Migration]:
    """Apply the missing files and return them. Raises ``SchemaError`` before it changes anything if the store and the files do not fit."""
    done = _without_replaced(store, migrations)
    newest = max(done, default=0)
    if newest > len(migrations):
        raise SchemaError(
            f"the store's schema is at {newest}, this version of Legato has {len(migrations)} files: use the newer version or another store"
        )
    for migration in migrations:
        if migration.number in done and done[migration.number] != migration.sha256:
            raise SchemaError(
                f"{migration.number:04}_{migration.name}.sql was applied with another text: restore it and put the change in a new file"
            )
    missing = [migration for migration in migrations if migration.number not in done]
    _apply_all(store, missing)
    _replace_older_views(store, migrations)
    store.keep_merged_parts()
    try:
        store.make_tenant_views()
    except StoreError as error:
        # Only readers of one tenant need these views, so the server starts, also with a full disk.
        _log.warning("readers of one tenant get errors until their views can be made (docs/operating.md): %s", error)
    return missing


def _apply_all(store: Store, missing: Sequence[Migration]) -> None:
    """Apply these files in order, and record those that were applied, also if one fails."""
    done = list[Migration]()
    try:
        for migration in missing:
            try:
                store.command(migration.statement)
            except StoreRefused as error:
                if error.code != _ALREADY_EXISTS:
                    raise
            done.append(migration)
    finally:
        if done:
            _record(store, done)


def _replace_older_views(store: Store, migrations: Sequence[Migration]) -> None:
    """Make each view again that differs from its newest file, with its comments."""
    newest = {found[1]: (migration.number, found[2]) for migration in migrations if (found := _VIEW.search(migration.statement))}
    statements = ", ".join(literal(statement) for _, statement in newest.values())
    for (name,) in store.select(_OLDER_VIEWS.format(names=list(newest), statements=statements)) if newest else ():
        _log.warning("the view %s is of an earlier version: it is made again", name)
        for migration in migrations[newest[str(name)][0] - 1 :]:
            if re.search(rf"(VIEW|ALTER TABLE) {name}\b", migration.statement):
                store.command(migration.statement)


def _record(store: Store, migrations: Sequence[Migration]) -> None:
    """Record these files as applied, all or none."""
    now = datetime.now(UTC)
    rows = {
        "number": pa.array([migration.number for migration in migrations], pa.uint32()),
        "name": pa.array([migration.name for migration in migrations]),
        "sha256": pa.array([migration.sha256 for migration in migrations]),
        "applied_at": pa.array([now] * len(migrations), pa.timestamp("ms", "UTC")),
    }
    store.insert("schema_migrations", pa.table(rows))


def _replaced(folder: pathlib.Path) -> tuple[int, dict[str, str]]:
    """Return the number of the last file that replaced others, and the SHA-256 of each replaced file by its name."""
    try:
        replaced = json.loads((folder / _REPLACED).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return 0, {}
    return int(replaced["baseline"]), dict(replaced["files"])


def _baseline(migrations: Sequence[Migration]) -> Migration | None:
    return next((migration for migration in migrations if migration.replaces), None)


def _old(baseline: Migration) -> dict[int, str]:
    """The replaced files as a store records them: SHA-256 by number."""
    return {int(name.partition("_")[0]): sha256 for name, sha256 in baseline.replaces.items()}


def _has_replaced(done: Mapping[int, str], baseline: Migration) -> bool:
    """Return whether any replaced file was applied."""
    return any(done.get(number) == sha256 for number, sha256 in _old(baseline).items())


def _is_recorded(done: Mapping[int, str], migrations: Sequence[Migration], baseline: Migration) -> bool:
    """Return whether the files up to the baseline are recorded; records of replaced files may remain after an interrupted run."""
    return all(done.get(migration.number) == migration.sha256 for migration in migrations[: baseline.number])


def _fault(done: Mapping[int, str], migrations: Sequence[Migration], baseline: Migration) -> str:
    """Return why the records of replaced files cannot be taken over; empty if they can."""
    if _is_recorded(done, migrations, baseline) or done == _old(baseline):
        return ""
    start = f"the store was made with the {len(baseline.replaces)} schema files that 0001 to {baseline.number:04} replaced, but "
    names = {int(name.partition("_")[0]): name for name in baseline.replaces}
    if changed := [names[number] for number, sha256 in _old(baseline).items() if number in done and done[number] != sha256]:
        return (
            f"{start}{', '.join(changed)} had another text, so its tables are unknown to this version. Continue with the version of "
            "Legato that made the store, or set LEGATO_STORE to a new store"
        )
    if missing := [name for number, name in names.items() if number not in done]:
        return (
            f"{start}{len(missing)} of them were not applied, from {missing[0]}: run `legato schema apply` of the version of Legato that "
            "made the store, then of this version"
        )
    return f"{start}it has more files: continue with the version of Legato that made the store, or set LEGATO_STORE to a new store"


def _without_replaced(store: Store, migrations: Sequence[Migration]) -> dict[int, str]:
    """Return the applied files, after records of replaced files were exchanged for the records of the files that replaced them.

    One insert writes all new records, so an interrupted run leaves either the old records, or the new records and some old ones.
    """
    done, baseline = applied(store), _baseline(migrations)
    if baseline is None or not _has_replaced(done, baseline):
        return done
    if fault := _fault(done, migrations, baseline):
        raise SchemaError(fault)
    if not _is_recorded(done, migrations, baseline):
        _record(store, migrations[: baseline.number])
        _log.info("recorded the schema files 0001 to %04d in place of the %d that they replaced", baseline.number, len(baseline.replaces))
    old = ", ".join(map(literal, baseline.replaces.values()))
    store.command(
        f"ALTER TABLE schema_migrations DELETE WHERE number > {baseline.number} AND sha256 IN ({old}) SETTINGS mutations_sync = 1"
    )
    return applied(store)
