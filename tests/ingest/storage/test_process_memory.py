"""The memory of a process, and its memory at rest."""

from __future__ import annotations

import os

from legato_ingest.storage.process_memory import MemoryAtRest, anonymous_bytes


def test_memory_that_is_used_counts() -> None:
    """A hundred megabytes more, and a process that is gone has no memory."""
    before = anonymous_bytes(os.getpid())
    taken = bytearray(os.urandom(1)) * 100_000_000
    after = anonymous_bytes(os.getpid())
    assert before is not None and after is not None and after - before >= len(taken) // 2
    assert anonymous_bytes(2**22 + 1) is None


def test_memory_at_rest_is_the_least_of_the_last_minute() -> None:
    """Samples within a second count once, and unknown ones not at all; a peak is no rest, and a minimum of long ago is forgotten."""
    memory = MemoryAtRest()
    assert memory.bytes == 0
    for now_s, size in ((0.0, 500), (0.5, 100), (1.0, None), (2.0, 900), (3.0, 400)):
        memory.add(size, now_s)
    assert memory.bytes == 400
    memory.add(800, 63.0)
    assert memory.bytes == 400
    memory.add(900, 64.0)
    assert memory.bytes == 800
