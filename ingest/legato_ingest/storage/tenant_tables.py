"""The tables as readers of one tenant see them: a database beside Legato's with the same names, and String in place of LowCardinality.

Rows of all tenants share the dictionary of a LowCardinality column, and ClickHouse evaluates a function on a whole dictionary: whether the
function fails, and how long it takes, would depend on names of other tenants. In these tables the column is cast first, so a function sees
the values of rows that have passed the tenant's filter. They hold no rows: a table is one of ClickHouse's engine Merge over Legato's table,
a view is one over Legato's view. This module makes their statements and runs none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from legato_ingest.quoting import literal

__all__ = ["COLUMNS", "MADE", "Column", "database_of", "plain_type", "statements"]

COLUMNS = """
SELECT table, tables.engine, name, type, columns.comment FROM system.columns AS columns
INNER JOIN (SELECT name AS table, engine FROM system.tables WHERE database = {own}) AS tables USING (table)
WHERE database = {own} ORDER BY table, position"""
"""Selects the columns of the tables of the database ``own``, in the order of ``Column``."""
MADE = "SELECT name, comment FROM system.tables WHERE database = {database}"
"""Selects the tables that were made, each with the hash of its statement."""
_LOW = "LowCardinality("


class Column(NamedTuple):
    """A column of one of Legato's tables or views."""

    table: str
    engine: str
    name: str
    type: str
    comment: str


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


def statements(own: str, columns: Iterable[Column], made: Mapping[str, str]) -> list[str]:
    """Return the statements that make what is missing or differs, and drop what Legato's database no longer has.

    ``columns``: by table, in their order. ``made``: for each table that exists, the hash of the statement that made it (its comment).
    """
    found, gone = list[str](), dict.fromkeys(made)
    for table, of_table in groupby(columns, lambda column: column.table):
        gone.pop(table, None)
        statement = _statement(own, table, list(of_table))
        sha256 = hashlib.sha256(statement.encode()).hexdigest()
        if made.get(table) != sha256:
            found.append(f"{statement} COMMENT {literal(sha256)}")
    found += [f"DROP TABLE {_name(database_of(own))}.{_name(table)}" for table in gone]
    return [f"CREATE DATABASE IF NOT EXISTS {_name(database_of(own))}", *found] if found else []


def _statement(own: str, table: str, columns: Sequence[Column]) -> str:
    listed = ", ".join(f"{_name(column.name)} {plain_type(column.type)} COMMENT {literal(column.comment)}" for column in columns)
    target = f"{_name(database_of(own))}.{_name(table)} ({listed})"
    if columns[0].engine == "View":
        return f"CREATE OR REPLACE VIEW {target} AS SELECT * FROM {_name(own)}.{_name(table)}"
    return f"CREATE OR REPLACE TABLE {target} ENGINE = Merge({literal(own)}, {literal(f'^{table}$')})"


def _name(text: str) -> str:
    return f"`{text}`"
