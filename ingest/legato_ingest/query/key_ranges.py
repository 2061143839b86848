"""The times and names that a statement of one tenant asks for, as conditions for the primary key.

ClickHouse decides by conditions on a table's primary key which granules to read. A granule may have rows of two tenants, so a condition
that fails on some value would show where the rows of other tenants are. So the views of these readers hide the key's columns
(``storage.tenant_views``): no expression of a reader decides what is read. This module finds in a statement's WHERE what is certain for
each row of a table, comparisons of one column with a constant, and reads the table through the view with the key, with these conditions
alone and in a form that fails on no value. The reader's own conditions stay where they are.

A condition that is not found costs time: all rows of the tenant are read. One that is found wrongly costs the reader rows, and shows
nothing of others. So only plain forms count, and names that might mean something else do not. The module runs nothing.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from legato_ingest.query.sql_text import Token, tokens
from legato_ingest.quoting import literal
from legato_ingest.storage.tenant_views import KEY_COLUMN, KEYED_VIEW

__all__ = ["KeyColumns", "with_key"]

# Of each view: the columns that may be of its primary key, with their types.
KeyColumns = Mapping[str, Mapping[str, str]]

_NAMES = ("word", "quoted")
_ENDS = frozenset(
    "WHERE PREWHERE GROUP HAVING WINDOW QUALIFY ORDER LIMIT OFFSET UNION INTERSECT EXCEPT SETTINGS FORMAT INTERPOLATE".split()
)
_KEYWORDS = _ENDS | frozenset("SELECT WITH FROM JOIN AS AND OR NOT IN BETWEEN ON USING ARRAY".split())
_COMPARING = frozenset("= < > ! IN".split())
# Whether a row of the table is left out depends on rows of the others for these.
_INEXACT = frozenset("RIGHT FULL ANY ASOF SEMI ANTI PASTE".split())
_OPPOSITE = {">": "<", ">=": "<=", "<": ">", "<=": ">=", "=": "="}
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
# The time for a longer statement, and for deeper parentheses, would not be bounded.
_WORDS_MAX, _NESTED_MAX, _COMPARED_MAX, _ADDED_MAX = 20_000, 20, 20_000, 262_144
# Functions that the written conditions call. A lambda with such a name would be applied to the key (see ``sql_guard`` as well).
_WRITTEN = frozenset(
    "cast _cast greatest least ifnull accuratecastornull tointervalsecond plus minus and tuple equals in globalin greaterorequals "
    "lessorequals".split()
)
_CAST_TO = re.compile(r"'(Date|DateTime|DateTime64\(\d\))'")
_VIRTUAL = frozenset(("_table", "_database"))
_SECONDS = "'DateTime64(0, \\'UTC\\')'"
# The first and last times of DateTime, and those of DateTime64(9) that ClickHouse reads; a second less on both sides.
_LIMITS = (("1970-01-01 00:00:01", "2106-02-07 06:28:14"), ("1900-01-01 00:00:01", "2262-04-11 23:47:15"))
_TIME_PARAMETER = re.compile(r"\{\w+:DateTime(64\(.*\))?\}")


def with_key(sql: str, columns: KeyColumns, every_column: Collection[str], subqueries: Collection[str]) -> str:
    """Return the checked text of a statement, with the conditions for the primary key of each of its tables.

    ``every_column``: the names of all columns. ``subqueries``: the names that WITH gives to subqueries.
    """
    found = tokens(sql)
    texts, added = [text for _, text in found], 0
    for table in _Statement(found, columns, every_column, subqueries).tables():
        if table.conditions:
            texts[table.place] = _source(table)
            added += len(texts[table.place])
            if added > _ADDED_MAX:
                return sql
    return "".join(texts)


@dataclass
class _Table:
    """A table in a FROM. ``place``: its token. ``name``: how the statement calls it. ``alias_at``: the word AS, or 0."""

    view: str
    name: str
    place: int
    alias_at: int
    conditions: list[str] = field(default_factory=list)


def _source(table: _Table) -> str:
    conditions = " AND ".join(dict.fromkeys(table.conditions))
    alias = "" if table.alias_at else f" AS `{table.name}`"
    return f"(SELECT * EXCEPT '^{KEY_COLUMN}' FROM `{table.view}{KEYED_VIEW}` WHERE {conditions}){alias}"


class _Word(NamedTuple):
    """A token that is no space, its place among all tokens, and how many parentheses and brackets are open around it."""

    kind: str
    text: str
    place: int
    depth: int

    @property
    def name(self) -> str:
        """The name that a word or a quoted word is; empty for others."""
        return self.text.strip("`") if self.kind in _NAMES else ""


class _Statement:
    def __init__(self, found: Sequence[Token], columns: KeyColumns, every_column: Collection[str], subqueries: Collection[str]) -> None:
        self._columns, self._subqueries = columns, subqueries
        self._words = list(_words(found))
        self._closes, self._groups = _parentheses(self._words)
        self._aliases = Counter(word.name for before, word in zip(self._words, self._words[1:], strict=False) if before.text == "AS")
        self._qualifiers = {word.name for word, after in zip(self._words, self._words[1:], strict=False) if after.text == "."}
        self._new_names: dict[str, list[int]] = {}
        self._scalars = {name for name in self._named_scalars(every_column) if self._aliases[name] == 1 and name not in every_column}
        # How often a table and a condition may still be compared.
        self._left = _COMPARED_MAX

    def tables(self) -> Iterator[_Table]:
        """Yield the tables with what is certain for their rows."""
        names = self._aliases.keys()
        is_strange = names & _KEYWORDS or {name.lower() for name in names} & _WRITTEN or _VIRTUAL & {word.name for word in self._words}
        if len(self._words) > _WORDS_MAX or is_strange or (self._words and self._words[0].text == "EXPLAIN"):
            return
        sources = [(at, flat, end, list(self._sources(flat))) for at, flat, end in self._froms()]
        of_tables = {table.alias_at for _, _, _, found in sources for table in found if table is not None}
        for at, name in _new_names(self._words):
            if at not in of_tables:
                self._new_names.setdefault(name, []).append(at)
        for at, flat, end, found in sources:
            yield from self._with_conditions(at, flat, end, found)

    def _froms(self) -> Iterator[tuple[int, list[int], int]]:
        """Yield the place of each FROM, those of the words in it that are not in parentheses, and where it ends."""
        selects = list[int]()
        for at, word in enumerate(self._words):
            while selects and selects[-1] > word.depth:
                selects.pop()
            if word[:2] == ("word", "SELECT"):
                selects.append(word.depth)
            elif word[:2] == ("word", "FROM") and selects and selects[-1] == word.depth:
                selects.pop()
                yield at, *self._clause(at)

    def _with_conditions(self, at: int, flat: Sequence[int], end: int, found: Sequence[_Table | None]) -> Iterator[_Table]:
        words = self._words
        if end == len(words) or words[end][:2] != ("word", "WHERE") or _INEXACT & {words[number].text for number in flat}:
            return
        terms = list(_terms(words[end + 1 : self._clause(end + 1)[1]]))
        is_joined = any(words[number].text == "JOIN" and words[number - 1].text != "ARRAY" for number in flat)
        # Rows of the others may be added to a row of the first table without being of it.
        is_left = any(words[number].text == "LEFT" and words[number + 1].text != "ARRAY" for number in flat)
        named = Counter(table.name for table in found if table is not None)
        for table in found[:1] if is_left else found:
            # With an alias, the table may have its own name as well.
            if table is None or named[table.name] > 1 or (table.alias_at and table.view in self._qualifiers - {table.name}):
                continue
            self._left -= len(terms)
            if self._left < 0:
                return
            is_single = len(found) == 1 and not is_joined
            table.conditions = [each for term in terms for each in self._conditions(table, term, at, is_single=is_single)]
            yield table

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

    def _is_new(self, name: str, at: int) -> bool:
        """Whether an alias in the same parentheses, or below them, may give a name another meaning."""
        places, (begin, end) = self._new_names.get(name, []), self._groups[at]
        return bisect(places, end) > bisect(places, begin)

    def _named_scalars(self, every_column: Collection[str]) -> Iterator[str]:
        """Yield the names that the WITH at the statement's beginning gives to subqueries with one row, as in WITH (SELECT …) AS name.

        One without a FROM that names a column depends on the row.
        """
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
            depends = not any(word[:2] == ("word", "FROM") for word in inner) and any(word.name in every_column for word in inner)
            if is_item and close + 2 < len(words) and words[close + 1].text == "AS" and not depends:
                yield words[close + 2].name

    def _sources(self, flat: Sequence[int]) -> Iterator[_Table | None]:
        """Yield what stands between FROM, commas and JOIN; None for what is no table of Legato."""
        words, is_array = self._words, False
        for number in flat:
            text = words[number].text
            if text == "JOIN":
                is_array = words[number - 1].text == "ARRAY"
            if text in ("FROM", "JOIN", ",") and not is_array and number + 1 < len(words):
                yield self._table(number + 1)

    def _table(self, at: int) -> _Table | None:
        word, after = self._words[at], self._words[at + 1 : at + 3]
        is_plain = not after or after[0].text not in ("(", ".")
        if not word.name or not is_plain or word.name in self._subqueries or word.name not in self._columns:
            return None
        has_alias = len(after) == 2 and after[0].text == "AS"
        return _Table(word.name, after[1].name if has_alias else word.name, word.place, at + 1 if has_alias else 0)

    def _conditions(self, table: _Table, term: Sequence[_Word], at: int, *, is_single: bool) -> Iterator[str]:
        """Yield the condition for the key that a term of WHERE contains."""
        for side, sign, other in _sides(term):
            column = self._column(table, side, is_single=is_single)
            # The name of the column, or of its table.
            if column and self._is_new(side[0].name, at):
                continue
            if column and sign in _OPPOSITE and _TIME.fullmatch(self._columns[table.view][column]):
                if self._is_time(other):
                    yield from _of_time(column, self._columns[table.view][column], sign, "".join(_spaced(other)))
            elif column and self._columns[table.view][column] == "String" and sign in ("=", "IN") and _are_strings(other):
                yield f"(`{KEY_COLUMN}{column}` {sign} {''.join(_spaced(other))})"

    def _column(self, table: _Table, side: Sequence[_Word], *, is_single: bool) -> str:
        """Return the name of the key's column that one side of a comparison is; empty if it is none."""
        name = side[-1].name if side else ""
        is_own = len(side) == 3 and side[0].name == table.name and side[1].text == "."
        is_alone = len(side) == 1 and is_single
        return name if (is_own or is_alone) and name in self._columns[table.view] else ""

    def _is_time(self, words: Sequence[_Word]) -> bool:
        """Whether an expression is made of constants and is a time, or a text that is read as one."""
        if len(words) == 1 and words[0].kind in ("string", "parameter"):
            return words[0].kind == "string" or _TIME_PARAMETER.fullmatch(words[0].text) is not None
        is_time = False
        for at, word in enumerate(words):
            if word.name:
                name, is_scalar = word.name.lower(), word.name in self._scalars
                is_call = words[at + 1 : at + 2] != [] and words[at + 1].text == "(" and name in _FUNCTIONS
                if is_call and name == "cast" and not _CAST_TO.fullmatch(words[at + _close(words[at + 1 :])].text):
                    return False
                is_time |= is_scalar or (is_call and name in _TIMES)
                if not is_scalar and not is_call and word[:2] not in (("word", "AND"), ("word", "OR"), ("word", "NOT")):
                    return False
            elif word.kind == "sign" and word.text not in _SIGNS:
                return False
        return is_time


