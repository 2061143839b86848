"""The functions and table functions that a query may call: those listed in sql_functions.txt.

The list names what is allowed, never what is forbidden, so a new function of a later ClickHouse is rejected until it has been reviewed and
added. This module parses no statement.
"""

from __future__ import annotations

import pathlib

__all__ = ["allows", "allows_table", "named"]

# Suffixes of aggregate functions (combinators); a suffix that ends with another one comes before it.
_COMBINATORS = (
    "mergestate", "simplestate", "ordefault", "distinct", "resample", "foreach", "ornull", "argmin", "argmax", "state", "merge", "array",
    "null", "map", "if",
)  # fmt: skip
# Statements stack no more in practice. A suffix can be split in several ways: without a limit, 40 times "OrNull" takes 2^40 steps.
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
    """Return the names of one section (``plain``, ``aggregate``, ``table``), in lower case."""
    return _sections[section]


def allows(name: str) -> bool:
    """Whether an expression may call this function: a listed function, or a listed aggregate with at most three combinators."""
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
