"""The lock of an embedded store: one process owns the store.

The lock is an advisory lock of the kernel (flock) on a file next to the store, so it ends with its process, however that ends. The file
contains the process id of the holder for error messages; its existence alone means nothing. The store itself is not opened here.
"""

from __future__ import annotations

import fcntl
import os
import pathlib
from types import TracebackType

from legato_ingest.errors import Locked

__all__ = ["StoreLock", "admin_socket_path"]


def admin_socket_path(store_path: pathlib.Path) -> pathlib.Path:
    """Return the path of the socket on which the holder of this store's lock accepts administration commands."""
    return store_path.with_name(store_path.name + ".admin")


class StoreLock:
    """The lock of the store at ``path``, held from ``acquire`` (or ``with``) until ``release``. Raises ``Locked``."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path.with_name(path.name + ".lock")
        self._file: int | None = None

    def acquire(self) -> StoreLock:
        """Take the lock, or raise ``Locked`` with the holder's process id."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(file, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(file)
            raise Locked(
                f"the store {self.path.with_suffix('')} is in use by process {holder}: stop it, or use another LEGATO_STORE"
            ) from None
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode("ascii"), 0)
        self._file = file
        return self

    def release(self) -> None:
        """Release the lock. The file remains; a second call does nothing."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> StoreLock:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()
