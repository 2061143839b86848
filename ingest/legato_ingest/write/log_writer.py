"""The thread that writes requests into the write-ahead log: all that wait at the same moment with one write and one sync.

The event loop and the committer never wait for the disk here. The module stores no rows and answers no request.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from legato_ingest.errors import StoreUnavailable
from legato_ingest.storage.wal import Payload, WriteAheadLog, bytes_of

__all__ = ["LogWriter"]

# A write ends with the payload that exceeds so many bytes.
_WRITE_BYTES_MAX = 32 * 2**20
T = TypeVar("T")


class LogWriter(Generic[T]):
    """Owns the thread. ``payload_of`` returns the payload of an item.

    ``written`` is called with the items of one write and their segment, ``failed`` with those that could not be written. If one of them
    fails, the thread ends, and ``ended`` is called with the error and the items that were given to neither, then and later.
    """

    def __init__(
        self,
        log: WriteAheadLog,
        payload_of: Callable[[T], Payload],
        written: Callable[[Sequence[T], int], None],
        failed: Callable[[Sequence[T], Exception], None],
        ended: Callable[[BaseException, Sequence[T]], None],
    ) -> None:
        self._log, self._payload_of, self._written, self._failed, self._ended = log, payload_of, written, failed, ended
        self._waiting: deque[T] = deque()
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="legato-log", daemon=True)
        self._thread.start()

    def put(self, item: T) -> None:
        """Write the payload of an item, then pass the item to ``written`` or ``failed``."""
        with self._changed:
            if self._error is None:
                self._waiting.append(item)
                self._changed.notify()
                return
        self._ended(self._error, [item])

    def close(self) -> None:
        """Write what waits, then stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        items = list[T]()
        try:
            while self._is_left():
                items = []
                self._write(items)
        except BaseException as error:
            with self._changed:
                self._error, left = error, [*items, *self._waiting]
                self._waiting.clear()
            self._ended(error, left)

    def _is_left(self) -> bool:
        """Wait for an item; return whether there is one, and not the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            return bool(self._waiting)

    def _write(self, items: list[T]) -> None:
        """Write the payloads of the next items, which are moved into ``items``."""
        try:
            segment = self._log.append(self._next_payloads(items))
        except Exception as error:
            is_known = isinstance(error, StoreUnavailable)
            self._failed(items, error if is_known else StoreUnavailable(f"{type(error).__name__} while logging"))
        else:
            self._written(items, segment)

    def _next_payloads(self, items: list[T]) -> list[Payload]:
        """Move the items of the next write into ``items``, and return their payloads."""
        payloads, size = list[Payload](), 0
        while size < _WRITE_BYTES_MAX:
            with self._changed:
                if not self._waiting:
                    break
                items.append(self._waiting.popleft())
            payloads.append(self._payload_of(items[-1]))
            size += bytes_of(payloads[-1])
        return payloads
