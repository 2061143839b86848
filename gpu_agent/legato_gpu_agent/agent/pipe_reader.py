"""The agent's end of the pipe: reads the datagrams that the plugins have written since the last read.

A write to a named pipe costs a third of a write to a socket. The pipe holds thousands of datagrams and keeps them from one agent to the
next, so the agent does not remove it, unless other users can open it. A lock shows which agent uses it. If the pipe is gone from its path,
as when a user logs out and XDG_RUNTIME_DIR is removed, the agent makes it again. The module decodes no datagram and never blocks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import pathlib
import stat
import time
from collections.abc import Callable

from legato_gpu_agent.agent.settings import SettingsError
from legato_gpu_agent.plugin.pipe import CAPACITY_BYTES, PipeRefused, file_id, open_folder, open_in, open_to_others
from legato_gpu_agent.plugin.protocol import split_datagrams

__all__ = ["PipeReader"]

_log = logging.getLogger("legato")
_CHECK_EVERY_S = 1.0


class PipeReader:
    """Reads the pipe at ``path``, in a folder of this user. Raises ``SettingsError`` if the pipe cannot be created, opened or locked."""

    def __init__(self, path: pathlib.Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._data = memoryview(bytearray(CAPACITY_BYTES))
        self._path, self._clock = path, clock
        self._pipe = _open(path)
        self._checked_s, self._failure = clock(), ""

    @property
    def file_id(self) -> tuple[int, int]:
        """Device and inode of the pipe that is open."""
        return file_id(os.fstat(self._pipe))

    def read(self) -> list[bytes]:
        """Return the contents of the pipe, split into datagrams and invalid pieces.

        Writers write whole datagrams and the pipe is read in one call, so no datagram is split between two reads (pipe(7)).
        """
        pieces = self._read_open()
        if self._clock() - self._checked_s >= _CHECK_EVERY_S:
            self._checked_s = self._clock()
            if not self._is_at_its_path():
                self._make_again()
        return pieces

    def close(self) -> None:
        """Release the pipe for another agent. Later datagrams stay in it as long as a plugin runs."""
        os.close(self._pipe)

    def _read_open(self) -> list[bytes]:
        try:
            count = os.readv(self._pipe, [self._data])
        except BlockingIOError:
            return []
        return split_datagrams(self._data[:count].tobytes())

    def _is_at_its_path(self) -> bool:
        try:
            return file_id(os.lstat(self._path)) == self.file_id
        except OSError:
            return False

    def _make_again(self) -> None:
        """Open the pipe at the path; the old one is kept until then, because engines that have it open still write to it.

        What they write to it later they move to the new one themselves.
        """
        try:
            pipe = _open(self._path)
        except SettingsError as error:
            if str(error) != self._failure:
                self._failure = str(error)
                _log.warning("the pipe at %s is gone, steps of engines that start now are lost: %s", self._path, error)
            return
        os.close(self._pipe)
        self._pipe, self._failure = pipe, ""
        _log.warning("the pipe at %s was gone or replaced: the agent opened a new one", self._path)


def _open(path: pathlib.Path) -> int:
    """Create the pipe and its folder where they do not exist, open the pipe and lock it. Raises ``SettingsError``."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open_folder(path) as folder:
            if os.fstat(folder).st_uid != os.geteuid():
                raise SettingsError(f"{path.parent} belongs to another user: set LEGATO_ENGINE_PIPE to a path in a folder of this user")
            return _create(folder, path)
    except PipeRefused as refused:
        raise SettingsError(str(refused)) from None
    except OSError as error:
        raise SettingsError(f"cannot listen at {path}: {error.strerror}") from None


def _create(folder: int, path: pathlib.Path) -> int:
    """Create the pipe for this user only if it does not exist, open it and lock it.

    Raises ``OSError``, ``PipeRefused`` and ``SettingsError``.
    """
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path.name, 0o600, dir_fd=folder)
    _replace_open_one(folder, path.name)
    pipe = open_in(folder, path)
    try:
        _lock(pipe, path)
    except (OSError, SettingsError):
        os.close(pipe)
        raise
    return pipe


def _replace_open_one(folder: int, name: str) -> None:
    """Replace a pipe of this user that other users can open: one that has it open could read, fill or lock it after a mere chmod, too."""
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISFIFO(found.st_mode) and found.st_uid == os.geteuid() and open_to_others(found):
        os.unlink(name, dir_fd=folder)
        os.mkfifo(name, 0o600, dir_fd=folder)


def _lock(pipe: int, path: pathlib.Path) -> None:
    """Lock the pipe until it is closed.

    On a system that cannot lock pipes (macOS) a second agent would read a part of the datagrams; none is lost.
    """
    try:
        fcntl.flock(pipe, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SettingsError(f"another agent listens at {path}: stop it, or set LEGATO_ENGINE_PIPE to another path") from None
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EOPNOTSUPP):
            raise
