"""Memory that statements leave in the engine's allocator, and when it is given back to the system.

The allocator keeps free memory for ten seconds. Until then it would be taken for that of the statement that runs next (``store_process``).
To give it back takes 4 ms, and 0.1 s for 1.5 GB. The module gives nothing back itself.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

__all__ = ["LeftMemory"]

# By so much a statement of a reader, or a call of Legato, may leave the process grown.
_BY_READ_BYTES, _BY_CALL_BYTES = 64 * 2**20, 256 * 2**20
# So often at least, memory is given back at the end of calls beside others; within it, only if more of it was taken.
_APART_S = 1.0


class LeftMemory:
    """Calls ``give_back`` at the ends of calls that have left memory. ``memory`` returns the process' memory in bytes, ``None``: unknown.

    Safe for several threads.
    """

    def __init__(
        self, memory: Callable[[], int | None], give_back: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._memory, self._give_back, self._clock = memory, give_back, clock
        self._lock, self._giving = threading.Lock(), threading.Lock()
        self._calls = self._reads = 0
        # The memory after it was last given back: the least, and what it was beside other calls, which had memory in use.
        self._least_bytes = self._last_bytes = memory() or 0
        self._last_s = float("-inf")

    @contextlib.contextmanager
    def counted(self, *, is_read: bool) -> Iterator[None]:
        """Count a call that runs, of a reader or of Legato, and give back at its end what it has left."""
        self._count(1, is_read)
        try:
            yield
            self._end(is_read)
        finally:
            self._count(-1, is_read)

    def _count(self, number: int, is_read: bool) -> None:
        with self._lock:
            self._calls += number
            self._reads += number * is_read

    def _end(self, is_read: bool) -> None:
        with self._giving:
            memory = self._memory()
            # Beside others, it is not known how much is in use. The last of several statements of readers leaves nothing to the next.
            is_last = self._calls == 1 or (is_read and self._reads == 1)
            is_due = is_last or self._clock() >= self._last_s + _APART_S
            before = self._least_bytes if is_due else max(self._least_bytes, self._last_bytes)
            if memory is None or memory < before + (_BY_READ_BYTES if is_read else _BY_CALL_BYTES):
                return
            # Whatever happens, the call that has ended gets its answer.
            with contextlib.suppress(Exception):
                self._give_back()
            self._last_bytes, self._last_s = self._memory() or 0, self._clock()
            self._least_bytes = self._last_bytes if self._calls == 1 else min(self._least_bytes, self._last_bytes)
