"""The agent's end of the pipe: what plugins have written since the last look.

One idea: a named pipe takes a datagram for a third of what a socket asks, holds thousands, and still holds them when an agent is followed
by another; so it is left where it is. Who has it is told by a lock. It understands no datagram and never waits.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import stat
from collections.abc import Iterator

from legato_gpu_agent.datagrams import cut
from legato_gpu_agent.settings import SettingsError

__all__ = ["Inlet"]

# As much as Linux lets a user have in one pipe, and what is read of it at once.
_HOLDS_BYTES, _READ_BYTES = 2**20, 2**18


class Inlet:
    """The pipe at ``path``, in a folder that is its user's alone. Raises ``SettingsError`` when it cannot be had."""

    def __init__(self, path: pathlib.Path) -> None:
        self._left = b""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.parent.stat().st_uid != os.getuid():
                raise SettingsError(f"{path.parent} belongs to another user: set LEGATO_ENGINE_PIPE to a path in a folder of your own")
            self._pipe = _opened(path)
        except OSError as error:
            raise SettingsError(f"cannot listen at {path}: {error.strerror}") from None
        # Linux lets it hold more; elsewhere it holds what it does.
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, _HOLDS_BYTES)

    def read(self) -> Iterator[list[bytes]]:
        """All that the pipe holds, in datagrams and in what is none."""
        while True:
            try:
                data = os.read(self._pipe, _READ_BYTES)
            except BlockingIOError:
                data = b""
            # Who writes writes whole datagrams: only one that this read cut in two has more to come.
            datagrams, self._left = cut(self._left + data)
            if self._left and len(data) < _READ_BYTES:
                datagrams, self._left = [*datagrams, self._left], b""
            if datagrams:
                yield datagrams
            if len(data) < _READ_BYTES:
                return

    def close(self) -> None:
        """Let another agent have it. What is written from now on stays for that one, as long as a plugin runs."""
        os.close(self._pipe)


def _opened(path: pathlib.Path) -> int:
    """The pipe, made where there is none, and ours alone. Raises ``OSError`` and ``SettingsError``."""
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    # Of both its ends: an engine that ends does not end it.
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW) if stat.S_ISFIFO(path.lstat().st_mode) else -1
    if pipe < 0:
        raise SettingsError(f"{path} is there and is no pipe: set LEGATO_ENGINE_PIPE to another path")
    try:
        if os.fstat(pipe).st_uid != os.getuid():
            raise SettingsError(f"{path} belongs to another user: set LEGATO_ENGINE_PIPE to another path")
        os.fchmod(pipe, 0o600)
        _lock(pipe, path)
    except (OSError, SettingsError):
        os.close(pipe)
        raise
    return pipe


def _lock(pipe: int, path: pathlib.Path) -> None:
    """Until it is closed. Where the system locks no pipes (macOS), a second agent takes its share of them, and nothing is lost either."""
    try:
        fcntl.flock(pipe, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SettingsError(f"another agent listens at {path}: stop it, or set LEGATO_ENGINE_PIPE to another path") from None
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EOPNOTSUPP):
            raise
