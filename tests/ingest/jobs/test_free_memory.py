"""Free memory of the process is given back."""

from __future__ import annotations

import ctypes
import os

import pytest

from legato_ingest.jobs.free_memory import FreeMemory, trim_heap
from legato_ingest.storage.process_memory import anonymous_bytes

MB = 2**20


def test_memory_is_given_back_once_for_each_growth() -> None:
    """Memory in use is not asked for again and again; what is free later is the base of the next growth."""
    now, given = [100 * MB], list[int]()
    memory = FreeMemory(lambda: now[0], lambda: given.append(now[0] // MB))
    for now[0] in (150 * MB, 230 * MB, 230 * MB, 350 * MB, 110 * MB, 235 * MB, 240 * MB):
        memory.step()
    assert given == [230, 240]


def test_what_was_in_use_is_given_back_later() -> None:
    """Nothing grows any more, and the process has much more than at its start."""
    now, given = [100 * MB], list[int]()
    memory = FreeMemory(lambda: now[0], lambda: given.append(now[0] // MB))
    now[0] = 400 * MB
    for _ in range(12):
        memory.step()
    assert given == [400]
    memory.step()
    assert given == [400, 400]
    # It gave nothing: the next time is later.
    for _ in range(23):
        memory.step()
    assert given == [400, 400]
    now[0] = 150 * MB
    for _ in range(30):
        memory.step()
    assert given == [400, 400]


def test_unknown_memory_is_left_alone() -> None:
    """On another system than Linux."""
    FreeMemory(lambda: None, lambda: pytest.fail("nothing is known")).step()


def test_the_free_pages_of_the_heap_are_given_back() -> None:
    """100 MB in small pieces, the last of which stays: it keeps all before it in the heap."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_trim"):
        pytest.skip("the C library is not glibc")
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    pieces = [libc.malloc(10_000) for _ in range(10_000)]
    for piece in pieces:
        ctypes.memset(piece, 1, 10_000)
    for piece in pieces[:-1]:
        libc.free(piece)
    before = anonymous_bytes(os.getpid())
    trim_heap()
    after = anonymous_bytes(os.getpid())
    libc.free(pieces[-1])
    assert before is not None and after is not None and before - after > 50 * MB
