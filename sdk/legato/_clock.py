"""The SDK's clock: CLOCK_MONOTONIC, with an offset to the wall clock for each stream: its anchor.

All processes of a host share CLOCK_MONOTONIC, and it is never set back. A wall time is the monotonic time plus the stream's anchor.
Therefore times within a stream never jump when the wall clock is adjusted, and two vantages on one host can be recognised as using the
same clock. The anchor is measured at import, and again only if it is wrong by more than a second at the start of a stream: the machine
slept meanwhile, in which CLOCK_MONOTONIC stands still, or its wall clock was set. This module does not correct for drift between the
two clocks.
"""

from __future__ import annotations

import os
import pathlib
import time
import uuid
from functools import cache

__all__ = ["anchor_ns", "clock_id", "now_ns"]

now_ns = time.monotonic_ns
"""Return the monotonic time in nanoseconds."""


_STEP_NS = 1_000_000_000


def _measured() -> int:
    """Return wall time minus monotonic time in ns, from the pair of readings (of five) that were closest together."""
    best = (1 << 62, 0)
    for _ in range(5):
        before, wall, after = now_ns(), time.time_ns(), now_ns()
        best = min(best, (after - before, wall - (before + after) // 2))
    return best[1]


_anchor_ns = _measured()


def anchor_ns() -> int:
    """Return wall time minus monotonic time in ns, for a stream that starts now."""
    global _anchor_ns
    if abs(time.time_ns() - now_ns() - _anchor_ns) > _STEP_NS:
        measured = _measured()
        # Not if only this thread was stopped between the two readings.
        if abs(measured - _anchor_ns) > _STEP_NS:
            _anchor_ns = measured
    return _anchor_ns


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


@cache
def _host_clock() -> str:
    boot = _read("/proc/sys/kernel/random/boot_id") or f"process-{uuid.uuid4()}"
    return f"{boot}:{_time_namespace()}"


def clock_id(anchor_ns: int) -> str:
    """Return ``boot id:time namespace:anchor ns``, which identifies the clock of streams with this anchor.

    If the boot id cannot be read, a random id replaces it, so the clock counts as shared with no other process.
    """
    return f"{_host_clock()}:{anchor_ns}"
