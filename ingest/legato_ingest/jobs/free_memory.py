"""Free memory of this process is given back to the system.

Bodies and rows of some MB leave the C library's heap in pieces, and the library returns only its end: after forty bodies of 40 MiB, 400 MB
stayed of which nothing was in use. The module looks at no other process; the engine's is in ``storage.left_memory``.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

from legato_ingest.storage.process_memory import anonymous_bytes

__all__ = ["FreeMemory", "trim_heap"]

# To give memory back takes up to 0.1 s, in which other threads may wait for memory: only after the process has grown by so much.
_GROWN_BYTES = 128 * 2**20
# While it has so much more than at its least, it is tried again after so many steps, and after twice as many each time it gave little.
_AGAIN_STEPS, _AGAIN_STEPS_MAX, _LITTLE_BYTES = 12, 720, 16 * 2**20


def trim_heap() -> None:
    """Give the free pages of the C library's heap back (``malloc_trim``, glibc only)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class FreeMemory:
    """Calls ``give_back`` when the process has grown. ``memory`` returns its memory in bytes; ``None``: unknown, and nothing is done."""

    def __init__(
        self, memory: Callable[[], int | None] = lambda: anonymous_bytes(os.getpid()), give_back: Callable[[], None] = trim_heap
    ) -> None:
        self._memory, self._give_back = memory, give_back
        # The memory after the last time, and the least of all times; how many steps ago the last time was.
        self._last_bytes = self._least_bytes = memory() or 0
        self._steps, self._again_steps = 0, _AGAIN_STEPS

    def step(self) -> None:
        """Give memory back if the process has grown. Later again, because what was in use at that time may be free by then."""
        memory, self._steps = self._memory(), self._steps + 1
        if memory is None:
            return
        # Growth is counted from the lowest point.
        self._last_bytes = min(self._last_bytes, memory)
        is_again = self._steps >= self._again_steps and memory > self._least_bytes + _GROWN_BYTES
        if memory > self._last_bytes + _GROWN_BYTES or is_again:
            self._give_back()
            self._last_bytes, self._steps = self._memory() or memory, 0
            gave_little = memory - self._last_bytes < _LITTLE_BYTES
            self._again_steps = min(2 * self._again_steps, _AGAIN_STEPS_MAX) if gave_little and is_again else _AGAIN_STEPS
            self._least_bytes = min(self._least_bytes, self._last_bytes)
