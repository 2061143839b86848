"""Decides whether a statement only reads, by ClickHouse's own parser.

One idea: nothing about a statement is guessed from its text. ClickHouse parses it (as a parameter, so it cannot break out), prints it
back in one canonical line, and lists its syntax tree; only kinds of nodes, functions, table functions and tables that are named here may
stand in that tree. ``readonly = 1`` alone is not enough: it lets INTO OUTFILE write and `file()` read. What is new in a later ClickHouse
is refused until somebody names it. It runs nothing itself.
"""

from __future__ import annotations

import pathlib
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from threading import Lock

from legato_ingest.errors import StoreRefused

__all__ = ["Guard", "Refused", "Statement"]

Run = Callable[[str, Mapping[str, str]], bytes]

_FORMAT = re.compile(r" FORMAT (\w+)$")
_IDENTIFIER_PARAMETER = re.compile(r"\{\s*\w+\s*:\s*Identifier\s*\}")
_COMBINATORS = (
    "mergestate", "simplestate", "ordefault", "distinct", "resample", "foreach", "ornull", "argmin", "argmax", "state", "merge", "array",
    "null", "map", "if",
)  # fmt: skip
_ROOTS = frozenset(
    "SelectWithUnionQuery SelectIntersectExceptQuery Explain DescribeQuery ExistsTableQuery ExistsViewQuery ShowTables ShowColumns "
    "ShowCreateTableQuery ShowCreateViewQuery".split()
)
_NODES = _ROOTS | frozenset(
    "SelectQuery ExpressionList Function Identifier TableIdentifier Literal Asterisk QualifiedAsterisk TablesInSelectQuery "
    "TablesInSelectQueryElement TableExpression TableJoin ArrayJoin Subquery WithElement OrderByElement InterpolateElement "
    "WindowDefinition WindowListElement ColumnsTransformerList ColumnsExceptTransformer ColumnsReplaceTransformer "
    "ColumnsReplaceTransformer::Replacement ColumnsRegexpMatcher ColumnsListMatcher QualifiedColumnsRegexpMatcher "
    "QualifiedColumnsListMatcher SampleRatio QueryParameter DataType TupleDataType NameTypePair".split()
)
# What a client needs to find its way: names, types and sizes, nobody's queries, users or paths.
_SYSTEM_TABLES = frozenset(
    "one numbers numbers_mt zeros databases tables columns functions settings formats data_type_families time_zones parts parts_columns "
    "data_skipping_indices build_options contributors".split()
)
_CODE_REFUSED = 497
_CACHE_MAX = 1024
_TEXT_MAX = 262_144


class Refused(StoreRefused):
    """A statement that this endpoint does not run. The code is ClickHouse's ACCESS_DENIED."""

    def __init__(self, message: str) -> None:
        super().__init__(message, _CODE_REFUSED)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that only reads: canonical text without its FORMAT, and the format that it asked for."""

    sql: str
    format: str | None


class _Functions:
    """The names of sql_functions.txt."""

    def __init__(self) -> None:
        sections: dict[str, set[str]] = {}
        current: set[str] = set()
        for line in pathlib.Path(__file__).with_name("sql_functions.txt").read_text(encoding="utf-8").splitlines():
            if line.startswith("["):
                current = sections.setdefault(line.strip("[]"), set())
            elif not line.startswith("#"):
                current.update(line.split())
        self.plain, self.aggregate, self.table = sections["plain"], sections["aggregate"], sections["table"]

    def allows(self, name: str) -> bool:
        """Whether a query may call it: a named function, or a named aggregate under combinators."""
        name = name.lower()
        if name in self.plain or name in self.aggregate:
            return True
        return any(
            name.endswith(suffix) and len(name) > len(suffix) and self._allows_aggregate(name[: -len(suffix)]) for suffix in _COMBINATORS
        )

    def _allows_aggregate(self, name: str) -> bool:
        return name in self.aggregate or (name not in self.plain and self.allows(name))


_functions = _Functions()


class Guard:
    """Checks statements with ``run(sql, parameters) -> TSV``, which runs Legato's own SQL; remembers the last 1,024 answers."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seen: OrderedDict[str, Statement] = OrderedDict()
        self._lock = Lock()

    def check(self, text: str, parameters: Mapping[str, str]) -> Statement:
        """The statement to run for this text. Raises ``Refused``, or ``StoreRefused`` with ClickHouse's own error."""
        with self._lock:
            if text in self._seen:
                self._seen.move_to_end(text)
                return self._seen[text]
        statement = self._judge(text, parameters)
        with self._lock:
            self._seen[text] = statement
            while len(self._seen) > _CACHE_MAX:
                self._seen.popitem(last=False)
        return statement

    def _judge(self, text: str, parameters: Mapping[str, str]) -> Statement:
        if len(text) > _TEXT_MAX or "\0" in text:
            raise Refused(f"a statement of more than {_TEXT_MAX} characters, or with a zero byte")
        canonical = self._run("SELECT formatQuerySingleLine({statement:String})", {"statement": text}).decode("utf-8", "replace")
        canonical = canonical.removesuffix("\n")
        if _IDENTIFIER_PARAMETER.search(canonical):
            raise Refused("parameters of the type Identifier are not taken: they could name any table")
        found = _FORMAT.search(canonical)
        sql = canonical[: found.start()] if found else canonical
        _check_tree(self._run(f"EXPLAIN AST {sql}", parameters).decode("utf-8", "replace"))
        return Statement(sql, found.group(1) if found else None)


def _check_tree(tree: str) -> None:
    """Raise ``Refused`` unless every node of the tree is one that only reads."""
    parents: list[str] = []
    for depth, node, rest in _nodes(tree):
        parents[depth:] = [node]
        parent = parents[depth - 1] if depth else ""
        if not depth and node not in _ROOTS:
            raise Refused(f"only SELECT, SHOW, DESCRIBE, EXISTS and EXPLAIN are run here, not {node}")
        if node == "Set":
            raise Refused("SETTINGS are not taken here")
        if node not in _NODES:
            raise Refused(f"a part of the statement is not taken here: {node}")
        if node == "Literal" and parent in ("SelectWithUnionQuery", "SelectIntersectExceptQuery", "Explain"):
            raise Refused("INTO OUTFILE is not taken here")
        if node == "Function":
            _check_function(rest, parent == "TableExpression")
        elif node == "TableIdentifier" or (node == "Identifier" and parent in ("ExistsTableQuery", "ShowCreateTableQuery")):
            _check_table(rest)


def _nodes(tree: str) -> Iterator[tuple[int, str, str]]:
    """(depth, kind, rest) of each line of EXPLAIN AST, the format that we asked for ourselves left out."""
    for line in tree.splitlines():
        content = line.lstrip(" ")
        if content:
            node, _, rest = content.partition(" ")
            yield len(line) - len(content), node, rest


def _check_function(rest: str, is_table_function: bool) -> None:
    name = rest.split(" ")[0]
    if is_table_function and name.lower() not in _functions.table:
        raise Refused(f"the table function {name} is not taken here")
    if not is_table_function and not _functions.allows(name):
        raise Refused(f"the function {name} is not taken here")


def _check_table(rest: str) -> None:
    """A table of Legato's own (no database, or the default one), or one of the system's that tell names and sizes."""
    name = re.sub(r" \((alias .*|children \d+)\)$", "", rest)
    database, _, table = name.rpartition(".")
    if database in ("", "default"):
        return
    if database == "system" and table in _SYSTEM_TABLES:
        return
    raise Refused(f"the table {name} is not open here")
