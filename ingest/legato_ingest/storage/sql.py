"""Values as ClickHouse writes them in the text of Legato's own statements, and back.

One idea: what came from outside goes into a statement as hexadecimal digits or a whole number, so no value can be read as SQL. It is not
for readers' statements: those bind their parameters (`queries`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["after_until_ms", "between_ns", "quoted", "quoted_all", "time_ns", "unquoted"]


def quoted(value: str | bytes) -> str:
    """A string's literal."""
    return f"unhex('{(value.encode() if isinstance(value, str) else value).hex()}')"


def quoted_all(values: Iterable[str | bytes]) -> str:
    """Strings' literals, for an ``IN (…)``."""
    return ", ".join(map(quoted, values))


def time_ns(ns: int) -> str:
    """A moment's literal; what lies before 1970 is 1970."""
    return f"fromUnixTimestamp64Nano({max(0, ns)}, 'UTC')"


def between_ns(column: str, low_ns: int, high_ns: int) -> str:
    """The condition that a time lies between two others, both included."""
    return f"{column} BETWEEN {time_ns(low_ns)} AND {time_ns(high_ns)}"


def after_until_ms(column: str, after_ms: int, until_ms: int) -> str:
    """The condition that a time lies after one moment and not after another: what a follower has not seen."""
    low, high = (f"fromUnixTimestamp64Milli({moment}, 'UTC')" for moment in (after_ms, until_ms))
    return f"{column} > {low} AND {column} <= {high}"


def unquoted(value: Any) -> Any:
    """A value of an Arrow result: strings come as bytes."""
    return value.decode() if isinstance(value, bytes) else value
