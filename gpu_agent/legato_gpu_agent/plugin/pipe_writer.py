"""The plugins' end of the pipe: never waits, never raises.

One idea: a named pipe that the plugin holds open at both its ends keeps what is written while no agent reads, and never fails who writes.
What does not fit, or comes while there is no pipe, is kept in a small bounded backlog and goes first the next time, in its order; beyond
the bound the oldest is dropped and counted. The standard library alone.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable

from legato_gpu_agent.plugin.pipe import HOLDS_BYTES, opened, which
from legato_gpu_agent.plugin.protocol import cut

__all__ = ["Outlet"]

BACKLOG_MAX = 1024
# Datagrams that one call may send from the backlog before its own: bounds what a step can pay for an agent that was away.
_BURST = 16
_LOOK_EVERY_S = 1.0


class Outlet:
    """Sends datagrams into the pipe at ``path``. ``dropped`` counts those that were lost. Not safe for several threads at once."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.dropped = 0
        self.path, self._clock = path, clock
        self._backlog: deque[bytes] = deque()
        self._pipe: int | None = None
        self._which = (0, 0)
        self._look_at = float("-inf")

    def send(self, datagram: bytes) -> bool:
        """Send it now, or with a later one; whether nothing is left to send."""
        if not self._backlog and self._clock() < self._look_at and self._write(datagram):
            return True
        self._keep(datagram)
        return self.catch_up()

    def catch_up(self) -> bool:
        """Send some of what is kept, as far as it goes; whether nothing is left."""
        if self._clock() >= self._look_at:
            self._look()
        for _ in range(min(_BURST, len(self._backlog))):
            if not self._write(self._backlog[0]):
                break
            self._backlog.popleft()
        return not self._backlog

    def close(self) -> None:
        """Close the pipe; what is kept is lost."""
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            # It may have been closed beneath us, as by a process that becomes a daemon.
            with contextlib.suppress(OSError):
                os.close(pipe)

    def _write(self, datagram: bytes) -> bool:
        """Whether it is in the pipe."""
        if self._pipe is None:
            return False
        try:
            os.write(self._pipe, datagram)
            return True
        except BlockingIOError:
            # It is full: waited for.
            return False
        except OSError:
            # It is of no use; another is looked for a second later.
            self.close()
            return False

    def _keep(self, datagram: bytes) -> None:
        if len(self._backlog) >= BACKLOG_MAX:
            self._backlog.popleft()
            self.dropped += 1
        self._backlog.append(datagram)

    def _look(self) -> None:
        """Whether the pipe is the one that stands there, now and then: an agent may have made another."""
        self._look_at = self._clock() + _LOOK_EVERY_S
        try:
            if self._pipe is not None and which(os.fstat(self._pipe)) != self._which:
                # Closed beneath us, and its number is another file's.
                self._pipe = None
            if self._pipe is not None and which(os.lstat(self.path)) == self._which:
                return
            pipe = opened(self.path)
        except OSError:
            return
        before, self._pipe, self._which = self._pipe, pipe, which(os.fstat(pipe))
        if before is not None:
            self._move(before)

    def _move(self, before: int) -> None:
        """What the pipe before still holds, whoever wrote it, goes into the new one: nobody else will read it."""
        with contextlib.suppress(OSError):
            held = deque(cut(os.read(before, HOLDS_BYTES)))
            while held and self._write(held[0]):
                held.popleft()
            while held and len(self._backlog) < BACKLOG_MAX:
                self._backlog.appendleft(held.pop())
            self.dropped += len(held)
        with contextlib.suppress(OSError):
            os.close(before)
