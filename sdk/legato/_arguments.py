"""Checks of the arguments of `StreamRecorder.record`, which come from the application.

In production a column is checked as a whole when it is digested, and a wrong value becomes unknown; under pytest each call is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from legato._errors import wrong_call
from legato._timeline import Kind

__all__ = ["check", "corrected", "is_plain"]

_TEXT = int(Kind.TEXT)
_KINDS = frozenset(int(kind) for kind in Kind)
_INTEGERS, _UNKNOWN = {int, Kind}, {type(None)}


def is_plain(sizes: Sequence[Any], tokens: Sequence[Any], kinds: Sequence[Any]) -> bool:
    """Whether sizes and kinds are whole numbers, and tokens are or are unknown: passes over columns, not a check of each chunk."""
    if not {*map(type, sizes), *map(type, kinds)} <= _INTEGERS or min(sizes) < 0 or not _KINDS.issuperset(kinds):
        return False
    given = {*map(type, tokens)}
    return (
        given == _UNKNOWN
        or (given <= _INTEGERS and min(tokens) >= 0)
        or all(each is None or type(each) is int and each >= 0 for each in tokens)
    )


def corrected(chunk: tuple[Any, ...]) -> tuple[int, int, int | None, int]:
    """Return the chunk with its time and, where the arguments were right, its values."""
    time_ns, size, tokens, kind = chunk
    found = check(size, tokens, kind)
    if not found:
        return chunk
    wrong_call("record()", *found.split("; "))
    return (time_ns, 0, None, _TEXT)


def check(size_bytes: object, tokens: object, kind: object) -> str:
    """Return what is wrong with the arguments of ``record``; empty if nothing is."""
    wanted = (
        ("size_bytes", size_bytes, "a whole number of bytes"),
        ("tokens", tokens, "a whole number or None"),
        ("kind", kind, "a legato.Kind"),
    )
    for name, value, expected in wanted:
        is_number = isinstance(value, int) and value >= 0 and (name != "kind" or value in _KINDS)
        if not is_number and not (name == "tokens" and value is None):
            found = f"{name}={value}" if isinstance(value, int | float) else f"{name} of type {type(value).__name__}"
            return f"{found}; {expected}"
    return ""
