"""Counters over time: since when each counts.

One idea: a counter that went back was started anew, after it was last seen; that moment is the bound that a reader needs, so it is kept a
counter, and of one that nobody tells any more not for long: whoever makes up names would have them all remembered. It reads nothing.
"""

from __future__ import annotations

from collections.abc import Hashable

__all__ = ["Counters"]

# Counters that are remembered though the round before did not tell them.
_GONE_MAX = 1_000


class Counters:
    """Values of counters by any key. All of one round are told with the same time."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[float, int, int]] = {}
        self._now_ns = self._told = 0

    def since_ns(self, key: Hashable, value: float, now_ns: int) -> int:
        """Since when this counter has counted: when it was first seen, or last seen before it went back."""
        if now_ns != self._now_ns:
            self._begin(now_ns)
        before = self._seen.get(key)
        if before is None:
            since_ns = now_ns
        else:
            since_ns = before[1] if value >= before[0] else before[2]
        self._seen[key] = (value, since_ns, now_ns)
        self._told += 1
        return since_ns

    def _begin(self, now_ns: int) -> None:
        """A round: where there are many more than are told, those that the one before did not tell are forgotten."""
        if len(self._seen) > _GONE_MAX + 2 * self._told:
            self._seen = {key: seen for key, seen in self._seen.items() if seen[2] == self._now_ns}
        self._now_ns, self._told = now_ns, 0
