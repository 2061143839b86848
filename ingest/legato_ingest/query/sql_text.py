"""The guard's first check: every token of a statement's canonical text.

ClickHouse's canonical text is regular (one line, no comments, no heredocs, one way to quote), so a lexer with a few kinds of tokens reads
it exactly; text that it cannot read is rejected. The check is independent of the syntax tree (``sql_tree``), which leaves out some
expressions (``SHOW … WHERE``). This module runs no statement.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from legato_ingest.errors import StoreRefused
from legato_ingest.query.sql_functions import allows, allows_table
from legato_ingest.storage.tenant_views import FINAL_VIEW, KEY_COLUMN, KEYED_VIEW, database_of

__all__ = ["CanonicalText", "Refused", "Token", "check_format", "read", "tokens"]

# The kind and the text.
Token = tuple[str, str]

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
# Escapes and line breaks in a quoted name could start a new line in the printed syntax tree.
_STRANGE = re.compile(r"[\\\x00-\x1f\x7f-\x9f\u2028\u2029]")
_FORMAT = re.compile(r" FORMAT (\w+|`\w+`)$")
_NAMES, _AS, _ARROW, _OPEN = ("word", "quoted"), ("word", "AS"), ("sign", "->"), ("sign", "(")
# WITH name AS MATERIALIZED (SELECT …).
_MATERIALIZED = ("word", "MATERIALIZED")
_BEFORE_TABLE = ("FROM", "JOIN", ",")
# Words that the canonical text puts before a parenthesis and that are no functions. The SELECT inside `view` is in the tree.
_CALL_WORDS = frozenset(("columns", "view"))
_PARAMETER_TYPE = re.compile(r"[\w ,()'=/+-]+")


class Refused(StoreRefused):
    """The guard rejects the statement. The code is ClickHouse's ACCESS_DENIED."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}. This endpoint only reads: it runs one SELECT, SHOW, DESCRIBE, EXISTS or EXPLAIN", ACCESS_DENIED)


@dataclass(frozen=True, slots=True)
class CanonicalText:
    """A statement's canonical text without its FORMAT clause, the format that the clause names, and the names of its parameters.

    ``subqueries``: the names that WITH gives to subqueries, which the syntax tree leaves out. ``has_own_functions``: it names a lambda.
    ``without_key``: the text without the conditions for the primary key (``key_ranges``), if ``sql`` has such conditions.
    """

    sql: str
    format: str | None
    parameters: frozenset[str]
    subqueries: frozenset[str] = frozenset()
    has_own_functions: bool = False
    without_key: str | None = None


def read(canonical: str, own: str = "default", *, of_one_tenant: bool = False) -> CanonicalText:
    """Split off the FORMAT clause and the name of Legato's database (``own``), and check every token. Raises ``Refused``.

    Without the name, a table is the one of the reader's handle: readers of one tenant have a database with views in place of the tables.
    A view ignores FINAL, so ``of_one_tenant`` replaces the view and FINAL by the view with merged rows.
    """
    found = _FORMAT.search(canonical)
    sql = canonical[: found.start()] if found else canonical
    chosen = found.group(1).strip("`") if found else None
    check_format(chosen or "")
    found_tokens = _without_own(tokens(sql), (own, database_of(own)))
    if of_one_tenant:
        found_tokens = _with_final_views(found_tokens)
        _check_names(found_tokens)
    _check_calls(found_tokens)
    _check_words(found_tokens)
    names = frozenset(text[1:].partition(":")[0] for kind, text in found_tokens if kind == "parameter")
    named = _subqueries([token for token in found_tokens if token[0] != "space"])
    return CanonicalText("".join(text for _, text in found_tokens), chosen, names, named)


def _subqueries(words: list[Token]) -> frozenset[str]:
    """Return the names that WITH gives to subqueries. ``words``: the tokens without spaces."""
    found = set[str]()
    for at, (kind, text) in enumerate(words):
        after = words[at + 1 : at + 4]
        if kind in _NAMES and (after[:2] == [_AS, _OPEN] or after == [_AS, _MATERIALIZED, _OPEN]):
            found.add(text.strip("`"))
    return frozenset(found)


def check_format(name: str) -> None:
    """Raise ``Refused`` for a format that shows how many rows were read: an index skips granules, which hold rows of all tenants."""
    if "progress" in name.lower():
        raise Refused(f"the format {name} is not accepted; use it without the progress")


def tokens(sql: str) -> list[Token]:
    """Return the tokens of a canonical text as (kind, text); their texts joined are the text. Raises ``Refused``."""
    found, at = [], 0
    while at < len(sql):
        match = _TOKEN.match(sql, at)
        if match is None:
            raise Refused(f"the statement has {sql[at : at + 20]!r} which this endpoint cannot read")
        kind = match.lastgroup or ""
        kind = "parameter" if match.group("parameter") else kind
        if kind == "quoted" and _STRANGE.search(match.group()):
            raise Refused("a name in quotes holds an escape or a control character")
        if kind == "parameter":
            _check_parameter(match)
        found.append((kind, match.group()))
        at = match.end()
    return found


