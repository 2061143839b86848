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

__all__ = ["Generalized", "Template", "generalize", "template"]

# A decimal integer below 10^18: ClickHouse reads every one as a UInt64 and prints it with the same digits.
_NUMBER = r"(?:0|[1-9][0-9]{0,17})(?![\w.])"
# The macros' forms: toDateTime(N), fromUnixTimestamp64Milli(N), INTERVAL N second, and the interval in seconds as Legato's panels use it.
# A literal without an end goes on to the end of the text: otherwise each of its quotes would be tried as the begin of another one.
_PLACE = re.compile(
    r"'(?:[^'\\]|\\.|'')*(?:'|\\?\Z)"
    r"|`(?:[^`\\]|\\.|``)*(?:`|\\?\Z)"
    r'|"(?:[^"\\]|\\.|"")*(?:"|\\?\Z)'
    r"|(?<![\w.])(?:"
    rf"(?:toDateTime|fromUnixTimestamp64Milli)\((?P<moment>{_NUMBER})(?=\))"
    rf"|INTERVAL (?P<interval>{_NUMBER})(?= (?:milli)?second\b)"
    rf"|greatest\(60, (?P<divisor>{_NUMBER})(?=\))"
    rf"|(?P<dividend>{_NUMBER})(?= % (?:300|3600)\b)"
    r")",
    re.DOTALL | re.ASCII,
)
# Stand-ins are numbers that no clock reads in ms or s. A statement that holds one itself is not generalized (see ``template``).
_STAND_IN = 900_000_000_000_000_000
_STAND_INS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Generalized:
    """A statement with stand-ins in the place of its time range, and the numbers that they replace, in order."""

    text: str
    numbers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Template:
    """The canonical text of a checked statement, cut at its stand-ins. ``order``: which number follows each piece but the last."""

    checked: CanonicalText
    pieces: tuple[str, ...]
    order: tuple[int, ...]

    def fill(self, numbers: Sequence[str]) -> CanonicalText:
        """Return the canonical text of the statement with these numbers."""
        parts = [self.pieces[0]]
        for place, piece in zip(self.order, self.pieces[1:], strict=True):
            parts += (numbers[place], piece)
        return replace(self.checked, sql="".join(parts))


def generalize(text: str) -> Generalized | None:
    """Return the statement with stand-ins, or None when it has no number in one of the macros' forms (or more than 1,000)."""
    numbers: list[str] = []
    parts: list[str] = []
    end = 0
    for match in _PLACE.finditer(text):
        if match.lastgroup is None:
            continue
        start, after = match.span(match.lastgroup)
        parts += (text[end:start], str(_STAND_IN + len(numbers)))
        numbers.append(text[start:after])
        end = after
    if not 0 < len(numbers) <= _STAND_INS_MAX:
        return None
    return Generalized("".join((*parts, text[end:])), tuple(numbers))


def template(checked: CanonicalText, stand_ins: int) -> Template | None:
    """Cut a checked statement at its stand-ins; None unless each of them is exactly one number of the canonical text.

    A stand-in that ClickHouse read as part of a comment, a string or a name is not there as a number. One that the statement held already,
    or that ClickHouse repeats, is there twice.
    """
    expected = {str(_STAND_IN + index): index for index in range(stand_ins)}
    pieces, order = [""], []
    for kind, text in tokens(checked.sql):
        if kind == "number" and text in expected:
            order.append(expected[text])
            pieces.append("")
        else:
            pieces[-1] += text
    if sorted(order) != list(range(stand_ins)):
        return None
    return Template(checked, tuple(pieces), tuple(order))
