"""Processes of Legato do not import pandas, which takes 35 MB in each, have one heap, which keeps less memory that was freed, and seldom
collect garbage."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

PRINT = "import sys; print('pandas' in sys.modules)"
# Eight threads allocate at the same time. Prints the number of the C library's heaps.
HEAPS = """
import {module}
import ctypes, tempfile, threading
together = threading.Barrier(8)
def allocate():
    together.wait()
    kept = [bytearray(8_000) for _ in range(100)]
    together.wait()
threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
with tempfile.NamedTemporaryFile() as file:
    stream = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    print(file.read().count(b"<heap "))
"""


def run(*arguments: str, **environment: str) -> str:
    """Run Python and return what it printed."""
    options = {"capture_output": True, "text": True, "check": True, "env": {**os.environ, **environment}}
    return subprocess.run([sys.executable, *arguments], **options).stdout.strip()  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("module", ["pyarrow", "clickhouse_connect", "legato_ingest.storage.chdb"])
def test_libraries_work_without_pandas(module: str) -> None:
    """Those that import it elsewhere do not here, and convert arrays."""
    assert run("-c", f"import {module}, pyarrow; pyarrow.array([1]); {PRINT}") == "True"
    assert run("-c", f"import legato_ingest.__main__, {module}, pyarrow; pyarrow.array([1]); {PRINT}") == "False"


def test_a_module_runs_with_its_arguments() -> None:
    """As with `python -m`, and an import of pandas fails as if it were not installed."""
    assert run("-m", "legato_ingest.lean", "json.tool", "--help").startswith("usage:")
    failing = "try:\n import legato_ingest.__main__, pandas\nexcept ModuleNotFoundError as error:\n print(error.name)"
    assert run("-c", failing) == "pandas"


def test_the_garbage_collector_runs_seldom() -> None:
    """Imports make 150,000 objects that stay, and each collection may look through all of them."""
    count = "import gc; print(sum(each['collections'] for each in gc.get_stats()))"
    lean, other = (int(run("-c", f"import {module}; {count}")) for module in ("legato_ingest.__main__", "legato_ingest.cli.main"))
    assert lean < other / 2


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such heaps")
def test_threads_share_a_heap() -> None:
    """By default each has one, which keeps what was freed. The variable of an administrator counts."""
    lean, other = (HEAPS.format(module=module) for module in ("legato_ingest.__main__", "legato_ingest.lean"))
    assert run("-c", lean) == "1"
    assert int(run("-c", other)) > 1
    assert int(run("-c", lean, MALLOC_ARENA_MAX="4")) > 1
