"""Opens the named pipe between the plugins and the agent.

Every process opens the pipe for reading and writing, so a write does not fail while no agent reads, and written data stays as long as any
process holds the pipe open. The module uses the standard library only; it creates no pipe and does not interpret its contents.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import stat

__all__ = ["CAPACITY_BYTES", "file_id", "open_pipe"]

CAPACITY_BYTES = 2**20
"""Requested capacity of the pipe: on Linux the maximum for a user other than root."""


def open_pipe(path: str | pathlib.Path) -> int:
    """Open the pipe at this path without blocking, and return its file descriptor.

    Raises ``OSError``; with EINVAL where the path holds anything but a pipe, a link to a pipe included.
    """
    if stat.S_ISFIFO(os.lstat(path).st_mode):
        pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        if stat.S_ISFIFO(os.fstat(pipe).st_mode):
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, CAPACITY_BYTES)
            return pipe
        os.close(pipe)
    raise OSError(errno.EINVAL, "not a named pipe", str(path))


def file_id(status: os.stat_result) -> tuple[int, int]:
    """Return device and inode, which identify a file even after another one replaced it at the same path."""
    return status.st_dev, status.st_ino