def _words(found: Sequence[Token]) -> Iterator[_Word]:
    depth = 0
    for place, (kind, text) in enumerate(found):
        if kind != "space":
            depth -= text in (")", "]")
            yield _Word(kind, text, place, depth)
            depth += text in ("(", "[")


def _parentheses(words: Sequence[_Word]) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Return where each parenthesis or bracket closes, and for each word where the statement of a UNION around it begins and ends."""
    closes: dict[int, int] = {}
    groups, around, opened = [(0, len(words))], list[int](), [(0, 0)]
    for at, word in enumerate(words):
        if word.text in (")", "]") and len(opened) > 1:
            begin, group = opened.pop()
            closes[begin], groups[group] = at, (groups[group][0], at)
        around.append(opened[-1][1])
        if word.text in ("(", "["):
            opened.append((at, len(groups)))
            groups.append((at, len(words)))
        elif word[:2] == ("word", "UNION"):
            begin, group = opened[-1]
            groups[group] = groups[group][0], at
            opened[-1] = begin, len(groups)
            groups.append((at, len(words)))
    return closes, [groups[group] for group in around]


def _new_names(words: Sequence[_Word]) -> Iterator[tuple[int, str]]:
    """Yield the places and names of the aliases, but of columns that keep their name, and of the arguments of lambdas."""
    for at, word in enumerate(words):
        if word.text == "AS" and at + 1 < len(words):
            if words[at - 1].name != words[at + 1].name or words[at - 2].text == ".":
                yield at, words[at + 1].name
        elif word.text == "->":
            yield at, words[at - 1].name


def _terms(words: Sequence[_Word], deeper: int = _NESTED_MAX) -> Iterator[Sequence[_Word]]:
    """Yield the conditions that AND joins, also in parentheses."""
    words = _bare(words)
    if not words or not deeper:
        return
    depth = words[0].depth
    flat = [word.text for word in words if word.depth == depth and word.kind == "word"]
    if "OR" in flat or "NOT" in flat or "BETWEEN" in flat:
        return
    ands = [at for at, word in enumerate(words) if word.depth == depth and word[:2] == ("word", "AND")]
    if not ands:
        yield words
        return
    for begin, end in zip((-1, *ands), (*ands, len(words)), strict=True):
        yield from _terms(words[begin + 1 : end], deeper - 1)


def _close(words: Sequence[_Word]) -> int:
    return next((at for at, word in enumerate(words) if at and word.depth == words[0].depth), -1)


def _sides(term: Sequence[_Word]) -> Iterator[tuple[Sequence[_Word], str, Sequence[_Word]]]:
    """Yield both directions of a comparison: one side, the sign, the other side."""
    depth = term[0].depth
    signs = [at for at, word in enumerate(term) if word.depth == depth and word.text in _COMPARING]
    if not signs or signs[-1] - signs[0] != len(signs) - 1:
        return
    sign = "".join(term[at].text for at in signs)
    left, right = _bare(term[: signs[0]]), term[signs[-1] + 1 :]
    yield left, sign, right if sign == "IN" else _bare(right)
    if sign in _OPPOSITE:
        yield _bare(right), _OPPOSITE[sign], left


def _bare(words: Sequence[_Word]) -> Sequence[_Word]:
    """Return an expression without parentheses around it."""
    for _ in range(_NESTED_MAX):
        if len(words) < 3 or words[0].text != "(" or _close(words) != len(words) - 1:
            break
        words = words[1:-1]
    return words


def _are_strings(words: Sequence[_Word]) -> bool:
    """Whether an expression is a text, or a list of texts in parentheses."""
    if len(words) == 1:
        return words[0].kind == "string" or (words[0].kind == "parameter" and words[0].text.endswith(":String}"))
    inner = words[1:-1]
    is_list = len(words) > 2 and words[0].text == "(" and words[-1].text == ")"
    return is_list and all(word.kind == "string" if at % 2 == 0 else word.text == "," for at, word in enumerate(inner))


def _spaced(words: Sequence[_Word]) -> Iterator[str]:
    """Yield the texts of words with the spaces that were between them."""
    for before, word in zip((None, *words[:-1]), words, strict=True):
        yield f"{' ' if before is not None and word.place > before.place + 1 else ''}{word.text}"


def _of_time(column: str, type_name: str, sign: str, expression: str) -> Iterator[str]:
    """Yield the conditions for a time, up to a second wider than the reader's.

    In whole seconds each constant can be converted, or is no time, which is no limit. One that the column cannot have is its first or last.
    """
    lowest, highest = (f"CAST('{limit}', {_SECONDS})" for limit in _LIMITS[type_name.startswith("DateTime64")])
    for limit, comparison, signs, shift in ((lowest, ">=", (">", ">=", "="), "-"), (highest, "<=", ("<", "<=", "="), "+")):
        if sign in signs:
            bound = f"ifNull(accurateCastOrNull({expression}, {_SECONDS}), {limit})"
            within = f"greatest(least({bound}, {highest}), {lowest}) {shift} toIntervalSecond(1)"
            yield f"(`{KEY_COLUMN}{column}` {comparison} CAST({within}, {literal(type_name)}))"
