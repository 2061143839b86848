"""Tests of the statements that make the views of a tenant's readers, and of the views in a real store."""

from __future__ import annotations

import re

import pytest

from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import StoreRefused, StoreUnavailable
from legato_ingest.storage import Store
from legato_ingest.storage.tenant_views import Column, key_columns, plain_type, statements

COLUMNS = [
    Column("rows", "ReplacingMergeTree", "tenant", "LowCardinality(String)", "it's", "1"),
    Column("rows", "ReplacingMergeTree", "at", "DateTime64(9, 'UTC')", "", "0"),
    Column("rows", "ReplacingMergeTree", "value", "UInt8", "", "0"),
    Column("shown", "View", "tenant", "LowCardinality(String)", "", "0"),
]


@pytest.mark.parametrize(
    ("type_name", "expected"),
    [
        ("UInt8", "UInt8"),
        ("LowCardinality(String)", "String"),
        ("Map(LowCardinality(String), LowCardinality(Nullable(String)))", "Map(String, Nullable(String))"),
        ("Array(Tuple(a LowCardinality(FixedString(4)), b DateTime('UTC')))", "Array(Tuple(a FixedString(4), b DateTime('UTC')))"),
    ],
)
def test_the_type_without_dictionaries(type_name: str, expected: str) -> None:
    """Also within other types, several times."""
    assert plain_type(type_name) == expected


def test_a_type_that_does_not_end_is_an_error() -> None:
    """It is no type of ClickHouse."""
    with pytest.raises(ValueError, match="not closed"):
        plain_type("LowCardinality(String")


def test_only_what_differs_is_made() -> None:
    """The hash of a statement is the comment of its view. A view that Legato's database has no table for is left."""
    database, rows, rows_keyed, merged, merged_keyed, shown, shown_keyed, shown_merged, shown_merged_keyed = statements("own", COLUMNS, {})
    assert database == "CREATE DATABASE IF NOT EXISTS `own_tenants`"
    listed = "`tenant` String COMMENT 'it\\'s', `at` DateTime64(9, 'UTC') COMMENT '', `value` UInt8 COMMENT ''"
    selected = "identity(own.`tenant`) AS `tenant`, identity(own.`at`) AS `at`, own.`value`"
    assert rows.startswith(
        f"CREATE OR REPLACE VIEW `own_tenants`.`rows` ({listed}) AS SELECT {selected} FROM `own`.`rows` AS own COMMENT '"
    )
    assert f"`rows_final` ({listed}) AS SELECT {selected} FROM `own`.`rows` AS own FINAL COMMENT '" in merged
    # The same with the columns of the key once more.
    listed += ", `legato_key_tenant` String, `legato_key_at` DateTime64(9, 'UTC')"
    selected += ", own.`tenant` AS `legato_key_tenant`, own.`at` AS `legato_key_at`"
    assert f"`rows_keyed` ({listed}) AS SELECT {selected} FROM `own`.`rows` AS own COMMENT '" in rows_keyed
    assert f"`rows_final_keyed` ({listed}) AS SELECT {selected} FROM `own`.`rows` AS own FINAL COMMENT '" in merged_keyed
    # A view over a view has no rows to merge; its column is one of the key by its name.
    selected = "identity(own.`tenant`) AS `tenant`"
    assert f"`shown` (`tenant` String COMMENT '') AS SELECT {selected} FROM `own`.`shown` AS own COMMENT '" in shown
    assert f"`shown_final` (`tenant` String COMMENT '') AS SELECT {selected} FROM `own`.`shown` AS own COMMENT '" in shown_merged
    all_made = {"rows": rows, "rows_keyed": rows_keyed, "rows_final": merged, "rows_final_keyed": merged_keyed, "shown": shown}
    all_made |= {"shown_keyed": shown_keyed, "shown_final": shown_merged, "shown_final_keyed": shown_merged_keyed}
    made = {name: statement[-65:-1] for name, statement in all_made.items()}
    assert statements("own", COLUMNS, made) == statements("own", COLUMNS, {**made, "gone": "x"}) == []
    assert statements("own", COLUMNS, {**made, "shown": "old"}) == [database, shown]


def test_the_columns_of_keys() -> None:
    """By their names in any table, and all times, with their plain types."""
    found = key_columns([*COLUMNS, Column("shown", "View", "value", "UInt8", "", "0"), Column("shown", "View", "day", "Date", "", "0")])
    assert found == {"rows": {"tenant": "String", "at": "DateTime64(9, 'UTC')"}, "shown": {"tenant": "String", "day": "Date"}}


def test_on_a_cluster_every_replica_has_the_views() -> None:
    """FINAL of a Distributed table merges the rows of each shard."""
    columns = [
        Column("rows", "Distributed", "x", "UInt8", "", "0"),
        Column("rows_local", "ReplicatedMergeTree", "x", "UInt8", "", "1"),
    ]
    made = statements("own", columns, {})
    names = [f"rows{local}{final}{keyed}" for local in ("", "_local") for final in ("", "_final") for keyed in ("", "_keyed")]
    assert [re.sub(r" \(.*", "", each) for each in made] == [
        "CREATE DATABASE IF NOT EXISTS `own_tenants` ON CLUSTER '{cluster}'",
        *(f"CREATE OR REPLACE VIEW `own_tenants`.`{name}` ON CLUSTER '{{cluster}}'" for name in names),
    ]
    assert "identity(own.`x`)" in made[1]


def test_a_second_call_changes_nothing(store: Store) -> None:
    """So each start of a server costs two queries."""
    made = "SELECT name, uuid, metadata_modification_time FROM system.tables WHERE database = 'default_tenants' ORDER BY name"
    before = store.select(made)
    store.make_tenant_views()
    assert store.select(made) == before and len(before) > 30


def test_a_column_that_is_added_later(store: Store) -> None:
    """A tenant's reader sees the column after the views were made again, also if its handle was open before."""
    store.command("CREATE TABLE growing (tenant String) ENGINE = MergeTree ORDER BY tenant")
    store.make_tenant_views()
    try:
        assert store.query_bytes("SELECT count() FROM growing", tenant="shop") == b"0\n"
        store.command("ALTER TABLE growing ADD COLUMN later LowCardinality(String)")
        store.command("INSERT INTO growing VALUES ('shop', 'x'), ('bank', 'y')")
        with pytest.raises(StoreRefused):
            store.query_bytes("SELECT later FROM growing", tenant="shop")
        store.make_tenant_views()
        assert store.query_bytes("SELECT later, toTypeName(later) FROM growing", tenant="shop") == b"x\tString\n"
    finally:
        store.command("DROP TABLE growing")
    with pytest.raises(StoreRefused):
        store.query_bytes("SELECT count() FROM growing", tenant="shop")
    store.command("DROP TABLE default_tenants.growing")


def test_without_the_database_the_error_names_the_remedy(store: Store) -> None:
    """A reader of all tenants needs no such views."""
    store.command("DROP DATABASE default_tenants")
    try:
        with pytest.raises(StoreUnavailable, match="default_tenants.*legato schema apply"):
            store.query_bytes("SELECT 1", tenant="a new tenant")
        assert store.query_bytes("SELECT 1", tenant=ALL_TENANTS) == b"1\n"
    finally:
        store.make_tenant_views()
    assert store.query_bytes("SELECT count() FROM streams", tenant="a new tenant") == b"0\n"
