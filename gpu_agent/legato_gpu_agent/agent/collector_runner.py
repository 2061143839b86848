"""Runs one collector in a separate thread, again and again, and records its success and duration.

Each collector runs in its own thread, so a failing or hanging one does not affect the others. Errors are counted and logged; the retry
interval backs off exponentially. A thread that hangs in a driver cannot be ended and cannot report itself, so the agent's loop calls
``report_hung``. A runner holds no lock while its collector runs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from legato_gpu_agent.agent.buffer import Buffer
from legato_gpu_agent.agent.self_metrics import SelfMetrics
from legato_gpu_agent.collectors.base import Collector, NotAvailable
from legato_gpu_agent.collectors.measurement import Measurement, Timed

__all__ = ["CollectorRunner", "Status"]

_log = logging.getLogger("legato")
# Retry intervals: of a source that is not available, and the maximum for one that fails.
_ABSENT_S, _FAILED_S_MAX = 60.0, 30.0
# A round longer than this, and than three intervals, counts as hanging; all timeouts of sources are shorter.
_HANGS_S = 7.0
_MEASUREMENTS_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a collector: up, down, absent, hanging, or waiting for its first round. ``why`` is empty when it is up."""

    name: str
    state: str
    why: str
    measurements: int
    duration_s: float


class CollectorRunner:
    """Runs ``collector`` at its interval until stopped, and adds its measurements to ``buffer``."""

    def __init__(self, collector: Collector, buffer: Buffer, metrics: SelfMetrics, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.name, self.collector = collector.name, collector
        self._buffer, self._metrics, self._clock_ns = buffer, metrics, clock_ns
        self._stopping = threading.Event()
        self._began_s = 0.0
        self._status = Status(self.name, "waiting", "its first round has not ended", 0, 0.0)
        # Orders `report_hung` and the end of a round; never held while the collector runs.
        self._reporting = threading.Lock()
        self._failures = 0
        self._is_coming = False
        # Evaluated at each scrape, because a round that hangs does not update a gauge.
        metrics.collector_up.labels(self.name).set_function(lambda: float(self.status().state == "up"))
        self._thread = threading.Thread(target=self._run, name=f"legato {self.name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current round, without waiting for it."""
        self._stopping.set()

    def status(self) -> Status:
        """Return the current state."""
        began_s, status = self._began_s, self._status
        running_s = time.monotonic() - began_s if began_s else 0.0
        if running_s > max(_HANGS_S, 3 * self.collector.every_s):
            return Status(self.name, "hanging", f"its round has been running for {running_s:.0f} s", 0, running_s)
        return status

    def report_hung(self, now_ns: int) -> None:
        """If the current round hangs, log it once and add a measurement that the collector is not up."""
        with self._reporting:
            status = self.status()
            if status.state == "hanging":
                self._set_status(status)
                self._buffer.add([self._up(now_ns, False)])

    def run_once(self) -> Status:
        """Run one round. Never raises."""
        now_ns = self._clock_ns()
        self._began_s = began_s = time.monotonic()
        found: list[Timed] = []
        state, why = "up", ""
        try:
            for each in self.collector.collect(now_ns):
                if len(found) >= _MEASUREMENTS_MAX:
                    raise ValueError(f"more than {_MEASUREMENTS_MAX:,} measurements in one round")
                found.append((now_ns, each))
        except NotAvailable as error:
            state, why, found, self._is_coming = "absent", str(error), [], error.is_coming
        except Exception as error:
            state, why, found = "down", f"{type(error).__name__}: {error}"[:300], []
            self._metrics.collector_errors.labels(self.name, type(error).__name__).inc()
        status = Status(self.name, state, why, len(found), time.monotonic() - began_s)
        with self._reporting:
            self._finish(status)
            self._buffer.add([*found, self._up(now_ns, state == "up")])
            self._began_s = 0.0
        return status

    def _up(self, time_ns: int, is_up: bool) -> Timed:
        return time_ns, Measurement("legato.agent.collector.up", "1", float(is_up), (("legato.collector", self.name),))

    def _finish(self, status: Status) -> None:
        """Record the status of a finished round."""
        self._set_status(status)
        self._failures = self._failures + 1 if status.state == "down" else 0
        self._metrics.collector_duration.labels(self.name).set(status.duration_s)

    def _set_status(self, status: Status) -> None:
        """Store the status; log it if the state changed."""
        before, self._status = self._status, status
        if before.state != status.state:
            level = logging.WARNING if status.state in ("down", "hanging") else logging.INFO
            _log.log(level, "%s is %s%s", self.name, status.state, f": {status.why}" if status.why else "")

    def _pause_s(self) -> float:
        """Return the wait until the next round: the rest of the interval after success, a longer one after a failure."""
        every_s = self.collector.every_s
        if self._status.state == "absent":
            return every_s if self._is_coming else max(every_s, _ABSENT_S)
        if self._failures:
            return max(every_s, min(every_s * 2.0 ** min(self._failures, 10), _FAILED_S_MAX))
        return max(every_s - self._status.duration_s, every_s / 10)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.run_once()
            self._stopping.wait(self._pause_s())
