"""What earlier runs of the rollup worker left to do: minutes with running streams, and hours of which minutes changed.

It is kept in memory, because a look for it reads a column of all rollups. After a start, or after another instance did the work, it is read
from the store. The module computes no rollup.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from legato_ingest.rollups.compute import HOUR_S
from legato_ingest.storage import Store
from legato_ingest.storage.watermark import now_ms

__all__ = ["Pending"]

_RUNNING = """
SELECT toUnixTimestamp(minute) AS at, toUnixTimestamp64Milli(min(due_at)) FROM stream_minutes FINAL
WHERE minute IN (SELECT minute FROM stream_minutes WHERE toUnixTimestamp64Milli(due_at) > 0) AND toUnixTimestamp64Milli(due_at) > 0
GROUP BY at"""
_ROLLED = "SELECT toUnixTimestamp64Milli(max(rolled_at)) FROM {table}"
_HOURS = """
SELECT DISTINCT toUnixTimestamp(toStartOfHour(minute)) AS at FROM stream_minutes
WHERE toUnixTimestamp64Milli(rolled_at) >= {since} ORDER BY at"""


@dataclass(slots=True)
class Pending:
    """``until_ms``: the progress in the store to which this belongs. ``rolled_ms``: the newest time of a computation (Unix ms).

    ``due_ms``: by minute (Unix s), when its first running stream is overdue (Unix ms). ``hours_s``: the hours (Unix s) to compute;
    ``hours_at_s``: when hours were computed last (monotonic).
    """

    until_ms: int
    rolled_ms: int = 0
    due_ms: dict[int, int] = field(default_factory=dict)
    hours_s: set[int] = field(default_factory=set)
    hours_at_s: float = float("-inf")

    @classmethod
    def load(cls, store: Store, until_ms: int, back_ms: int) -> Pending:
        """Read what is pending. ``until_ms``: the progress that the store has. ``back_ms``: how long hours may wait for their computation.

        So long before the newest hour was computed, minutes may still be without their hour.
        """
        newest, computed = (int(store.select(_ROLLED.format(table=table))[0][0]) for table in ("stream_minutes", "stream_hours"))
        due = {int(minute): int(due_ms) for minute, due_ms in store.select(_RUNNING)}
        hours = {int(hour) for (hour,) in store.select(_HOURS.format(since=max(0, computed - back_ms)))}
        return cls(until_ms, max(newest, computed, 0), due, hours)

    def next_rolled_ms(self) -> int:
        """Return the time of the next computation. It is later than all earlier ones, even if the clock was set back."""
        self.rolled_ms = max(now_ms(), self.rolled_ms + 1)
        return self.rolled_ms

    def overdue(self) -> NDArray[np.int64]:
        """Return the minutes with a stream that was running when they were computed and is overdue now."""
        now = now_ms()
        return np.array(sorted(minute for minute, due_ms in self.due_ms.items() if due_ms < now), np.int64)

    def begin(self, minutes_s: NDArray[np.int64]) -> None:
        """Take note that these minutes (Unix s) are computed anew."""
        self.hours_s.update((minutes_s // HOUR_S * HOUR_S).tolist())

    def computed(self, minutes_s: NDArray[np.int64], rows: pa.Table) -> None:
        """Take note of the new rows of `stream_minutes` of these minutes."""
        for minute in minutes_s.tolist():
            self.due_ms.pop(minute, None)
        due = rows["due_at"].cast(pa.int64())
        running = pc.greater(due, 0)
        minutes, due_ms = (each.filter(running).to_pylist() for each in (rows["minute"].cast(pa.int64()), due))
        for minute, at in sorted(zip(minutes, due_ms, strict=True), reverse=True):
            self.due_ms[minute] = at

    def hours_due(self, every_s: float) -> NDArray[np.int64]:
        """Return the hours to compute now (Unix s, ascending); none if the last ones were computed less than ``every_s`` ago."""
        if not self.hours_s or time.monotonic() - self.hours_at_s < every_s:
            return np.zeros(0, np.int64)
        return np.array(sorted(self.hours_s), np.int64)

    def hours_computed(self, hours_s: NDArray[np.int64]) -> None:
        """Take note that these hours were computed."""
        self.hours_s.difference_update(hours_s.tolist())
        self.hours_at_s = time.monotonic()
