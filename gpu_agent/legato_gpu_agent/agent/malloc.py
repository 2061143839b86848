"""What the C library's allocator may keep: one arena, and nothing large.

One idea: glibc gives each thread an arena of its own, and keeps what was freed for more of the same size; a page of megabytes that one
engine once sent would stay with its thread for good, times the threads. Python's threads allocate one at a time, so one arena costs them
nothing. Where the allocator is another (musl, macOS) nothing is asked of it, and what the operator set is left as it is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

__all__ = ["restrain"]

# mallopt(3): the variable of the environment that says the same, the parameter's number in malloc.h, its value. A threshold that is set
# no longer rises with what is freed.
_OPTIONS = (("MALLOC_ARENA_MAX", -8, 1), ("MALLOC_MMAP_THRESHOLD_", -3, 128 * 2**10), ("MALLOC_TRIM_THRESHOLD_", -1, 128 * 2**10))


def restrain(environ: Mapping[str, str]) -> None:
    """Of this process, before it has threads; options that are in the environment stand."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for name, option, value in _OPTIONS:
        if name not in environ:
            mallopt(option, value)
