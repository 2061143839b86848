"""What code keeps in memory after it has ended, without the garbage collector."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["keeping_less_than"]


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
