"""Configures glibc's allocator: one arena, and no large free blocks kept.

By default glibc gives each thread a separate arena and keeps freed memory for later allocations of the same size. The memory of one
response of several megabytes would stay allocated for the thread that received it, once per thread. Python's threads allocate one at a
time, so one arena does not slow them down. With another allocator (musl, macOS) nothing is changed, nor are options that the operator has
set.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping

__all__ = ["configure_malloc"]

# mallopt(3): environment variable, parameter number in malloc.h, value. Setting a threshold also stops glibc from raising it.
_OPTIONS = (("MALLOC_ARENA_MAX", -8, 1), ("MALLOC_MMAP_THRESHOLD_", -3, 128 * 2**10), ("MALLOC_TRIM_THRESHOLD_", -1, 128 * 2**10))


def configure_malloc(environ: Mapping[str, str]) -> None:
    """Set the options of this process that are not in the environment. Call it before the first thread starts."""
    mallopt: Callable[[int, int], int] | None = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for name, option, value in _OPTIONS:
        if name not in environ:
            mallopt(option, value)
