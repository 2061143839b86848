"""The tables of a migrated store are those that the files declare."""

from __future__ import annotations

import re

import pytest

from helpers.repo.schema import FILES, MADE, altered
from legato_ingest.storage import Store

ADDED = re.compile(r"\(ADD (?:COLUMN |(INDEX ))IF NOT EXISTS (.+?)\)(?=, \(ADD|$)")


@pytest.mark.parametrize("name", MADE)
def test_the_store_holds_what_the_file_declares(shared_store: Store, name: str) -> None:
    """Columns with types and codecs, keys, engine, TTL and settings, as ClickHouse prints them, and what later files added."""
    declared = _plain(_formatted(shared_store, MADE[name].read_text(encoding="utf-8")))
    if like := re.fullmatch(r"CREATE TABLE (\w+) AS (\w+)", declared):
        model = _plain(_formatted(shared_store, MADE[like[2]].read_text(encoding="utf-8")))
        declared = model.replace(f"CREATE TABLE {like[2]} ", f"CREATE TABLE {like[1]} ")
    for later in (each for each in FILES if altered(each) == name and "UPDATE" not in each.read_text(encoding="utf-8")):
        added = ["".join(each) for each in ADDED.findall(_plain(_formatted(shared_store, later.read_text(encoding="utf-8"))))]
        assert added
        declared = declared.replace(") ENGINE", f", {', '.join(added)}) ENGINE")
    assert _stored(shared_store, name) == declared


def _stored(store: Store, name: str) -> str:
    ((stored,),) = store.select(f"SELECT create_table_query FROM system.tables WHERE database = 'default' AND name = '{name}'")
    return _plain(str(stored))


def _formatted(store: Store, sql: str) -> str:
    ((text,),) = store.select("SELECT formatQuerySingleLine({sql:String})", {"sql": sql})
    return str(text)


def _plain(sql: str) -> str:
    """Remove what ClickHouse adds: the database, quotes, defaults, the column list of a view, brackets after the name of a codec."""
    sql = (
        sql.replace("`", "")
        .replace("Delta(8)", "Delta")
        .replace("Delta(4)", "Delta")
        .replace("default.", "")
        .replace("index_granularity = 8192, ", "")
        .replace(", index_granularity = 8192", "")
        # Set for an embedded store after the files were applied: `Store.keep_merged_parts`.
        .replace(", old_parts_lifetime = 480", "")
    )
    sql = re.sub(r"(VIEW streams) \(.*?\) AS SELECT \*", r"\1 AS SELECT *", sql)
    sql = re.sub(r"(VIEW streams) \(.*\) AS \(?SELECT", r"\1 AS SELECT", sql)
    return re.sub(r"INTERVAL (\d+) (\w+)", lambda match: f"toInterval{match.group(2).title()}({match.group(1)})", sql)


def test_every_object_of_the_store_is_declared(shared_store: Store) -> None:
    """The store has no table or view without a file."""
    names = {str(name) for (name,) in shared_store.select("SELECT name FROM system.tables WHERE database = 'default'")}
    assert names == set(MADE)


def test_tenant_is_first_in_every_key_of_data(shared_store: Store) -> None:
    """So a query of one tenant reads only the granules of that tenant."""
    rows = shared_store.select("SELECT name, sorting_key FROM system.tables WHERE database = 'default' AND sorting_key != ''")
    keys = {str(name): str(key) for name, key in rows if name != "schema_migrations"}
    assert keys and all(key.startswith("tenant") for key in keys.values())
