"""The watermark of one writer: the time up to which all its rows are stored.

Rows are stamped with the time of their insert. A stamp is always later than every watermark reported before, so a worker that reads the
rows after its last watermark and up to the present one misses none. When the clock is set back, stamps and watermark go on from where they
were, as time passes, until the clock has caught up. Nothing is written here.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Watermark", "now_ms"]

# A clock that is further behind was set back. Nearer, it was measured with an error: that of a server waits for an answer.
_JUMP_MS = 30_000
# The stamps that are remembered: those of some minutes.
_STAMPS_MAX = 256


def now_ms() -> int:
    """Return this host's time in ms since the epoch."""
    return time.time_ns() // 1_000_000


def _passed_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Watermark:
    """Stamps and watermark of one writer by ``clock_ms``. Both are later than ``after_ms``, a watermark from before this process.

    ``passed_ms`` is a clock that is never set.
    """

    def __init__(self, after_ms: int = 0, clock_ms: Callable[[], int] = now_ms, passed_ms: Callable[[], int] = _passed_ms) -> None:
        self._clock_ms, self._passed_ms = clock_ms, passed_ms
        # The last time, and how much had passed then.
        self._last_ms, self._at_ms = after_ms, passed_ms()
        self._lock = threading.Lock()
        self._reached_ms = after_ms
        self._stamp_ms: int | None = None
        self._stamps_ms: deque[int] = deque(maxlen=_STAMPS_MAX)

    def reached_ms(self) -> int:
        """Return the watermark: all rows with a stamp up to it are stored, and later rows get later stamps."""
        with self._lock:
            self._reached_ms = max(self._reached_ms, self._now_ms() if self._stamp_ms is None else self._stamp_ms - 1)
            return self._reached_ms

    def stamp_after(self, after_ms: int) -> int | None:
        """Return the first stamp later than a time; ``None``: nothing was written since.

        Where stamps of that time are forgotten, there may have been one right after it, and that time is returned.
        """
        with self._lock:
            place = bisect_right(self._stamps_ms, after_ms)
            if not place and len(self._stamps_ms) == _STAMPS_MAX:
                return after_ms + 1
            return self._stamps_ms[place] if place < len(self._stamps_ms) else None

    @contextmanager
    def stamp(self) -> Iterator[int]:
        """Return the stamp (ms) of the rows that are written in this context. One context at a time."""
        with self._lock:
            self._stamp_ms = stamp_ms = max(self._now_ms(), self._reached_ms + 1)
        try:
            yield stamp_ms
        finally:
            with self._lock:
                # Not less than before, even if the clock was set back.
                self._reached_ms, self._stamp_ms = max(self._reached_ms, stamp_ms), None
                self._stamps_ms.append(stamp_ms)

    def _now_ms(self) -> int:
        """Return the time by a clock that is never set back: near its last time it waits for ``clock_ms``, after a jump it goes on."""
        clock_ms = self._clock_ms()
        passed_ms = self._passed_ms()
        since_ms, self._at_ms = passed_ms - self._at_ms, passed_ms
        if clock_ms < self._last_ms - _JUMP_MS:
            self._last_ms += since_ms
        else:
            self._last_ms = max(clock_ms, self._last_ms)
        return self._last_ms
