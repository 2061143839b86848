"""The words of a checked statement, and what they are parts of: parentheses, the terms of a condition, the sides of a comparison.

``key_ranges`` reads a statement's WHERE with them. The module knows no table and no function; it changes no text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from legato_ingest.query.sql_text import Token

__all__ = ["OPPOSITE", "Word", "bare", "close_of", "closes_of", "given_names", "sides", "spaced", "terms", "words_of"]

OPPOSITE = {">": "<", ">=": "<=", "<": ">", "<=": ">=", "=": "="}
"""The sign of a comparison when its sides are exchanged."""

_NAMES = ("word", "quoted")
_COMPARING = frozenset("= < > ! IN".split())
# The time for deeper parentheses would not be bounded.
_NESTED_MAX = 20


class Word(NamedTuple):
    """A token that is no space, its place among all tokens, and how many parentheses and brackets are open around it."""

    kind: str
    text: str
    place: int
    depth: int

    @property
    def name(self) -> str:
        """The name that a word or a quoted word is; empty for others."""
        return self.text.strip("`") if self.kind in _NAMES else ""


def words_of(found: Sequence[Token]) -> Iterator[Word]:
    """Yield the tokens that are no spaces. A parenthesis or bracket has the depth of what is around it."""
    depth = 0
    for place, (kind, text) in enumerate(found):
        if kind != "space":
            depth -= text in (")", "]")
            yield Word(kind, text, place, depth)
            depth += text in ("(", "[")


def closes_of(words: Sequence[Word]) -> dict[int, int]:
    """Return where each parenthesis or bracket closes, by the place where it opens."""
    closes, opened = dict[int, int](), list[int]()
    for at, word in enumerate(words):
        if word.text in (")", "]") and opened:
            closes[opened.pop()] = at
        elif word.text in ("(", "["):
            opened.append(at)
    return closes


def given_names(words: Sequence[Word]) -> Iterator[tuple[int, str]]:
    """Yield the places and names of all aliases, and of the arguments of lambdas."""
    for at, word in enumerate(words):
        if word.text == "AS" and at + 1 < len(words):
            yield at, words[at + 1].name
        elif word.text == "->":
            first = at - 1
            # The arguments of a lambda are a name, or names in parentheses.
            while words[at - 1].text == ")" and first > 0 and words[first - 1].depth > words[at - 1].depth:
                first -= 1
            yield from ((each, words[each].name) for each in range(first, at) if words[each].name)


def terms(words: Sequence[Word], deeper: int = _NESTED_MAX) -> Iterator[Sequence[Word]]:
    """Yield the conditions that AND joins, also in parentheses."""
    words = bare(words)
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
        yield from terms(words[begin + 1 : end], deeper - 1)


def close_of(words: Sequence[Word]) -> int:
    """Return the place of the parenthesis that closes the first word; -1 if there is none."""
    return next((at for at, word in enumerate(words) if at and word.depth == words[0].depth), -1)


def sides(term: Sequence[Word]) -> Iterator[tuple[Sequence[Word], str, Sequence[Word]]]:
    """Yield both directions of a comparison: one side, the sign, the other side."""
    depth = term[0].depth
    signs = [at for at, word in enumerate(term) if word.depth == depth and word.text in _COMPARING]
    if not signs or signs[-1] - signs[0] != len(signs) - 1:
        return
    sign = "".join(term[at].text for at in signs)
    left, right = bare(term[: signs[0]]), term[signs[-1] + 1 :]
    yield left, sign, right if sign == "IN" else bare(right)
    if sign in OPPOSITE:
        yield bare(right), OPPOSITE[sign], left


def bare(words: Sequence[Word]) -> Sequence[Word]:
    """Return an expression without parentheses around it."""
    for _ in range(_NESTED_MAX):
        if len(words) < 3 or words[0].text != "(" or close_of(words) != len(words) - 1:
            break
        words = words[1:-1]
    return words


def spaced(words: Sequence[Word]) -> Iterator[str]:
    """Yield the texts of words with the spaces that were between them."""
    for before, word in zip((None, *words[:-1]), words, strict=True):
        yield f"{' ' if before is not None and word.place > before.place + 1 else ''}{word.text}"
