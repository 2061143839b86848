"""Errors for undecodable engine messages. The text never quotes the message, which may contain a prompt."""

from __future__ import annotations

import msgspec

__all__ = ["DecodeError", "nothing_decoded", "safe_reason"]


class DecodeError(ValueError):
    """A message cannot be decoded. The text is written here and quotes nothing of the message."""


def safe_reason(error: Exception) -> str:
    """Return the reason of an error without any content of the message.

    msgspec names types, bounds, fields of the schema and byte offsets; the text of any other error may quote the message, so only its type
    is returned.
    """
    return str(error) if isinstance(error, DecodeError | msgspec.MsgspecError) else type(error).__name__


def nothing_decoded(count: int, what: str, why: str, expected: str) -> str:
    """Return the error text for ``count`` messages of which none could be decoded; ``why`` is the reason of the last one."""
    return f"no {what} could be decoded ({count:,} received); the last: {why}; expected {expected}"
