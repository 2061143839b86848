"""Tests of the check of a statement's syntax tree, without an engine: trees are written as ClickHouse prints them."""

from __future__ import annotations

import pytest

from legato_ingest.query.sql_text import Refused
from legato_ingest.query.sql_tree import check

_SELECT = "SelectWithUnionQuery (children 1)\n ExpressionList (children 1)\n  SelectQuery (children 1)\n"


def select(*lines: str) -> str:
    """The tree of a SELECT with these lines below it."""
    return _SELECT + "".join(f"   {line}\n" for line in lines)


def from_table(name: str) -> str:
    """The tree of a SELECT from a table."""
    return select(
        "TablesInSelectQuery (children 1)", " TablesInSelectQueryElement (children 1)", "  TableExpression (children 1)", f"   {name}"
    )


def test_trees_that_only_read_are_accepted() -> None:
    """Literals with line breaks other than \\n, allowed functions, Legato's tables and the listed system tables."""
    for tree in (
        select("ExpressionList (children 1)", " Literal UInt64_1"),
        select("ExpressionList (children 1)", " Literal 'a\u2028ShowTables b'"),
        select("ExpressionList (children 1)", " Function sumIf (children 1)"),
        from_table("TableIdentifier streams (alias s)"),
        from_table("TableIdentifier system.tables"),
        from_table("TableIdentifier system.disks"),
        from_table("Function numbers (children 1)"),
        "ExistsTableQuery  streams (children 1)\n Identifier streams",
        "Explain EXPLAIN AST (children 1)\n" + "".join(f" {line}\n" for line in _SELECT.splitlines()),
    ):
        check(tree)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ("", "is empty"),
        ("DropQuery  stream_revs", "is not one of these statements"),
        (_SELECT + _SELECT, "not one tree"),
        (_SELECT + "     Literal 1", "not one tree"),
        (" SelectQuery", "not one tree"),
        (select("Set"), "SETTINGS"),
        (select("NewNode"), "NewNode is not accepted"),
        ("SelectWithUnionQuery (children 2)\n Literal 'x'", "INTO OUTFILE"),
        ("Explain EXPLAIN CURRENT TRANSACTION", "CURRENT TRANSACTION is not accepted"),
        (select("ExpressionList (children 1)", " Function file (children 1)"), "function file is not allowed"),
        (from_table("Function url (children 1)"), "table function url"),
        (from_table("TableIdentifier system.query_log"), "system.query_log"),
        (from_table("TableIdentifier other.streams"), "other.streams"),
        (from_table("TableIdentifier /etc/hostname"), "/etc/hostname"),
        ("ShowCreateTableQuery system users (children 2)", "system.users"),
        (select("Function in (children 1)", " ExpressionList (children 2)", "  Identifier x", "  Identifier system.users"), "system.users"),
        (select("Function notIn (children 1)", " ExpressionList (children 2)", "  Identifier x", "  Identifier other.t"), "other.t"),
        (select("Function in (children 1)", " ExpressionList (children 2)", "  Identifier x", "  Identifier /etc/x"), "IN /etc/x"),
    ],
)
def test_other_trees_are_rejected(tree: str, message: str) -> None:
    """Statements, nodes, functions and tables that are not listed, and text that is not one tree."""
    with pytest.raises(Refused, match=message):
        check(tree)


def test_a_database_is_refused() -> None:
    """``sql_text`` has removed the name of Legato's database: each other one, also that of another tenant's tables, is refused."""
    for database in ("default", "default_tenants", "legato"):
        with pytest.raises(Refused, match=f"{database}.streams"):
            check(from_table(f"TableIdentifier {database}.streams"))
