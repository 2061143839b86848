"""An engine's ZMQ publisher on this machine, and what can be reached from an object.

One idea: a publisher drops what it sends before anybody listens, so this one is told when somebody does (XPUB speaks PUB's protocol), and
no test has to guess.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import FunctionType, ModuleType, TracebackType
from typing import Self

import zmq

__all__ = ["Publisher", "reachable"]

_WAIT_MS = 20_000


class Publisher:
    """Publishes at ``endpoint``, which may leave the port open; to be closed."""

    def __init__(self, endpoint: str = "tcp://127.0.0.1:*") -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.XPUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._socket.bind(endpoint)
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def wait(self) -> None:
        """Until somebody subscribed to everything, who had not before."""
        while True:
            assert self._socket.poll(_WAIT_MS), "nobody subscribed"
            if self._socket.recv() == b"\x01":
                return

    def send(self, *frames: bytes) -> None:
        """One message of these frames."""
        self._socket.send_multipart(frames)

    def publish(self, number: int, payload: bytes, topic: bytes = b"") -> None:
        """One message as engines number them."""
        self.send(topic, number.to_bytes(8, "big"), payload)

    def close(self) -> None:
        """Vanish."""
        self._socket.close()
        self._context.term()


def reachable(root: object) -> Iterator[object]:
    """All that an object holds, however deep; no code and no types."""
    seen, left = set[int](), [root]
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, type | FunctionType | ModuleType):
            continue
        seen.add(id(each))
        yield each
        left.extend(gc.get_referents(each))
