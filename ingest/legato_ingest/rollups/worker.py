"""The rollup worker: it finds the minutes with changed rows and recomputes their rollups.

A minute is dirty if one of its rows was received or judged since the last run, or if one of its running streams is overdue by now. A run
computes the minutes near the present, and others for some seconds, last those of tenants that take much memory; the rest waits for the next
runs. The progress is a row of `rollup_runs`, written after the rollups and never past a minute that waits: if a run is killed in between,
the next computes the same minutes again, with the same result. A run covers rows only up to the writers' watermarks, so no row is missed
between two runs. Hours follow their minutes within some runs, because an hour costs as much as its sixty minutes; so does the rollup of
node samples.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from legato_ingest.errors import MEMORY_LIMIT_EXCEEDED, StoreError, StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.periodic import IDLE_SHARE, PeriodicWorker, always, record_run
from legato_ingest.rollups.backlog import Backlog, Progress
from legato_ingest.rollups.compute import (
    TIME_MAX,
    columns_of,
    compute_hours,
    compute_minutes,
    computed_columns,
    passes,
    tenants_of_hours,
    tenants_of_minutes,
)
from legato_ingest.rollups.divided import NO_PROGRESS, Divided
from legato_ingest.rollups.followed import Stamps
from legato_ingest.rollups.pending import Pending
from legato_ingest.rollups.pieces import Piece, by_tenant
from legato_ingest.rollups.queries import ENGINE_ROLLUPS, STREAM_ROLLUPS, Rollup, Statement, hours_sql, minutes_sql
from legato_ingest.rollups.samples import SampleRollup
from legato_ingest.settings import Settings
from legato_ingest.storage import Store
from legato_ingest.storage.retention import kept_since_s
from legato_ingest.storage.sql import after_until_ms
from legato_ingest.storage.watermark import now_ms

__all__ = ["RollupResult", "RollupWorker"]

_log = logging.getLogger("legato")
# Hours, and node samples, are computed this many intervals after the last time: with a reader, and without one.
_HOURS_EVERY, _UNREAD_HOURS_EVERY = 4, 60
# A run begins no other pass of minutes far from the present, or of hours, after so long; one of each it computes in any case.
_OLD_S_MAX = 5.0
# What is divided has so long in any case: old minutes of one tenant would leave one piece a run for all.
_DIVIDED_S = 2.0


@dataclass(frozen=True, slots=True)
class _Source:
    """Rollups of the same rows: their table, the column with the time of a row, and whether hours follow the minutes."""

    rollups: tuple[Rollup, ...]
    table: str
    time: str
    has_hours: bool


_SOURCES = (_Source(STREAM_ROLLUPS, "stream_revs", "start_time", True), _Source(ENGINE_ROLLUPS, "engine_steps", "recorded_at", False))


@dataclass(slots=True)
class RollupResult:
    """What a run computed: the number of minutes, and of rows written to the 1-minute tables."""

    minutes: int = 0
    rows: int = 0


class RollupWorker(PeriodicWorker[RollupResult]):
    """Keeps the rollups current. Owns ``store``, a separate handle. Without ``start()`` it runs only when ``step()`` is called.

    ``received_ms`` and ``judged_ms`` return the watermarks (Unix ms) up to which all received rows, and all verdicts, are in the store.
    ``stamps``: the times of all inserts, if no other process inserts; then no run begins while there is nothing to compute.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        metrics: Metrics,
        received_ms: Callable[[], int] = now_ms,
        judged_ms: Callable[[], int] = now_ms,
        my_turn: Callable[[], bool] = always,
        stamps: Stamps | None = None,
    ) -> None:
        lag, every_s = metrics.rollup_lag_seconds, settings.rollup_every_s
        super().__init__("rollup", store, every_s, metrics, my_turn=my_turn, delay_s=self._delay_s, lag=lag)
        self._stamps, self._idle_s = stamps, IDLE_SHARE * every_s
        self._store, self._metrics, self._settings = store, metrics, settings
        self._received_ms, self._judged_ms = received_ms, judged_ms
        self._pending = Pending(-1)
        self._samples = SampleRollup(store, self._kept_since_s, self._is_stopping)
        # Unix ms; as recorded in the store when the retention became longer.
        self._kept_ms = 0
        # The end of the last run while `again` computes (monotonic).
        self._ran_at_s = 0.0

    def again(self, since_s: int, samples: bool = False) -> dict[str, float]:
        """Recompute all minutes of the last ``since_s`` seconds (0: all). Return the counts of minutes and rows, and the seconds it took.

        With ``samples`` also the rollup of node samples, unless most of it is still to be computed for the first time.

        Skips minutes beyond the retention period, because some of their streams may already be deleted. Raises ``StoreUnavailable`` if the
        worker is closed meanwhile.
        """
        started = time.monotonic()
        with self.exclusive:
            progress, sampled = self._progress()
            since = max(self._kept_since_s(), now_ms() // 1000 - since_s if since_s else 0)
            self._follow(progress)
            streams = self._minutes("stream_revs", "start_time", f"start_time >= toDateTime({since}, 'UTC')")
            steps = self._minutes("engine_steps", "recorded_at", f"recorded_at >= toDateTime({since}, 'UTC')")
            # Minutes that have rollups but no streams any more need rows of zeros.
            streams = np.union1d(streams, self._minutes("stream_minutes", "minute", f"minute >= toDateTime({since}, 'UTC')"))
            self._pending.until_ms = progress[0]
            result, divided, self._ran_at_s = RollupResult(), Divided(), started
            for source, minutes in zip(_SOURCES, (streams, steps), strict=True):
                for part in passes(minutes):
                    with self._between_runs(divided):
                        self._compute(source, part, result, Backlog())
            self._finish_divided(divided, result)
            while self._pending.hours_s and not self.stopping:
                with self._between_runs(divided):
                    self._compute_hours(0.0, time.monotonic() + _OLD_S_MAX)
            self._finish_divided(divided, result)
            if samples and (sampled or not since_s):
                for _ in self._samples.again(since, lambda: self._pending.next_rolled_ms()):
                    self._run_if_due()
        if self.stopping:
            raise StoreUnavailable("the server is stopping before all minutes were computed; repeat the command after the restart")
        return {"minutes": result.minutes, "rows": result.rows, "seconds": time.monotonic() - started}

    @contextmanager
    def _between_runs(self, divided: Divided) -> Iterator[None]:
        """Compute something in between two runs.

        ``divided`` holds its pieces. Those that wait go on waiting, because only a recorded run is known to have read sound parts.
        """
        progress, _ = self._progress()
        self._follow(progress)
        waiting, self._pending.divided = self._pending.divided, divided
        yield
        self._pending.divided, self._pending.until_ms = waiting, progress[0]
        self._run_if_due()

    def _run_if_due(self) -> None:
        """Run in the middle of `again`, which may take hours: the minutes of the present do not wait for old ones."""
        if self.has_turn and time.monotonic() - self._ran_at_s >= self._settings.rollup_every_s:
            self._run()
            self._ran_at_s = time.monotonic()

    def _finish_divided(self, divided: Divided, result: RollupResult) -> None:
        while divided and not self.stopping:
            with self._between_runs(divided):
                self._compute_divided(result, time.monotonic() + _DIVIDED_S)

    def _is_stopping(self) -> bool:
        return self.stopping

    def _run(self) -> RollupResult:
        started = time.monotonic()
        progress, sampled_since = self._progress()
        self._follow(progress)
        if self._stamps is not None:
            self._stamps.refresh(self._received_ms())
        self._pending.looked = found = self._find()
        result = self._compute_waiting(self._seldom_s)
        if (result.minutes or result.rows or not progress[0]) and not self.stopping:
            self._pending.found = found
            progress = self._pending.progress()
            self._record(progress, sampled_since, result, started)
        self._pending.until_ms = progress[0]
        self.until_ms = self._pending.complete_until_ms(found[0], progress[0]) or self.until_ms
        # Last, so that the progress of the streams does not depend on it.
        if not self.stopping:
            self._compute_samples(sampled_since, found[0], self._seldom_s)
            if (sampled := self._samples.progress_ms(sampled_since)) is not None:
                self._record(progress, sampled, RollupResult(), started)
        self._metrics.rollup_seconds.observe(time.monotonic() - started)
        return result

    def _delay_s(self) -> float:
        """Return in how many seconds there may be something to compute."""
        if self._stamps is None or not self.exclusive.acquire(blocking=False):
            return 0.0
        try:
            # Before the first run, and after one that failed, the store must be looked at.
            return 0.0 if self._pending.until_ms < 0 else max(0.0, min(self._due_in_s(self._stamps), self._idle_s))
        finally:
            self.exclusive.release()

    def _due_in_s(self, stamps: Stamps) -> float:
        # Read before the stamps: an insert that ends in between has a later stamp.
        received_ms = self._received_ms()
        news_s = stamps.news_in_s(self._pending.looked, received_ms)
        if news_s is not None:
            return news_s
        self.until_ms = max(self.until_ms, self._pending.complete_until_ms(received_ms, 0))
        return min(self._pending.due_in_s(self._seldom_s), self._samples.due_in_s(stamps.received_after, self._seldom_s))

    @property
    def _seldom_s(self) -> float:
        is_read = self._stamps is None or self._stamps.is_read()
        return (_HOURS_EVERY if is_read else _UNREAD_HOURS_EVERY) * self._settings.rollup_every_s

    def _record(self, progress: Progress, sampled_ms: int, result: RollupResult, started: float) -> None:
        times_ms = {"until": progress[0], "judged_until": progress[1], "sampled_until": sampled_ms, "kept_since": self._kept_ms}
        record_run(self._store, "rollup_runs", times_ms, {"minutes": result.minutes, "rows": result.rows}, started)

    def _progress(self) -> tuple[Progress, int]:
        """The times (Unix ms) up to which earlier runs have processed all rows, and received node samples; 0 before the first run.

        Takes note since when all rows are stored.
        """
        columns = ("until", "judged_until", "sampled_until", "kept_since")
        newest = ", ".join(f"toUnixTimestamp64Milli(max({column}))" for column in columns)
        (times,) = self._store.select(f"SELECT {newest} FROM rollup_runs")
        until, judged, sampled, self._kept_ms = (max(0, int(time_ms)) for time_ms in times)
        return (until, judged), sampled

    def _kept_since_s(self) -> int:
        """Return the time (Unix s) since which all raw rows are stored, for another hour at least."""
        # A time ahead was recorded by a wrong clock.
        recorded_ms = self._kept_ms if self._kept_ms <= now_ms() else 0
        return max(kept_since_s(self._settings), recorded_ms // 1000, 0)

    def _find(self) -> Progress:
        """Add the minutes that became dirty since they were looked for last. Return up to when they were found now."""
        pending = self._pending
        since, judged_since = pending.found
        until, judged_until = max(since, self._received_ms()), max(judged_since, self._judged_ms())
        received = self._minutes("stream_revs", "start_time", after_until_ms("received_at", since, until))
        judged = self._minutes("verdicts", "start_time", after_until_ms("judged_at", judged_since, judged_until))
        pending.streams.add(np.union1d(np.union1d(received, judged), pending.overdue()), pending.found)
        pending.steps.add(self._minutes("engine_steps", "recorded_at", after_until_ms("received_at", since, until)), pending.found)
        return until, judged_until

    def _follow(self, progress: Progress) -> None:
        """Read what is pending if the progress in the store (Unix ms) is not this worker's: another process did the last run."""
        if self._pending.until_ms != progress[0]:
            self._pending = Pending.load(self._store, progress)
        # If the run fails, what it computed may rest on damaged parts, so the next one reads again what is pending.
        self._pending.until_ms = -1

    def _minutes(self, table: str, column: str, condition: str) -> NDArray[np.int64]:
        """Return the minutes (Unix s, ascending) of the rows of a table that satisfy a condition."""
        rows = self._store.select(
            f"SELECT DISTINCT toUnixTimestamp(toStartOfMinute({column})) AS at FROM {table}"
            f" WHERE {condition} AND {column} < {TIME_MAX} ORDER BY at"
        )
        return np.array([row[0] for row in rows], np.int64)

    def _compute_waiting(self, hours_every_s: float) -> RollupResult:
        """Compute the minutes near the present, then others, hours, and last what is divided, for some seconds; return early when closed.

        Hours are computed if the last ones were computed ``hours_every_s`` ago.
        """
        result, waiting = RollupResult(), (self._pending.streams, self._pending.steps)
        for source, backlog in zip(_SOURCES, waiting, strict=True):
            self._try(source, backlog.recent(now_ms() / 1000), result, backlog)
        ends_s, goes_on = time.monotonic() + _OLD_S_MAX, True
        while goes_on and any(waiting) and not self.stopping:
            for source, backlog in zip(_SOURCES, waiting, strict=True):
                if backlog:
                    goes_on = self._try(source, backlog.first(), result, backlog) and goes_on
            goes_on = goes_on and time.monotonic() < ends_s
        with self._counted_if_refused():
            self._compute_hours(hours_every_s, ends_s)
        with self._counted_if_refused():
            self._compute_divided(result, max(ends_s, time.monotonic() + _DIVIDED_S))
        return result

    def _compute_samples(self, since_ms: int, until_ms: int, every_s: float) -> None:
        """Compute the next part of the node samples, then what is divided for some seconds. Parameters: as of ``SampleRollup.step``."""
        self._samples.step(since_ms, until_ms, self._pending.next_rolled_ms(), every_s)
        ends_s = time.monotonic() + _DIVIDED_S
        with self._counted_if_refused():
            self._samples.step_divided(self._pending.next_rolled_ms, lambda: self.stopping or time.monotonic() >= ends_s)

    @contextmanager
    def _counted_if_refused(self) -> Iterator[None]:
        """Count what the store refuses, mostly for its memory: it has another turn, after what else waits. Raises if the store is away."""
        try:
            yield
        except StoreError as error:
            if not error.code:
                raise
            self._count_refused(error)

    def _count_refused(self, error: StoreError) -> None:
        self._metrics.errors.labels("rollup", type(error).__name__).inc()
        _log.warning("rollups that the store refuses could not be computed now: %s", error)

    def _try(self, source: _Source, minutes_s: NDArray[np.int64], result: RollupResult, backlog: Backlog) -> bool:
        """Compute these minutes; if the store refuses, they wait behind the others, because they must not be in the way of these.

        Return whether to go on: what the store refuses for another reason than its memory, it mostly refuses for all minutes.
        """
        try:
            self._compute(source, minutes_s, result, backlog)
        except StoreError as error:
            if not error.code:
                raise
            self._count_refused(error)
            backlog.postpone(minutes_s)
            return error.code == MEMORY_LIMIT_EXCEEDED
        return True

    def _compute(self, source: _Source, minutes_s: NDArray[np.int64], result: RollupResult, backlog: Backlog) -> None:
        """Compute the rollups of these minutes, pass by pass, and remove them from ``backlog``; return early when the worker is closed."""
        pending = self._pending
        for part in passes(minutes_s):
            if source.has_hours:
                pending.begin(part)
            rolled_ms, before = pending.next_rolled_ms(), backlog.before(part, pending.found)
            for rollup in source.rollups:
                if self.stopping:
                    return
                run = partial(self._compute_piece, source, rollup, result, rolled_ms)
                tenants = partial(tenants_of_minutes, self._store, rollup, source.table, source.time)
                # Without expired minutes: that nothing is computed of them would look as if the store had memory.
                whole = pending.divided.left_out(rollup.table, part, before).since(self._kept_since_s())
                for piece in by_tenant(whole, run, tenants, self._is_stopping) if whole else ():
                    pending.divided.add(rollup.table, piece, before)
            result.minutes += len(part)
            self._metrics.rolled_minutes.inc(len(part))
            backlog.remove(part)

    def _compute_piece(self, source: _Source, rollup: Rollup, result: RollupResult, rolled_ms: int, piece: Piece) -> None:
        # Looked at here, because minutes may have waited until now. Others would get figures of the rows that are left.
        kept = piece.since(self._kept_since_s())
        written = compute_minutes(self._store, self._minutes_sql[rollup.table], source.time, kept, rolled_ms) if kept else []
        result.rows += sum(each.rows for each in written)
        if rollup.table == "stream_minutes":
            self._pending.computed(written)

    def _compute_hours(self, every_s: float, ends_s: float) -> None:
        """Compute the hours that are due, and begin none after ``ends_s`` (monotonic) but the first; return early when closed."""
        is_due, divided = self._pending.hours_due(every_s), self._pending.divided
        while is_due and not self.stopping:
            part = self._pending.next_hours()
            for rollup in STREAM_ROLLUPS:
                run = partial(compute_hours, self._store, self._hours_sql[rollup.hours])
                whole = divided.left_out(rollup.hours, part, NO_PROGRESS)
                for piece in by_tenant(whole, run, partial(tenants_of_hours, self._store, rollup), self._is_stopping):
                    divided.add(rollup.hours, piece, NO_PROGRESS)
            self._pending.hours_computed(part)
            is_due = bool(self._pending.hours_s) and time.monotonic() < ends_s

    def _compute_divided(self, result: RollupResult, ends_s: float) -> None:
        """Compute pieces of tenants that take much memory, and begin none after ``ends_s`` (monotonic) but the first."""

        def run(table: str, piece: Piece) -> None:
            if table in self._hours_sql:
                compute_hours(self._store, self._hours_sql[table], piece)
            else:
                (source,) = (each for each in _SOURCES if table in (rollup.table for rollup in each.rollups))
                rollup = self._minutes_sql[table].rollup
                self._compute_piece(source, rollup, result, self._pending.next_rolled_ms(), piece)

        if self.stopping:
            return
        for table, starts_s in self._pending.divided.compute(run, lambda: self.stopping or time.monotonic() >= ends_s):
            if table in (rollup.table for rollup in STREAM_ROLLUPS):
                self._pending.changed(starts_s)

    # Columns do not change while a store is open.
    @cached_property
    def _minutes_sql(self) -> dict[str, Statement]:
        """The statement for each 1-minute table."""
        return {each.table: minutes_sql(each, computed_columns(self._store, each)) for each in (*STREAM_ROLLUPS, *ENGINE_ROLLUPS)}

    @cached_property
    def _hours_sql(self) -> dict[str, Statement]:
        """The statement for each 1-hour table."""
        return {rollup.hours: hours_sql(rollup, columns_of(self._store, rollup.table)) for rollup in STREAM_ROLLUPS}
