"""Measurement of event-loop lag: time in which an asyncio loop could not run, so that received data was not read.

While streams are read on a loop, a timer on that loop measures 50 times a second by how much it fires late. A callback that blocks the
loop appears as one late tick. The timer costs microseconds per second and stops with the last stream. Loops other than asyncio's are
not supported, and the module does not identify the callback that blocked.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from typing import TYPE_CHECKING

from legato._clock import now_ns

if TYPE_CHECKING:
    from legato._recorder import StreamRecorder

__all__ = ["LoopLag", "running_loop_lag", "watch_loop"]

_TICK_S = 0.02
_TICK_NS = int(_TICK_S * 1e9)
# Timers of an unblocked loop are late by less than this.
_LAG_NS_MIN = 10_000_000
_DELAYS_KEPT = 64
_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopLag] = weakref.WeakKeyDictionary()


class LoopLag:
    """The recent delays of one loop, measured while any of its streams is read. Not thread-safe: use it on the loop itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # `_loops` maps the loop to this object. A strong reference back would keep every loop alive for ever.
        self._loop = weakref.ref(loop)
        self._delays: deque[tuple[int, int]] = deque(maxlen=_DELAYS_KEPT)
        self._streams: weakref.WeakSet[StreamRecorder] = weakref.WeakSet()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0
        # The time of the last tick if that was late, else 0.
        self._late_at = 0

    def watch(self, stream: StreamRecorder) -> None:
        """Measure the loop until this stream has ended or was garbage-collected."""
        self._streams.add(stream)
        if self._timer is None:
            self._schedule()

    def lag_ns(self, since_ns: int, until_ns: int) -> int:
        """Return for how long the loop was blocked between two monotonic times, in ns; ``until_ns`` is now.

        asyncio may run the read that follows a block before the timer that is due, so a timer that is overdue counts, too. The timer of a
        loop that does not run is no evidence: a stream may be read on one loop after another.
        """
        is_overdue = self._timer is not None and until_ns - self._due > _LAG_NS_MIN and asyncio._get_running_loop() is self._loop()
        delays = [*self._delays, (self._late_at or self._due, until_ns)] if is_overdue else self._delays
        return sum(max(0, min(end, until_ns) - max(start, since_ns)) for start, end in delays)

    def _schedule(self) -> None:
        loop = self._loop()
        if loop is not None and not loop.is_closed():
            self._due = now_ns() + _TICK_NS
            self._timer = loop.call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        now = now_ns()
        is_late = now - self._due > _LAG_NS_MIN
        if is_late:
            # After a late tick the timer was not due for 20 ms. A loop that is late again was busy in that time, too.
            self._delays.append((self._late_at or self._due, now))
        self._late_at = now if is_late else 0
        if all(stream.ended for stream in self._streams):
            self._streams.clear()
            self._timer, self._late_at = None, 0
        else:
            self._schedule()


def watch_loop(stream: StreamRecorder) -> LoopLag | None:
    """Measure the running loop while this stream is read, and return its measurement; ``None`` without a running asyncio loop."""
    found = running_loop_lag()
    if found is not None:
        found.watch(stream)
    return found


def running_loop_lag() -> LoopLag | None:
    """Return the measurement of the running loop; ``None`` if no asyncio loop runs in this thread (for example under trio)."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    found = _loops.get(loop)
    if found is None:
        found = _loops[loop] = LoopLag(loop)
    return found
