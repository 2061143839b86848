"""Statements that differ only in their time range: one template for all of them, so that the guard checks it once.

Grafana's ClickHouse plugin writes the range and the interval of a panel into the statement as plain numbers. ``generalize`` replaces the
numbers in exactly these forms by stand-ins, ``template`` finds the stand-ins in the canonical text of the checked statement, and
``Template.fill`` puts the numbers of another statement in their place. No other literal is replaced: strings, names, settings, formats
and arguments of other functions stay part of the text, so two statements with one template differ in nothing that the guard inspects.
This module checks no statement and runs none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from legato_ingest.query.sql_text import CanonicalText, tokens

__all__ = ["Generalized", "Pieces", "Template", "generalize", "template"]

# Decimal integers: ClickHouse reads them as a UInt64 and prints them with the same digits. A moment is below 4 * 10^12, and another number
# below 9 * 10^8, which is less than their stand-ins.
_MOMENT, _NUMBER = r"(?:0|[1-9][0-9]{0,11}|[1-3][0-9]{12})(?![\w.])", r"(?:0|[1-9][0-9]{0,7}|[1-8][0-9]{8})(?![\w.])"
# The macros' forms: toDateTime(N), fromUnixTimestamp64Milli(N), INTERVAL N second, and the interval in seconds as Legato's panels use it.
# A literal without an end goes on to the end of the text: otherwise each of its quotes would be tried as the begin of another one.
_PLACE = re.compile(
    r"'(?:[^'\\]|\\.|'')*(?:'|\\?\Z)"
    r"|`(?:[^`\\]|\\.|``)*(?:`|\\?\Z)"
    r'|"(?:[^"\\]|\\.|"")*(?:"|\\?\Z)'
    r"|(?<![\w.])(?:"
    rf"(?:toDateTime|fromUnixTimestamp64Milli)\((?P<moment>{_MOMENT})(?=\))"
    rf"|INTERVAL (?P<interval>{_NUMBER})(?= (?:milli)?second\b)"
    rf"|greatest\(60, (?P<divisor>{_NUMBER})(?=\))"
    rf"|(?P<dividend>{_NUMBER})(?= % (?:300|3600)\b)"
    r")",
    re.DOTALL | re.ASCII,
)
# The year 2096 in ms, and 28 years in s. A statement that holds a stand-in itself is not generalized.
_STAND_IN_MOMENT, _STAND_IN = 4_000_000_000_000, 900_000_000
_ANY_STAND_IN = re.compile(r"4000000000[0-9]{3}|900000[0-9]{3}")
_STAND_INS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Generalized:
    """A statement with stand-ins in the place of its time range, and the numbers that they replace, in order."""

    text: str
    numbers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pieces:
    """A text that is cut at its stand-ins. ``order``: which number follows each piece but the last."""

    texts: tuple[str, ...]
    order: tuple[int, ...]

    def fill(self, numbers: Sequence[str]) -> str:
        """Return the text with these numbers."""
        parts = [self.texts[0]]
        for place, piece in zip(self.order, self.texts[1:], strict=True):
            parts += (numbers[place], piece)
        return "".join(parts)


@dataclass(frozen=True, slots=True)
class Template:
    """A checked statement, and its text in pieces. ``without_key``: the text without the conditions for the primary key, if it has any."""

    checked: CanonicalText
    sql: Pieces
    without_key: Pieces | None

    def fill(self, numbers: Sequence[str]) -> CanonicalText:
        """Return the statement with these numbers."""
        without_key = self.without_key.fill(numbers) if self.without_key is not None else None
        return replace(self.checked, sql=self.sql.fill(numbers), without_key=without_key)


def generalize(text: str) -> Generalized | None:
    """Return the statement with stand-ins; None when it has no number in one of the macros' forms, more than 1,000, or a stand-in."""
    if _ANY_STAND_IN.search(text):
        return None
    numbers: list[str] = []
    parts: list[str] = []
    end = 0
    for match in _PLACE.finditer(text):
        if match.lastgroup is None:
            continue
        start, after = match.span(match.lastgroup)
        first = _STAND_IN_MOMENT if match.lastgroup == "moment" else _STAND_IN
        parts += (text[end:start], str(first + len(numbers)))
        numbers.append(text[start:after])
        end = after
    if not 0 < len(numbers) <= _STAND_INS_MAX:
        return None
    return Generalized("".join((*parts, text[end:])), tuple(numbers))


def template(checked: CanonicalText, stand_ins: int) -> Template | None:
    """Cut a statement at its stand-ins; None unless each of them is exactly one number of the text without the key's conditions.

    A stand-in that ClickHouse read as part of a comment, a string or a name is not there as a number. One that the statement held already,
    or that ClickHouse repeats, is there twice. The conditions for the primary key repeat each of them.
    """
    plain = _cut(checked.sql if checked.without_key is None else checked.without_key, stand_ins)
    if sorted(plain.order) != list(range(stand_ins)):
        return None
    if checked.without_key is None:
        return Template(checked, plain, None)
    return Template(checked, _cut(checked.sql, stand_ins), plain)


def _cut(sql: str, stand_ins: int) -> Pieces:
    expected = {str(first + index): index for index in range(stand_ins) for first in (_STAND_IN_MOMENT, _STAND_IN)}
    pieces, order = [""], []
    for kind, text in tokens(sql):
        if kind == "number" and text in expected:
            order.append(expected[text])
            pieces.append("")
        else:
            pieces[-1] += text
    return Pieces(tuple(pieces), tuple(order))
