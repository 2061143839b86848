"""Write values as ClickHouse reads them: text literals in SQL, and values of query parameters.

The only place of the project that escapes for ClickHouse. Values from outside normally do not get into SQL text at all: readers bind
parameters, and ``storage.sql`` writes them as hexadecimal digits.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Value", "literal", "parameter"]

Value = str | int | float | Sequence[str]
"""A value that can be bound to a query parameter."""

_IN_QUOTES = str.maketrans({"\\": "\\\\", "'": "\\'"})
# A parameter's value is parsed like a field of the format TabSeparated.
_IN_PARAMETER = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\0": "\\0"})


def literal(text: str) -> str:
    """Return a string literal of SQL."""
    return "'" + text.translate(_IN_QUOTES) + "'"


def parameter(value: Value) -> str:
    """Return the value of a query parameter (``param_NAME`` of the HTTP interface); a sequence becomes an array of strings."""
    if isinstance(value, str):
        return value.translate(_IN_PARAMETER)
    if isinstance(value, Sequence):
        return "[" + ",".join(map(literal, value)) + "]"
    return str(value)
