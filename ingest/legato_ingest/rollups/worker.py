"""The worker that keeps the rollups true: it finds the minutes that changed, and has them computed anew.

One idea: a minute is dirty when a row of it was received, or judged, since the last run, or when a stream of it that was running is overdue
now. How far it came is a row of `rollup_runs`, written after the minutes: killed in between, it computes the same minutes again, which
changes nothing. What has been received, and all of what has been judged, is asked of those who write it, so no row slips between two runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from legato_ingest.errors import StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.periodic import Background
from legato_ingest.rollups.compute import HOUR_S, columns_of, roll, roll_hours, slices
from legato_ingest.rollups.queries import ENGINE_ROLLUPS, STREAM_ROLLUPS, hours_sql
from legato_ingest.settings import Settings
from legato_ingest.storage.chdb import Store
from legato_ingest.storage.retention import kept_since_s
from legato_ingest.storage.sql import after_until_ms
from legato_ingest.storage.watermark import now_ms

__all__ = ["Rolled", "Roller", "followed_until_ms", "judgements_followed_until_ms"]

# The last second that a DateTime can hold: what lies after it has no minute.
_TIME_MAX = "toDateTime64('2106-02-07 00:00:00', 9, 'UTC')"


@dataclass(slots=True)
class Rolled:
    """What a run did."""

    minutes: int = 0
    rows: int = 0


def followed_until_ms(store: Store) -> int:
    """Until when a worker of this store has looked at what was received: what comes now must be later, whatever the clock says."""
    tables = ("attribution_runs", "rollup_runs")
    return max(int(store.select(f"SELECT toUnixTimestamp64Milli(max(until)) FROM {table}")[0][0]) for table in tables)


def judgements_followed_until_ms(store: Store) -> int:
    """Until when the rollups have looked at what was judged: what is judged from now on must be later."""
    return int(store.select("SELECT toUnixTimestamp64Milli(max(judged_until)) FROM rollup_runs")[0][0])


class Roller:
    """Owns ``store``, a handle of its own. Without ``start()`` it works only when ``step()`` is called.

    ``received_ms`` and ``judged_ms`` tell until when all that was received, and judged, is in the store.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        metrics: Metrics,
        received_ms: Callable[[], int] = now_ms,
        judged_ms: Callable[[], int] = now_ms,
        my_turn: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store, self._metrics, self._settings = store, metrics, settings
        self._received_ms, self._judged_ms = received_ms, judged_ms
        self._slo = {"gap_us": int(settings.slo_gap_ms * 1000), "first_us": int(settings.slo_first_output_ms * 1000)}
        self._rolling = threading.Lock()
        self._until_ms = now_ms()
        metrics.rollup_lag_seconds.set_function(lambda: max(0.0, (now_ms() - self._until_ms) / 1000) if my_turn() else 0.0)
        self._background = Background("rollup", self.step, settings.rollup_every_s, metrics, my_turn=my_turn)

    def start(self) -> None:
        """Roll up in the background from now on."""
        self._background.start()

    def close(self) -> None:
        """Finish the pass that runs, then stop and close the store's handle."""
        self._background.close()
        with self._rolling:
            self._store.close()

    def step(self) -> Rolled:
        """One run over what changed since the last."""
        with self._rolling:
            return self._step()

    def again(self, since_s: int) -> dict[str, float]:
        """Compute all minutes of the last ``since_s`` seconds (0: ever) anew: how many, and how long it took.

        Not those whose streams may be gone: of what is left they would be computed wrong.
        """
        started = time.monotonic()
        since = max(kept_since_s(self._settings), now_ms() // 1000 - since_s if since_s else 0, 0)
        with self._rolling:
            streams = self._minutes("stream_revs", "start_time", f"start_time >= toDateTime({since}, 'UTC')")
            steps = self._minutes("engine_steps", "recorded_at", f"recorded_at >= toDateTime({since}, 'UTC')")
            # What has rows but no streams any more, too.
            streams = np.union1d(streams, self._minutes("stream_minutes", "minute", f"minute >= toDateTime({since}, 'UTC')"))
            rolled = self._roll(streams, steps)
        if self._background.closing.is_set():
            raise StoreUnavailable("the server is stopping: not all minutes were computed, ask again")
        return {"minutes": rolled.minutes, "rows": rolled.rows, "seconds": time.monotonic() - started}

    def _step(self) -> Rolled:
        started = time.monotonic()
        since, judged_since = self._rolled_until()
        until, judged_until = self._received_ms(), self._judged_ms()
        streams = np.union1d(self._dirty(since, until, judged_since, judged_until), self._overdue())
        steps = self._minutes("engine_steps", "recorded_at", after_until_ms("received_at", since, until))
        rolled = self._roll(streams, steps)
        if (rolled.minutes or not since) and not self._background.closing.is_set():
            self._note(until, judged_until, rolled, time.monotonic() - started)
        self._metrics.rollup_seconds.observe(time.monotonic() - started)
        self._until_ms = until
        return rolled

    def _rolled_until(self) -> tuple[int, int]:
        ((until, judged),) = self._store.select(
            "SELECT toUnixTimestamp64Milli(max(until)), toUnixTimestamp64Milli(max(judged_until)) FROM rollup_runs"
        )
        return max(0, int(until)), max(0, int(judged))

    def _dirty(self, since: int, until: int, judged_since: int, judged_until: int) -> NDArray[np.int64]:
        received = self._minutes("stream_revs", "start_time", after_until_ms("received_at", since, until))
        judged = self._minutes("verdicts", "start_time", after_until_ms("judged_at", judged_since, judged_until))
        return np.union1d(received, judged)

    def _overdue(self) -> NDArray[np.int64]:
        """Minutes with a stream that was running when they were computed and has been silent for too long since; also by their hours, which
        a stop may have kept from hearing of it.
        """
        due = "toUnixTimestamp64Milli(due_at) > 0 AND due_at < now64(3)"
        # Without FINAL first: a column of the whole table, of which next to nothing is read again.
        minutes, hours = (
            self._minutes(f"{table} FINAL", "minute", f"minute IN (SELECT minute FROM {table} WHERE {due}) AND {due}")
            for table in ("stream_minutes", "stream_hours")
        )
        return np.union1d(minutes, np.setdiff1d(hours, minutes // HOUR_S * HOUR_S))

    def _minutes(self, table: str, column: str, condition: str) -> NDArray[np.int64]:
        """The minutes (unix s, ascending) of the rows of a table for which a condition holds."""
        rows = self._store.select(
            f"SELECT DISTINCT toUnixTimestamp(toStartOfMinute({column})) AS at FROM {table}"
            f" WHERE {condition} AND {column} < {_TIME_MAX} ORDER BY at"
        )
        return np.array([row[0] for row in rows], np.int64)

    def _roll(self, streams: NDArray[np.int64], steps: NDArray[np.int64]) -> Rolled:
        rolled = Rolled()
        for minutes, rollups, column in ((streams, STREAM_ROLLUPS, "start_time"), (steps, ENGINE_ROLLUPS, "recorded_at")):
            for part in slices(minutes):
                if self._background.closing.is_set():
                    return rolled
                for rollup in rollups:
                    rolled.rows += roll(self._store, rollup, column, part, self._slo, now_ms())
                    if rollup.hours:
                        roll_hours(self._store, self._hours_sql[rollup.table], part)
                rolled.minutes += len(part)
        self._metrics.rolled_minutes.inc(rolled.minutes)
        return rolled

    @cached_property
    def _hours_sql(self) -> dict[str, str]:
        """The statement for each table with hours, by its name. Columns do not change while a store is open."""
        return {rollup.table: hours_sql(rollup, columns_of(self._store, rollup.table)) for rollup in STREAM_ROLLUPS}

    def _note(self, until: int, judged_until: int, rolled: Rolled, seconds: float) -> None:
        moment = pa.timestamp("ms", "UTC")
        row = {
            "tenant": pa.array([""]),
            "until": pa.array([until], moment),
            "judged_until": pa.array([judged_until], moment),
            "ran_at": pa.array([datetime.now(UTC)], moment),
            "minutes": pa.array([rolled.minutes], pa.uint32()),
            "rows": pa.array([rolled.rows], pa.uint32()),
            "seconds": pa.array([seconds], pa.float32()),
        }
        # What was rolled up may have been read of a part that a full disk cut short: then this run is not noted, and is done again.
        self._store.verify()
        self._store.insert("rollup_runs", pa.table(row))
