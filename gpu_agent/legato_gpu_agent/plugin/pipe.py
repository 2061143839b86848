"""Opens the named pipe between the plugins and the agent, and refuses one that another user could read, fill or replace.

Every process opens the pipe for reading and writing, so a write does not fail while no agent reads, and written data stays as long as any
process holds the pipe open. All checks are made on opened descriptors, so nothing can be replaced between a check and the use. The module
uses the standard library only; it creates no pipe and does not interpret its contents.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import stat
from collections.abc import Iterator

__all__ = ["CAPACITY_BYTES", "PipeRefused", "file_id", "open_folder", "open_in", "open_pipe", "open_to_others"]

CAPACITY_BYTES = 2**20
"""Requested capacity of the pipe: on Linux the maximum for a user other than root."""

# With O_PATH, where a system has it, a folder needs no permission to be read.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_PIPE = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
_ROOT = 0
_ELSEWHERE = "set LEGATO_ENGINE_PIPE, for the engine and the agent, to a path in a folder that only their user can write to"


class PipeRefused(Exception):
    """The pipe, or its folder, that is found at the path is not to be used. The text says what was expected and what to do."""


def open_pipe(path: str | pathlib.Path) -> int:
    """Open the pipe at this path without blocking, and return its file descriptor. Raises ``PipeRefused`` and ``OSError``."""
    with open_folder(pathlib.Path(path)) as folder:
        return open_in(folder, pathlib.Path(path))


@contextlib.contextmanager
def open_folder(path: pathlib.Path) -> Iterator[int]:
    """Open the folder of the pipe at ``path``: a folder of this user or of root in which no other user can replace a file.

    A folder of a third user is accepted where root or this user alone can have placed it, as in /run: it belongs to the agent that an
    administrator runs as this third user. Raises ``PipeRefused`` and ``OSError``.
    """
    if not path.is_absolute() or ".." in path.parts:
        raise PipeRefused(f"the path of the pipe is {str(path)!r}: expected an absolute path without '..' in LEGATO_ENGINE_PIPE")
    above = os.open(path.parent.parent, _FOLDER)
    try:
        folder = _open_child(above, path.parent)
        try:
            _check_folder(path.parent, os.fstat(folder), os.fstat(above))
            yield folder
        finally:
            os.close(folder)
    finally:
        os.close(above)


def _open_child(above: int, folder: pathlib.Path) -> int:
    try:
        return os.open(folder.name or ".", _FOLDER | os.O_NOFOLLOW, dir_fd=above)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise PipeRefused(f"{folder} is a symbolic link or not a folder: set LEGATO_ENGINE_PIPE to a path in a folder") from None
        raise


def _check_folder(path: pathlib.Path, folder: os.stat_result, above: os.stat_result) -> None:
    trusted = (_ROOT, os.geteuid())
    placed_by_trusted = above.st_uid in trusted and not above.st_mode & 0o022
    if folder.st_uid not in trusted and not placed_by_trusted:
        raise PipeRefused(_foreign(path, folder))
    # In a sticky folder, such as /tmp, no other user can replace the pipe; a pipe of another user is refused below.
    if folder.st_mode & 0o022 and not folder.st_mode & stat.S_ISVTX:
        raise PipeRefused(
            f"{path} can be written by other users (mode {stat.S_IMODE(folder.st_mode):04o}, expected 0700): run `chmod 700 {path}` as its "
            f"owner, or {_ELSEWHERE}"
        )


def open_in(folder: int, path: pathlib.Path) -> int:
    """Open the pipe at ``path``, in a folder that ``open_folder`` opened. Raises ``PipeRefused`` and ``OSError``."""
    # First without opening it: opening a device or a file that is no pipe could have an effect.
    _check_kind(path, os.stat(path.name, dir_fd=folder, follow_symlinks=False))
    pipe = os.open(path.name, _PIPE, dir_fd=folder)
    try:
        found = os.fstat(pipe)
        _check_kind(path, found)
        if found.st_uid not in (os.geteuid(), os.fstat(folder).st_uid):
            raise PipeRefused(_foreign(path, found))
        if open_to_others(found):
            raise PipeRefused(
                f"{path} is accessible to other users (mode {stat.S_IMODE(found.st_mode):04o}, expected 0600): start the agent, which "
                "replaces it"
            )
    except PipeRefused:
        os.close(pipe)
        raise
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, CAPACITY_BYTES)
    return pipe


def open_to_others(pipe: os.stat_result) -> bool:
    """Return whether the permissions allow other users to read or to write."""
    return bool(pipe.st_mode & 0o077)


def _check_kind(path: pathlib.Path, found: os.stat_result) -> None:
    if not stat.S_ISFIFO(found.st_mode):
        raise PipeRefused(f"{path} exists and is not a pipe: set LEGATO_ENGINE_PIPE to another path")


def _foreign(path: pathlib.Path, found: os.stat_result) -> str:
    return f"{path} belongs to another user (uid {found.st_uid}, expected {os.geteuid()}): {_ELSEWHERE}"


def file_id(status: os.stat_result) -> tuple[int, int]:
    """Return device and inode, which identify a file even after another one replaced it at the same path."""
    return status.st_dev, status.st_ino
