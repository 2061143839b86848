"""An engine's ZMQ publisher on this machine, and the objects that are reachable from an object.

A PUB socket drops messages that it sends before a subscriber is connected. This publisher uses XPUB, which speaks the same protocol and
receives the subscriptions, so a test can wait for its subscriber instead of sleeping.
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
    """A publisher at ``endpoint``; the port `*` is a free one. The owner must close it."""

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
        """Wait up to 20 s for a new subscription to all topics."""
        while True:
            assert self._socket.poll(_WAIT_MS), f"no subscription within {_WAIT_MS} ms"
            if self._socket.recv() == b"\x01":
                return

    def send(self, *frames: bytes) -> None:
        """Send one message with these frames."""
        self._socket.send_multipart(frames)

    def publish(self, number: int, payload: bytes, topic: bytes = b"") -> None:
        """Send one message in the engines' format: topic, 8-byte big-endian number, payload."""
        self.send(topic, number.to_bytes(8, "big"), payload)

    def close(self) -> None:
        """Close the socket without sending pending messages."""
        self._socket.close()
        self._context.term()


def reachable(root: object) -> Iterator[object]:
    """Yield all objects that are reachable from ``root``, except functions, modules and types."""
    seen, left = set[int](), [root]
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, type | FunctionType | ModuleType):
            continue
        seen.add(id(each))
        yield each
        left.extend(gc.get_referents(each))
