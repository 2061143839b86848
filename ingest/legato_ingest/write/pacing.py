"""When the next insert of rows of now begins, after the begin of the one before.

An insert of many requests costs little more than one of few, and what follows an insert (attribution, rollups, merges) costs as much as
itself. With a write-ahead log no sender waits for an insert, so inserts are a second apart if many requests wait, and several seconds if
few do. Without readers they are further apart: a reader's statement asks for the insert at once. The module inserts nothing.
"""

from __future__ import annotations

import time

from legato_ingest.write.lanes import Lane

__all__ = ["Pacing"]

# Without a log: after an insert of so many requests, the next one begins so long after its begin at the earliest.
_BUSY_REQUESTS, _APART_S = 8, 0.15
# With a log: the time between the begins of two inserts if many requests wait, so many requests, and the time if fewer wait. A larger
# number of bytes is inserted at once.
_LOGGED_APART_S, _MANY_REQUESTS, _FEW_APART_S, _QUEUE_BYTES = 1.0, 64, 8.0, 16 * 2**20
# The same without readers: if fewer requests wait than arrive in this time at the rate that is many.
_UNREAD_APART_S = 50.0
# Beyond this share of what the queue may hold, rows and bodies, an insert begins at once: bodies may be large that have few rows.
_HELD_SHARE = 0.25
# So long after a statement a reader may come again: an alert rule is evaluated once a minute, and an evaluation may be late.
_READER_S = 150.0


class Pacing:
    """The pauses between inserts from ``lane``, the queue of rows of now. Not thread-safe.

    ``has_log``: whether a request is acknowledged before its insert. ``is_always_read``: whether something waits for the results without
    asking, as an export. ``queue_bytes_max`` limits the queue.
    """

    def __init__(self, lane: Lane, *, has_log: bool, is_always_read: bool, queue_bytes_max: int) -> None:
        self._lane, self._has_log, self._is_always_read = lane, has_log, is_always_read
        self._insert_bytes = min(_QUEUE_BYTES, queue_bytes_max // 2)
        # Of the last insert: its requests, its begin (monotonic), and whether it had no room for all that waited.
        self._last_requests, self._last_began_s, self._is_rest = 0, 0.0, False
        # When a reader last asked, when a stream last arrived, and whether something waits that is inserted soon also without readers.
        self._read_s = self._stream_s = float("-inf")
        self._is_soon = False

    def read(self) -> None:
        """Take note that a reader asks for rows now."""
        self._read_s = time.monotonic()

    def began(self, requests: int, *, is_rest: bool) -> None:
        """Take note that an insert of so many requests begins; ``is_rest``: it has no room for all that wait."""
        self.began_apart()
        self._last_requests, self._is_rest, self._is_soon = requests, is_rest, False

    def began_apart(self) -> None:
        """Take note that an insert begins of rows outside the queue; the pause before the next one begins with it, too."""
        self._last_began_s = time.monotonic()

    def arrived(self, before: int, *, has_streams: bool, has_silences: bool = False) -> bool:
        """Take note that requests were queued, and return whether they bring the next insert nearer.

        ``before``: how many waited before. ``has_streams``: whether there are streams among them. ``has_silences``: reports of streams
        that stand still, which are counted from their insert on.
        """
        is_rare = has_streams and time.monotonic() - self._stream_s > _UNREAD_APART_S
        if has_streams:
            self._stream_s = time.monotonic()
        was_soon, self._is_soon = self._is_soon, self._is_soon or is_rare or has_silences
        is_many = before < self._pace()[0] <= len(self._lane)
        return not before or is_many or self._is_soon > was_soon or not self._has_log or self._is_full()

    def is_read(self) -> bool:
        """Return whether something may wait for the results of what is inserted. May be called from any thread."""
        return self._is_always_read or time.monotonic() - self._read_s <= _READER_S

    def pause_s(self) -> float:
        """Return the seconds until the next insert."""
        apart_s = 0.0
        if self._has_log:
            many, few_apart_s = self._pace()
            is_wanted = self._lane.is_wanted or self._is_full() or self._is_rest
            apart_s = 0.0 if is_wanted else _LOGGED_APART_S if len(self._lane) >= many else few_apart_s
        elif self._last_requests >= _BUSY_REQUESTS:
            apart_s = _APART_S
        return self.left_s(apart_s)

    def left_s(self, apart_s: float) -> float:
        """Return the seconds that are left of this time after the begin of the last insert."""
        return self._last_began_s + apart_s - time.monotonic() if apart_s else 0.0

    def _pace(self) -> tuple[int, float]:
        """Return how many requests are many, and the time between two inserts if fewer wait."""
        apart_s = _FEW_APART_S if self.is_read() or self._is_soon else _UNREAD_APART_S
        return int(_MANY_REQUESTS * apart_s / _FEW_APART_S), apart_s

    def _is_full(self) -> bool:
        held = self._lane.held
        return self._lane.row_bytes > self._insert_bytes or held.total > _HELD_SHARE * held.most
