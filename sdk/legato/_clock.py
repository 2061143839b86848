"""One monotonic clock, anchored once to the wall clock.

One idea: all times of a process come from CLOCK_MONOTONIC, which all processes of a host share and nobody sets; a wall time is the
monotonic one plus an anchor taken once. So times within a stream never jump, and two vantages on one host can be known to share a clock.
"""

from __future__ import annotations

import os
import pathlib
import time
import uuid

__all__ = ["anchor_ns", "clock_id", "now_ns", "wall_ns"]

now_ns = time.monotonic_ns
"""Nanoseconds of the monotonic clock."""


def _anchor() -> int:
    """Wall minus monotonic time, from the closest of a few pairs of readings."""
    best = (1 << 62, 0)
    for _ in range(5):
        before, wall, after = now_ns(), time.time_ns(), now_ns()
        best = min(best, (after - before, wall - (before + after) // 2))
    return best[1]


anchor_ns = _anchor()


def wall_ns(monotonic_ns: int) -> int:
    """The wall time, ns since the epoch, of a monotonic time."""
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
    """``boot id:time namespace:anchor``. Where the boot is not known, an id of this process's own: its clock is then nobody else's."""
    boot = _read("/proc/sys/kernel/random/boot_id") or f"process-{uuid.uuid4()}"
    return f"{boot}:{_time_namespace()}:{anchor_ns}"
