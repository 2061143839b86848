"""The plugins' end of the datagram socket: never waits, never raises.

One idea: what cannot be sent now (the agent's queue is full, or no agent is there) is kept in a small bounded backlog and goes first the
next time, in its order; beyond the bound the oldest is dropped and counted. So an agent that restarts misses nothing short, and one that
is away costs the engine a failed call now and then. The standard library alone.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable

__all__ = ["Outlet"]

BACKLOG_MAX = 1024
# Datagrams that one call may send from the backlog before its own: bounds what a step can pay for an agent that was away.
_BURST = 16
_RETRY_S = 1.0


class Outlet:
    """Sends datagrams to the socket at ``path``. ``dropped`` counts those that were lost. Not safe for several threads at once."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.dropped = 0
        self.path, self._clock = path, clock
        self._backlog: deque[bytes] = deque()
        self._send: Callable[[bytes], int] | None = None
        self._socket: socket.socket | None = None
        self._retry_at = 0.0

    def send(self, datagram: bytes) -> bool:
        """Send it now, or with a later one; whether nothing is left to send."""
        send = self._send
        if send is not None and not self._backlog:
            try:
                send(datagram)
                return True
            except OSError as error:
                self._failed(error)
        self._keep(datagram)
        return self.catch_up()

    def catch_up(self) -> bool:
        """Send some of what is kept, as far as it goes; whether nothing is left."""
        if self._send is None and not self._connect():
            return not self._backlog
        try:
            for _ in range(min(_BURST, len(self._backlog))):
                self._send(self._backlog[0])  # type: ignore[misc]
                self._backlog.popleft()
        except OSError as error:
            self._failed(error)
        return not self._backlog

    def close(self) -> None:
        """Close the socket; what is kept is lost."""
        if self._socket is not None:
            self._socket.close()
        self._socket = self._send = None

    def _keep(self, datagram: bytes) -> None:
        if len(self._backlog) >= BACKLOG_MAX:
            self._backlog.popleft()
            self.dropped += 1
        self._backlog.append(datagram)

    def _failed(self, error: OSError) -> None:
        """A full queue is waited for; anything else means that the agent is gone, and it is looked for again a second later."""
        if not isinstance(error, BlockingIOError):
            self.close()
            self._retry_at = self._clock() + _RETRY_S

    def _connect(self) -> bool:
        now = self._clock()
        if now < self._retry_at:
            return False
        self._retry_at = now + _RETRY_S
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            self._socket.connect(self.path)
        except OSError:
            self.close()
            return False
        self._send = self._socket.send
        return True
