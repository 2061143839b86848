"""The process that has the embedded store of `legato serve` open: it runs the calls of its parent on an ``EmbeddedStore``.

A statement that crashes ClickHouse's engine, or that takes too much memory or time, ends this process and not the one that receives. It
listens on no port and accepts calls only from the process that started it (``store_process``); it ends with that process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import pickle
import shutil
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

from legato_ingest.errors import StoreError
from legato_ingest.storage.chdb import EmbeddedStore
from legato_ingest.storage.left_memory import LeftMemory
from legato_ingest.storage.process_memory import anonymous_bytes

__all__ = ["table_of"]

_PR_SET_PDEATHSIG = 1
# The kernel's choice when memory is short: this process before its parent, which can start it again.
_OOM_SCORE = "500"
# chDB handles them: the thread with the fault waits for ever, and every other statement fails. By default they end the process.
_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS)
# In the folder of the store.
_TEMPORARY = "legato_tmp"


class _Stores:
    """The store of this process, and its clones by handle. Handle 0 is the store that ``open`` opened.

    Statements of readers run in a store apart, so that they do not wait for Legato's own statements: their time is limited.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stores = dict[int, EmbeddedStore]()
        self.reading: EmbeddedStore | None = None
        self.left_memory: LeftMemory | None = None

    def open(self, path: str, read_limits: Mapping[str, int | str]) -> None:
        root = self._stores[0] = EmbeddedStore(pathlib.Path(path))
        _use_temporary_folder(pathlib.Path(path) / _TEMPORARY)
        self.reading = root.clone(read_limits)
        self.left_memory = LeftMemory(partial(anonymous_bytes, os.getpid()), root.clone().give_back_memory)
        _end_at_faults()

    def of(self, handle: int) -> EmbeddedStore:
        with self._lock:
            if handle not in self._stores:
                self._stores[handle] = self._stores[0].clone()
            return self._stores[handle]

    def close(self, handle: int) -> None:
        with self._lock:
            store = self._stores.pop(handle, None)
        if store is not None:
            store.close()


def table_of(content: bytes) -> pa.Table:
    """Return the table of an Arrow IPC stream."""
    with pa.ipc.open_stream(content) as reader:
        return reader.read_all()


def _function(stores: _Stores, handle: int, method: str) -> Callable[..., Any]:
    if method == "open":
        return stores.open
    if method == "close":
        return lambda: stores.close(handle)
    store = stores.of(handle)
    if method == "query_bytes" and stores.reading is not None:
        return stores.reading.query_bytes
    if method == "insert":
        return lambda table, content: store.insert(table, table_of(content))
    return getattr(store, method)  # type: ignore[no-any-return]


def _answer(stores: _Stores, request: bytes) -> bytes:
    """Run a call and return its pickled result, or its pickled error."""
    handle, method, arguments = pickle.loads(request)
    with contextlib.nullcontext() if stores.left_memory is None else stores.left_memory.counted(is_read=method == "query_bytes"):
        return _outcome(stores, handle, method, arguments)


def _outcome(stores: _Stores, handle: int, method: str, arguments: tuple[Any, ...]) -> bytes:
    try:
        return pickle.dumps((True, _function(stores, handle, method)(*arguments)), pickle.HIGHEST_PROTOCOL)
    except StoreError as error:
        return pickle.dumps((False, (type(error), (str(error), error.code))), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        try:
            return pickle.dumps((False, (type(error), error.args)), pickle.HIGHEST_PROTOCOL)
        except Exception:
            return pickle.dumps((False, (RuntimeError, (traceback.format_exc(),))), pickle.HIGHEST_PROTOCOL)


def _serve(connection: Connection, stores: _Stores) -> None:
    with connection, contextlib.suppress(EOFError, OSError):
        while True:
            connection.send_bytes(_answer(stores, connection.recv_bytes()))


def _use_temporary_folder(folder: pathlib.Path) -> None:
    """Use a folder for temporary files, and remove those of a process that was killed: the driver writes each insert into one."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    tempfile.tempdir = str(folder)


def _end_at_faults() -> None:
    with contextlib.suppress(OSError, AttributeError):
        set_handler = ctypes.CDLL(None).signal
        set_handler.argtypes, set_handler.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
        for number in _FAULTS:
            set_handler(number, None)


def _end_with_parent() -> None:
    """Let the kernel end this process when the thread of the parent that started it ends (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(OSError):
        pathlib.Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, encoding="ascii")


def _main() -> None:
    # A signal to the process group is for the parent, which finishes its work first.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _end_with_parent()
    control, stores = socket.socket(fileno=int(sys.argv[1])), _Stores()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            # The parent has closed the store, or is gone.
            os._exit(0)
        if not descriptors:
            # There are too many open files; the parent sees that its connection is closed.
            print("the process of the store cannot take a connection: too many open files", file=sys.stderr)
            continue
        threading.Thread(target=_serve, args=(Connection(descriptors[0]), stores), daemon=True).start()


if __name__ == "__main__":
    _main()
