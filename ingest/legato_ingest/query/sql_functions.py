"""Which functions and table functions a query may call: those named in sql_functions.txt.

One idea: a list of what is allowed, never of what is forbidden, so a function that a later ClickHouse brings is refused until somebody
has read what it does. It knows nothing of statements.
"""

from __future__ import annotations

import pathlib

__all__ = ["allows", "allows_table", "named"]

# Suffixes that ClickHouse puts behind an aggregate's name, the longer before those they end with.
_COMBINATORS = (
    "mergestate", "simplestate", "ordefault", "distinct", "resample", "foreach", "ornull", "argmin", "argmax", "state", "merge", "array",
    "null", "map", "if",
)  # fmt: skip
# Nobody stacks more, and each suffix taken off asks again: without a limit a name of many "OrNull" would be asked forever.
_COMBINATORS_MAX = 3


def _load() -> dict[str, frozenset[str]]:
    sections: dict[str, set[str]] = {}
    current: set[str] = set()
    for line in pathlib.Path(__file__).with_name("sql_functions.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            current = sections.setdefault(line.strip("[]"), set())
        elif not line.startswith("#"):
            current.update(line.split())
    return {name: frozenset(names) for name, names in sections.items()}


_sections = _load()
_plain, _aggregate, _table = _sections["plain"], _sections["aggregate"], _sections["table"]


def named(section: str) -> frozenset[str]:
    """The names of one section (``plain``, ``aggregate``, ``table``), in lower case."""
    return _sections[section]


def allows(name: str) -> bool:
    """Whether an expression may call it: a named function, or a named aggregate under at most three combinators."""
    lower = name.lower()
    return lower in _plain or _is_aggregate(lower, _COMBINATORS_MAX)


def allows_table(name: str) -> bool:
    """Whether a query may select from this table function."""
    return name.lower() in _table


def _is_aggregate(name: str, combinators: int) -> bool:
    if name in _aggregate:
        return True
    if not combinators:
        return False
    return any(name.endswith(suffix) and _is_aggregate(name[: -len(suffix)], combinators - 1) for suffix in _COMBINATORS)
