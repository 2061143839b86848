"""The fate of each ended stream: every stream has exactly one, so that no stream is lost without being counted.

`legato.stats` returns the counts and documents them. The module counts; it decides nothing and sends nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from legato._exits import after_fork

__all__ = ["Tally", "tally"]

_FATES = ("exported", "failed", "unsampled", "lost", "handed_over", "waiting", "ignored")


class Tally:
    """Counts streams by fate. A forked child starts with zeros, because the parent counts the parent's streams."""

    def __init__(self) -> None:
        self._reset()
        after_fork(self._reset)

    def _reset(self) -> None:
        # Re-entrant, because the handler of a signal may interrupt a thread that counts.
        self._lock = threading.RLock()
        self._counts = dict.fromkeys((*_FATES, "rejected", "folded"), 0)
        self._reported = 0

    def add(self, fate: str, number: int = 1) -> None:
        """Count so many streams more (or less, if ``number`` is negative) with this fate."""
        with self._lock:
            self._counts[fate] += number

    def counts(self) -> Mapping[str, int]:
        """Return the number of streams by fate, of rejected spans, and of streams with folded reads."""
        with self._lock:
            return dict(self._counts)

    def has_new_losses(self) -> bool:
        """Return whether streams have failed or were lost, or spans were rejected, since the previous call."""
        with self._lock:
            now, before = sum(self._counts[each] for each in ("failed", "lost", "rejected")), self._reported
            self._reported = now
            return now > before


tally = Tally()
"""The streams of this process."""
