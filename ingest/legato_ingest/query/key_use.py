"""Whether a statement of a reader of one tenant may use the primary key.

ClickHouse decides by the primary key which granules to read. Where a granule has rows of two tenants, it evaluates the statement's
conditions on the key of another tenant's row, and some functions fail on some values: whether the statement fails would depend on that row.
Which expressions ClickHouse makes of a statement is not known here: it resolves names, folds constants, moves conditions and replaces equal
columns. So a statement uses the key only if no function in it, wherever it stands, can fail on a value of the kinds that it may be applied
to (``key_functions``). Where that is not certain the answer is no, and the statement reads all rows of the table. This module reads the
printed syntax tree (``sql_tree`` has checked it), in a time that is bounded, and runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping

from legato_ingest.query.key_arguments import are_total_aggregate, are_total_arguments, has_one_length, is_total_comparison
from legato_ingest.query.key_constants import is_near, reach_of
from legato_ingest.query.key_functions import ANY, CASTS, CONSTANTS, FUNCTIONS, NOTHING, NUMBER, TIMES, Kind, kind_of_type
from legato_ingest.query.key_names import Node, Unclear, column_of, meanings, nodes_of, of_name, union_of

__all__ = ["may_use_key"]

# How often all nodes are read at most, until the kinds of all names are known.
_ROUNDS_MAX = 8
_COMPARISONS = frozenset("equals notequals less greater lessorequals greaterorequals".split())
_SHIFTS = frozenset(("addnanoseconds", "addmicroseconds"))
# Times that an engine reports, up to 2^63 - 1.
_UNBOUNDED = frozenset(("queued_us", "prefill_us", "decode_us"))
_ARITHMETIC = frozenset("plus minus multiply divide".split())
_LISTS = frozenset(("ExpressionList", "Subquery", "SelectWithUnionQuery"))
# A parameter that is a DateTime64 is printed as a Decimal that is cast.
_OF_TIME = re.compile(r"(?<=Literal )Decimal\d+_")
_DECIMAL = re.compile(r"decimal|numeric|\bdec\b|\bfixed\b", re.IGNORECASE)
_NUMBER = r"(?:U?Int64|Bool|Float64)_[\w.+-]+"
_NUMBERS = re.compile(rf"(?:Array|Tuple)_[\[(]{_NUMBER}(?:, {_NUMBER})*[\])]|{_NUMBER}")
# A quote and a backslash of a text are escaped twice.
_TEXT = r"\\'(?:[^\\]|\\\\(?:\\\\|\\'|[^\\]))*\\'"
_TEXTS = re.compile(rf"{_TEXT}|(?:Array|Tuple)_[\[(]{_TEXT}(?:, {_TEXT})*[\])]", re.DOTALL)
# ClickHouse divides an Int64 by no larger one.
_POSITIVE = re.compile(r"UInt64_[1-9][0-9]{0,8}")
_TYPE = re.compile(r"\\'(.*)\\'")
_COLLECTION = re.compile("map|array|tuple|nested", re.IGNORECASE)
_TEXT_TYPES = frozenset(("String", "Nullable(String)", "LowCardinality(String)"))


def may_use_key(tree: str, columns: Mapping[str, Kind], subqueries: Container[str] = ()) -> bool:
    """Return whether no function of the statement can fail on the value of a row.

    ``columns``: the kinds of all columns by their names. ``subqueries``: the names that WITH gives to subqueries.
    """
    if _DECIMAL.search(_OF_TIME.sub("", tree)):
        # A comparison with a Decimal scales the other side, which may overflow.
        return False
    try:
        return _Statement(nodes_of(tree), columns, subqueries).is_total()
    except Unclear:
        return False


class _Statement:
    """The nodes of a statement, each after those below it, with the kinds of their values. Raises ``Unclear``."""

    def __init__(self, every: list[Node], columns: Mapping[str, Kind], subqueries: Container[str]) -> None:
        self._every = every
        self._meant = meanings(every, subqueries)
        # Columns, and aliases of one expression each, that are nothing else.
        self._own = columns.keys() - self._meant.keys()
        aliases = self._meant.keys() - columns.keys() - _of_rows(every)
        self._free = {name: self._meant[name][0] for name in aliases if len(self._meant[name]) == 1}
        self._set_kinds(dict(columns))

    def is_total(self) -> bool:
        """Return whether no function, and no ARRAY JOIN, can fail on the value of a row. Raises ``Unclear``."""
        if not all(has_one_length(lists.below) for node in self._every if node.kind == "ArrayJoin" for lists in node.below):
            return False
        return all(_is_total(node) or self._is_shift(node) for node in self._every if node.kind == "Function")

    def _is_shift(self, node: Node) -> bool:
        """Whether a number of the same row is added to a time: ClickHouse evaluates on a key only functions of one column."""
        if node.function not in _SHIFTS or len(node.arguments) != 2:
            return False
        time, number = node.arguments
        column = column_of(number)
        # Received streams end before 2262, so a time within one may be added to its start. Other sums may overflow.
        is_within = column.endswith(("_us", "_ns")) and column not in _UNBOUNDED
        is_bounded = column in self._own and is_within and column_of(time) == "start_time"
        return time.values in Kind.TIME and number.values in Kind.INTEGER and is_bounded

    def _set_kinds(self, kinds: dict[str, Kind]) -> None:
        """Set the kinds of all nodes, from those of the columns. An alias of a later one takes another round.

        A round only adds kinds to a name, and names to the constants, so the end is reached. A name that is NULL alone may mean anything.
        """
        kinds |= {name: kinds.get(name, NOTHING) for name in self._meant}
        before: object = None
        constants: dict[str, float] = {}
        for _ in range(_ROUNDS_MAX):
            for node in self._every:
                node.is_constant = _is_constant(node, constants)
                found = _values(node, kinds)
                node.values, node.is_nullable = found & ~Kind.NULL, bool(found & Kind.NULL) or _gives_null(node)
                node.reach = reach_of(node, constants)
            kinds |= {name: kinds[name] | _with_null(meant) for name, meant in self._meant.items()}
            constants = {name: node.reach for name, node in self._free.items() if node.is_constant}
            now = [kinds[name] for name in self._meant], constants
            if now == before:
                if NOTHING in now[0] or Kind.NULL in now[0]:
                    raise Unclear
                return
            before = now
        raise Unclear


def _of_rows(every: Iterable[Node]) -> set[str]:
    """Return the aliases of ARRAY JOIN. They have another value for each row, though an array is a constant."""
    return {each.alias for node in every if node.kind == "ArrayJoin" for lists in node.below for each in lists.below}


def _is_constant(node: Node, constants: Container[str]) -> bool:
    """Whether an expression is made of constants alone, those below it being decided. An aggregate is none: it depends on the rows."""
    if node.kind == "Function":
        return node.aggregate is None and node.function != "arrayjoin" and all(each.is_constant for each in node.below)
    if node.kind == "Identifier":
        return node.name in constants
    return node.kind == "Literal" or (node.kind == "ExpressionList" and all(each.is_constant for each in node.below))


def _values(node: Node, kinds: Mapping[str, Kind]) -> Kind:
    """Return the kinds of a node's values, those of the nodes below it being set."""
    if node.kind == "Identifier":
        return of_name(node.name, kinds)
    if node.kind == "Literal":
        return _of_literal(node.name)
    if node.kind == "Function":
        return _of_function(node)
    if node.kind in _LISTS:
        return union_of(node.below)
    if node.kind == "SelectQuery":
        # What is selected; the other lists of a SELECT look the same.
        return union_of(each for each in node.below if each.kind == "ExpressionList")
    return ANY


