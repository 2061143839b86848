"""The requests that are in the write-ahead log when the process starts: a crash has come between their acknowledgement and their insert.

They are converted like new ones and queued; rows that are stored already are found as duplicates. The inserts are those of the committer.
"""

from __future__ import annotations

import logging

from legato_ingest.errors import LegatoError
from legato_ingest.storage.wal import WriteAheadLog
from legato_ingest.write.body import Body, Entry
from legato_ingest.write.committer import Committer
from legato_ingest.write.receiver import Receiver

__all__ = ["recover"]

_log = logging.getLogger("legato")


def recover(log: WriteAheadLog, committer: Committer, receiver: Receiver) -> int:
    """Queue the rows of all requests in the log and return their number. Call it once, before the first new request."""
    recovered = 0
    for segment, payload in log.pending():
        entry = None
        try:
            entry = Entry(Body.from_log(payload), segment)
            for batch in receiver.recovered(entry.body):
                committer.recover(batch, entry)
        except (LegatoError, ValueError) as error:
            # It was acknowledged, so it was once converted, perhaps by another version.
            _log.error("a request in the write-ahead log of the store cannot be converted and is set aside: %s", error)
            log.set_aside(segment, payload)
            if entry is not None:
                entry.is_set_aside = True
                committer.finish(entry)
            continue
        committer.finish(entry)
        recovered += 1
    if recovered:
        _log.warning("%d requests that were acknowledged before the last end are inserted now", recovered)
    return recovered
