"""The answers that a server sends over a WebSocket, as far as a protocol without requests and responses shows them.

A stream begins with a message from the client and consists of the messages that the server sends until the client's next one. It ends with
the last of them: what follows is the time in which a person reads. An answer of one message is no stream.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import propagate

from legato._clock import now_ns
from legato._errors import guard
from legato._lines import MessageScanner
from legato._recorder import Origin, StreamRecorder
from legato._stream import begin

__all__ = ["App", "Message", "Receive", "Scope", "Send", "SocketRecording", "request_headers"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def request_headers(scope: Scope) -> dict[str, str]:
    """Return the headers of a connection's request, with names in lower case."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


class SocketRecording:
    """The messages of one connection. ``origin`` returns that of a stream on it."""

    __slots__ = ("_asked_ns", "_last_ns", "_messages", "_origin", "_parent", "_receive", "_recorder", "_scope", "_send")

    def __init__(self, scope: Scope, receive: Receive, send: Send, origin: Callable[[Scope], Origin]) -> None:
        self._scope, self._receive, self._send, self._origin = scope, receive, send, origin
        self._parent = propagate.extract(request_headers(scope))
        self._asked_ns = self._last_ns = self._messages = 0
        self._recorder: StreamRecorder | None = None

    @contextmanager
    def current(self) -> Iterator[None]:
        """A connection has no trace: each of its answers has one."""
        yield

    async def receive(self) -> Message:
        """Receive a message. One from the client ends the answer before it."""
        message = await self._receive()
        if message["type"] == "websocket.receive":
            with guard("asgi"):
                self._end(None)
            self._asked_ns = now_ns()
        elif message["type"] == "websocket.disconnect":
            with guard("asgi"):
                self._end(None)
        return message

    async def send(self, message: Message) -> None:
        """Send a message, and record it if it answers one."""
        if message["type"] == "websocket.send" and self._asked_ns:
            self._last_ns = now_ns()
            with guard("asgi"):
                self._sent(message.get("bytes") or (message.get("text") or "").encode("utf-8", "surrogatepass"))
        await self._send(message)

    def _sent(self, data: bytes) -> None:
        if self._recorder is None:
            origin = self._origin(self._scope)
            self._recorder = begin(origin, start_ns=self._asked_ns, context=self._parent, body=MessageScanner())
            # Not reported while it runs: whether an answer goes on is known only at the next message.
            self._recorder.provisional = True
            self._recorder.ttfb_ns = self._last_ns
            self._messages = 0
        self._messages += 1
        self._recorder.read((self._last_ns, data))

    def _end(self, error: BaseException | None) -> None:
        recorder, self._recorder, self._asked_ns = self._recorder, None, 0
        if recorder is None:
            return
        # A single message stays provisional, and is not kept unless its format is known.
        recorder.provisional = self._messages < 2
        if error is not None:
            recorder.end(error=error)
        else:
            recorder.end(at_ns=self._last_ns)

    def finish(self, error: BaseException | None) -> None:
        """The application has returned, or raised ``error``. A closed connection is how its answers normally end."""
        is_closed = error is None or "Disconnect" in type(error).__name__ or "Closed" in type(error).__name__
        self._end(None if is_closed else error)
