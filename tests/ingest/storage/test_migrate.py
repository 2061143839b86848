"""Migrations: each file is applied once and in order; records of replaced files are taken over; nothing is guessed."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import cast

import pyarrow as pa
import pytest

from helpers.repo.schema import MADE
from legato_ingest.errors import SchemaError, StoreRefused, StoreUnavailable
from legato_ingest.storage import Store, migrate

SCHEMA = pathlib.Path(__file__).resolve().parents[3] / "schema"


class Fresh:
    """A separate store as far as migrations see: the same engine, another database."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.dies_at_record = False
        self.dies_at = ""
        store.command("DROP DATABASE IF EXISTS fresh")
        store.command("CREATE DATABASE fresh")
        self._database = "default"

    def command(self, sql: str) -> None:
        """In that database, unless the process dies at this statement."""
        if self.dies_at and sql.startswith(self.dies_at):
            raise StoreUnavailable("killed")
        self.use("fresh")
        try:
            self._store.command(sql)
        except Exception:
            self._database = "unknown"
            raise

    def keep_merged_parts(self) -> None:
        """In that database."""
        self.use("fresh")
        self._store.keep_merged_parts()

    def make_tenant_views(self) -> None:
        """Not in that database: its tables are those of the store's database."""

    def insert(self, table: str, rows: object) -> None:
        """In that database, unless the process dies first."""
        if self.dies_at_record:
            raise StoreUnavailable("killed")
        self.use("default")
        self._store.insert(f"fresh.{table}", rows)

    def select(self, sql: str) -> object:
        """From that database."""
        self.use("fresh")
        try:
            return self._store.select(sql)
        except Exception:
            # The store goes on with another session.
            self._database = "unknown"
            raise

    def use(self, database: str) -> None:
        """Go to the database, unless that is where the last statement ran."""
        if database != self._database:
            self._store.command(f"USE {database}")
            self._database = database


@pytest.fixture
def fresh(shared_store: Store) -> Iterator[Store]:
    """An empty store."""
    made = Fresh(shared_store)
    yield cast(Store, made)
    made.use("default")


def tables(store: Store) -> list[str]:
    """The names of all tables and views in that database."""
    return [str(name) for (name,) in store.select("SELECT name FROM system.tables WHERE database = 'fresh' ORDER BY name")]


def definitions(store: Store) -> list[object]:
    """The columns of all tables and views in that database, with types, defaults and comments, and the statements of the views."""
    columns = "SELECT table, name, type, default_expression, compression_codec, comment FROM system.columns"
    views = "SELECT name, as_select, comment FROM system.tables"
    return [store.select(f"{sql} WHERE database = 'fresh' ORDER BY ALL") for sql in (columns, views)]


def test_a_new_store_gets_everything_once(fresh: Store) -> None:
    """A second run applies nothing."""
    migrations = migrate.load(SCHEMA)
    assert migrate.applied(fresh) == {} and not migrate.is_current(fresh, migrations)
    assert migrate.apply(fresh, migrations) == migrations
    assert migrate.is_current(fresh, migrations)
    assert tables(fresh) == sorted(MADE)
    assert migrate.apply(fresh, migrations) == []
    assert migrate.applied(fresh) == {migration.number: migration.sha256 for migration in migrations}


def test_only_what_is_missing_is_applied(fresh: Store) -> None:
    """In a store made by an older version."""
    migrations = migrate.load(SCHEMA)[:6]
    migrate.apply(fresh, migrations[:2])
    assert [migration.number for migration in migrate.apply(fresh, migrations)] == [3, 4, 5, 6]


def test_a_file_that_changed_is_refused(fresh: Store, tmp_path: pathlib.Path) -> None:
    """Before any other file is applied."""
    migrate.apply(fresh, migrate.load(SCHEMA)[:2])
    shutil.copytree(SCHEMA, tmp_path / "schema")
    with (tmp_path / "schema" / "0002_stream_revs.sql").open("a", encoding="utf-8") as file:
        file.write("-- a comment\n")
    changed = migrate.load(tmp_path / "schema")
    with pytest.raises(SchemaError, match="0002_stream_revs.sql was applied with another text"):
        migrate.apply(fresh, changed)
    assert "streams" not in tables(fresh) and not migrate.is_current(fresh, changed)


