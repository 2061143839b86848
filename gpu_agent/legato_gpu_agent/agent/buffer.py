"""The buffer between the collectors' threads and the agent's loop: measurements and datagrams until the next flush."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from legato_gpu_agent.collectors.measurement import Timed
from legato_gpu_agent.plugin.protocol import Datagram

__all__ = ["Buffer"]


class Buffer:
    """Bounded; drops the oldest entry when full. ``overflowed`` counts dropped entries. Safe for several threads."""

    def __init__(self, measurements_max: int = 200_000, datagrams_max: int = 65_536) -> None:
        self._measurements: deque[Timed] = deque(maxlen=measurements_max)
        self._datagrams: deque[Datagram] = deque(maxlen=datagrams_max)
        self._lock = threading.Lock()
        self.overflowed = 0

    def add(self, measurements: Sequence[Timed]) -> None:
        """Add measurements with their times."""
        with self._lock:
            self.overflowed += max(len(self._measurements) + len(measurements) - (self._measurements.maxlen or 0), 0)
            self._measurements.extend(measurements)

    def add_datagram(self, datagram: Datagram) -> None:
        """Add a step or finished requests, as a collector received them from an engine."""
        with self._lock:
            self.overflowed += len(self._datagrams) == self._datagrams.maxlen
            self._datagrams.append(datagram)

    def drain(self) -> tuple[list[Timed], list[Datagram]]:
        """Remove and return all entries."""
        with self._lock:
            out = list(self._measurements), list(self._datagrams)
            self._measurements.clear()
            self._datagrams.clear()
        return out
