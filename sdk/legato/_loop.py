"""When an event loop was late: time in which nothing on it could run, so that what had come was not read.

One idea: while streams are read on a loop, a timer on it says how late it is, fifty times a second; a callback that ran for long shows as
one late tick. It costs microseconds a second, stops with the last stream, and knows only asyncio's loops. It blames no callback.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from typing import TYPE_CHECKING

from legato._clock import now_ns

if TYPE_CHECKING:
    from legato._recorder import StreamRecorder

__all__ = ["Lateness", "lateness", "watched"]

_TICK_S = 0.02
_TICK_NS = int(_TICK_S * 1e9)
# Timers of a healthy loop are late by less than this.
_LATE_NS_MIN = 10_000_000
_KEPT = 64
_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Lateness] = weakref.WeakKeyDictionary()


class Lateness:
    """The late times of one loop, while any of its streams is read. To be used on the loop itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # The loop's table holds this by the loop: a strong reference back would keep every loop for good.
        self._loop = weakref.ref(loop)
        self._late: deque[tuple[int, int]] = deque(maxlen=_KEPT)
        self._streams: weakref.WeakSet[StreamRecorder] = weakref.WeakSet()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0

    def watch(self, stream: StreamRecorder) -> None:
        """A stream is read on this loop, until it has ended or nobody knows it any more."""
        self._streams.add(stream)
        if self._timer is None:
            self._wait()

    def late_ns(self, since_ns: int, until_ns: int) -> int:
        """For how long the loop was late between two times of the monotonic clock."""
        return sum(max(0, min(end, until_ns) - max(start, since_ns)) for start, end in self._late)

    def _wait(self) -> None:
        loop = self._loop()
        if loop is not None and not loop.is_closed():
            self._due = now_ns() + _TICK_NS
            self._timer = loop.call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        now = now_ns()
        if now - self._due > _LATE_NS_MIN:
            self._late.append((self._due, now))
        if all(stream.ended for stream in self._streams):
            self._streams.clear()
            self._timer = None
        else:
            self._wait()


def watched(stream: StreamRecorder) -> Lateness | None:
    """The running loop's, which watches this stream from now on."""
    found = lateness()
    if found is not None:
        found.watch(stream)
    return found


def lateness() -> Lateness | None:
    """The running loop's; ``None`` where none of asyncio's runs (trio)."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    found = _loops.get(loop)
    if found is None:
        found = _loops[loop] = Lateness(loop)
    return found
