"""The requests that are in the write-ahead log when the process starts: a crash has come between their acknowledgement and their insert.

They are converted like new ones and queued; rows that are stored already are found as duplicates. The inserts are those of the committer.
"""

from __future__ import annotations

import logging
import time

from legato_ingest.errors import ConversionEnded, StoreUnavailable, release
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Batch
from legato_ingest.storage.wal import WriteAheadLog
from legato_ingest.write.body import Body, Entry
from legato_ingest.write.committer import Committer
from legato_ingest.write.lanes import is_late
from legato_ingest.write.receiver import Receiver
from legato_ingest.write.set_aside import set_aside

__all__ = ["recover"]

_log = logging.getLogger("legato")
_ROOM_S, _PAUSE_S = 30.0, 0.05
_TRIALS, _TRIAL_PAUSE_S = 3, 2.0
_REASON_MAX = 500


def recover(log: WriteAheadLog, committer: Committer, receiver: Receiver, metrics: Metrics) -> int:
    """Queue the rows of all requests in the log and return their number. Call it once, before the first new request.

    Rows wait for room in their lane. If the inserts of a lane do not get on, its other rows are queued beyond the limit, so that the
    process starts.
    """
    recovered, stuck = 0, set[bool]()
    for segment, payload in log.pending():
        entry = None
        try:
            entry = Entry(Body.from_log(payload), segment)
            _queue(entry, committer, receiver, stuck)
        except Exception as error:
            # It was acknowledged, so it was once converted, perhaps by another version. The other requests matter more than its reason.
            _log.error("a request in the write-ahead log of the store cannot be converted and is set aside: %s", _described(error))
            metrics.errors.labels("set_aside", type(error).__name__).inc()
            release(error)
            _set_aside(log, segment, payload, entry)
            if entry is not None:
                committer.finish(entry)
            continue
        committer.finish(entry)
        recovered += 1
    if log.damaged:
        metrics.errors.labels("recovery", "Damaged").inc(log.damaged)
    if recovered:
        _log.warning("%d requests that were acknowledged before the last end are inserted now", recovered)
    return recovered


def _queue(entry: Entry, committer: Committer, receiver: Receiver, stuck: set[bool]) -> None:
    """Queue the rows of a request. ``stuck`` holds the lanes that had no room in time: True for late rows. This function adds to it.

    A failure for a want of memory or processes is no fault of the request: it is tried again. Rows that are queued twice are duplicates.
    """
    for trial in range(_TRIALS):
        try:
            for batch in receiver.recovered(entry.body):
                late = is_late(batch, time.time_ns())
                if late not in stuck and not _has_room(committer, batch, entry):
                    stuck.add(late)
                committer.recover(batch, entry)
        except (StoreUnavailable, ConversionEnded, MemoryError, OSError) as error:
            if trial == _TRIALS - 1 or (isinstance(error, ConversionEnded) and error.is_late):
                raise
            _log.warning("a request in the write-ahead log cannot be converted now: %s", _described(error))
            release(error)
            time.sleep(_TRIAL_PAUSE_S)
        else:
            return


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_REASON_MAX]


def _set_aside(log: WriteAheadLog, segment: int, payload: bytes, entry: Entry | None) -> None:
    """Set a payload aside that cannot be converted. If there is no room for it, it stays in its segment."""
    try:
        if entry is None:
            log.set_aside(segment, payload)
        else:
            set_aside(entry, log)
    except StoreUnavailable as error:
        _log.error("the request cannot be set aside: %s", error)
        if entry is not None:
            # So that its batches do not remove it from the segment.
            entry.is_set_aside = True


def _has_room(committer: Committer, batch: Batch, entry: Entry) -> bool:
    """Wait until the lane of a batch has room for it; return whether that was in time."""
    until_s = time.monotonic() + _ROOM_S
    while not committer.has_room(batch, entry, in_lane=True):
        if time.monotonic() > until_s:
            return False
        # Not ``settle``: it would wait for the rows of the other lane, too, which may be stuck.
        committer.begin_settling()
        time.sleep(_PAUSE_S)
    return True
