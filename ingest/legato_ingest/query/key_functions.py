"""The functions that fail on no value of the kinds that they take, and the kind of their result.

ClickHouse evaluates on the values of a key only functions of which it knows that they are monotonic: arithmetic, rounding, conversions and
functions of times. For these the kinds matter. What another listed function is applied to are rows of the reader's tenant alone. It must
not fail on these either: that would show which granules are read. A function that is not listed may fail, or take memory by a number of a
row (``range``). This module knows no statement; ``key_use`` applies the lists, ``key_arguments`` what arguments must be beside that.
"""

from __future__ import annotations

import re
from enum import Flag, auto

__all__ = ["AGGREGATE", "ANY", "CASTS", "CONSTANTS", "FUNCTIONS", "NOTHING", "NUMBER", "TIMES", "Kind", "kind_of_type"]


class Kind(Flag):
    """What an expression may be, or an element of an array, a map or a tuple."""

    TIME = auto()
    """A time of a row, or one near it: no listed function of a time fails on it."""
    FAR_TIME = auto()
    """A time that was computed from numbers."""
    INTEGER = auto()
    FLOAT = auto()
    """May be infinite, which no conversion to an integer accepts."""
    TEXT = auto()
    INTERVAL = auto()
    NULL = auto()
    """NULL beside values of other kinds: a cast may fail on it."""


TIME, FAR_TIME, INTEGER, FLOAT, TEXT, INTERVAL, NULL = Kind
NUMBER, TIMES, NOTHING, ANY = INTEGER | FLOAT, TIME | FAR_TIME, Kind(0), ~Kind(0)


def _all(names: str, takes: Kind, gives: Kind | None) -> dict[str, tuple[Kind, Kind | None]]:
    return dict.fromkeys(names.split(), (takes, gives))


FUNCTIONS: dict[str, tuple[Kind, Kind | None]] = {
    # These return an argument, or an element or a collection of them. The first six have rules in `key_use` for their results.
    **_all(
        "if multiif tupleelement arrayelement arraymap lambda "
        "ifnull nullif coalesce assumenotnull tonullable tuple array map arrayslice arrayresize arrayconcat arrayfilter arraysort arraymax "
        "arraymin arrayjoin mapvalues mapkeys greatest least transform casewithexpression",
        ANY,
        None,
    ),
    **_all(
        "and or not isnull isnotnull in notin globalin globalnotin has empty notempty length indexof arrayfirstindex arraycount "
        "arrayexists row_number like notlike ilike match position startswith touint32orzero",
        ANY,
        INTEGER,
    ),
    **_all("tofloat64orzero", ANY, FLOAT),
    **_all(
        "tostring lower upper concat trimboth hex unhex decodeurlformcomponent replaceregexpone replaceone extract extractall splitbychar "
        "arraystringconcat substring",
        ANY,
        TEXT,
    ),
    # Where a number is expected, ClickHouse refuses a text before it looks at a value.
    **_all("plus minus negate abs multiply round floor ceil arraysum arraycumsum arraydifference", NUMBER | TEXT, None),
    **_all("divide sqrt log log2 exp pow lgamma", NUMBER | TEXT, FLOAT),
    **_all("toint64 touint64", INTEGER | TIME, INTEGER),
    **_all("tofloat64", NUMBER | TIME, FLOAT),
    **_all(
        "tostartofminute tostartoffiveminutes tostartoftenminutes tostartoffifteenminutes tostartofhour tostartofday "
        "tostartofweek tostartofmonth tomonday tostartofinterval datetrunc todate todatetime64 totimezone",
        TIME,
        TIME,
    ),
    **_all("todatetime", TIME | INTEGER, TIME),
    **_all("fromunixtimestamp64nano", INTEGER | TEXT, FAR_TIME),
    **_all("tounixtimestamp tohour toyear tomonth todayofweek toyyyymm toyyyymmdd", TIME, INTEGER),
    **_all("tounixtimestamp64milli tounixtimestamp64micro tounixtimestamp64nano datediff", TIMES, INTEGER),
    **_all("formatdatetime", TIME, TEXT),
}
"""By the name in lower case: the kinds that the arguments may have, and the kind of the result; None: the kinds of the arguments.

An argument that is a constant may have any kind: ClickHouse refuses a wrong one without rows, or ``key_arguments`` has a rule for it.
"""
CASTS = frozenset(("cast", "_cast"))
CONSTANTS: dict[str, Kind] = {
    **dict.fromkeys("now now64 today yesterday".split(), TIME),
    **dict.fromkeys("fromunixtimestamp fromunixtimestamp64milli fromunixtimestamp64micro".split(), TIME),
    **dict.fromkeys(
        "addnanoseconds addmicroseconds addmilliseconds addseconds addminutes addhours adddays addweeks addmonths addyears".split(), TIME
    ),
    **dict.fromkeys((f"tointerval{unit}" for unit in "millisecond second minute hour day week month quarter year".split()), INTERVAL),
    **dict.fromkeys("touint8 touint16 touint32 toint8 toint16 toint32 intdiv modulo range".split(), INTEGER),
    **dict.fromkeys("tofixedstring currentdatabase".split(), TEXT),
}
"""More functions, for constants alone, and the kind of their result, which is no Decimal: a comparison with one scales the other side."""
_OF_ROWS, _OF_ALL = "(?:If|Array|Distinct|OrNull|OrDefault)*", "(?:If|Array|Map|Distinct|OrNull|OrDefault|ForEach|State|Merge)*"
AGGREGATE = re.compile(
    rf"(?P<integer>(?:count|uniq|uniqExact|uniqCombined){_OF_ROWS})|(?P<first>(?:argMin|argMax){_OF_ROWS})|"
    rf"(?P<mean>(?:avg|median|stddevPop|varPop|quantiles?(?:Exact|TDigest|ExactWeighted|Interpolated\w*)?){_OF_ALL})|"
    rf"(?:sum|min|max|any|anyLast|argMin|argMax|groupArray|groupUniqArray|lagInFrame|uniq){_OF_ALL}",
    re.IGNORECASE,
)
"""Aggregate and window functions. The result has the kinds of the arguments, or of the ``first`` one, or is an ``integer``; a ``mean`` of
integers is a Float64.
"""
_TYPES = (
    (r"DateTime|DateTime64|Date", TIME),
    (r"U?Int(?:8|16|32|64)|Bool", INTEGER),
    (r"Float(?:32|64)", FLOAT),
    (r"String|FixedString|UUID", TEXT),
    (r"Nullable", NULL),
    # Those around others, and the arguments of types.
    (r"LowCardinality|Array|Map|Tuple|SimpleAggregateFunction|\d+|sum|max|min|any|anyLast", NOTHING),
)


def kind_of_type(name: str) -> Kind:
    """Return the kind of the values of a ClickHouse type, or of several, and of the elements of a collection; any, for an unknown type."""
    kinds = NOTHING
    for word in re.findall(r"\w+", re.sub(r"'[^']*'", "", name)):
        kinds |= next((kind for pattern, kind in _TYPES if re.fullmatch(pattern, word)), ANY)
    return kinds