def test_a_newer_store_is_refused(fresh: Store) -> None:
    """The error has both numbers."""
    migrations = migrate.load(SCHEMA)[:5]
    migrate.apply(fresh, migrations)
    with pytest.raises(SchemaError, match="is at 5, this version of Legato has 3 files"):
        migrate.apply(fresh, migrations[:3])
    assert not migrate.is_current(fresh, migrations[:3])


@pytest.mark.parametrize("before", [0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long), 3])
def test_killed_between_statement_and_record(fresh: Store, before: int) -> None:
    """At each of the first files: the next run finds the object, writes the record and continues."""
    migrations = migrate.load(SCHEMA)[:5]
    migrate.apply(fresh, migrations[:before])
    cast(Fresh, fresh).dies_at_record = True
    with pytest.raises(StoreUnavailable):
        migrate.apply(fresh, migrations)
    cast(Fresh, fresh).dies_at_record = False
    assert len(migrate.applied(fresh)) == before
    migrate.apply(fresh, migrations)
    assert migrate.is_current(fresh, migrations)


def test_each_statement_may_run_twice(fresh: Store) -> None:
    """Killed before the one record of all files: the next run applies them again, and no table or view is another one after it."""
    migrations = migrate.load(SCHEMA)
    cast(Fresh, fresh).dies_at_record = True
    with pytest.raises(StoreUnavailable):
        migrate.apply(fresh, migrations)
    cast(Fresh, fresh).dies_at_record = False
    before = definitions(fresh)
    assert migrate.apply(fresh, migrations) == migrations and migrate.is_current(fresh, migrations)
    assert definitions(fresh) == before and tables(fresh) == sorted(MADE)


def test_an_older_view_is_replaced(fresh: Store) -> None:
    """Another instance, which began to apply the files before these were recorded, was killed after an older view, or its comments."""
    migrations = migrate.load(SCHEMA)
    migrate.apply(fresh, migrations)
    before = definitions(fresh)
    for first, last in ((34, 34), (68, 69)):
        for migration in migrations[first - 1 : last]:
            fresh.command(migration.statement)
        assert definitions(fresh) != before
        assert migrate.apply(fresh, migrations) == [] and definitions(fresh) == before


def test_a_statement_that_fails_is_not_recorded(fresh: Store, tmp_path: pathlib.Path) -> None:
    """And no later file is applied."""
    shutil.copytree(SCHEMA, tmp_path / "schema")
    (tmp_path / "schema" / "0003_streams.sql").write_text("CREATE TABLE streams (a NoSuchType) ENGINE = Memory", encoding="utf-8")
    with pytest.raises(StoreRefused):
        migrate.apply(fresh, migrate.load(tmp_path / "schema"))
    assert sorted(migrate.applied(fresh)) == [1, 2] and tables(fresh) == ["schema_migrations", "stream_revs"]


@pytest.mark.parametrize(("names", "words"), [
    ([], "no numbered SQL files"), (["0002_a.sql"], "not numbered 1 to 1"), (["0001_a.sql", "0003_b.sql"], "without a hole"),
    (["0001_a.sql", "0001_b.sql"], "without a hole"), (["1_a.sql"], "not named like"), (["0001_a.sql", "notes.sql"], "not named like"),
])  # fmt: skip
def test_a_folder_that_is_no_schema_is_refused(tmp_path: pathlib.Path, names: list[str], words: str) -> None:
    """Missing numbers, repeated numbers and other names are errors."""
    for name in names:
        (tmp_path / name).write_text("SELECT 1", encoding="utf-8")
    with pytest.raises(SchemaError, match=words):
        migrate.load(tmp_path)


@pytest.fixture(params=[SCHEMA, SCHEMA / "cluster"], ids=["schema", "cluster"])
def folder(request: pytest.FixtureRequest) -> pathlib.Path:
    """A schema folder with files that replaced others."""
    return cast(pathlib.Path, request.param)


def old_files(folder: pathlib.Path) -> dict[str, str]:
    """The files that the folder's present files replaced: SHA-256 by name."""
    return dict(json.loads((folder / "replaced.json").read_text(encoding="utf-8"))["files"])


def baseline_of(folder: pathlib.Path) -> list[migrate.Migration]:
    """The files that replaced the old ones, without later files."""
    return migrate.load(folder)[: json.loads((folder / "replaced.json").read_text(encoding="utf-8"))["baseline"]]


