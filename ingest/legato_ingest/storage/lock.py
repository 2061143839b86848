"""The lock of an embedded store: one process owns the store.

The lock is an advisory lock of the kernel (flock) on a file next to the store, so it ends with its process, however that ends. The file
contains the process id of the holder for error messages; its existence alone means nothing. The store itself is not opened here.
"""

from __future__ import annotations

import fcntl
import os
import pathlib
import time
from types import TracebackType

from legato_ingest.errors import Locked, StoreUnavailable

__all__ = ["StoreLock", "admin_socket_path"]

# The process of a store keeps the lock as well (``store_process``). It ends with the holder, but a moment later.
_GONE_S, _RETRY_S = 5.0, 0.01


def admin_socket_path(store_path: pathlib.Path) -> pathlib.Path:
    """Return the path of the socket on which the holder of this store's lock accepts administration commands."""
    return store_path.with_name(store_path.name + ".admin")


class StoreLock:
    """The lock of the store at ``path``, held from ``acquire`` (or ``with``) until ``release``. Raises what ``acquire`` raises."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path.with_name(path.name + ".lock")
        self._file: int | None = None

    def acquire(self) -> StoreLock:
        """Take the lock, or raise ``Locked`` with the holder's process id, or ``StoreUnavailable`` if the disk rejects writes."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnavailable(f"the store {self.path.with_suffix('')} cannot be used: {error.strerror}: {error.filename}") from None
        until_s = time.monotonic() + _GONE_S
        while not _is_locked(file):
            holder = os.pread(file, 32, 0).decode("ascii", "replace").strip() or "unknown"
            if _is_alive(holder) or time.monotonic() > until_s:
                os.close(file)
                raise Locked(f"the store {self.path.with_suffix('')} is in use by process {holder}: stop it, or use another LEGATO_STORE")
            time.sleep(_RETRY_S)
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode("ascii"), 0)
        self._file = file
        return self

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors of the lock while it is held: it lasts until every process has closed them."""
        return (self._file,) if self._file is not None else ()

    def release(self) -> None:
        """Release the lock. The file remains; a second call does nothing."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> StoreLock:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def _is_locked(file: int) -> bool:
    """Take the lock, if it is free."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_alive(pid: str) -> bool:
    """Whether there is such a process; one that cannot be asked for counts as alive."""
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (ValueError, OSError, OverflowError):
        return True
    return True
