"""The plugins' end of the pipe: never waits, never raises.

One idea: a named pipe that the plugin holds open at both its ends keeps what is written while no agent reads, and never fails who writes.
What does not fit, or comes while there is no pipe, is kept in a small bounded backlog and goes first the next time, in its order; beyond
the bound the oldest is dropped and counted. The standard library alone.
"""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Callable

from legato_gpu_agent.datagrams import cut

__all__ = ["Outlet"]

BACKLOG_MAX = 1024
# Datagrams that one call may send from the backlog before its own: bounds what a step can pay for an agent that was away.
_BURST = 16
_LOOK_EVERY_S = 1.0
_HELD_BYTES_MAX = 2**20


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
        if self._pipe is not None and not self._backlog and self._clock() < self._look_at:
            try:
                os.write(self._pipe, datagram)
                return True
            except OSError as error:
                self._failed(error)
        self._keep(datagram)
        return self.catch_up()

    def catch_up(self) -> bool:
        """Send some of what is kept, as far as it goes; whether nothing is left."""
        if self._clock() >= self._look_at:
            self._look()
        if self._pipe is None:
            return not self._backlog
        try:
            for _ in range(min(_BURST, len(self._backlog))):
                os.write(self._pipe, self._backlog[0])
                self._backlog.popleft()
        except OSError as error:
            self._failed(error)
        return not self._backlog

    def close(self) -> None:
        """Close the pipe; what is kept is lost."""
        if self._pipe is not None:
            os.close(self._pipe)
        self._pipe = None

    def _keep(self, datagram: bytes) -> None:
        if len(self._backlog) >= BACKLOG_MAX:
            self._backlog.popleft()
            self.dropped += 1
        self._backlog.append(datagram)

    def _failed(self, error: OSError) -> None:
        """A full pipe is waited for; anything else means that it is of no use, and another is looked for a second later."""
        if not isinstance(error, BlockingIOError):
            self.close()

    def _look(self) -> None:
        """Whether the pipe is the one that stands there, now and then: an agent may have made another."""
        self._look_at = self._clock() + _LOOK_EVERY_S
        try:
            there = os.lstat(self.path)
            if not stat.S_ISFIFO(there.st_mode) or (self._pipe is not None and (there.st_dev, there.st_ino) == self._which):
                return
            pipe = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return
        there = os.fstat(pipe)
        if not stat.S_ISFIFO(there.st_mode):
            os.close(pipe)
            return
        self._take_back()
        self.close()
        self._pipe, self._which = pipe, (there.st_dev, there.st_ino)

    def _take_back(self) -> None:
        """What the pipe before still holds, which nobody will read, goes before all else."""
        try:
            held, _ = cut(os.read(self._pipe, _HELD_BYTES_MAX)) if self._pipe is not None else ([], b"")
        except OSError:
            return
        for each in reversed(held):
            if len(self._backlog) >= BACKLOG_MAX:
                self.dropped += 1
            else:
                self._backlog.appendleft(each)
