"""What the arguments of a listed function must be, beside their kinds, so that it fails on no row, not even on the reader's own.

A function that fails on an own row shows whether its granule was read, and that depends on the rows of other tenants in the granule. Some
functions fail on the combination of two arguments, or on a constant, but not without rows. This module runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import zip_longest

from legato_ingest.query.key_constants import SHIFT_MAX_S
from legato_ingest.query.key_functions import NUMBER, TIMES, Kind
from legato_ingest.query.key_names import Node, Unclear, queries_of, selected_by, union_of

__all__ = ["are_total_aggregate", "are_total_arguments", "has_one_length", "is_total_comparison"]

_DIGITS_MAX, _PATTERN_MAX, _SHAPE_MAX = 15, 1_000, 200
_INTEGER = re.compile(r"U?Int64_-?([0-9]{1,20})")
_OFFSET = re.compile(r"UInt64_[0-9]{1,9}")
# Of a pattern: what stands for one character, the characters that mean something else, a group, and what may be repeated.
_ATOM = re.compile(r"\\\\\\\\[dDwWsS.+*?()\[\]{}|^$/-]|\[\^?(?:0-9|a-z|A-Z|[^\W_]|[ _.,:;/()$%&=*+?|@])+\]|\[\^?`\]")
_SPECIAL, _GROUP = re.compile(r"[\\\[\]{}]"), re.compile(r"\([^()]*\)")
_REPEATED_NOTHING = re.compile(r"(?:^|[(|^$])[*+?]|[*+?][*+]|[*+?]\?[*+?]")
_SIZED = re.compile("array|map|foreach")
_SHAPED = frozenset(("Identifier", "Literal", "Function", "ExpressionList"))
# Their result has the length of the last argument; `length` is that of an `arrayResize`.
_HAVING_LENGTH = frozenset("arraymap arraycumsum arraydifference arrayresize length".split())


def is_total_comparison(arguments: Sequence[Node]) -> bool:
    """Whether a comparison scales no value: a time beside a number does, except where one of them is a literal, which is scaled instead.

    A constant text is converted to the type of the other side.
    """
    kinds = union_of(arguments)
    is_mixed = bool(kinds & TIMES) and bool(kinds & (NUMBER | Kind.INTERVAL))
    return not is_mixed or any(map(_is_scaled, arguments))


def are_total_arguments(function: str, arguments: Sequence[Node]) -> bool:
    """Whether a function of rows fails on no combination of its arguments, which have kinds that it takes. Raises ``Unclear``."""
    rule = _RULES.get(function)
    return rule is None or rule(arguments)


def are_total_aggregate(function: str, arguments: Sequence[Node]) -> bool:
    """Whether an aggregate gets no two arrays or maps that may differ in length, and no offset that is negative."""
    if function.startswith("laginframe"):
        return all(_OFFSET.fullmatch(each.name) for each in arguments[1:2]) and all(each.is_constant for each in arguments[2:])
    values = arguments[:-1] if "if" in function else arguments
    # A tuple counts as its elements.
    has_tuple = any(each.function == "tuple" or each.name.startswith("Tuple") for each in values)
    return not _SIZED.search(function) or (has_one_length(values) and not has_tuple)


def has_one_length(arrays: Sequence[Node]) -> bool:
    """Whether several arrays surely have the same number of elements: the keys and the values of one map."""
    return len(arrays) < 2 or len({_length(each) for each in arrays}) == 1


def _length(array: Node) -> object:
    """Return what two arrays of one length have in common. ``arrayResize(a, length(b))`` gives an array the length of another one."""
    while array.function in _HAVING_LENGTH and array.arguments:
        array = array.arguments[-1]
    if array.function in ("mapkeys", "mapvalues") and array.arguments:
        return _shape(array.arguments[0])
    return array.name if array.kind == "Identifier" else id(array)


def _shape(node: Node) -> tuple[tuple[str, str, int], ...]:
    """Return what is the same for two expressions only if they are the same. Raises ``Unclear`` where none is, and for a large one."""
    found, waiting = [], [node]
    while waiting:
        each = waiting.pop()
        if each.kind not in _SHAPED:
            # Others are printed the same though they are different.
            raise Unclear
        found.append((each.kind, each.name, len(each.below)))
        waiting += each.below
        if len(found) > _SHAPE_MAX:
            raise Unclear
    return tuple(found)


def _is_lambda_total(arguments: Sequence[Node]) -> bool:
    """Over a constant array a lambda may use no row: what it makes of an element is evaluated on rows alone, and may fail there."""
    if not arguments or arguments[0].function != "lambda":
        return True
    return has_one_length(arguments[1:]) and (arguments[0].is_constant or not any(each.is_constant for each in arguments[1:]))


def _are_constants(arguments: Sequence[Node]) -> bool:
    return sum(not each.is_constant for each in arguments) < 2


def _is_interval_total(arguments: Sequence[Node]) -> bool:
    """An origin may lie after the time; a text is a time zone."""
    zones = arguments[2:]
    return (
        len(arguments) > 1
        and arguments[1].is_constant
        and arguments[1].reach <= SHIFT_MAX_S
        and all(each.is_constant and each.values == Kind.TEXT for each in zones)
    )


def _is_rounding_total(arguments: Sequence[Node]) -> bool:
    return all((digits := _INTEGER.fullmatch(each.name)) and int(digits[1]) <= _DIGITS_MAX for each in arguments[1:])


def _has_pattern(arguments: Sequence[Node]) -> bool:
    """Whether the second argument is a regular expression that RE2 surely accepts; it fails on rows alone. The others are no patterns."""
    return len(arguments) > 1 and _is_pattern(arguments[1]) and all(each.kind == "Literal" for each in arguments[2:])


def _is_pattern(node: Node) -> bool:
    text = _text(node)
    if text is None:
        return False
    text = _ATOM.sub("a", text)
    if _SPECIAL.search(text) or _REPEATED_NOTHING.search(text):
        return False
    count = 1
    while count:
        text, count = _GROUP.subn("a", text)
    return "(" not in text and ")" not in text


def _has_like(arguments: Sequence[Node]) -> bool:
    """Whether the second argument is a pattern of LIKE without an escape at its end."""
    text = _text(arguments[1]) if len(arguments) > 1 else None
    return text is not None and "\\" not in re.sub(r"\\\\\\\\[%_]", "", text)


def _text(node: Node) -> str | None:
    """Return a literal text as it is printed; None for another node, and for a long one."""
    is_text = node.kind == "Literal" and node.name.startswith("\\'") and len(node.name) < _PATTERN_MAX
    return node.name[2:-2] if is_text else None


def _is_search_total(arguments: Sequence[Node]) -> bool:
    """Whether ``IN`` converts no value: each column of a subquery has the kinds of its column on the left side."""
    if len(arguments) != 2:
        return False
    left, right = arguments
    if right.kind != "Subquery":
        return right.kind != "Identifier" and is_total_comparison(arguments)
    columns = left.arguments if left.function == "tuple" else [left]
    queries = [each for union in right.below for each in queries_of(union)]
    pairs = [pair for each in queries for pair in zip_longest(columns, selected_by(each))]
    return bool(pairs) and all(None not in pair and _are_alike(pair) for pair in pairs)


def _are_alike(nodes: Sequence[Node]) -> bool:
    kinds = union_of(nodes)
    return any(kinds in one for one in (Kind.TEXT, Kind.INTEGER, Kind.FLOAT, TIMES))


def _is_case_total(arguments: Sequence[Node]) -> bool:
    return is_total_comparison([*arguments[:1], *arguments[1:-1:2]])


def _is_scaled(node: Node) -> bool:
    """Whether a node is a literal that has no overflow in nanoseconds, or a text."""
    if node.kind == "Literal" and (number := _INTEGER.fullmatch(node.name)):
        return int(number[1]) < 2**33
    return node.is_constant and node.values == Kind.TEXT


def _all(names: str, rule: Callable[[Sequence[Node]], bool]) -> dict[str, Callable[[Sequence[Node]], bool]]:
    return dict.fromkeys(names.split(), rule)


_RULES: dict[str, Callable[[Sequence[Node]], bool]] = {
    **_all(
        "arraymap arrayfilter arraysort arrayexists arraycount arrayfirstindex arraymax arraymin arraysum arraycumsum arraydifference",
        _is_lambda_total,
    ),
    **_all("match extract extractall replaceregexpone", _has_pattern),
    **_all("like notlike ilike", _has_like),
    **_all("in notin globalin globalnotin", _is_search_total),
    **_all("has indexof nullif", is_total_comparison),
    **_all("arrayresize", lambda arguments: len(arguments) == 2 and arguments[1].function == "length"),
    **_all("transform", lambda arguments: is_total_comparison(arguments[:2])),
    **_all("casewithexpression", _is_case_total),
    **_all("round floor ceil", _is_rounding_total),
    **_all("tostartofinterval", _is_interval_total),
    **_all(
        "tostring formatdatetime todatetime64 datetrunc totimezone splitbychar fromunixtimestamp64nano todatetime todate", _are_constants
    ),
    **_all("datediff", lambda arguments: all(each.kind == "Literal" for each in (*arguments[:1], *arguments[3:]))),
}
