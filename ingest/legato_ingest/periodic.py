"""Work that one background thread repeats at a fixed interval.

``PeriodicTask`` is the thread and its error handling: an error is counted and logged, the step is retried at the next interval, and the
thread never ends because of it. ``PeriodicWorker`` is the base class of workers with their own store handle: runs never overlap, and a
gauge shows how far the worker is behind. ``record_run`` writes the row of a finished run. The module imports no storage; stores are
protocols.
"""

from __future__ import annotations

import abc
import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Generic, Protocol, TypeVar

import pyarrow as pa
from prometheus_client import Gauge

from legato_ingest.errors import StoreError
from legato_ingest.metrics import Metrics

__all__ = ["IDLE_SHARE", "PeriodicTask", "PeriodicWorker", "always", "at_once", "record_run"]

_log = logging.getLogger("legato")

Result = TypeVar("Result")
_PAUSE_SHARE_MIN = 0.2
IDLE_SHARE = 0.2
"""While nothing was inserted, a worker that follows inserts looks again after this share of its interval."""


class _Closable(Protocol):
    def close(self) -> None: ...


class _RunLog(Protocol):
    def verify(self) -> None: ...

    def insert(self, table: str, rows: pa.Table) -> None: ...


def always() -> bool:
    """Return True: the ``my_turn`` of an instance that shares its store with no other instance."""
    return True


def at_once() -> float:
    """Return 0: the ``delay_s`` of a task that always has something to do."""
    return 0.0


class PeriodicTask:
    """Calls ``step`` every ``every_s`` seconds from ``start()`` until ``close()``, the first time after ``first_s`` (default: ``every_s``).

    After a long step the pause is shorter, and at least a fifth of ``every_s``.

    ``stage`` names the task in logs and in the error counter. A step is skipped while ``my_turn()`` is false, so that only one of several
    instances on the same store does the work. ``delay_s()`` returns in how many seconds there will be something to do; until then, and for
    ``every_s`` at most, no step begins.
    """

    def __init__(
        self,
        stage: str,
        step: Callable[[], object],
        every_s: float,
        metrics: Metrics,
        first_s: float | None = None,
        my_turn: Callable[[], bool] = always,
        delay_s: Callable[[], float] = at_once,
    ) -> None:
        self.closing = threading.Event()
        self._stage, self._step, self._every_s, self._metrics = stage, step, every_s, metrics
        self._first_s = every_s if first_s is None else first_s
        self._my_turn, self._delay_s = my_turn, delay_s
        self._thread = threading.Thread(target=self._run, name=f"legato-{stage}", daemon=True)

    @property
    def has_turn(self) -> bool:
        """Whether the thread runs and would begin a step now."""
        return self._thread.is_alive() and not self.closing.is_set() and self._my_turn()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Start no other step, without waiting for the running one. A long step should check ``closing`` and return early."""
        self.closing.set()

    def close(self) -> None:
        """Stop, and wait until the running step returns."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        pause_s = self._first_s
        while not self.closing.wait(pause_s):
            pause_s = self._every_s
            if not self._my_turn():
                continue
            began_s = time.monotonic()
            try:
                delay_s = self._delay_s()
                if delay_s > 0:
                    pause_s = min(delay_s, self._every_s)
                    continue
                self._step()
            except StoreError as error:
                self._metrics.errors.labels(self._stage, type(error).__name__).inc()
                _log.warning("%s: the store did not respond, retrying in %g s: %s", self._stage, self._every_s, error)
            except Exception as error:
                self._metrics.errors.labels(self._stage, type(error).__name__).inc()
                _log.exception("%s failed, retrying in %g s", self._stage, self._every_s)
            else:
                pause_s = max(self._every_s - (time.monotonic() - began_s), _PAUSE_SHARE_MIN * self._every_s)


class PeriodicWorker(abc.ABC, Generic[Result]):
    """A periodic task that owns a store handle. Subclasses implement ``_run``, which ``step()`` calls, and after ``start()`` the thread.

    ``exclusive`` is the lock that every run holds; other methods that use the handle must hold it too. ``lag`` reports the seconds since
    ``until_ms``, which ``_run`` sets to the time (Unix ms) up to which it has processed all data, less ``settle_s``, for which data wait in
    any case; it is 0 on an instance that has no turn.
    """

    def __init__(
        self,
        stage: str,
        handle: _Closable,
        every_s: float,
        metrics: Metrics,
        *,
        first_s: float | None = None,
        my_turn: Callable[[], bool] = always,
        delay_s: Callable[[], float] = at_once,
        lag: Gauge | None = None,
        settle_s: float = 0.0,
    ) -> None:
        self.exclusive = threading.Lock()
        self.until_ms = _now_ms()
        self._handle = handle
        self._task = PeriodicTask(stage, self.step, every_s, metrics, first_s, my_turn, delay_s)
        if lag is not None:
            lag.set_function(lambda: max(0.0, (_now_ms() - self.until_ms) / 1000 - settle_s) if my_turn() else 0.0)

    @property
    def has_turn(self) -> bool:
        """Whether runs in the background are due from this worker: it was started, is not stopping, and has its turn."""
        return self._task.has_turn

    @property
    def stopping(self) -> bool:
        """Whether ``stop()`` or ``close()`` was called: a run should return at the next point where its result is consistent."""
        return self._task.closing.is_set()

    def start(self) -> None:
        """Run periodically in the background from now on."""
        self._task.start()

    def stop(self) -> None:
        """Begin no other run, without waiting for the current one."""
        self._task.stop()

    def close(self) -> None:
        """Wait for the current run, then stop and close the store handle. Unfinished work is done after the next start."""
        self._task.close()
        with self.exclusive:
            self._handle.close()

    def step(self) -> Result:
        """Run once."""
        with self.exclusive:
            return self._run()

    @abc.abstractmethod
    def _run(self) -> Result: ...


def record_run(
    store: _RunLog,
    table: str,
    times_ms: Mapping[str, int],
    counts: Mapping[str, int],
    started: float,
    more: Mapping[str, pa.Array] | None = None,
) -> None:
    """Write the row of a finished run: columns with times (Unix ms) and counts, seconds since ``started`` (monotonic), other columns.

    Verifies the store first: what the run read may have come from a part that a full disk truncated. Then ``verify`` raises ``StoreError``,
    the run is not recorded, and the next one repeats it.
    """
    moment = pa.timestamp("ms", "UTC")
    row = {
        "tenant": pa.array([""]),
        **{name: pa.array([value], moment) for name, value in times_ms.items()},
        "ran_at": pa.array([datetime.now(UTC)], moment),
        **{name: pa.array([value], pa.uint64()) for name, value in counts.items()},
        "seconds": pa.array([time.monotonic() - started], pa.float32()),
        **(more or {}),
    }
    store.verify()
    store.insert(table, pa.table(row))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