def _without_own(found: list[Token], own: tuple[str, ...]) -> list[Token]:
    """Return the tokens without ``own.`` at the beginning of a name. Raises ``Refused`` if ``own`` also names something else."""
    before, after = [("", ""), *found], [*found[1:], ("", ""), ("", "")]
    names = [at for at, (kind, text) in enumerate(found) if kind in _NAMES and text.strip("`") in own]
    for at in names:
        beside = found[max(0, at - 2) : max(0, at - 1)] + found[at + 2 : at + 3]
        if _AS in beside or _ARROW in beside or (after[at][1] == "." and after[at + 1][0] == "number"):
            raise Refused(f"{found[at][1]} is the name of Legato's database: choose another one for an alias or a parameter")
    dropped = {part for at in names if after[at][1] == "." != before[at][1] for part in (at, at + 1)}
    return [token for at, token in enumerate(found) if at not in dropped]


def _with_final_views(found: list[Token]) -> list[Token]:
    """Return the tokens with ``table_final AS name`` for each ``table FINAL`` and ``table AS name FINAL``."""
    out = list(found)
    places = [at for at, (kind, _) in enumerate(found) if kind != "space"]
    words = [found[at] for at in places]
    finals = [at for at, word in enumerate(words) if word == ("word", "FINAL") and at >= 2]
    if not finals:
        return out
    uses = _uses(words)
    for number in finals:
        has_alias = words[number - 2] == _AS
        table_at = number - (3 if has_alias else 1)
        kind, name = words[table_at]
        if table_at > 0 and kind in _NAMES and words[table_at - 1][1] in _BEFORE_TABLE:
            _expect_one_meaning(name.strip("`"), table_at, uses, has_alias=has_alias)
            out[places[table_at]] = ("quoted", f"`{name.strip('`')}{FINAL_VIEW}`")
            out[places[number]] = ("word", "") if has_alias else ("word", f"AS {name}")
    return out


# How often each table is named in each FROM, which of them the FROM at a place is, and the names of subqueries.
_Uses = tuple[dict[int, tuple[int, int]], Counter[tuple[tuple[int, int], str]], frozenset[str]]


def _uses(words: list[Token]) -> _Uses:
    """Read all tokens once. A FROM is known by its parentheses and its SELECT within them."""
    selects, open_at = Counter[int](), [0]
    lists: dict[int, tuple[int, int]] = {}
    tables: Counter[tuple[tuple[int, int], str]] = Counter()
    for at, (kind, text) in enumerate(words):
        if text == "(":
            open_at.append(at)
        elif text == ")" and len(open_at) > 1:
            open_at.pop()
        elif (kind, text) == ("word", "SELECT"):
            selects[open_at[-1]] += 1
        elif kind in _NAMES:
            lists[at] = open_at[-1], selects[open_at[-1]]
            if at and words[at - 1][1] in _BEFORE_TABLE:
                tables[lists[at], text.strip("`")] += 1
    return lists, tables, _subqueries(words)


def _expect_one_meaning(table: str, at: int, uses: _Uses, *, has_alias: bool) -> None:
    """Raise ``Refused`` if a table that is read with FINAL, or the view in its stead, is also a subquery or another table of the same FROM.

    Without an alias, ClickHouse would read the view for the other one, too.
    """
    lists, tables, subqueries = uses
    names = (table, f"{table}{FINAL_VIEW}")
    beside = sum(tables[lists[at], name] for name in names) - 1
    if not subqueries.isdisjoint(names) or (beside and not has_alias):
        raise Refused(f"{table} FINAL has the name of another table or subquery: give it an alias, as in {table} AS merged FINAL")


def _check_parameter(match: re.Match[str]) -> None:
    """Parameters are values only. One of the type Identifier could name any table after the statement was checked."""
    kind = match.group("type")
    if "identifier" in kind.lower() or not _PARAMETER_TYPE.fullmatch(kind):
        raise Refused(f"parameters of the type {kind} are not accepted; bind values only")


def _check_names(found: list[Token]) -> None:
    """Only ``key_ranges`` names the views with the columns of the primary key, and these columns."""
    for kind, text in found:
        name = text.strip("`") if kind in _NAMES else ""
        if name.endswith(KEYED_VIEW) or KEY_COLUMN in name:
            raise Refused(f"the name {text} is not accepted")


def _check_calls(found: list[Token]) -> None:
    """Every name before a parenthesis must be an allowed function, at any place in the statement."""
    for (kind, text), (_, after) in zip(found, found[1:], strict=False):
        if kind in ("word", "quoted") and after == "(":
            name = text.strip("`")
            if not (allows(name) or allows_table(name) or name.lower() in _CALL_WORDS):
                raise Refused(f"the function {name} is not allowed")


def _check_words(found: list[Token]) -> None:
    if any((a, b) in (("-", "-"), ("/", "*")) for (_, a), (_, b) in zip(found, found[1:], strict=False)):
        raise Refused("two signs together start a comment")
    words = [text.upper() for kind, text in found if kind != "space"]
    if ("INTO", "OUTFILE") in zip(words, words[1:], strict=False):
        raise Refused("INTO OUTFILE writes a file")
    opened = (pair for *pair, third in zip(words, words[1:], words[2:], strict=False) if third == "(")
    if any((a, b) == (")", "AS") or (a == "AS" and b not in ("(", "MATERIALIZED")) for a, b in opened):
        # The syntax tree does not show which columns get these names.
        raise Refused("a list of columns after the name of a subquery or table is not accepted: write AS in a SELECT")
    if "PREWHERE" in words:
        raise Refused("PREWHERE is evaluated before the filter of a tenant: write WHERE")
    # The tree leaves out the expressions of a SHOW.
    if words and words[0] == "SHOW" and ("WHERE" in words or "(" in words):
        raise Refused("SHOW is accepted with LIKE only, without expressions; SELECT from system.tables or system.columns instead")
