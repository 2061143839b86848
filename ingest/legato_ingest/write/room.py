"""What one insert may hold: bytes and chunks of rows, and of late rows days and batches. The module queues and inserts nothing."""

from __future__ import annotations

from legato_ingest.write.waiting import Waiting

__all__ = ["LATE_DAYS_MAX", "Room"]

LATE_DAYS_MAX = 64
"""Days of tables that the late requests of one group touch, unless a single request touches more."""
# Rows of one insert, in bytes: they are in memory several times until they are stored. A larger batch is inserted alone.
_INSERT_BYTES_MAX = 16 * 2**20
# Late batches of one insert: each is divided by days, which takes half a millisecond a day.
_LATE_BATCHES_MAX = 1_000


class Room:
    """The room of one insert. ``days_max``: the days of tables that late rows may touch, or ``None`` for rows of now. Not thread-safe."""

    def __init__(self, chunks_max: int, days_max: int | None) -> None:
        self._chunks_max, self._days_max = chunks_max, days_max
        self._batches = self._chunks = self._bytes = 0
        self._days = set[tuple[str, int]]()

    def has(self, waiting: Waiting) -> bool:
        """Return whether there is room for a batch. The first one has room, however large it is."""
        batch = waiting.batch
        if not self._batches:
            return True
        if self._chunks + batch.weight > self._chunks_max or self._bytes + waiting.row_bytes > _INSERT_BYTES_MAX:
            return False
        if self._days_max is None:
            return True
        days = len(self._days) + len(batch.days - self._days)
        return days <= max(self._days_max, len(self._days)) and self._batches < _LATE_BATCHES_MAX

    def add(self, waiting: Waiting) -> float:
        """Take note that a batch is in the insert. Return its share: the largest part that it takes of any of the limits, at most 1."""
        batch = waiting.batch
        self._batches += 1
        self._chunks += batch.weight
        self._bytes += waiting.row_bytes
        parts = [batch.weight / max(self._chunks_max, 1), waiting.row_bytes / _INSERT_BYTES_MAX]
        if self._days_max is not None:
            self._days |= batch.days
            parts += [len(batch.days) / self._days_max, 1 / _LATE_BATCHES_MAX]
        return min(max(parts), 1.0)
