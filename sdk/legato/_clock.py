"""The SDK's clock: CLOCK_MONOTONIC, with one offset to the wall clock measured at import.

All processes of a host share CLOCK_MONOTONIC, and it is never set back. A wall time is the monotonic time plus the offset (`anchor_ns`).
Therefore times within a stream never jump when the wall clock is adjusted, and two vantages on one host can be recognised as using the
same clock. This module does not correct for drift between the two clocks.
"""

from __future__ import annotations

import os
import pathlib
import time
import uuid

__all__ = ["anchor_ns", "clock_id", "now_ns", "wall_ns"]

now_ns = time.monotonic_ns
"""Return the monotonic time in nanoseconds."""


def _anchor() -> int:
    """Return wall time minus monotonic time in ns, from the pair of readings (of five) that were closest together."""
    best = (1 << 62, 0)
    for _ in range(5):
        before, wall, after = now_ns(), time.time_ns(), now_ns()
        best = min(best, (after - before, wall - (before + after) // 2))
    return best[1]


anchor_ns = _anchor()


def wall_ns(monotonic_ns: int) -> int:
    """Convert a monotonic time to a wall time in ns since the epoch."""
    return monotonic_ns + anchor_ns


def _read(path: str) -> str:
    try:
        return pathlib.Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _time_namespace() -> str:
    try:
        return str(os.stat("/proc/self/ns/time").st_ino)
    except OSError:
        return "0"


def clock_id() -> str:
    """Return ``boot id:time namespace:anchor ns``, which identifies this process's clock.

    If the boot id cannot be read, a random id replaces it, so the clock counts as shared with no other process.
    """
    boot = _read("/proc/sys/kernel/random/boot_id") or f"process-{uuid.uuid4()}"
    return f"{boot}:{_time_namespace()}:{anchor_ns}"
