"""The rollup worker: it finds the minutes with changed rows and recomputes their rollups.

A minute is dirty if one of its rows was received or judged since the last run, or if one of its running streams is overdue by now. The
progress is a row of `rollup_runs`, written after the rollups: if a run is killed in between, the next computes the same minutes again, with
the same result. A run covers rows only up to the writers' watermarks, so no row is missed between two runs. Hours follow their minutes
within some runs, because an hour costs as much as its sixty minutes; so does the rollup of node samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from legato_ingest.errors import StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.periodic import PeriodicWorker, always, record_run
from legato_ingest.rollups.compute import HOURS_MAX, TIME_MAX, columns_of, compute_hours, compute_minutes, passes
from legato_ingest.rollups.pending import Pending
from legato_ingest.rollups.queries import ENGINE_ROLLUPS, STREAM_ROLLUPS, hours_sql
from legato_ingest.rollups.samples import SampleRollup
from legato_ingest.settings import Settings
from legato_ingest.storage import Store
from legato_ingest.storage.retention import kept_since_s
from legato_ingest.storage.sql import after_until_ms
from legato_ingest.storage.watermark import now_ms

__all__ = ["RollupResult", "RollupWorker", "followed_until_ms", "judgements_followed_until_ms"]

# Hours, and node samples, are computed this many intervals after those before.
_HOURS_EVERY = 6
# A run is rarely longer than this.
_RUN_S_MAX = 60.0


@dataclass(slots=True)
class RollupResult:
    """What a run computed: the number of minutes, and of rows written to the 1-minute tables."""

    minutes: int = 0
    rows: int = 0


def followed_until_ms(store: Store) -> int:
    """Return the latest receive time (Unix ms) that any worker has processed. New rows need later times, even if the clock was set back."""
    tables = ("attribution_runs", "rollup_runs")
    return max(int(store.select(f"SELECT toUnixTimestamp64Milli(max(until)) FROM {table}")[0][0]) for table in tables)


def judgements_followed_until_ms(store: Store) -> int:
    """Return the latest judgement time (Unix ms) that the rollups have processed. New verdicts need later times."""
    return int(store.select("SELECT toUnixTimestamp64Milli(max(judged_until)) FROM rollup_runs")[0][0])


class RollupWorker(PeriodicWorker[RollupResult]):
    """Keeps the rollups current. Owns ``store``, a separate handle. Without ``start()`` it runs only when ``step()`` is called.

    ``received_ms`` and ``judged_ms`` return the watermarks (Unix ms) up to which all received rows, and all verdicts, are in the store.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        metrics: Metrics,
        received_ms: Callable[[], int] = now_ms,
        judged_ms: Callable[[], int] = now_ms,
        my_turn: Callable[[], bool] = always,
    ) -> None:
        super().__init__("rollup", store, settings.rollup_every_s, metrics, my_turn=my_turn, lag=metrics.rollup_lag_seconds)
        self._store, self._metrics, self._settings = store, metrics, settings
        self._received_ms, self._judged_ms = received_ms, judged_ms
        self._pending = Pending(-1)
        self._samples = SampleRollup(store)

    def again(self, since_s: int, samples: bool = False) -> dict[str, float]:
        """Recompute all minutes of the last ``since_s`` seconds (0: all). Return the counts of minutes and rows, and the seconds it took.

        With ``samples`` also the rollup of node samples, unless most of it is still to be computed for the first time.

        Skips minutes beyond the retention period, because some of their streams may already be deleted. Raises ``StoreUnavailable`` if the
        worker is closed meanwhile.
        """
        started = time.monotonic()
        since = max(kept_since_s(self._settings), now_ms() // 1000 - since_s if since_s else 0, 0)
        with self.exclusive:
            progress, _, sampled = self._progress()
            self._follow(progress)
            streams = self._minutes("stream_revs", "start_time", f"start_time >= toDateTime({since}, 'UTC')")
            steps = self._minutes("engine_steps", "recorded_at", f"recorded_at >= toDateTime({since}, 'UTC')")
            # Minutes that have rollups but no streams any more need rows of zeros.
            streams = np.union1d(streams, self._minutes("stream_minutes", "minute", f"minute >= toDateTime({since}, 'UTC')"))
            result = self._compute(streams, steps, 0.0)
            if samples and (sampled or not since_s):
                self._samples.again(since, self._pending.next_rolled_ms, lambda: self.stopping)
            self._pending.until_ms = progress
        if self.stopping:
            raise StoreUnavailable("the server is stopping before all minutes were computed; repeat the command after the restart")
        return {"minutes": result.minutes, "rows": result.rows, "seconds": time.monotonic() - started}

    def _run(self) -> RollupResult:
        started = time.monotonic()
        since, judged_since, sampled_since = self._progress()
        self._follow(since)
        until, judged_until = self._received_ms(), self._judged_ms()
        streams = np.union1d(self._dirty(since, until, judged_since, judged_until), self._pending.overdue())
        steps = self._minutes("engine_steps", "recorded_at", after_until_ms("received_at", since, until))
        seldom_s = _HOURS_EVERY * self._settings.rollup_every_s
        result = self._compute(streams, steps, seldom_s)
        times_ms = {"until": since, "judged_until": judged_since, "sampled_until": sampled_since}
        if (result.minutes or not since) and not self.stopping:
            times_ms |= {"until": until, "judged_until": judged_until}
            self._record(times_ms, result, started)
        self._pending.until_ms = times_ms["until"]
        self.until_ms = until
        # Last, so that the progress of the streams does not depend on it.
        sampled = None if self.stopping else self._samples.step(sampled_since, until, self._pending.next_rolled_ms(), seldom_s)
        if sampled is not None:
            self._record(times_ms | {"sampled_until": sampled}, RollupResult(), started)
        self._metrics.rollup_seconds.observe(time.monotonic() - started)
        return result

    def _record(self, times_ms: dict[str, int], result: RollupResult, started: float) -> None:
        record_run(self._store, "rollup_runs", times_ms, {"minutes": result.minutes, "rows": result.rows}, started)

    def _progress(self) -> tuple[int, int, int]:
        """The times (Unix ms) up to which earlier runs have processed all rows; 0 before the first run.

        They are times of receipt, of judgement, and of the receipt of node samples.
        """
        newest = ", ".join(f"toUnixTimestamp64Milli(max({column}))" for column in ("until", "judged_until", "sampled_until"))
        ((until, judged, sampled),) = self._store.select(f"SELECT {newest} FROM rollup_runs")
        return max(0, int(until)), max(0, int(judged)), max(0, int(sampled))

    def _dirty(self, since: int, until: int, judged_since: int, judged_until: int) -> NDArray[np.int64]:
        received = self._minutes("stream_revs", "start_time", after_until_ms("received_at", since, until))
        judged = self._minutes("verdicts", "start_time", after_until_ms("judged_at", judged_since, judged_until))
        return np.union1d(received, judged)

    def _follow(self, since_ms: int) -> None:
        """Read what is pending if the progress in the store (Unix ms) is not this worker's: another process did the last run."""
        if self._pending.until_ms != since_ms:
            back_s = _RUN_S_MAX + 2 * _HOURS_EVERY * self._settings.rollup_every_s
            self._pending = Pending.load(self._store, since_ms, int(1000 * back_s))
        # If the run fails, what it computed may rest on damaged parts, so the next one reads again what is pending.
        self._pending.until_ms = -1

    def _minutes(self, table: str, column: str, condition: str) -> NDArray[np.int64]:
        """Return the minutes (Unix s, ascending) of the rows of a table that satisfy a condition."""
        rows = self._store.select(
            f"SELECT DISTINCT toUnixTimestamp(toStartOfMinute({column})) AS at FROM {table}"
            f" WHERE {condition} AND {column} < {TIME_MAX} ORDER BY at"
        )
        return np.array([row[0] for row in rows], np.int64)

    def _compute(self, streams: NDArray[np.int64], steps: NDArray[np.int64], hours_every_s: float) -> RollupResult:
        """Compute the rollups of streams and of engine steps for their minutes, pass by pass; return early when the worker is closed.

        Hours are computed if the last ones were computed ``hours_every_s`` ago.
        """
        result = RollupResult()
        self._pending.begin(streams)
        for minutes, rollups, column in ((streams, STREAM_ROLLUPS, "start_time"), (steps, ENGINE_ROLLUPS, "recorded_at")):
            for part in passes(minutes):
                if self.stopping:
                    return result
                rolled_ms = self._pending.next_rolled_ms()
                for rollup in rollups:
                    rows = compute_minutes(self._store, rollup, column, part, rolled_ms)
                    result.rows += rows.num_rows
                    if rollup.table == "stream_minutes":
                        self._pending.computed(part, rows)
                result.minutes += len(part)
            if rollups is STREAM_ROLLUPS:
                self._compute_hours(hours_every_s)
        self._metrics.rolled_minutes.inc(result.minutes)
        return result

    def _compute_hours(self, every_s: float) -> None:
        """Compute the hours that are due; return early when the worker is closed."""
        hours = self._pending.hours_due(every_s)
        for part in (hours[first : first + HOURS_MAX] for first in range(0, len(hours), HOURS_MAX)):
            if self.stopping:
                return
            for sql in self._hours_sql:
                compute_hours(self._store, sql, part)
            self._pending.hours_computed(part)

    @cached_property
    def _hours_sql(self) -> tuple[str, ...]:
        """The statement for each 1-hour table; by `stream_hours`, the last, the next process knows how far this one came.

        Columns do not change while a store is open.
        """
        return tuple(hours_sql(rollup, columns_of(self._store, rollup.table)) for rollup in reversed(STREAM_ROLLUPS))
