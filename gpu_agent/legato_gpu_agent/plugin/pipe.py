"""The named pipe between plugins and agent, opened.

One idea: everyone opens it at both its ends, so it never fails who writes for want of a reader, and holds what was written for as long as
anyone has it open. The standard library alone. It makes no pipe, and knows nothing of what goes through it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import stat

__all__ = ["HOLDS_BYTES", "opened", "which"]

HOLDS_BYTES = 2**20
"""What it can hold, where the system lets it: Linux' bound for who is not root."""


def opened(path: str | pathlib.Path) -> int:
    """The pipe at this path, which never waits. Raises ``OSError``: EINVAL for whatever else there is, a link to a pipe as well."""
    if stat.S_ISFIFO(os.lstat(path).st_mode):
        pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        if stat.S_ISFIFO(os.fstat(pipe).st_mode):
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, HOLDS_BYTES)
            return pipe
        os.close(pipe)
    raise OSError(errno.EINVAL, "it is no pipe", str(path))


def which(status: os.stat_result) -> tuple[int, int]:
    """What tells it from another in its place."""
    return status.st_dev, status.st_ino
