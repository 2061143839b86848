"""Sets requests aside that cannot be inserted, so that the others are.

They are in a separate file of the write-ahead log and are tried again after the next start. What waits for long without being set aside is
appended to the log once more, so that its segment is emptied. The module inserts nothing.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Iterable

from legato_ingest.errors import StoreRestarting, StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.storage.wal import WriteAheadLog
from legato_ingest.write.body import Entry
from legato_ingest.write.waiting import Waiting

__all__ = ["BLAME_MAX", "FAULT", "carry_over", "count_failure", "set_aside"]

_log = logging.getLogger("legato")
BLAME_MAX, FAULT = 60, 20
"""A request is set aside at so many points of blame. A failure of a batch alone by its own fault is worth ``FAULT``: three are enough."""
# That the process of the store ended during an insert: another statement may be the cause, so six are enough; if a reader's statement ran,
# it probably is, and no reader can have a request set aside. That the store takes others, and not this batch alone, may be a want of memory
# of a moment: twelve are enough.
_ENDED, _ENDED_WITH_READER, _NOT_TAKEN = 10, 1, 5
# What is appended once more is written in parts: new requests wait for one of them at most.
_CARRIED_BYTES = 8 * 2**20
_setting_aside = threading.Lock()


def _points(error: Exception) -> int:
    if isinstance(error, StoreRestarting):
        return _ENDED_WITH_READER if error.tenants else _ENDED
    return _NOT_TAKEN if isinstance(error, StoreUnavailable) else FAULT


def set_aside(entry: Entry, log: WriteAheadLog) -> None:
    """Set a body aside that is in the log, unless it is. Thread-safe. Raises ``StoreUnavailable``."""
    with _setting_aside:
        if not entry.is_set_aside and entry.segment is not None:
            log.set_aside(entry.segment, entry.body.logged())
            entry.is_set_aside = True


def carry_over(bodies: Iterable[Entry], log: WriteAheadLog) -> None:
    """Append bodies that are in the log to its current segment, and remove them from theirs. Raises ``StoreUnavailable``, ``MemoryError``.

    Between both a crash leaves them twice: their rows are found as duplicates. Call it in the thread that removes bodies from the log.
    """
    left = deque(bodies)
    while left:
        part, size = list[Entry](), 0
        while left and size < _CARRIED_BYTES:
            part.append(left.popleft())
            size += len(part[-1].body.content)
        with _setting_aside:
            part = [entry for entry in part if not entry.is_set_aside and entry.segment is not None]
            segment = log.append([entry.body.logged() for entry in part])
            for before, payloads in Counter(entry.segment for entry in part if entry.segment is not None).items():
                log.stored(before, payloads)
            for entry in part:
                entry.segment = segment


def count_failure(waiting: Waiting, error: Exception, log: WriteAheadLog | None, metrics: Metrics) -> bool:
    """Count a failure against a batch, and set its request aside if it has failed too often. Return whether that was done now.

    A log that cannot take it aside is asked again after the next failure.
    """
    waiting.blame += _points(error)
    entry = waiting.entry
    if waiting.blame < BLAME_MAX or log is None or entry is None or entry.segment is None:
        return False
    try:
        set_aside(entry, log)
    except (StoreUnavailable, MemoryError) as rejecting:
        _log.error("a request cannot be inserted and cannot be set aside: %s", rejecting or "no memory")
        return False
    metrics.errors.labels("set_aside", type(error).__name__).inc()
    _log.error("a request was set aside: its insert fails; it is tried again after the next start", exc_info=error)
    return True
