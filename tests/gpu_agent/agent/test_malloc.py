"""What the allocator keeps, as it tells itself: in a process of its own, as it is for good."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from legato_gpu_agent.agent.malloc import restrain

# Eight threads that live at once ask for memory; then 16 MiB are given back and asked for again.
PROGRAM = """
import ctypes, os, sys, threading
from legato_gpu_agent.agent.malloc import restrain

if sys.argv[1] == "restrained":
    restrain(os.environ)
met = threading.Barrier(8)
def ask():
    kept = bytes(10_000)
    met.wait()
threads = [threading.Thread(target=ask) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
large = bytearray(16 * 2**20)
del large
large = bytearray(16 * 2**20)
libc = ctypes.CDLL(None)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


def kept(how: str, **environ: str) -> tuple[int, int]:
    """How many arenas there are, and how many bytes come from the system by themselves."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    out = subprocess.run([sys.executable, "-c", PROGRAM, how], env=own | environ, capture_output=True, text=True, check=True).stdout
    (mapped,) = re.findall(r'<total type="mmap" count="\d+" size="(\d+)"/>', out)
    return out.count("<heap nr="), int(mapped)


glibc = pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="another allocator")


@glibc
def test_one_arena_and_nothing_large() -> None:
    arenas, mapped = kept("free")
    assert arenas > 4 and mapped < 16 * 2**20
    arenas, mapped = kept("restrained")
    assert arenas == 1 and mapped >= 16 * 2**20


@glibc
def test_what_the_operator_set_stands() -> None:
    arenas, mapped = kept("restrained", MALLOC_ARENA_MAX="4")
    assert arenas == 4 and mapped >= 16 * 2**20


def test_another_allocator_is_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    restrain({})
