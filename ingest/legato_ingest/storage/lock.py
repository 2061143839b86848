"""The store's lock: one process owns an embedded store.

One idea: an advisory lock of the kernel (flock) on a file beside the store decides who owns it, never a flag or a pid file: it is
gone the moment its holder is, however that ended. The file also says who holds it, for people. It does not open the store.
"""

from __future__ import annotations

import fcntl
import os
import pathlib
from types import TracebackType

from legato_ingest.errors import Locked

__all__ = ["StoreLock", "admin_socket_path"]


def admin_socket_path(store_path: pathlib.Path) -> pathlib.Path:
    """Return where the holder of this store's lock listens for administration commands."""
    return store_path.with_name(store_path.name + ".admin")


class StoreLock:
    """Holds the lock of the store at ``path`` from ``acquire`` (or ``with``) until ``release``. Raises ``Locked``."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path.with_name(path.name + ".lock")
        self._file: int | None = None

    def acquire(self) -> StoreLock:
        """Take the lock now, or raise ``Locked`` with the holder's process id."""
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
        """Let go of the lock; the file stays."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> StoreLock:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()
