"""How large a constant of a statement can be.

ClickHouse evaluates a comparison of a key with a constant for each part, also if the reader has no row in it. So a constant that cannot be
converted to nanoseconds would show that another tenant has rows: only times that are surely near keep the key. This module reads nodes of a
syntax tree and evaluates no function.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from legato_ingest.query.key_functions import CASTS, TIMES
from legato_ingest.query.key_names import Node

__all__ = ["SHIFT_MAX_S", "is_near", "reach_of"]

SHIFT_MAX_S = 60 * 366 * 86_400
"""How far intervals may move a time of the years 1900 to 2199, so that it stays between 1677 and 2262, as nanoseconds do."""
# Numbers that are times in seconds, from 1833 to 2106.
_TIME_MAX_S = 2**32
_LENGTHS_S = {
    "nanosecond": 1e-9, "microsecond": 1e-6, "millisecond": 1e-3, "second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800,
    "month": 31 * 86_400, "quarter": 92 * 86_400, "year": 366 * 86_400,
}  # fmt: skip
_INTERVALS = {f"tointerval{unit}": length_s for unit, length_s in _LENGTHS_S.items()}
_ADDING = {f"add{unit}s": length_s for unit, length_s in _LENGTHS_S.items()}
_PER_S = {"fromunixtimestamp64milli": 1_000, "fromunixtimestamp64micro": 1_000_000}
# These return no time outside the range of nanoseconds, whatever their arguments are.
_NEAR = frozenset("now now64 today yesterday todatetime todate fromunixtimestamp fromunixtimestamp64nano".split())
_SUMS = frozenset("plus minus tostartofinterval".split())
# These return one of their arguments, or an earlier time that is near it.
_LARGEST = frozenset(
    "intdiv greatest least if multiif coalesce ifnull nullif assumenotnull tonullable tuple array totimezone datetrunc tomonday "
    "tostartofminute tostartoffiveminutes tostartoftenminutes tostartoffifteenminutes tostartofhour tostartofday "
    "tostartofweek tostartofmonth".split()
)
_DATE = re.compile(r"\\'(?:19|20|21)\d\d-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?Z?)?\\'")
_NUMBER = re.compile(r"(?:U?Int64_|Bool_|Float64_|Decimal\d+_\\'|\\')(-?\d{1,20}(?:\.\d*)?)(?:\\')?")
_OF_NANOSECONDS = re.compile(r"\\'(?:Nullable\()?(?:Date|DateTime(?:\(.*)?|DateTime64\(9\b.*)\)?\\'")


def reach_of(node: Node, names: Mapping[str, float]) -> float:
    """Return a bound of the absolute value of a constant; infinite where none is known.

    Of an interval it is in seconds; of a time it is how many seconds it may lie outside the years 1900 to 2199. Those of the nodes below
    are set; ``names``: those of aliases.
    """
    if node.kind == "Identifier":
        return names.get(node.name, math.inf)
    if node.kind == "Literal":
        return _of_literal(node.name)
    if node.kind == "ExpressionList":
        return max((each.reach for each in node.below), default=0)
    reach = _of_function(node) if node.kind == "Function" and node.is_constant else math.inf
    # Zero times infinity.
    return math.inf if math.isnan(reach) else reach


def is_near(node: Node) -> bool:
    """Whether a constant is no time, or one that converts to nanoseconds."""
    return not node.values & TIMES or node.reach <= SHIFT_MAX_S


def _of_literal(name: str) -> float:
    if name == "NULL" or _DATE.fullmatch(name):
        return 0
    number = _NUMBER.fullmatch(name)
    return abs(float(number[1])) if number else math.inf


def _of_function(node: Node) -> float:
    name, reaches = node.function, [each.reach for each in node.arguments]
    if name in _NEAR:
        return 0
    if not reaches:
        return math.inf
    if name in _INTERVALS:
        return _INTERVALS[name] * reaches[0]
    if name in _ADDING:
        return reaches[0] + _ADDING[name] * max(reaches[1:], default=math.inf)
    if name in _PER_S:
        return _of_seconds(reaches[0] / _PER_S[name])
    if name in CASTS or name == "todatetime64":
        return _of_conversion(node)
    if name in _SUMS:
        return sum(reaches)
    if name == "multiply":
        return math.prod(reaches)
    return max(reaches) if name in _LARGEST else math.inf


def _of_seconds(number: float) -> float:
    return 0 if number <= _TIME_MAX_S else math.inf


def _of_conversion(node: Node) -> float:
    """A DateTime64 with fewer digits than nine is read from a number without an error, and may be any year."""
    value, to = node.arguments[0], node.arguments[-1].name
    if not node.values & TIMES or value.values & TIMES:
        return value.reach
    is_exact = _OF_NANOSECONDS.fullmatch(to) or to == "UInt64_9"
    return 0 if is_exact else _of_seconds(value.reach)
