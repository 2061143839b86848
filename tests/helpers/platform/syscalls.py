"""System calls that fail in another process: the kernel's own errors, by strace's fault injection."""

from __future__ import annotations

import contextlib
import pathlib
import signal
import subprocess
from collections.abc import Iterator, Sequence

from helpers.servers.waiting import until

__all__ = ["SYNCING", "WRITING", "failing", "tracing"]

SYNCING = ("pwrite64", "fsync", "fdatasync")
"""Calls that bring contents to the disk. `write` is not one of them, as pipes need it."""
WRITING = (*SYNCING, "ftruncate", "mkdir", "rename", "renameat2", "unlink", "unlinkat", "rmdir")
"""Calls that change a file system, with the same exception."""


def tracing(calls: Sequence[str], error: str, path: pathlib.Path | None = None) -> list[str]:
    """Return the command prefix with which these calls of a command fail with ``error`` (``EIO``), on a path only if there is one."""
    only = ["-P", str(path)] if path is not None else []
    return ["strace", "-f", "-qq", "-o", "/dev/null", *only, "-e", f"inject={','.join(calls)}:error={error}"]


@contextlib.contextmanager
def failing(pid: int, calls: Sequence[str], error: str) -> Iterator[None]:
    """Let these calls of a running process fail; afterwards they work again."""
    with subprocess.Popen([*tracing(calls, error), "-p", str(pid)]) as tracer:
        until(lambda: _is_traced(pid, tracer.pid))
        try:
            yield
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.wait(30)
            until(lambda: not _is_traced(pid, tracer.pid))


def _is_traced(pid: int, tracer: int) -> bool:
    """Return whether all threads of a process are traced."""
    expected = f"TracerPid:\t{tracer}\n"
    found = []
    for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found.append(expected in (thread / "status").read_text(encoding="ascii"))
    return all(found)
