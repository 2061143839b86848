"""The requests that are in the write-ahead log when the process starts: a crash has come between their acknowledgement and their insert.

They are converted like new ones and queued; rows that are stored already are found as duplicates. The inserts are those of the committer.
Requests that were set aside are tried behind new ones, one at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

from legato_ingest.errors import ConversionEnded, StoreUnavailable, release
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Batch
from legato_ingest.storage.wal import ASIDE, WriteAheadLog
from legato_ingest.write.body import Body, Entry
from legato_ingest.write.by_days import is_late
from legato_ingest.write.committer import Committer
from legato_ingest.write.receiver import Receiver
from legato_ingest.write.set_aside import set_aside

__all__ = ["recover", "trying_aside"]

_log = logging.getLogger("legato")
_ROOM_S, _PAUSE_S = 30.0, 0.05
_TRIALS, _TRIAL_PAUSE_S = 3, 2.0
_REASON_MAX = 500


def recover(
    log: WriteAheadLog, committer: Committer, receiver: Receiver, metrics: Metrics, stopping: threading.Event
) -> Iterator[Entry | None]:
    """Queue the rows of all requests in the log that were not set aside. Call it once, before the first new request.

    Rows wait for room in their lane, until ``stopping``. If the inserts of a lane do not get on, its other rows are queued beyond the
    limit, so that the process starts. What is returned queues one request that was set aside at a time, also later (``trying_aside``),
    and yields its body, or none if it cannot be converted.
    """
    pending, queued = log.pending(), _Queued(log, committer, receiver, metrics, stopping)
    first_aside = None
    for segment, payload in pending:
        if segment == ASIDE:
            first_aside = segment, payload
            break
        queued.add(segment, payload)
    queued.count_damaged()
    if queued.requests:
        _log.warning("%d requests that were acknowledged before the last end are inserted now", queued.requests)
    return _aside(first_aside, pending, queued) if first_aside is not None else iter(())


def _aside(first: tuple[int, bytes], others: Iterator[tuple[int, bytes]], queued: _Queued) -> Iterator[Entry | None]:
    for segment, payload in chain((first,), others):
        yield queued.add(segment, payload)
    queued.count_damaged()


@contextmanager
def trying_aside(aside: Iterator[Entry | None], stopping: threading.Event) -> Iterator[None]:
    """Try what was set aside before this process in a thread: new requests go first, and none is refused or waits for it.

    One body is queued at a time. Its successor waits for it alone, and not for what other requests have in the queue.
    """

    def try_each() -> None:
        try:
            for entry in aside:
                while entry is not None and entry.open and not stopping.is_set():
                    stopping.wait(_PAUSE_S)
                if stopping.is_set():
                    return
        except Exception:
            _log.exception("requests that were set aside are not tried again before the next start")

    thread = threading.Thread(target=try_each, name="legato-aside", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


class _Queued:
    """Queues requests of the log. ``requests``: the number of those that were converted."""

    def __init__(self, log: WriteAheadLog, committer: Committer, receiver: Receiver, metrics: Metrics, stopping: threading.Event) -> None:
        self._log, self._committer, self._receiver, self._metrics, self._stopping = log, committer, receiver, metrics, stopping
        self._stuck, self._damaged, self.requests = set[bool](), 0, 0

    def add(self, segment: int, payload: bytes) -> Entry | None:
        """Queue a request, and return its body if it has one."""
        entry = None
        try:
            entry = Entry(Body.from_log(payload), segment)
            _queue(entry, self._committer, self._receiver, self._stuck, self._stopping)
        except Exception as error:
            # It was acknowledged, so it was once converted, perhaps by another version. The other requests matter more than its reason.
            _log.error("a request in the write-ahead log of the store cannot be converted and is set aside: %s", _described(error))
            self._metrics.errors.labels("set_aside", type(error).__name__).inc()
            release(error)
            self._set_aside(segment, payload, entry)
        else:
            self.requests += 1
            self._committer.finish(entry)
        return entry

    def _set_aside(self, segment: int, payload: bytes, entry: Entry | None) -> None:
        """Set a payload aside that cannot be converted. If there is no room or memory for it, it stays in its segment until there is."""

        def try_now() -> None:
            if entry is None:
                self._log.set_aside(segment, payload)
            else:
                set_aside(entry, self._log)
                # Not before: else its last batch would remove it from the segment.
                self._committer.finish(entry)

        try:
            try_now()
        except (StoreUnavailable, MemoryError) as error:
            _log.error("the request cannot be set aside now: %s", error or "no memory")
            self._committer.set_aside_later(try_now)

    def count_damaged(self) -> None:
        """Count what the log has found damaged since the last call."""
        if found := self._log.damaged - self._damaged:
            self._metrics.errors.labels("recovery", "Damaged").inc(found)
        self._damaged = self._log.damaged


def _queue(entry: Entry, committer: Committer, receiver: Receiver, stuck: set[bool], stopping: threading.Event) -> None:
    """Queue the rows of a request. ``stuck`` holds the lanes that had no room in time: True for late rows. This function adds to it.

    A failure for a want of memory or processes is no fault of the request: it is tried again. Rows that are queued twice are duplicates.
    """
    for trial in range(_TRIALS):
        try:
            for batch in receiver.recovered(entry.body):
                late = is_late(batch, time.time_ns())
                if late not in stuck and not _has_room(committer, batch, entry, stopping):
                    stuck.add(late)
                committer.recover(batch, entry)
        except (StoreUnavailable, ConversionEnded, MemoryError, OSError) as error:
            if trial == _TRIALS - 1 or (isinstance(error, ConversionEnded) and error.is_late):
                raise
            _log.warning("a request in the write-ahead log cannot be converted now: %s", _described(error))
            release(error)
            stopping.wait(_TRIAL_PAUSE_S)
        else:
            return


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_REASON_MAX]


def _has_room(committer: Committer, batch: Batch, entry: Entry, stopping: threading.Event) -> bool:
    """Wait until the lane of a batch has room for it; return whether that was in time."""
    until_s = time.monotonic() + _ROOM_S
    while not committer.has_room(batch, entry, in_lane=True):
        if time.monotonic() > until_s or stopping.is_set():
            return False
        # Not ``settle``: it would wait for the rows of the other lane, too, which may be stuck.
        committer.begin_settling()
        stopping.wait(_PAUSE_S)
    return True