def _gives_null(node: Node) -> bool:
    """Whether a node returns NULL for other reasons than the names in it: a subquery without rows does."""
    is_source = node.kind == "Subquery" or node.function in ("nullif", "tonullable") or "ornull" in node.function
    return is_source or any(each.is_nullable for each in node.below)


def _of_literal(name: str) -> Kind:
    if name == "NULL":
        return Kind.NULL
    if _TEXTS.fullmatch(name):
        return Kind.TEXT
    if not _NUMBERS.fullmatch(name):
        return ANY
    return NUMBER if "Float64_" in name else Kind.INTEGER


def _of_function(node: Node) -> Kind:
    name, arguments = node.function, node.arguments
    if name in CASTS:
        return _of_type(node)
    if name in _COMPARISONS or _is_between(node):
        return Kind.INTEGER
    if name in ("if", "multiif"):
        # Conditions stand before the other arguments, but the last.
        return union_of((*arguments[1::2], *arguments[-1:]))
    if name in ("tupleelement", "arrayelement"):
        return union_of(arguments[:1])
    if name == "arraymap":
        return union_of(each for each in arguments if each.function == "lambda")
    if name == "lambda":
        return union_of(arguments[-1:])
    if name in _SHIFTS and not node.is_constant:
        return Kind.FAR_TIME
    if name in ("plus", "minus") and node.is_constant and union_of(arguments) & (TIMES | Kind.INTERVAL):
        return Kind.TIME if union_of(arguments) & TIMES else Kind.INTERVAL
    if node.aggregate:
        return _of_aggregate(node.aggregate, arguments)
    takes, gives = FUNCTIONS.get(name, (ANY, CONSTANTS.get(name, ANY)))
    if gives is not None:
        return gives
    # Arithmetic returns no text.
    return union_of(arguments) if takes == ANY else union_of(arguments) & NUMBER


