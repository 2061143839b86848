"""The migrated schema is the declared one."""

from __future__ import annotations

import pathlib
import re

import pytest

from legato_ingest.store import Store

SCHEMA = pathlib.Path(__file__).resolve().parents[2] / "schema"
FILES = sorted(SCHEMA.glob("*.sql"))


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_the_store_holds_what_the_file_declares(shared_store: Store, file: pathlib.Path) -> None:
    """Each column with its type and codec, keys, engine, TTL and settings, as ClickHouse prints them."""
    name = file.stem.split("_", 1)[1]
    declared = _plain(_formatted(shared_store, file.read_text(encoding="utf-8")))
    ((stored,),) = shared_store.select(f"SELECT create_table_query FROM system.tables WHERE database = 'default' AND name = '{name}'")
    assert _plain(str(stored)) == declared


def _formatted(store: Store, sql: str) -> str:
    ((text,),) = store.select("SELECT formatQuerySingleLine({sql:String})", {"sql": sql})
    return str(text)


def _plain(sql: str) -> str:
    """Without what ClickHouse adds: the database, quotes, its defaults, a view's list of columns, brackets around one codec's name."""
    sql = (
        sql.replace("`", "")
        .replace("Delta(8)", "Delta")
        .replace("default.", "")
        .replace("index_granularity = 8192, ", "")
        .replace(", index_granularity = 8192", "")
    )
    sql = re.sub(r"(VIEW streams) \(.*?\) AS SELECT \*", r"\1 AS SELECT *", sql)
    sql = re.sub(r"(VIEW streams) \(.*\) AS \(?SELECT", r"\1 AS SELECT", sql)
    return re.sub(r"INTERVAL (\d+) (\w+)", lambda match: f"toInterval{match.group(2).title()}({match.group(1)})", sql)


def test_every_object_of_the_store_is_declared(shared_store: Store) -> None:
    """Nothing stands in the store that no file made."""
    names = {str(name) for (name,) in shared_store.select("SELECT name FROM system.tables WHERE database = 'default'")}
    assert names == {file.stem.split("_", 1)[1] for file in FILES}


def test_tenant_is_first_in_every_key_of_data(shared_store: Store) -> None:
    """A tenant's reads touch its own granules."""
    rows = shared_store.select("SELECT name, sorting_key FROM system.tables WHERE database = 'default' AND sorting_key != ''")
    keys = {str(name): str(key) for name, key in rows if name != "schema_migrations"}
    assert keys and all(key.startswith("tenant") for key in keys.values())
