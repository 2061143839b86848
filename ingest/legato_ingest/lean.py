"""A process that takes little memory and time: `python -m legato_ingest.lean MODULE ARGUMENTS` runs a module like `python -m`.

Where pandas is installed, and chDB's package installs it, pyarrow and clickhouse-connect import it: 35 MB and 0.3 s in each process of
`legato serve`, which uses nothing of it. Both work without it. The C library has a heap for each thread, which keeps what was freed. And
the garbage collector looks through all objects again and again while modules are imported. The module imports nothing of Legato, so that
it comes first.
"""

from __future__ import annotations

import ctypes
import gc
import os
import runpy
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["be_lean"]

# Option M_ARENA_MAX of glibc's mallopt(3), and the environment variable that an administrator may set instead. By default each thread has
# a heap, up to eight for each core, and in each stays what was freed between blocks in use: 100 MB at 150 streams/s. A limit for mapped
# blocks (M_MMAP_THRESHOLD) would give back more, but then each body's memory is mapped anew, and conversion takes half as long again.
_ARENA_MAX, _ARENA_MAX_VARIABLE = -8, "MALLOC_ARENA_MAX"
# The garbage collector runs after so many new objects, not after 700. A request and an answer of the store make tens of thousands of
# objects that are freed together, and imports make 150,000 that stay: to look through them took 0.3 s of processor time at a start.
_GC_THRESHOLDS = 100_000, 50, 100


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Raise ``ModuleNotFoundError`` for pandas, and leave all other modules to the next finder."""
        if name == "pandas":
            raise ModuleNotFoundError(f"{name} is not imported in processes of Legato (legato_ingest.lean)", name=name)
        return None


def be_lean() -> None:
    """Let imports of pandas fail in this process, as if it were not installed, let all threads share one heap (glibc only), and let the
    garbage collector run seldom.

    Call it before a thread is started.
    """
    if not any(isinstance(finder, _NoPandas) for finder in sys.meta_path):
        sys.meta_path.insert(0, _NoPandas())
    gc.set_threshold(*_GC_THRESHOLDS)
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if set_option is not None and _ARENA_MAX_VARIABLE not in os.environ:
        set_option(_ARENA_MAX, 1)


def _main() -> None:
    be_lean()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