def _of_aggregate(found: re.Match[str], arguments: list[Node]) -> Kind:
    if found["integer"]:
        return Kind.INTEGER
    kinds = union_of(arguments[:1] if found["first"] else arguments)
    return kinds | Kind.FLOAT if found["mean"] and kinds & Kind.INTEGER else kinds


def _is_between(node: Node) -> bool:
    """Whether a function is the difference of two times in whole seconds, which is an integer; that of others is a Decimal."""
    return node.function == "minus" and [each.function for each in node.arguments] == ["todatetime", "todatetime"]


def _of_type(cast: Node) -> Kind:
    """Return the kinds of the type that a cast names."""
    named = _TYPE.fullmatch(cast.arguments[-1].name) if cast.arguments else None
    return kind_of_type(named[1]) if named else ANY


def _is_total(node: Node) -> bool:
    """Whether a function can fail on no value of its arguments. Raises ``Unclear`` where one stands for several columns."""
    name, arguments = node.function, node.arguments
    if name != "count" and any(each.is_several for each in arguments):
        raise Unclear
    if name in _COMPARISONS:
        return is_total_comparison(arguments)
    if node.aggregate:
        return are_total_aggregate(name, arguments)
    if node.is_constant:
        return _is_plain_constant(node) and is_near(node)
    if name in CASTS:
        return _is_total_cast(node)
    if name in ("intdiv", "modulo") and len(arguments) == 2:
        return _POSITIVE.fullmatch(arguments[1].name) is not None and arguments[0].values in Kind.INTEGER
    if name in _ARITHMETIC and union_of(arguments) & (Kind.INTERVAL | TIMES):
        # A text is read as a time then, and a number is added to a time.
        return False
    if name not in FUNCTIONS or union_of(each for each in arguments if not each.is_constant) not in FUNCTIONS[name][0]:
        return False
    return are_total_arguments(name, arguments)


def _is_plain_constant(node: Node) -> bool:
    """Whether a function of constants returns no Decimal, with which a comparison scales the other side: arithmetic of times does."""
    name, times = node.function, [each for each in node.arguments if each.values & TIMES]
    if name in CASTS:
        return _of_type(node) != ANY
    if name in ("plus", "minus"):
        return len(times) < 2 or _is_between(node)
    if name in FUNCTIONS:
        return not times or bool(FUNCTIONS[name][0] & TIMES)
    return name in CONSTANTS and not (times and CONSTANTS[name] == Kind.INTEGER)


def _is_total_cast(node: Node) -> bool:
    """Whether a cast fails on no value: to another type than a Nullable it fails on NULL."""
    of, to = node.arguments[0].values, _of_type(node)
    if node.arguments[0].is_nullable and not node.arguments[-1].name.startswith("\\'Nullable("):
        return False
    to &= ~Kind.NULL
    if _COLLECTION.search(node.arguments[-1].name):
        # The arrays of a tuple become a map only if they have one length.
        return False
    named = _TYPE.fullmatch(node.arguments[-1].name)
    if named and named[1] in _TEXT_TYPES:
        return True
    if to in Kind.FLOAT:
        return of in NUMBER | Kind.TIME
    return (to in Kind.INTEGER and of in Kind.INTEGER) or (to in Kind.TIME and of in Kind.TIME)


def _with_null(nodes: Iterable[Node]) -> Kind:
    listed = list(nodes)
    return union_of(listed) | (Kind.NULL if any(each.is_nullable for each in listed) else NOTHING)
