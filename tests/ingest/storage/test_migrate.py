"""Migrations: each file once and in order, and nothing is guessed."""

from __future__ import annotations

import pathlib
import shutil
from typing import cast

import pytest

from helpers.repo.schema import MADE
from legato_ingest.errors import SchemaError, StoreRefused, StoreUnavailable
from legato_ingest.storage import migrate
from legato_ingest.storage.chdb import Store

SCHEMA = pathlib.Path(__file__).resolve().parents[3] / "schema"
NEWEST = len(list(SCHEMA.glob("*.sql")))


class Fresh:
    """A store of its own as far as migrations see: the same engine, another database."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.dies_at_note = False
        store.command("DROP DATABASE IF EXISTS fresh")
        store.command("CREATE DATABASE fresh")

    def command(self, sql: str) -> None:
        """In that database."""
        self._within(lambda: self._store.command(sql))

    def keep_sources(self) -> None:
        """In that database."""
        self._within(self._store.keep_sources)

    def insert(self, table: str, rows: object) -> None:
        """In that database, unless the process dies first."""
        if self.dies_at_note:
            raise StoreUnavailable("killed")
        self._store.insert(f"fresh.{table}", rows)

    def select(self, sql: str) -> object:
        """From that database."""
        return self._store.select(sql.replace("FROM schema_migrations", "FROM fresh.schema_migrations"))

    def _within(self, work: object) -> None:
        self._store.command("USE fresh")
        try:
            work()  # type: ignore[operator]
        finally:
            self._store.command("USE default")


@pytest.fixture
def fresh(shared_store: Store) -> Store:
    """An empty store."""
    return cast(Store, Fresh(shared_store))


def tables(store: Store) -> list[str]:
    """What is in the empty store's database now."""
    return [str(name) for (name,) in store.select("SELECT name FROM system.tables WHERE database = 'fresh' ORDER BY name")]


def test_a_new_store_gets_everything_once(fresh: Store) -> None:
    """The second time there is nothing to do."""
    migrations = migrate.load(SCHEMA)
    assert migrate.applied(fresh) == {} and not migrate.is_current(fresh, migrations)
    assert migrate.apply(fresh, migrations) == migrations
    assert migrate.is_current(fresh, migrations)
    assert tables(fresh) == sorted(MADE)
    assert migrate.apply(fresh, migrations) == []
    assert migrate.applied(fresh) == {migration.number: migration.sha256 for migration in migrations}


def test_only_what_is_missing_is_applied(fresh: Store) -> None:
    """A store that an older version made."""
    migrations = migrate.load(SCHEMA)
    migrate.apply(fresh, migrations[:2])
    assert [migration.number for migration in migrate.apply(fresh, migrations)] == list(range(3, NEWEST + 1))


def test_a_file_that_changed_is_refused(fresh: Store, tmp_path: pathlib.Path) -> None:
    """Before anything else is applied."""
    migrate.apply(fresh, migrate.load(SCHEMA)[:3])
    shutil.copytree(SCHEMA, tmp_path / "schema")
    with (tmp_path / "schema" / "0002_stream_revs.sql").open("a", encoding="utf-8") as file:
        file.write("-- a comment\n")
    changed = migrate.load(tmp_path / "schema")
    with pytest.raises(SchemaError, match="0002_stream_revs.sql was applied with another text"):
        migrate.apply(fresh, changed)
    assert "streams" not in tables(fresh) and not migrate.is_current(fresh, changed)


def test_a_newer_store_is_refused(fresh: Store) -> None:
    """With both numbers."""
    migrations = migrate.load(SCHEMA)
    migrate.apply(fresh, migrations)
    with pytest.raises(SchemaError, match=f"is at {NEWEST}, this version of Legato knows 3"):
        migrate.apply(fresh, migrations[:3])
    assert not migrate.is_current(fresh, migrations[:3])


@pytest.mark.parametrize("before", range(4))
def test_killed_between_statement_and_note(fresh: Store, before: int) -> None:
    """At each file: the next run finds the object, writes the note and goes on."""
    migrations = migrate.load(SCHEMA)
    migrate.apply(fresh, migrations[:before])
    cast(Fresh, fresh).dies_at_note = True
    with pytest.raises(StoreUnavailable):
        migrate.apply(fresh, migrations)
    cast(Fresh, fresh).dies_at_note = False
    assert len(migrate.applied(fresh)) == before
    migrate.apply(fresh, migrations)
    assert migrate.is_current(fresh, migrations)


def test_a_statement_that_fails_is_not_noted(fresh: Store, tmp_path: pathlib.Path) -> None:
    """Nor is any after it applied."""
    shutil.copytree(SCHEMA, tmp_path / "schema")
    (tmp_path / "schema" / "0003_rejected.sql").write_text("CREATE TABLE rejected (a NoSuchType) ENGINE = Memory", encoding="utf-8")
    with pytest.raises(StoreRefused):
        migrate.apply(fresh, migrate.load(tmp_path / "schema"))
    assert sorted(migrate.applied(fresh)) == [1, 2] and "streams" not in tables(fresh)


@pytest.mark.parametrize(("names", "words"), [
    ([], "no numbered SQL files"), (["0002_a.sql"], "not numbered 1 to 1"), (["0001_a.sql", "0003_b.sql"], "without a hole"),
    (["0001_a.sql", "0001_b.sql"], "without a hole"), (["1_a.sql"], "not named like"), (["0001_a.sql", "notes.sql"], "not named like"),
])  # fmt: skip
def test_a_folder_that_is_no_schema_is_refused(tmp_path: pathlib.Path, names: list[str], words: str) -> None:
    """Holes, doubles and strange names are somebody's mistake."""
    for name in names:
        (tmp_path / name).write_text("SELECT 1", encoding="utf-8")
    with pytest.raises(SchemaError, match=words):
        migrate.load(tmp_path)
