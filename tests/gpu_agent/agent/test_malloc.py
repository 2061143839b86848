"""The allocator's options, read from malloc_info in a separate process, because they cannot be reset."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types

import pytest

from legato_gpu_agent.agent.malloc import configure_malloc

# Eight threads that exist at once allocate memory; then 16 MiB are freed and allocated again.
PROGRAM = """
import ctypes, os, sys, threading
from legato_gpu_agent.agent.malloc import configure_malloc

if sys.argv[1] == "configured":
    configure_malloc(os.environ)
barrier = threading.Barrier(8)
def allocate():
    kept = bytes(10_000)
    barrier.wait()
threads = [threading.Thread(target=allocate) for _ in range(8)]
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
    """Return the number of arenas, and the bytes allocated by mmap."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    out = subprocess.run([sys.executable, "-c", PROGRAM, how], env=own | environ, capture_output=True, text=True, check=True).stdout
    (mapped,) = re.findall(r'<total type="mmap" count="\d+" size="(\d+)"/>', out)
    return out.count("<heap nr="), int(mapped)


glibc = pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="another allocator")


@glibc
def test_one_arena_and_nothing_large() -> None:
    """Without the options there are more arenas, and large blocks come from them."""
    arenas, mapped = kept("free")
    assert arenas > 4 and mapped < 16 * 2**20
    arenas, mapped = kept("configured")
    assert arenas == 1 and mapped >= 16 * 2**20


@glibc
def test_options_of_the_operator_are_kept() -> None:
    """The variable of an option takes precedence over the agent's value."""
    arenas, mapped = kept("configured", MALLOC_ARENA_MAX="4")
    assert arenas == 4 and mapped >= 16 * 2**20


def test_another_allocator_is_not_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a function mallopt nothing else of the C library is called."""
    used: list[str] = []

    class Library:
        def __getattr__(self, name: str) -> None:
            used.append(name)
            raise AttributeError(name)

    monkeypatch.setattr("ctypes.CDLL", lambda _: Library())
    configure_malloc({})
    assert used == ["mallopt"]


def test_each_option_is_set_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Except those in the environment."""
    options: list[int] = []
    monkeypatch.setattr("ctypes.CDLL", lambda _: types.SimpleNamespace(mallopt=lambda option, _: options.append(option)))
    configure_malloc({"MALLOC_TRIM_THRESHOLD_": "0"})
    assert options == [-8, -3]
