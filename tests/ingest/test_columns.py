"""The declared columns of each table are those of the migrated store, in name, order and type."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from legato_ingest.columns import REPLAYS, TABLES
from legato_ingest.storage import Store

PLAIN = {
    "String": pa.string(),
    "Bool": pa.bool_(),
    "UInt8": pa.uint8(),
    "UInt16": pa.uint16(),
    "UInt32": pa.uint32(),
    "UInt64": pa.uint64(),
    "Int64": pa.int64(),
    "Float32": pa.float32(),
    "Float64": pa.float64(),
    "DateTime64(3, 'UTC')": pa.timestamp("ms", "UTC"),
    "DateTime64(9, 'UTC')": pa.timestamp("ns", "UTC"),
}


def arrow(kind: str) -> pa.DataType:
    """Return the Arrow type that ClickHouse accepts for one of its types."""
    if match := re.fullmatch(r"(?:LowCardinality|Nullable)\((.+)\)", kind):
        return arrow(match[1])
    if match := re.fullmatch(r"Array\((.+)\)", kind):
        return pa.list_(arrow(match[1]))
    if match := re.fullmatch(r"FixedString\((\d+)\)", kind):
        return pa.binary(int(match[1]))
    if match := re.fullmatch(r"Map\((.+), (.+)\)", kind):
        return pa.map_(arrow(match[1]), arrow(match[2]))
    return PLAIN[kind]


@pytest.mark.parametrize("name", TABLES)
def test_the_declared_columns_are_those_of_the_store(shared_store: Store, name: str) -> None:
    """Same names in the same order, and for each the Arrow type that matches the type in ClickHouse."""
    sql = "SELECT name, type FROM system.columns WHERE database = currentDatabase() AND table = {table:String} ORDER BY position"
    stored = [(str(column), arrow(str(kind))) for column, kind in shared_store.select(sql, {"table": name})]
    assert [(column.name, column.type) for column in TABLES[name].columns] == stored


def test_a_column_is_found_by_its_name() -> None:
    """A table's columns can be looked up, with the key of their source."""
    column = TABLES["stream_revs"]["start_time"]
    assert (column.name, column.key) == ("start_time", "start_ns")


def test_rows_have_exactly_the_declared_columns() -> None:
    """In the declared order; a missing column and one that is not declared are errors."""
    columns = {column.name: pa.nulls(1, column.type) for column in reversed(REPLAYS.columns)}
    assert REPLAYS.rows(columns).schema == REPLAYS.schema
    for different in ({**columns, "other": pa.nulls(1)}, {name: column for name, column in columns.items() if name != "cause"}):
        with pytest.raises(ValueError, match="differ in (other|cause)$"):
            REPLAYS.rows(different)
