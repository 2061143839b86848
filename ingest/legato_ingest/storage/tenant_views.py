"""The tables as readers of one tenant see them: views in a database beside Legato's, with String in place of LowCardinality(String).

Rows of all tenants share the dictionary of a LowCardinality column, and ClickHouse evaluates a function on a whole dictionary: whether the
function fails, and how long it takes, would depend on names of other tenants. In these views the column is cast first, so a function sees
the values of rows that have passed the tenant's filter. A view ignores FINAL without an error, so each table has a second view that merges
its rows. This module makes the statements and runs none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from legato_ingest.quoting import literal

__all__ = ["COLUMNS", "FINAL_VIEW", "MADE", "Column", "database_of", "plain_type", "statements"]

COLUMNS = """
SELECT table, tables.engine, name, type, columns.comment FROM system.columns AS columns
INNER JOIN (SELECT name AS table, engine FROM system.tables WHERE database = {own}) AS tables USING (table)
WHERE database = {own} ORDER BY table, position"""
"""Selects the columns of the tables of the database ``own``, in the order of ``Column``."""
MADE = "SELECT name, comment FROM system.tables WHERE database = {database}"
"""Selects the views that were made, each with the hash of its statement."""
FINAL_VIEW = "_final"
"""The end of the name of a view that merges the rows of its table, as FINAL does."""
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
    """Return the statements that make the views that are missing or differ. Others are left: a table may be detached for its repair.

    ``columns``: by table, in their order. ``made``: for each view that exists, the hash of the statement that made it (its comment).
    """
    tables = {table: list(of_table) for table, of_table in groupby(columns, lambda column: column.table)}
    # On a cluster each table has a part on each shard, and readers may be connected to any replica.
    on = " ON CLUSTER '{cluster}'" if any(f"{table}_local" in tables for table in tables) else ""
    found = []
    for table, own_columns in tables.items():
        for name, final in ((table, ""), (f"{table}{FINAL_VIEW}", " FINAL" if _merges(own_columns[0].engine) else "")):
            statement = _statement(own, name, own_columns, on, final)
            sha256 = hashlib.sha256(statement.encode()).hexdigest()
            if made.get(name) != sha256:
                found.append(f"{statement} COMMENT {literal(sha256)}")
    return [f"CREATE DATABASE IF NOT EXISTS {_name(database_of(own))}{on}", *found] if found else []


def _merges(engine: str) -> bool:
    """Whether FINAL changes what a query of a table returns."""
    return "Replacing" in engine or engine == "Distributed"


def _statement(own: str, name: str, columns: Sequence[Column], on: str, final: str) -> str:
    listed = ", ".join(f"{_name(column.name)} {plain_type(column.type)} COMMENT {literal(column.comment)}" for column in columns)
    source = f"{_name(own)}.{_name(columns[0].table)}{final}"
    return f"CREATE OR REPLACE VIEW {_name(database_of(own))}.{_name(name)}{on} ({listed}) AS SELECT * FROM {source}"


def _name(text: str) -> str:
    return f"`{text}`"