def record(store: Store, files: dict[str, str]) -> None:
    """Record these files as applied, as the version of Legato that had them did."""
    store.command((SCHEMA / "0001_schema_migrations.sql").read_text(encoding="utf-8"))
    names = [name.removesuffix(".sql").partition("_") for name in files]
    rows = {
        "number": [int(number) for number, _, _ in names],
        "name": [name for _, _, name in names],
        "sha256": list(files.values()),
        "applied_at": [datetime.now(UTC)] * len(files),
    }
    store.insert("schema_migrations", pa.table(rows))


def test_no_file_has_the_text_of_a_file_that_it_replaced(folder: pathlib.Path) -> None:
    """Otherwise a record of an old file could be taken for a record of a present one."""
    old = old_files(folder)
    assert len(old) == {"schema": 26, "cluster": 32}[folder.name] and sorted(old) == list(old)
    assert {migration.sha256 for migration in migrate.load(folder)}.isdisjoint(old.values())


def test_records_of_replaced_files_are_exchanged(fresh: Store, folder: pathlib.Path) -> None:
    """All of them, without running any present file; files after the baseline are applied as usual."""
    record(fresh, old_files(folder))
    migrations = baseline_of(folder)
    later = migrate.Migration(len(migrations) + 1, "later", "CREATE TABLE later (a UInt8) ENGINE = Memory", "later")
    before = migrate.status(fresh, migrations)
    assert "run `legato schema apply`, which records" in before["note"] and not any(file["changed"] for file in before["files"])
    assert migrate.apply(fresh, migrations) == [] and migrate.is_current(fresh, migrations)
    assert migrate.status(fresh, migrations)["note"] == ""
    assert migrate.apply(fresh, [*migrations, later]) == [later] and migrate.is_current(fresh, [*migrations, later])
    assert tables(fresh) == ["later", "schema_migrations"]


@pytest.mark.parametrize("statement", ["insert", "ALTER TABLE schema_migrations DELETE"])
def test_killed_while_records_are_exchanged(fresh: Store, folder: pathlib.Path, statement: str) -> None:
    """The next run completes the exchange."""
    record(fresh, old_files(folder))
    migrations, store = baseline_of(folder), cast(Fresh, fresh)
    store.dies_at, store.dies_at_record = statement, statement == "insert"
    with pytest.raises(StoreUnavailable):
        migrate.apply(fresh, migrations)
    store.dies_at, store.dies_at_record = "", False
    assert not migrate.is_current(fresh, migrations) and len(migrate.applied(fresh)) == len(old_files(folder))
    assert migrate.apply(fresh, migrations) == [] and migrate.is_current(fresh, migrations)


@pytest.mark.parametrize("lost", [1, 9, 26])
def test_an_incomplete_set_of_replaced_files_is_refused(fresh: Store, folder: pathlib.Path, lost: int) -> None:
    """The message names the first missing file and the version that completes the set; nothing is changed."""
    files = old_files(folder)
    name = next(name for name in files if name.startswith(f"{lost:04}"))
    record(fresh, {each: sha256 for each, sha256 in files.items() if each != name})
    done, migrations = migrate.applied(fresh), migrate.load(folder)
    with pytest.raises(SchemaError, match=f"1 of them were not applied, from {name}: run `legato schema apply` of the version"):
        migrate.apply(fresh, migrations)
    assert migrate.applied(fresh) == done and name in migrate.status(fresh, migrations)["note"]


@pytest.mark.parametrize("changed", [1, 9, 26])
def test_a_replaced_file_with_another_text_is_refused(fresh: Store, folder: pathlib.Path, changed: int) -> None:
    """The message names the file and the next step; nothing is changed."""
    files = old_files(folder)
    name = next(name for name in files if name.startswith(f"{changed:04}"))
    record(fresh, {**files, name: "0" * 64})
    done = migrate.applied(fresh)
    with pytest.raises(SchemaError, match=f"but {name} had another text, .* or set LEGATO_STORE to a new store"):
        migrate.apply(fresh, migrate.load(folder))
    assert migrate.applied(fresh) == done


def test_more_files_than_were_replaced_are_refused(fresh: Store, folder: pathlib.Path) -> None:
    """For example in a store made by a version between the two."""
    files = old_files(folder)
    record(fresh, {**files, f"{len(files) + 1:04}_more.sql": "0" * 64})
    with pytest.raises(SchemaError, match="it has more files: continue with the version of Legato that made the store"):
        migrate.apply(fresh, migrate.load(folder))
