"""Reads ClickHouse's canonical text of a statement, token by token, and refuses what a reader has no use for.

One idea: the canonical text is small and regular (one line, no comments, no heredocs, one way to quote), so a lexer of a few token kinds
reads it exactly, and what it cannot read is refused. It is the second opinion beside the syntax tree of `sql_tree`, which leaves out some
expressions (``SHOW … WHERE``). It runs nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from legato_ingest.errors import StoreRefused
from legato_ingest.query.sql_functions import allows, allows_table

__all__ = ["CanonicalText", "Refused", "read"]

ACCESS_DENIED = 497

_TOKEN = re.compile(
    r"(?P<space> +)"
    r"|(?P<string>'(?:[^'\\]|\\.|'')*')"
    r"|(?P<quoted>`[^`]*`)"
    r"|(?P<parameter>\{(?P<name>[A-Za-z_][A-Za-z0-9_]*):(?P<type>[^{}]+)\})"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<number>[0-9][A-Za-z0-9_.]*)"
    r"|(?P<sign>->|[-+*/%=<>!|:?.,()\[\]])",
    re.DOTALL,
)
# What a name in backticks must not hold: escapes and anything that could pass for a new line in the tree's text.
_STRANGE = re.compile(r"[\\\x00-\x1f\x7f-\x9f\u2028\u2029]")
_FORMAT = re.compile(r" FORMAT (\w+|`\w+`)$")
# What canonical text puts right before a parenthesis and is no function. `view` takes a whole SELECT, which the tree shows.
_CALL_WORDS = frozenset(("columns", "view"))
_PARAMETER_TYPE = re.compile(r"[\w ,()'=/+-]+")


class Refused(StoreRefused):
    """A statement that this endpoint does not run. The code is ClickHouse's ACCESS_DENIED."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}. This endpoint only reads: it runs one SELECT, SHOW, DESCRIBE, EXISTS or EXPLAIN", ACCESS_DENIED)


@dataclass(frozen=True, slots=True)
class CanonicalText:
    """A statement's canonical text without its FORMAT, the format that it asked for, and the parameters that it names."""

    sql: str
    format: str | None
    parameters: frozenset[str]


def read(canonical: str) -> CanonicalText:
    """Split off the FORMAT and check every token. Raises ``Refused``."""
    found = _FORMAT.search(canonical)
    sql = canonical[: found.start()] if found else canonical
    tokens = _tokens(sql)
    _check_calls(tokens)
    _check_words(tokens)
    names = frozenset(text[1:].partition(":")[0] for kind, text in tokens if kind == "parameter")
    return CanonicalText(sql, found.group(1).strip("`") if found else None, names)


def _tokens(sql: str) -> list[tuple[str, str]]:
    tokens, at = [], 0
    while at < len(sql):
        match = _TOKEN.match(sql, at)
        if match is None:
            raise Refused(f"the statement has {sql[at : at + 20]!r} where this endpoint cannot read it")
        kind = match.lastgroup or ""
        kind = "parameter" if match.group("parameter") else kind
        if kind == "quoted" and _STRANGE.search(match.group()):
            raise Refused("a name in quotes holds an escape or a control character")
        if kind == "parameter":
            _check_parameter(match)
        tokens.append((kind, match.group()))
        at = match.end()
    return tokens


def _check_parameter(match: re.Match[str]) -> None:
    """A parameter is a value. One of the type Identifier could name any table after the statement was judged."""
    kind = match.group("type")
    if "identifier" in kind.lower() or not _PARAMETER_TYPE.fullmatch(kind):
        raise Refused(f"parameters of the type {kind} are not taken; bind values alone")


def _check_calls(tokens: list[tuple[str, str]]) -> None:
    """Every name right before a parenthesis is a function that may be called, wherever it stands."""
    for (kind, text), (_, after) in zip(tokens, tokens[1:], strict=False):
        if kind in ("word", "quoted") and after == "(":
            name = text.strip("`")
            if not (allows(name) or allows_table(name) or name.lower() in _CALL_WORDS):
                raise Refused(f"the function {name} is not open here")


def _check_words(tokens: list[tuple[str, str]]) -> None:
    if any((a, b) in (("-", "-"), ("/", "*")) for (_, a), (_, b) in zip(tokens, tokens[1:], strict=False)):
        raise Refused("two signs together read as a comment")
    words = [text.upper() for kind, text in tokens if kind != "space"]
    if ("INTO", "OUTFILE") in zip(words, words[1:], strict=False):
        raise Refused("INTO OUTFILE writes a file")
    # The tree does not show the expressions of a SHOW.
    if words and words[0] == "SHOW" and ("WHERE" in words or "(" in words):
        raise Refused("SHOW is taken with LIKE, without expressions; SELECT from system.tables or system.columns instead")
