"""Why what came from an engine could not be taken.

One idea: in words that hold nothing of what came, as that may be a prompt. It decodes nothing.
"""

from __future__ import annotations

import msgspec

__all__ = ["Unusable", "none_of", "reason_of"]


class Unusable(ValueError):
    """What came cannot be taken: in words of ours, which hold nothing of it."""


def reason_of(error: Exception) -> str:
    """Why something could not be taken, without anything of it.

    msgspec names types, bounds, our own fields and the place of a byte; what any other error says may quote what came.
    """
    return str(error) if isinstance(error, Unusable | msgspec.MsgspecError) else type(error).__name__


def none_of(count: int, what: str, why: str, expected: str) -> str:
    """What to say where ``count`` came, and not one could be taken."""
    return f"none of what came could be taken ({what}: {count:,}); the last: {why}; expected {expected}"
