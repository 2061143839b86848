"""What earlier runs of the rollup worker left to do: dirty minutes, minutes with running streams, and hours of which minutes changed.

It is kept in memory, because a look for it reads two columns of all rollups. After a start, or after another instance did the work, it is
read from the store, except for dirty minutes, which the next run finds: the progress in the store is not past them. The module computes no
rollup.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from legato_ingest.rollups.backlog import RECENT_S, Backlog, Progress
from legato_ingest.rollups.compute import HOUR_S, HOURS_MAX, Written
from legato_ingest.rollups.divided import Divided
from legato_ingest.rollups.queries import STREAM_ROLLUPS, Rollup
from legato_ingest.storage import Store
from legato_ingest.storage.watermark import now_ms

__all__ = ["Pending"]

_RUNNING = """
SELECT toUnixTimestamp(minute) AS at, toUnixTimestamp64Milli(min(due_at)) FROM stream_minutes FINAL
WHERE minute IN (SELECT minute FROM stream_minutes WHERE toUnixTimestamp64Milli(due_at) > 0) AND toUnixTimestamp64Milli(due_at) > 0
GROUP BY at"""
_ROLLED = "SELECT toUnixTimestamp64Milli(max(rolled_at)) FROM {table}"
# The version of an hour's row is the newest of its minutes. Each key is compared: an hour is computed in pieces where memory is short, and
# the process may have ended after the first. Many keys of many days are grouped on disk.
_HOURS = """
SELECT DISTINCT hour FROM
(
    SELECT toUnixTimestamp(toStartOfHour(minute)) AS hour, {key_hash} AS key, toUnixTimestamp64Milli(rolled_at) AS of_minute, 0 AS of_hour
    FROM {minutes}
    UNION ALL
    SELECT toUnixTimestamp(minute), {key_hash}, 0, toUnixTimestamp64Milli(rolled_at) FROM {hours}
)
GROUP BY hour, key
HAVING max(of_minute) > max(of_hour)
SETTINGS max_bytes_before_external_group_by = 268435456, max_bytes_ratio_before_external_group_by = 0"""


@dataclass(slots=True)
class Pending:
    """``until_ms``: the progress in the store to which this belongs. ``rolled_ms``: the newest time of a computation (Unix ms).

    ``found``: dirty minutes were looked for up to it; those of ``streams`` and of ``steps`` wait, and so do the pieces of ``divided``.
    ``looked``: the same, also after a run that recorded nothing. ``due_ms``: by minute (Unix s), when its first running stream is overdue
    (Unix ms). ``hours_s``: the hours (Unix s) to compute, in the order of the first computation of their minutes; ``hours_at_s``: when none
    was left (monotonic). ``complete_ms``: everything received until then was rolled up (Unix ms).
    """

    until_ms: int
    found: Progress = (0, 0)
    looked: Progress = (0, 0)
    complete_ms: int = 0
    rolled_ms: int = 0
    due_ms: dict[int, int] = field(default_factory=dict)
    hours_s: dict[int, None] = field(default_factory=dict)
    hours_at_s: float = float("-inf")
    streams: Backlog = field(default_factory=Backlog)
    steps: Backlog = field(default_factory=Backlog)
    divided: Divided = field(default_factory=Divided)

    @classmethod
    def load(cls, store: Store, progress: Progress) -> Pending:
        """Read what is pending. ``progress``: the one that the store has."""
        newest, computed = (int(store.select(_ROLLED.format(table=table))[0][0]) for table in ("stream_minutes", "stream_hours"))
        due = {int(minute): int(due_ms) for minute, due_ms in store.select(_RUNNING)}
        hours = dict.fromkeys(sorted({hour for rollup in STREAM_ROLLUPS for hour in _hours_left(store, rollup)}))
        return cls(progress[0], progress, progress, rolled_ms=max(newest, computed, 0), due_ms=due, hours_s=hours)

    def next_rolled_ms(self) -> int:
        """Return the time of the next computation. It is later than all earlier ones, even if the clock was set back."""
        self.rolled_ms = max(now_ms(), self.rolled_ms + 1)
        return self.rolled_ms

    def overdue(self) -> NDArray[np.int64]:
        """Return the minutes with a stream that was running when they were computed and is overdue now."""
        now = now_ms()
        return np.array(sorted(minute for minute, due_ms in self.due_ms.items() if due_ms < now), np.int64)

    def complete_until_ms(self, found_ms: int, recorded_ms: int) -> int:
        """Return the time (Unix ms) up to which all received rows are rolled up; 0: unknown.

        ``found_ms``: dirty minutes were looked for until then. ``recorded_ms``: the progress in the store, which an idle worker does not
        record, so a run that left nothing may have gone further.
        """
        if not self.streams and not self.steps and not self.divided.keeps_progress:
            self.complete_ms = found_ms
        return max(self.complete_ms, recorded_ms)

    def progress(self) -> Progress:
        """Return the progress that excludes no minute that waits."""
        return min(self.streams.progress(self.found), self.steps.progress(self.found), self.divided.progress(self.found))

    def due_in_s(self, hours_every_s: float) -> float:
        """Return in how many seconds something that is known has to be computed; infinite if nothing has.

        ``hours_every_s``: as for ``hours_due``. Overdue streams do not count: their end may have arrived, and the run after its insert
        finds which are.
        """
        if self.streams or self.steps or self.divided:
            return 0.0
        return self.hours_at_s + hours_every_s - time.monotonic() if self.hours_s else float("inf")

    def begin(self, minutes_s: NDArray[np.int64]) -> None:
        """Take note that these minutes (Unix s) are computed anew."""
        self.changed(minutes_s)
        for minute in minutes_s.tolist():
            self.due_ms.pop(minute, None)

    def changed(self, minutes_s: NDArray[np.int64]) -> None:
        """Take note that the hours of these minutes (Unix s) are to be computed."""
        self.hours_s.update(dict.fromkeys((minutes_s // HOUR_S * HOUR_S).tolist()))

    def computed(self, written: Iterable[Written]) -> None:
        """Take note of new rows of `stream_minutes`, perhaps not of all tenants."""
        for each in written:
            if each.due_ms:
                self.due_ms[each.minute_s] = min(each.due_ms, self.due_ms.get(each.minute_s, each.due_ms))

    def hours_due(self, every_s: float) -> bool:
        """Return whether hours are left, and none was left ``every_s`` ago or longer."""
        return bool(self.hours_s) and time.monotonic() - self.hours_at_s >= every_s

    def next_hours(self) -> NDArray[np.int64]:
        """Return the hours to compute next (Unix s, ascending, at most ``HOURS_MAX``): those near the present, then the first ones."""
        recent_s = now_ms() / 1000 - HOUR_S - RECENT_S
        first = sorted(self.hours_s, key=lambda hour: hour < recent_s)[:HOURS_MAX]
        return np.array(sorted(first), np.int64)

    def hours_computed(self, hours_s: NDArray[np.int64]) -> None:
        """Take note that these hours were computed."""
        for hour in hours_s.tolist():
            self.hours_s.pop(hour, None)
        if not self.hours_s:
            self.hours_at_s = time.monotonic()


def _hours_left(store: Store, rollup: Rollup) -> list[int]:
    """Return the hours (Unix s) of which a row is missing or older than its minutes."""
    rows = store.select(_HOURS.format(key_hash=rollup.key_hash, minutes=rollup.table, hours=rollup.hours))
    return [int(hour) for (hour,) in rows]
