"""Times of writing that whoever follows them can rely on.

One idea: rows are stamped as they are written, and what was said to be settled is never stamped any more, whatever the clock does. So a
worker that reads "later than what I saw, until what is settled" misses no row. It writes nothing itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Stamps", "now_ms"]


def now_ms() -> int:
    """The wall clock, in ms since the epoch."""
    return time.time_ns() // 1_000_000


class Stamps:
    """The stamps of one writer by ``clock_ms``, all later than ``after_ms``: what was followed before this process."""

    def __init__(self, after_ms: int = 0, clock_ms: Callable[[], int] = now_ms) -> None:
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._settled_ms = after_ms
        self._stamp_ms: int | None = None

    def settled_ms(self) -> int:
        """All rows with a stamp until this are written; later ones have later stamps."""
        with self._lock:
            self._settled_ms = max(self._settled_ms, self._clock_ms() if self._stamp_ms is None else self._stamp_ms - 1)
            return self._settled_ms

    @contextmanager
    def stamp(self) -> Iterator[int]:
        """The stamp (ms) of what is written in this context; one at a time."""
        with self._lock:
            self._stamp_ms = stamp_ms = max(self._clock_ms(), self._settled_ms + 1)
        try:
            yield stamp_ms
        finally:
            with self._lock:
                # Also where the clock was set back behind it.
                self._settled_ms, self._stamp_ms = max(self._settled_ms, stamp_ms), None
