"""The guard's second check: every node of the syntax tree that ClickHouse prints for a statement.

The tree is ClickHouse's own reading of the statement. Only the kinds of nodes, functions, table functions and tables that are listed here
are accepted, so a feature of a later ClickHouse is rejected until it is added to a list. This module runs no statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from legato_ingest.query.sql_functions import allows, allows_table
from legato_ingest.query.sql_text import Refused

__all__ = ["check", "names_lambda", "nodes"]

_SELECTS = frozenset(("SelectWithUnionQuery", "SelectIntersectExceptQuery"))
# These name their table in the root's own line, as "database table", not in a separate node.
_NAMING = frozenset("ExistsTableQuery ExistsViewQuery ShowCreateTableQuery ShowCreateViewQuery".split())
_ROOTS = _SELECTS | _NAMING | frozenset("Explain DescribeQuery ExistsDatabaseQuery ShowTables ShowColumns".split())
_NODES = _ROOTS | frozenset(
    "SelectQuery ExpressionList Function Identifier TableIdentifier Literal Asterisk QualifiedAsterisk TablesInSelectQuery "
    "TablesInSelectQueryElement TableExpression TableJoin ArrayJoin Subquery WithElement OrderByElement InterpolateElement "
    "WindowDefinition WindowListElement ColumnsTransformerList ColumnsExceptTransformer ColumnsReplaceTransformer "
    "ColumnsReplaceTransformer::Replacement ColumnsRegexpMatcher ColumnsListMatcher QualifiedColumnsRegexpMatcher "
    "QualifiedColumnsListMatcher QueryParameter DataType TupleDataType NameTypePair".split()
)
# A plan, ESTIMATE and PIPELINE show what an index skips, and an index covers rows of all tenants.
_EXPLAINS = frozenset(("EXPLAIN AST", "EXPLAIN SYNTAX", "EXPLAIN QUERY TREE"))
_EXPLAINS_OF_ALL = _EXPLAINS | {"EXPLAIN"}
# Names, types and sizes, which clients list; no queries, users, grants or processes. `tables`, `parts` and `disks` show the store's path on
# this host's disk; a client on the host can read the path from the process list as well. `legato doctor` reads the free space in `disks`.
_SYSTEM_TABLES = frozenset(
    "one numbers numbers_mt zeros databases tables columns functions settings formats data_type_families time_zones parts parts_columns "
    "data_skipping_indices disks build_options contributors".split()
)
_LINE = re.compile(r"( *)(\S+)(?: (.*))?")
_TABLE = re.compile(r"((?:\w+\.)?\w+)(?: \(alias .*\))?(?: \(children \d+\))?")
# A text of the reader's may look the same, which only makes the answer yes.
_NAMED_LAMBDA = re.compile(r"^ *Function lambda \(alias ", re.MULTILINE)
_COUNT = re.compile(r" ?\(children \d+\)$")
_SET = re.compile(r"[\w.]+(?: \(alias .*\))?")
_IN = re.compile(r"(global)?(not)?(null)?in(ignoreset)?", re.IGNORECASE)


def check(tree: str, *, of_one_tenant: bool = False) -> None:
    """Raise ``Refused`` unless every node of the printed tree is one that only reads.

    ``of_one_tenant``: the statement is of a reader who must not see what indexes skip.
    """
    path: list[str] = []
    # How many nodes so far have the same parent, for each depth.
    seen: list[int] = []
    for depth, node, rest in nodes(tree):
        if depth > len(path) or (depth == 0) != (not path):
            raise Refused("the statement's tree is not one tree")
        path[depth:] = [node]
        seen[depth:] = [(seen[depth] if depth < len(seen) else 0) + 1]
        _check_node(path, node, rest, seen[depth])
        if node == "Explain" and _COUNT.sub("", rest) not in (_EXPLAINS if of_one_tenant else _EXPLAINS_OF_ALL):
            raise Refused(f"{rest.partition(' (')[0]} is not accepted")
    if not path:
        raise Refused("the statement is empty")


def nodes(tree: str) -> Iterator[tuple[int, str, str]]:
    """Yield (depth, kind, rest) of each line of a printed tree. Raises ``Refused`` if a line cannot be read.

    Only ``\\n`` ends a line: literals hold other line breaks unescaped.
    """
    for line in tree.split("\n"):
        if line:
            match = _LINE.fullmatch(line)
            if match is None:
                raise Refused("the statement's tree cannot be read")
            yield len(match.group(1)), match.group(2), match.group(3) or ""


def names_lambda(tree: str) -> bool:
    """Return whether a statement gives a name to a lambda, which may be that of a function: WITH x -> … AS name."""
    return _NAMED_LAMBDA.search(tree) is not None


def _check_node(path: list[str], node: str, rest: str, place: int) -> None:
    parent = path[-2] if len(path) > 1 else ""
    if not parent and node not in _ROOTS:
        raise Refused(f"{node} is not one of these statements")
    if node == "Set":
        raise Refused("SETTINGS are not accepted")
    if node not in _NODES:
        raise Refused(f"{node} is not accepted")
    if node == "Literal" and parent in _ROOTS:
        raise Refused("INTO OUTFILE writes a file")
    if node in _NAMING:
        database, _, table = _COUNT.sub("", rest).partition(" ")
        _check_table(database, table)
    _check_names(path, node, rest, parent, place)


def _check_names(path: list[str], node: str, rest: str, parent: str, place: int) -> None:
    if node == "Function":
        name = rest.partition(" ")[0]
        path[-1] = f"Function {name}"
        if parent == "TableExpression" and not (allows_table(name) or name.lower() == "view"):
            raise Refused(f"the table function {name} is not allowed")
        if parent != "TableExpression" and not allows(name):
            raise Refused(f"the function {name} is not allowed")
    elif node == "TableIdentifier":
        match = _TABLE.fullmatch(rest)
        if match is None:
            raise Refused(f"the table {rest.partition(' (')[0]} is not allowed")
        database, _, table = match.group(1).rpartition(".")
        _check_table(database, table)
    elif node == "Identifier":
        _check_identifier(path, rest, place)


def _check_identifier(path: list[str], rest: str, place: int) -> None:
    """A name in an expression is a column, except in ``x IN name``, which reads a table."""
    is_set = len(path) > 2 and path[-2] == "ExpressionList" and _IN.fullmatch(path[-3].removeprefix("Function "))
    if is_set and not _SET.fullmatch(rest):
        raise Refused(f"IN {rest} is not accepted")
    database, _, table = rest.partition(" ")[0].partition(".")
    # On the left side of IN a qualified column has the same form; on the right side the name is a table.
    if table and (database.lower() in ("system", "information_schema") or (is_set and place == 2)):
        _check_table(database, table.partition(".")[0])


def _check_table(database: str, table: str) -> None:
    """Accept the tables of the reader's handle (no database) and the listed system tables."""
    if not database or (database == "system" and table in _SYSTEM_TABLES):
        return
    raise Refused(f"the table {database}.{table} is not allowed")
