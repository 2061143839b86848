"""The times and names that a statement of one tenant asks for, as conditions for the primary key.

ClickHouse decides by conditions on a table's primary key which granules to read. A granule may have rows of two tenants, so a condition
that fails on some value would show where the rows of other tenants are. So the views of these readers hide the key's columns
(``storage.tenant_views``): no expression of a reader decides what is read. This module finds in a statement's WHERE what is certain for
each row of a table, comparisons of one column with a constant, and reads the table through the view with the key, with these conditions
alone and in a form that fails on no value. The reader's own conditions stay where they are.

A condition that is not found costs time: all rows of the tenant are read. One that is found wrongly costs the reader rows, and shows
nothing of others. So only plain forms count: a table that stands in its FROM alone, and names that the statement gives to nothing. The
module runs nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from legato_ingest.query.sql_text import Token, tokens
from legato_ingest.query.sql_words import OPPOSITE, Word, close_of, closes_of, given_names, sides, spaced, terms, words_of
from legato_ingest.quoting import literal
from legato_ingest.storage.tenant_views import KEY_COLUMN, KEYED_VIEW

__all__ = ["KeyColumns", "Known", "with_key"]

# Of each view: the columns that may be of its primary key, with their types.
KeyColumns = Mapping[str, Mapping[str, str]]

_ENDS = frozenset(
    "WHERE PREWHERE GROUP HAVING WINDOW QUALIFY ORDER LIMIT OFFSET UNION INTERSECT EXCEPT SETTINGS FORMAT INTERPOLATE".split()
)
_KEYWORDS = _ENDS | frozenset("SELECT WITH FROM JOIN AS AND OR NOT IN BETWEEN ON USING ARRAY".split())
_TIMES = frozenset(
    "todate todatetime todatetime64 fromunixtimestamp fromunixtimestamp64milli fromunixtimestamp64micro fromunixtimestamp64nano now now64 "
    "today yesterday parsedatetimebesteffort parsedatetime64besteffort tostartofsecond tostartofminute tostartoffiveminutes tostartofhour "
    "tostartofday tostartofinterval cast".split()
)
_FUNCTIONS = _TIMES | frozenset(
    "if least greatest intdiv tointervalnanosecond tointervalmicrosecond tointervalmillisecond tointervalsecond tointervalminute "
    "tointervalhour tointervalday tointervalweek adddays addhours addminutes addseconds subtractdays subtracthours subtractminutes "
    "subtractseconds".split()
)
_SIGNS = frozenset("+ - * / % ( ) , . = < >".split())
_TIME = re.compile(r"DateTime(64)?(\(.*\))?")
# The time for a longer statement, and for a longer time in it, would not be bounded.
_WORDS_MAX, _TIME_WORDS_MAX, _ADDED_MAX = 20_000, 200, 262_144
_PLAIN_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)
# Functions that the written conditions call. A lambda with such a name would be applied to the key (see ``sql_guard`` as well).
_WRITTEN = frozenset(
    "cast _cast if ifnull accuratecastornull tointervalsecond todatetime fromunixtimestamp64milli fromunixtimestamp64nano plus minus "
    "greatest least and tuple equals in globalin greaterorequals lessorequals".split()
)
# The other spellings of IN, which may have a table as an argument.
_IN_FUNCTIONS = frozenset(
    f"{where}{negated}{nulls}in{ignoring}"
    for where in ("", "global")
    for negated in ("", "not")
    for nulls in ("", "null")
    for ignoring in ("", "ignoreset")
)
_CAST_TO = re.compile(r"'(Date|DateTime|DateTime64\(\d\))'")
_VIRTUAL = frozenset(("_table", "_database"))
_SECONDS = "'DateTime64(0, \\'UTC\\')'"
# The first and last times of the types of keys, which are no limit, and the times with a second left before and after them.
_FIRST_AND_LAST = {
    "DateTime": ("toDateTime(0)", "toDateTime(4294967295)"),
    "DateTime64(3)": ("fromUnixTimestamp64Milli(-9223372036854775808)", "fromUnixTimestamp64Milli(9223372036854775807)"),
    "DateTime64(9)": ("fromUnixTimestamp64Nano(-9223372036854775808)", "fromUnixTimestamp64Nano(9223372036854775807)"),
}
_WITHIN = {
    "DateTime": ("1970-01-01 00:00:01", "2106-02-07 06:28:14"),
    "DateTime64(3)": ("1900-01-01 00:00:01", "2299-12-31 23:59:58"),
    "DateTime64(9)": ("1900-01-01 00:00:01", "2262-04-11 23:47:15"),
}
_TIME_PARAMETER = re.compile(r"\{\w+:DateTime(64\(.*\))?\}")


def with_key(sql: str, columns: KeyColumns, known: Known, subqueries: Collection[str]) -> str:
    """Return the checked text of a statement, with the conditions for the primary key of each of its tables.

    ``known``: the names of all tables and columns. ``subqueries``: the names that WITH gives to subqueries. The text with the conditions
    can fail where the other one does not, for example if a subquery in WITH reads a column of the table: then the other one is run.
    """
    found = tokens(sql)
    texts, added = [text for _, text in found], 0
    for table in _Statement(found, columns, known, subqueries).tables():
        if table.conditions:
            texts[table.place] = _source(table)
            added += len(texts[table.place])
            if added > _ADDED_MAX:
                return sql
    return "".join(texts)


class Known(NamedTuple):
    """The names of all tables and views that a reader has, and of their columns."""

    tables: Collection[str] = ()
    columns: Collection[str] = ()


@dataclass
class _Table:
    """The table of a FROM. ``place``: its token. ``name``: how the statement calls it. ``alias_at``: the word AS, or 0."""

    view: str
    name: str
    place: int
    alias_at: int
    conditions: list[str] = field(default_factory=list)


def _source(table: _Table) -> str:
    conditions = " AND ".join(dict.fromkeys(table.conditions))
    alias = "" if table.alias_at else f" AS `{table.name}`"
    return f"(SELECT * EXCEPT '^{KEY_COLUMN}' FROM `{table.view}{KEYED_VIEW}` WHERE {conditions}){alias}"


class _Comparison(NamedTuple):
    """A comparison in WHERE. ``side``: the words of a column. ``other``: the text of what it is compared with.

    ``kind``: "text", which may be read as a time; "texts", a list of them or a String parameter; or "time", an expression.
    """

    side: Sequence[Word]
    sign: str
    other: str
    kind: str


class _Statement:
    def __init__(self, found: Sequence[Token], columns: KeyColumns, known: Known, subqueries: Collection[str]) -> None:
        self._columns, self._known, self._subqueries = columns, known, subqueries
        self._key_names = frozenset(name for of_table in columns.values() for name in of_table)
        self._words = words = list(words_of(found))
        self._closes = closes_of(words)
        # By place, the names that the statement gives to something.
        self._names = dict(given_names(words))
        self._times_given = Counter(self._names.values())
        # Those that it does not give to a table alone. Such a name is no column of a key, wherever it stands: what it means there would
        # have to be decided as ClickHouse does.
        self._given = frozenset[str]()
        self._qualifiers = {word.name for word, after in pairwise(words) if after.text == "."}
        # The names that may be tables on the right side of IN.
        self._in_names = frozenset[str]()
        self._scalars = frozenset[str]()

    def tables(self) -> Iterator[_Table]:
        """Yield the tables with what is certain for their rows."""
        if len(self._words) > _WORDS_MAX or (self._words and self._words[0].text == "EXPLAIN") or self._is_strange():
            return
        froms = [(flat, end, self._table(flat)) for flat, end in self._froms()]
        of_tables = {table.alias_at for _, _, table in froms if table is not None}
        given = (name for at, name in self._names.items() if at not in of_tables or name in self._key_names)
        self._given = frozenset((*given, *self._subqueries))
        sources = {number for flat, _, _ in froms for number in self._sources(flat)}
        self._in_names = frozenset(self._names_in(sources))
        if not any(self._is_foreign(number) for number in sources):
            self._scalars = frozenset(name for name in self._named_scalars() if self._is_unmistakable(name))
        for flat, end, table in froms:
            if table is not None and not self._is_ambiguous(table):
                yield from self._with_conditions(table, flat, end)

    def _is_strange(self) -> bool:
        """Whether the statement gives the name of a keyword, or of what is written, or reads what ClickHouse names itself.

        That are columns which it adds to a table, and scalar subqueries without a name: it numbers them, and counts what is written. A
        pattern may match such names.
        """
        given, names = self._times_given.keys(), {word.name for word in self._words}
        is_written = {name.lower() for name in given} & _WRITTEN
        before = [("", ""), *((first.text, second.text) for first, second in pairwise(self._words))]
        has_pattern = any(
            each.kind == "string" and (texts[1] in ("EXCEPT", "STRICT") or texts == ("COLUMNS", "("))
            for each, texts in zip(self._words[1:], before, strict=False)
        )
        return bool(is_written or given & _KEYWORDS or _VIRTUAL & names or has_pattern or any("_subquery" in name for name in names))

    def _names_in(self, sources: Collection[int]) -> Iterator[str]:
        """Yield the names that may be tables on the right side of IN. Those within its subqueries stand in their FROM."""
        words = self._words
        for at, word in enumerate(words):
            if word[:2] != ("word", "IN") and word.name.lower() not in _IN_FUNCTIONS:
                continue
            number, end = at + 1, self._closes.get(at + 1, at + 1)
            while number <= end and number < len(words):
                is_subquery = number in self._closes and words[number + 1].text in ("SELECT", "WITH")
                if words[number].name and number not in sources:
                    yield words[number].name
                number = (self._closes.get(number, number) if is_subquery else number) + 1

    def _is_unmistakable(self, name: str) -> bool:
        """Whether a name that WITH gives to a subquery can mean nothing else, wherever it stands."""
        is_given_once = self._times_given[name] == 1 and name not in self._subqueries
        return is_given_once and _PLAIN_NAME.fullmatch(name) is not None and name not in self._known.columns

    def _is_foreign(self, at: int) -> bool:
        """Whether a source is a table function, or a table that is not of Legato: the names of its columns are not known."""
        word = self._words[at]
        return bool(word.name) and word.name not in self._known.tables and word.name not in self._subqueries

    def _froms(self) -> Iterator[tuple[list[int], int]]:
        """Yield for each FROM the places of the words in it that are not in parentheses, and where it ends.

        The operator IS DISTINCT FROM is no FROM.
        """
        selects, words = list[int](), self._words
        for at, word in enumerate(words):
            while selects and selects[-1] > word.depth:
                selects.pop()
            if word[:2] == ("word", "SELECT"):
                selects.append(word.depth)
            elif [each.text for each in words[max(at - 2, 0) : at]] == ["IS", "DISTINCT"]:
                continue
            elif word[:2] == ("word", "FROM") and selects and selects[-1] == word.depth:
                selects.pop()
                yield self._clause(at)

    def _with_conditions(self, table: _Table, flat: Sequence[int], end: int) -> Iterator[_Table]:
        words = self._words
        if end == len(words) or words[end][:2] != ("word", "WHERE"):
            return
        compared = list(self._comparisons(words[end + 1 : self._clause(end + 1)[1]]))
        table.conditions = [each for comparison in compared for each in self._conditions(table, comparison)]
        yield table

    def _is_ambiguous(self, table: _Table) -> bool:
        """Whether what the table is called may be something else, as on the right side of IN, or the table may have a second name."""
        return table.name in self._in_names or (table.alias_at > 0 and table.view in self._qualifiers - {table.name})

    def _clause(self, at: int) -> tuple[list[int], int]:
        """Return the places of the words of a clause that begins at ``at``, without those in parentheses, and where the clause ends."""
        flat = list[int]()
        depth = self._words[at].depth if at < len(self._words) else 0
        number = at
        while number < len(self._words):
            word = self._words[number]
            if word.depth < depth or (number > at and word.kind == "word" and word.text in _ENDS):
                break
            flat.append(number)
            number = self._closes.get(number, number) + 1
        return flat, number

    def _named_scalars(self) -> Iterator[str]:
        """Yield the names that the WITH at the statement's beginning gives to subqueries with one row, as in WITH (SELECT …) AS name."""
        words = self._words
        if not words or words[0][:2] != ("word", "WITH"):
            return
        flat, at = list[int](), 0
        while at < len(words) and words[at][:2] != ("word", "SELECT"):
            flat.append(at)
            at = self._closes.get(at, at) + 1
        for before, opened in zip(flat, flat[1:], strict=False):
            close = self._closes.get(opened, 0)
            is_item = words[before].text in ("WITH", ",") and words[opened].text == "(" and words[opened + 1][:2] == ("word", "SELECT")
            inner = words[opened + 1 : close]
            depends = self._may_depend(inner)
            if is_item and close + 2 < len(words) and words[close + 1].text == "AS" and words[close + 2].kind == "word" and not depends:
                yield words[close + 2].name

    def _may_depend(self, subquery: Sequence[Word]) -> bool:
        """Whether a subquery in WITH may depend on the row: it names a column, which it has no table for, or which an alias hides.

        Where the table is read by its key, the alias is not known, and the name is a column of the table.
        """
        named = {word.name for word in subquery if word.name in self._known.columns}
        return bool(named) and (not any(word[:2] == ("word", "FROM") for word in subquery) or not named.isdisjoint(self._times_given))

    def _sources(self, flat: Sequence[int]) -> Iterator[int]:
        """Yield the places of what stands between FROM, commas and JOIN. ``flat``: the places of the words of a FROM."""
        words, is_array = self._words, False
        for number in flat:
            text = words[number].text
            if text == "JOIN":
                is_array = words[number - 1].text == "ARRAY"
            if text in ("FROM", "JOIN", ",") and not is_array and number + 1 < len(words):
                yield number + 1

    def _table(self, flat: Sequence[int]) -> _Table | None:
        """Return the table of a FROM that has one table and nothing else; ``None`` for others.

        Another source may have columns with names such as `s.start_time`, and rows of it may be added to those of the table.
        """
        if len(flat) not in (2, 4):
            return None
        word, after = self._words[flat[1]], [self._words[number] for number in flat[2:]]
        if not word.name or word.name in self._subqueries or word.name not in self._columns or (after and after[0].text != "AS"):
            return None
        return _Table(word.name, after[1].name if after else word.name, word.place, flat[2] if after else 0)

    def _comparisons(self, where: Sequence[Word]) -> Iterator[_Comparison]:
        """Yield the comparisons in a WHERE of a column of a key with a constant."""
        for term in terms(where):
            for side, sign, other in sides(term):
                is_plain = len(side) in (1, 3) and side[-1].name in self._key_names
                # The name of the table, and of the column, and of a column that has both names with a dot, which ClickHouse prefers.
                is_column = is_plain and self._given.isdisjoint((side[0].name, side[-1].name, ".".join(word.name for word in side[::2])))
                kind = self._kind(other) if is_column else ""
                if kind:
                    yield _Comparison(side, sign, "".join(spaced(other)), kind)

    def _kind(self, words: Sequence[Word]) -> str:
        if len(words) == 1 and words[0].kind == "string":
            return "text"
        if _are_strings(words):
            return "texts"
        return "time" if len(words) <= _TIME_WORDS_MAX and self._is_time(words) else ""

    def _conditions(self, table: _Table, comparison: _Comparison) -> Iterator[str]:
        """Yield the condition for the key that a comparison contains."""
        side, sign, other, kind = comparison
        type_name = self._columns[table.view].get(side[-1].name)
        if type_name is None or (len(side) == 3 and (side[0].name, side[1].text) != (table.name, ".")):
            return
        if sign in OPPOSITE and _TIME.fullmatch(type_name) and kind != "texts":
            yield from _of_time(side[-1].name, type_name, sign, other)
        elif type_name == "String" and sign in ("=", "IN") and kind in ("text", "texts"):
            yield f"(`{KEY_COLUMN}{side[-1].name}` {sign} {other})"

    def _is_time(self, words: Sequence[Word]) -> bool:
        """Whether an expression is a time, of constants and of names that WITH gives to subqueries with one row."""
        if len(words) == 1 and words[0].kind == "parameter":
            return _TIME_PARAMETER.fullmatch(words[0].text) is not None
        is_time = False
        for at, word in enumerate(words):
            if word.name:
                name, is_called = word.name.lower(), words[at + 1 : at + 2] != [] and words[at + 1].text == "("
                is_scalar, is_call = not is_called and word.name in self._scalars, is_called and name in _FUNCTIONS
                if is_call and name == "cast" and not _CAST_TO.fullmatch(words[at + close_of(words[at + 1 :])].text):
                    return False
                is_time |= is_scalar or (is_call and name in _TIMES)
                if not is_scalar and not is_call and word[:2] not in (("word", "AND"), ("word", "OR"), ("word", "NOT")):
                    return False
            elif word.kind == "sign" and word.text not in _SIGNS:
                return False
        return is_time


