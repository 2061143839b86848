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

from legato_gpu_agent.agent.settings import SettingsError
from legato_gpu_agent.plugin.pipe import HOLDS_BYTES, opened
from legato_gpu_agent.plugin.protocol import cut

__all__ = ["Inlet"]


class Inlet:
    """The pipe at ``path``, in a folder that is its user's alone. Raises ``SettingsError`` when it cannot be had."""

    def __init__(self, path: pathlib.Path) -> None:
        self._room = memoryview(bytearray(HOLDS_BYTES))
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.parent.stat().st_uid != os.getuid():
                raise SettingsError(f"{path.parent} belongs to another user: set LEGATO_ENGINE_PIPE to a path in a folder of your own")
            self._pipe = _made(path)
        except OSError as error:
            if error.errno == errno.EINVAL:
                raise SettingsError(f"{path} is there and is no pipe: set LEGATO_ENGINE_PIPE to another path") from None
            raise SettingsError(f"cannot listen at {path}: {error.strerror}") from None

    def read(self) -> list[bytes]:
        """All that the pipe holds, in datagrams and in what is none.

        It is read at once: as whoever writes writes whole datagrams, none is cut in two (pipe(7)).
        """
        try:
            count = os.readv(self._pipe, [self._room])
        except BlockingIOError:
            return []
        return cut(self._room[:count].tobytes())

    def close(self) -> None:
        """Let another agent have it. What is written from now on stays for that one, as long as a plugin runs."""
        os.close(self._pipe)


def _made(path: pathlib.Path) -> int:
    """The pipe, made where there is none, and ours alone. Raises ``OSError`` and ``SettingsError``."""
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    pipe = opened(path)
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
