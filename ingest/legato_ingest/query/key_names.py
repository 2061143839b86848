"""The nodes of a printed syntax tree, and what the names in it may mean.

A name may be a column, an alias at any place of the statement, or a parameter of a lambda. ClickHouse decides which, so a name has the
kinds of all of them. A tree in which a name may mean something else is ``Unclear``. This module does not know what functions do.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from legato_ingest.query.key_functions import AGGREGATE, ANY, NOTHING, Kind
from legato_ingest.query.sql_tree import nodes

__all__ = ["Node", "Unclear", "column_of", "meanings", "nodes_of", "of_name", "queries_of", "selected_by", "union_of"]

# Of a statement, so that the time to read it is bounded.
_NODES_MAX, _VISITS_MAX, _PARTS_MAX, _DEPTH_MAX = 8_000, 50_000, 8, 8
_TABLE_FUNCTIONS = ("", "numbers", "numbers_mt", "zeros", "view")
# These give names to columns that are not printed as aliases.
_RENAMING = ("ColumnsReplaceTransformer", "NameTypePair")
_ALIAS, _CHILDREN = " (alias ", " (children "


class Unclear(Exception):
    """The tree is too large, or has a form from which the meaning of its names does not follow."""


@dataclass(slots=True)
class Node:
    """A node of the tree: its kind, the name behind it, its alias, the nodes below it, and the kinds of its values.

    ``function``: the name of a function in lower case, else empty. ``aggregate``: its match with ``AGGREGATE``. ``is_constant``: it is made
    of constants alone. ``is_nullable``: a value may be NULL; ``values`` do not say so. ``reach``: how large a constant can be
    (``key_constants``).
    """

    kind: str
    name: str
    alias: str
    function: str
    aggregate: re.Match[str] | None
    below: list[Node] = field(default_factory=list)
    values: Kind = NOTHING
    is_constant: bool = False
    is_nullable: bool = False
    reach: float = math.inf

    @property
    def is_several(self) -> bool:
        """Whether it stands for several columns: `*`, `COLUMNS`."""
        return "Asterisk" in self.kind or "Matcher" in self.kind

    @property
    def arguments(self) -> list[Node]:
        """The arguments of a function."""
        return self.below[0].below if self.below else []


def nodes_of(tree: str) -> list[Node]:
    """Return all nodes of a tree, each after those below it, in the order of the text. Raises ``Unclear``."""
    every: list[Node] = []
    path: list[Node] = []
    for depth, kind, rest in nodes(tree):
        if len(every) + len(path) == _NODES_MAX:
            raise Unclear
        name, alias = _name_and_alias(kind, rest)
        function = name.lower() if kind == "Function" else ""
        node = Node(kind, name, alias, function, AGGREGATE.fullmatch(function))
        every += reversed(path[depth:])
        del path[depth:]
        if path:
            path[-1].below.append(node)
        path.append(node)
    every += reversed(path)
    return every


def _name_and_alias(kind: str, rest: str) -> tuple[str, str]:
    """Return the name and the alias of a line without its kind. A name in parentheses could imitate another line."""
    name, alias = f" {rest}", ""
    before, found, count = name.rpartition(_CHILDREN)
    if found and count[:-1].isdecimal() and count.endswith(")"):
        name = before
    before, found, named = name.rpartition(_ALIAS)
    if found and named.endswith(")"):
        name, alias = before, named[:-1]
    if _is_strange(alias) or (kind != "Literal" and _is_strange(name)):
        raise Unclear
    return name[1:], alias


def _is_strange(name: str) -> bool:
    return "(" in name or ")" in name or "`" in name


def meanings(every: list[Node], subqueries: Container[str]) -> dict[str, list[Node]]:
    """Return the expressions that each alias, and each column of a UNION, stands for. Raises ``Unclear`` if there are other names.

    A parameter of a lambda gets a name in parentheses, and means what the function is applied to. ``subqueries``: their names after WITH.
    """
    meant: dict[str, list[Node]] = {}
    lambdas = bound = visits = 0
    for number, node in enumerate(every):
        if node.kind.startswith(_RENAMING) or _names_columns(node) or _reads_unknown(node):
            raise Unclear
        if node.alias:
            meant.setdefault(node.alias, []).append(node)
        _unite(node, meant, subqueries)
        lambdas += node.function == "lambda"
        own = [each for each in node.arguments if each.function == "lambda"] if node.kind == "Function" else []
        for each in own:
            parameters = _parameters(each, number, [other for other in node.arguments if other.function != "lambda"])
            visits += _rename(each, {old: new for old, (new, _) in parameters.items()})
            meant |= dict(parameters.values())
        bound += len(own)
        # A lambda with a name, or without a function, is a function of the statement.
        if visits > _VISITS_MAX or any(each.alias for each in own):
            raise Unclear
    if lambdas != bound:
        raise Unclear
    return meant


def _parameters(function: Node, number: int, arrays: list[Node]) -> dict[str, tuple[str, list[Node]]]:
    """Return another name for each parameter of a lambda, and what it means: one array, or all if these are not as many.

    ``number``: that of the node of the function that is applied.
    """
    names = [each.name for each in (function.arguments[0].arguments or function.arguments[:1])] if function.arguments else []
    is_each = len(names) == len(arrays) == len(set(names))
    return {name: (f"({number} {place})", arrays[place : place + 1] if is_each else arrays) for place, name in enumerate(names)}


def _rename(function: Node, names: Mapping[str, str]) -> int:
    """Give the parameters of a lambda other names; return how many nodes were visited. A subquery in it does not see its parameters."""
    inside, visits = [function], 0
    while inside:
        node = inside.pop()
        visits += 1
        if node.kind == "Identifier" and node.name in names:
            node.name = names[node.name]
        elif node.kind != "Subquery":
            inside += node.below
    return visits


def _unite(node: Node, meant: dict[str, list[Node]], subqueries: Container[str]) -> None:
    """Let the name of a column of a UNION, which is that of its first query, mean what the others select. Raises ``Unclear``.

    All columns of tables are left out: they have their names, and nothing is computed.
    """
    queries = queries_of(node)
    if len(queries) < 2 or all(_is_of_table(each, subqueries) for each in queries):
        return
    for first, *others in _columns(queries):
        if name := first.alias or column_of(first):
            meant.setdefault(name, []).extend((first, *others))


def _columns(queries: list[Node], depth: int = 0) -> list[list[Node]]:
    """Return all that the queries of a UNION select for each of its columns. Raises ``Unclear``."""
    selected = []
    for query in queries:
        listed = selected_by(query)
        if _read(query) == (["Asterisk"], ["Subquery"]) and depth < _DEPTH_MAX:
            (inner,) = _tables(query)
            selected.append(_columns([one for each in inner.below for one in queries_of(each)], depth + 1))
        elif any(each.is_several for each in listed):
            raise Unclear
        else:
            selected.append([[each] for each in listed])
    if len({len(each) for each in selected}) > 1:
        raise Unclear
    return [list(chain(*columns)) for columns in zip(*selected, strict=True)]


def _is_of_table(query: Node, subqueries: Container[str]) -> bool:
    """Whether a query is ``SELECT * FROM table``, with any conditions."""
    return _read(query) == (["Asterisk"], ["TableIdentifier"]) and all(each.name not in subqueries for each in _tables(query))


def queries_of(node: Node) -> list[Node]:
    """Return the queries of a UNION, or the only one of what is none. Raises ``Unclear``."""
    if node.kind == "SelectIntersectExceptQuery":
        raise Unclear
    return node.below[0].below if node.kind == "SelectWithUnionQuery" and node.below else []


def selected_by(query: Node) -> list[Node]:
    """Return what a SELECT selects: the last list before its tables. Without tables, other lists may follow it, so it is ``Unclear``."""
    kinds = [each.kind for each in query.below]
    end = kinds.index("TablesInSelectQuery") if "TablesInSelectQuery" in kinds else len(kinds)
    lists = [each for each in query.below[:end] if each.kind == "ExpressionList"]
    if query.kind != "SelectQuery" or not lists or (end == len(kinds) and len(lists) > 1):
        raise Unclear
    return lists[-1].below


def _tables(query: Node) -> list[Node]:
    """Return the tables and subqueries of a SELECT."""
    listed = [each for tables in query.below if tables.kind == "TablesInSelectQuery" for each in tables.below]
    return [each for table in listed for expression in table.below for each in expression.below]


def _read(query: Node) -> tuple[list[str], list[str]]:
    """Return the kinds of what a SELECT selects, and of its tables."""
    return [each.kind for each in selected_by(query)], [each.kind for each in _tables(query)]


def union_of(nodes: Iterable[Node]) -> Kind:
    """Return the kinds of the values of all nodes, which are set."""
    return functools.reduce(operator.or_, (node.values for node in nodes), NOTHING)


def column_of(node: Node) -> str:
    """Return the last part of an identifier; empty for another node."""
    return node.name.rpartition(".")[2] if node.kind == "Identifier" else ""


def of_name(name: str, kinds: Mapping[str, Kind]) -> Kind:
    """Return the kinds of all that a name may mean; any, if it is not known. Before a point is a table, or a part of the column's name."""
    if "." not in name:
        return kinds.get(name, ANY)
    parts = name.split(".")
    if len(parts) > _PARTS_MAX:
        raise Unclear
    known = [kinds[column] for at in range(len(parts)) if (column := ".".join(parts[at:])) in kinds]
    return functools.reduce(operator.or_, known) if known else ANY


def _names_columns(node: Node) -> bool:
    """Whether the node names the columns of a subquery: ``WITH t(a, b) AS``, ``FROM (SELECT …) AS t(a, b)``."""
    return node.kind in ("WithElement", "TableExpression") and any(each.kind == "ExpressionList" for each in node.below)


def _reads_unknown(node: Node) -> bool:
    """Whether the node is a table with columns that are not known."""
    return node.kind == "TableExpression" and any(each.function not in _TABLE_FUNCTIONS for each in node.below)
