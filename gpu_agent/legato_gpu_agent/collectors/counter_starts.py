"""Start times of counters that the source exposes without one.

A counter that went back was reset after it was last seen, so that moment is a lower bound of its new start. The class keeps one entry per
counter; entries of vanished counters are removed, so that a source with ever new label values does not fill the memory.
"""

from __future__ import annotations

from collections.abc import Hashable

__all__ = ["CounterStarts"]

# Counters kept although the previous round did not have them.
_VANISHED_MAX = 1_000


class CounterStarts:
    """Start times of counters by any key. All counters of one round are passed with the same time."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[float, int, int]] = {}
        self._now_ns = self._in_round = 0

    def start_ns(self, key: Hashable, value: float, now_ns: int) -> int:
        """Return when this counter started: when it was first seen, or last seen before it went back."""
        if now_ns != self._now_ns:
            self._begin_round(now_ns)
        before = self._seen.get(key)
        if before is None:
            start_ns = now_ns
        else:
            start_ns = before[1] if value >= before[0] else before[2]
        self._seen[key] = (value, start_ns, now_ns)
        self._in_round += 1
        return start_ns

    def _begin_round(self, now_ns: int) -> None:
        """Remove the counters that the previous round did not have, if there are many more entries than counters in a round."""
        if len(self._seen) > _VANISHED_MAX + 2 * self._in_round:
            self._seen = {key: seen for key, seen in self._seen.items() if seen[2] == self._now_ns}
        self._now_ns, self._in_round = now_ns, 0
