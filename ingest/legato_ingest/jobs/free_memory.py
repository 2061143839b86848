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
_GROWN_BYTES = 64 * 2**20


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
        self._last_bytes = memory() or 0

    def step(self) -> None:
        """Give memory back if the process has much more than after the last time."""
        memory = self._memory()
        if memory is None or memory < self._last_bytes + _GROWN_BYTES:
            # Memory that was in use the last time may be free now, and be taken again.
            self._last_bytes = min(self._last_bytes, memory or self._last_bytes)
            return
        self._give_back()
        self._last_bytes = self._memory() or memory
