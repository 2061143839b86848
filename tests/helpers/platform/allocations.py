"""What code takes of memory while it runs, and what it keeps after it has ended, without the garbage collector."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa

__all__ = ["keeping_less_than", "peak_bytes"]


@contextmanager
def keeping_less_than(size: int) -> Iterator[None]:
    """Fail if memory of this size was allocated in the block and is not free at its end. The garbage collector does not run."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert kept < size


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the largest memory that this work takes in Python, numpy and Arrow."""
    gc.collect()
    # A pool counts its most since it was made.
    pool, default = pa.proxy_memory_pool(pa.system_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        work()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(default)
    return int(peak + (pool.max_memory() or 0))
