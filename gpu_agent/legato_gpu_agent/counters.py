"""Counters over time: since when each counts.

One idea: a counter that went back was started anew, after it was last seen; that moment is the bound that a reader needs, so it is kept a
counter. It reads nothing.
"""

from __future__ import annotations

from collections.abc import Hashable

__all__ = ["Counters"]

# Counters that one source may have: beyond it something makes up names.
_COUNTERS_MAX = 100_000


class Counters:
    """Values of counters by any key."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[float, int, int]] = {}

    def since_ns(self, key: Hashable, value: float, now_ns: int) -> int:
        """Since when this counter has counted: when it was first seen, or last seen before it went back."""
        if len(self._seen) > _COUNTERS_MAX:
            self._seen.clear()
        before = self._seen.get(key)
        if before is None:
            since_ns = now_ns
        else:
            since_ns = before[1] if value >= before[0] else before[2]
        self._seen[key] = (value, since_ns, now_ns)
        return since_ns