def _are_strings(words: Sequence[Word]) -> bool:
    """Whether an expression is a String parameter, or a list of texts in parentheses."""
    if len(words) == 1:
        return words[0].kind == "parameter" and words[0].text.endswith(":String}")
    inner = words[1:-1]
    is_list = len(words) > 2 and words[0].text == "(" and words[-1].text == ")"
    return is_list and all(word.kind == "string" if at % 2 == 0 else word.text == "," for at, word in enumerate(inner))


def _of_time(column: str, type_name: str, sign: str, expression: str) -> Iterator[str]:
    """Yield the conditions for a time, up to a second wider than the reader's.

    In whole seconds each constant can be converted, or is no time. That is no limit, like a time that the column or ClickHouse cannot have.
    """
    kind = re.sub(r",.*\)", ")", type_name) if type_name.startswith("DateTime64") else "DateTime"
    if kind not in _WITHIN:
        return
    lowest, highest = (f"CAST('{limit}', {_SECONDS})" for limit in _WITHIN[kind])
    first, last = _FIRST_AND_LAST[kind]
    time, own_type = f"accurateCastOrNull({expression}, {_SECONDS})", literal(type_name)
    # Both branches are evaluated, so the time is within the limits where it is not used as well.
    clamped = f"greatest(least(ifNull({time}, {lowest}), {highest}), {lowest})"
    if sign in (">", ">=", "="):
        bound = f"if(ifNull({time} >= {lowest}, 0), CAST({clamped} - toIntervalSecond(1), {own_type}), CAST({first}, {own_type}))"
        yield f"(`{KEY_COLUMN}{column}` >= {bound})"
    if sign in ("<", "<=", "="):
        bound = f"if(ifNull({time} <= {highest}, 0), CAST({clamped} + toIntervalSecond(1), {own_type}), CAST({last}, {own_type}))"
        yield f"(`{KEY_COLUMN}{column}` <= {bound})"
