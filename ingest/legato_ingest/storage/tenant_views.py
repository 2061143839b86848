"""The tables as readers of one tenant see them: views in a database beside Legato's, with String in place of LowCardinality(String).

Rows of all tenants share the dictionary of a LowCardinality column, and ClickHouse evaluates a function on a whole dictionary: whether the
function fails, and how long it takes, would depend on names of other tenants. In these views the column is cast first, so a function sees
the values of rows that have passed the tenant's filter. A view ignores FINAL without an error, so each table has a second view that merges
its rows.

Rows of all tenants share granules, too. A condition on a column of the primary key decides which granules are read, and one that fails on
some rows would then show where the rows of other tenants are. So the views hide from ClickHouse which columns these are. Beside each of
them is a view with the key's columns once more, under other names that are not hidden (``KEYED_VIEW``, ``KEY_COLUMN``). Readers cannot
name these; only ``query.key_ranges`` does, in conditions that cannot fail. This module makes the statements and runs none.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from legato_ingest.quoting import literal

__all__ = ["COLUMNS", "FINAL_VIEW", "KEYED_VIEW", "KEY_COLUMN", "MADE", "Column", "database_of", "key_columns", "plain_type", "statements"]

COLUMNS = """
SELECT table, tables.engine, name, type, columns.comment, is_in_sorting_key FROM system.columns AS columns
INNER JOIN (SELECT name AS table, engine FROM system.tables WHERE database = {own}) AS tables USING (table)
WHERE database = {own} ORDER BY table, position"""
"""Selects the columns of the tables of the database ``own``, in the order of ``Column``."""
MADE = "SELECT name, comment FROM system.tables WHERE database = {database}"
"""Selects the views that were made, each with the hash of its statement."""
FINAL_VIEW = "_final"
"""The end of the name of a view that merges the rows of its table, as FINAL does."""
KEYED_VIEW = "_keyed"
"""The end of the name of a view, or of one that merges rows, that also has the columns of the key as they are. Readers cannot name it."""
KEY_COLUMN = "legato_key_"
"""The begin of the name of a column of the key in such a view. Readers cannot name one."""
_LOW = "LowCardinality("
_TIME = re.compile(r"(?:Nullable\()?Date")


class Column(NamedTuple):
    """A column of one of Legato's tables or views."""

    table: str
    engine: str
    name: str
    type: str
    comment: str
    is_in_key: str


def database_of(own: str) -> str:
    """Return the name of the database for the readers of one tenant. ``own``: the database of Legato's tables."""
    return f"{own}_tenants"


def plain_type(type_name: str) -> str:
    """Return a ClickHouse type with ``X`` in place of each ``LowCardinality(X)``."""
    before, found, rest = type_name.partition(_LOW)
    if not found:
        return type_name
    depth = 1
    for at, sign in enumerate(rest):
        depth += (sign == "(") - (sign == ")")
        if not depth:
            return plain_type(f"{before}{rest[:at]}{rest[at + 1 :]}")
    raise ValueError(f"the type {type_name} has a parenthesis that is not closed")


def key_columns(columns: Iterable[Column]) -> dict[str, dict[str, str]]:
    """Return, for each table and view, the columns that may be of a primary key, with their plain types.

    These are all columns with the name of one in the key of any table, and all times: a column of a view is the table's column with its
    name, or a time that is computed from one.
    """
    listed = list(columns)
    keys = {column.name for column in listed if column.is_in_key == "1"}
    found: dict[str, dict[str, str]] = {}
    for column in listed:
        if column.name in keys or _TIME.match(column.type):
            found.setdefault(column.table, {})[column.name] = plain_type(column.type)
    return found


def statements(own: str, columns: Iterable[Column], made: Mapping[str, str]) -> list[str]:
    """Return the statements that make the views that are missing or differ. Others are left: a table may be detached for its repair.

    ``columns``: by table, in their order. ``made``: for each view that exists, the hash of the statement that made it (its comment).
    """
    listed = list(columns)
    tables, keys = {table: list(of_table) for table, of_table in groupby(listed, lambda column: column.table)}, key_columns(listed)
    # On a cluster each table has a part on each shard, and readers may be connected to any replica.
    on = " ON CLUSTER '{cluster}'" if any(f"{table}_local" in tables for table in tables) else ""
    found = []
    for table, own_columns in tables.items():
        for name, final in ((table, ""), (f"{table}{FINAL_VIEW}", " FINAL" if _merges(own_columns[0].engine) else "")):
            source = f"FROM {_name(own)}.{_name(table)} AS own{final}"
            for view, statement in _views(own, name, own_columns, keys.get(table, {}), on, source):
                sha256 = hashlib.sha256(statement.encode()).hexdigest()
                if made.get(view) != sha256:
                    found.append(f"{statement} COMMENT {literal(sha256)}")
    return [f"CREATE DATABASE IF NOT EXISTS {_name(database_of(own))}{on}", *found] if found else []


def _views(own: str, name: str, columns: Sequence[Column], keys: Mapping[str, str], on: str, source: str) -> Iterator[tuple[str, str]]:
    """Yield the names of a table's view and of the one with the key, each with the statement that makes it.

    ``identity`` returns its argument, and ClickHouse knows no more of it: a condition on its result is none on the key.
    """
    declared = [f"{_name(column.name)} {plain_type(column.type)} COMMENT {literal(column.comment)}" for column in columns]
    selected = [_hidden(column.name) if column.name in keys else f"own.{_name(column.name)}" for column in columns]
    yield name, _view(own, name, declared, selected, on, source)
    declared += [f"{_name(KEY_COLUMN + key)} {type_name}" for key, type_name in keys.items()]
    selected += [f"own.{_name(key)} AS {_name(KEY_COLUMN + key)}" for key in keys]
    yield f"{name}{KEYED_VIEW}", _view(own, f"{name}{KEYED_VIEW}", declared, selected, on, source)


def _hidden(key: str) -> str:
    return f"identity(own.{_name(key)}) AS {_name(key)}"


def _view(own: str, name: str, columns: Sequence[str], selected: Sequence[str], on: str, source: str) -> str:
    view = f"{_name(database_of(own))}.{_name(name)}{on}"
    return f"CREATE OR REPLACE VIEW {view} ({', '.join(columns)}) AS SELECT {', '.join(selected)} {source}"


def _merges(engine: str) -> bool:
    """Whether FINAL changes what a query of a table returns."""
    return "Replacing" in engine or engine == "Distributed"


def _name(text: str) -> str:
    return f"`{text}`"
