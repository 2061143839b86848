"""One collector's thread: asks it again and again, and says how that goes.

One idea: every collector has a thread of its own, so one that fails, hangs or lies costs the others nothing: its error is counted and told,
and it is asked again later and later. A thread that hangs in a driver cannot be ended, nor can it tell that it hangs: whoever flushes asks
(``heed``). It holds nothing that others wait for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from legato_gpu_agent.agent.otlp_metrics import Sample
from legato_gpu_agent.agent.self_metrics import Metrics
from legato_gpu_agent.collectors import Absent, Collector
from legato_gpu_agent.collectors.measurement import Reading
from legato_gpu_agent.plugin.protocol import Datagram

__all__ = ["Basket", "Status", "Watch"]

_log = logging.getLogger("legato")
# A source that is not there, or fails, is asked this seldom at most.
_ABSENT_S, _FAILED_S_MAX = 60.0, 30.0
# A round that takes longer than this, and than three rounds' time, hangs: longer than any source is waited for.
_HANGS_S = 7.0
_FOUND_MAX = 20_000


class Basket:
    """What all collectors found since it was last emptied: samples, and steps as plugins tell them.

    The oldest goes when it is full, and is counted.
    """

    def __init__(self, samples_max: int = 200_000, told_max: int = 65_536) -> None:
        self._samples: deque[Sample] = deque(maxlen=samples_max)
        self._told: deque[Datagram] = deque(maxlen=told_max)
        self._lock = threading.Lock()
        self.overflowed = 0

    def put(self, samples: list[Sample]) -> None:
        """Keep these for the next flush."""
        with self._lock:
            self.overflowed += max(len(self._samples) + len(samples) - (self._samples.maxlen or 0), 0)
            self._samples.extend(samples)

    def tell(self, told: Datagram) -> None:
        """Keep what an engine did in a step, or a request that it finished."""
        with self._lock:
            self.overflowed += len(self._told) == self._told.maxlen
            self._told.append(told)

    def empty(self) -> tuple[list[Sample], list[Datagram]]:
        """All that is in it."""
        with self._lock:
            out = list(self._samples), list(self._told)
            self._samples.clear()
            self._told.clear()
        return out


@dataclass(frozen=True, slots=True)
class Status:
    """How a collector does. ``state``: up, down, absent, hanging, or waiting for its first round; ``why`` is empty where it is up."""

    name: str
    state: str
    why: str
    readings: int
    duration_s: float


class Watch:
    """Asks ``collector`` every so often until stopped, and puts what it finds into ``basket``."""

    def __init__(self, collector: Collector, basket: Basket, metrics: Metrics, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.name, self.collector = collector.name, collector
        self._basket, self._metrics, self._clock_ns = basket, metrics, clock_ns
        self._stopping = threading.Event()
        self._began_s = 0.0
        self._status = Status(self.name, "waiting", "its first round is not over", 0, 0.0)
        # Between who says that a round hangs and the round that ends just then; nobody holds it while it asks a collector.
        self._telling = threading.Lock()
        self._failures = 0
        # Asked when it is read: a round that hangs tells nothing by itself.
        metrics.collector_up.labels(self.name).set_function(lambda: float(self.status().state == "up"))
        self._thread = threading.Thread(target=self._run, name=f"legato {self.name}", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more. A round that runs is not waited for."""
        self._stopping.set()

    def status(self) -> Status:
        """How it does now."""
        began_s, status = self._began_s, self._status
        running_s = time.monotonic() - began_s if began_s else 0.0
        if running_s > max(_HANGS_S, 3 * self.collector.every_s):
            return Status(self.name, "hanging", f"its round has been running for {running_s:.0f} s", 0, running_s)
        return status

    def heed(self, now_ns: int) -> None:
        """While a round hangs, a sample that says so; the first time, a line in the log. To be called now and then."""
        with self._telling:
            status = self.status()
            if status.state == "hanging":
                self._note(status)
                self._basket.put([self._up(now_ns, False)])

    def round(self) -> Status:
        """Ask once. Never raises."""
        now_ns = self._clock_ns()
        self._began_s = began_s = time.monotonic()
        found: list[Sample] = []
        state, why = "up", ""
        try:
            for each in self.collector.collect(now_ns):
                if len(found) >= _FOUND_MAX:
                    raise ValueError(f"more than {_FOUND_MAX:,} readings in one round")
                found.append(Sample(now_ns, each))
        except Absent as error:
            state, why, found = "absent", str(error), []
        except Exception as error:
            state, why, found = "down", f"{type(error).__name__}: {error}"[:300], []
            self._metrics.collector_errors.labels(self.name, type(error).__name__).inc()
        status = Status(self.name, state, why, len(found), time.monotonic() - began_s)
        with self._telling:
            self._tell(status)
            self._basket.put([*found, self._up(now_ns, state == "up")])
            self._began_s = 0.0
        return status

    def _up(self, time_ns: int, is_up: bool) -> Sample:
        return Sample(time_ns, Reading("legato.agent.collector.up", "1", float(is_up), (("legato.collector", self.name),)))

    def _tell(self, status: Status) -> None:
        """How a round went: in the metrics always, in the log when it changed."""
        self._note(status)
        self._failures = self._failures + 1 if status.state == "down" else 0
        self._metrics.collector_duration.labels(self.name).set(status.duration_s)

    def _note(self, status: Status) -> None:
        """Keep it, and log it when it changed."""
        before, self._status = self._status, status
        if before.state != status.state:
            level = logging.WARNING if status.state in ("down", "hanging") else logging.INFO
            _log.log(level, "%s is %s%s", self.name, status.state, f": {status.why}" if status.why else "")

    def _pause_s(self) -> float:
        """Until the next round: a steady beat while all is well, longer and longer while it is not."""
        every_s = self.collector.every_s
        if self._status.state == "absent":
            return max(every_s, _ABSENT_S)
        if self._failures:
            return max(every_s, min(every_s * 2.0 ** min(self._failures, 10), _FAILED_S_MAX))
        return max(every_s - self._status.duration_s, every_s / 10)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.round()
            self._stopping.wait(self._pause_s())
