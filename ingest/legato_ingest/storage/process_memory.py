"""The memory of another process on this host, and the memory that it has at rest. Only Linux shows it; elsewhere it is unknown."""

from __future__ import annotations

import os
import time
from collections import deque

__all__ = ["MemoryAtRest", "anonymous_bytes"]

# Samples of so many seconds, taken at least so far apart. No statement of a reader lasts as long, and memory is given back within seconds.
_SECONDS, _APART_S = 60.0, 1.0


def anonymous_bytes(pid: int) -> int | None:
    """Return the resident memory of a process without mapped files, in bytes; None if it is unknown or the process has ended."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared = file.read().split()[:3]
    except (OSError, ValueError):
        return None
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGESIZE")


class MemoryAtRest:
    """The memory that a process has without the statements of its readers: the least of the last minute's samples."""

    def __init__(self) -> None:
        self._samples = deque[tuple[float, int]]()

    def add(self, memory_bytes: int | None, now_s: float | None = None) -> None:
        """Take a sample. Samples that follow too soon are left out."""
        now_s = time.monotonic() if now_s is None else now_s
        if memory_bytes is None or (self._samples and now_s - self._samples[-1][0] < _APART_S):
            return
        self._samples.append((now_s, memory_bytes))
        while now_s - self._samples[0][0] > _SECONDS:
            self._samples.popleft()

    @property
    def bytes(self) -> int:
        """The memory at rest, in bytes; 0 without a sample."""
        return min((memory for _, memory in self._samples), default=0)
