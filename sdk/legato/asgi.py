"""`legato.asgi.StreamMiddleware`: records the streams that a server sends.

Each body message is timestamped when the application hands it to the server. Its bytes are queued for the worker, so nothing is parsed
on the event loop. The stream's span continues the client's trace, and streams that the application itself reads for the request belong to
that trace. Responses that are not streamed pass unchanged and have no span.
Backpressure cannot be measured here: a server accepts megabytes before a send waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from legato._asgi_socket import App, Message, Receive, Scope, Send, SocketRecording, request_headers
from legato._clock import now_ns
from legato._errors import guard
from legato._http_route import Address, asgi_template, is_django
from legato._otlp import configure_if_given
from legato._recorder import Origin
from legato._served import ServedStream
from legato._state import recording_settings
from legato._worker import flush

__all__ = ["StreamMiddleware"]


class StreamMiddleware:
    """ASGI middleware. Only ``app`` is required, so ``vllm serve --middleware legato.asgi.StreamMiddleware`` works.

    ``paths``: suffixes of the request paths to record; default any path, with the rules of `_served`. WebSockets are recorded only on
    these paths. ``vantage``: ``server``, or ``gateway`` in front of other servers.
    ``engine_id``: id of the engine that answers; default LEGATO_ENGINE_ID, else the host and port that the server listens on.
    If LEGATO_ENDPOINT is set, the middleware calls ``legato.configure()``, because a server such as vLLM offers no place for that call.
    """

    def __init__(self, app: App, *, paths: tuple[str, ...] | None = None, vantage: str = "server", engine_id: str = "") -> None:
        self.app = app
        self.paths = (paths,) if isinstance(paths, str) else paths
        self.vantage = vantage
        self.engine_id = engine_id or recording_settings().engine_id
        self.disabled = recording_settings().disabled
        self._is_django = is_django(app)
        configure_if_given("asgi")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection. Only HTTP requests and WebSockets to the configured paths are recorded."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, _flushing(send))
            return
        recording: _HttpRecording | SocketRecording | None = None
        if not self.disabled:
            with guard("asgi"):
                recording = self._recording(scope, receive, send)
        if recording is None:
            await self.app(scope, receive, send)
            return
        try:
            with recording.current():
                await self.app(scope, recording.receive, recording.send)
        except BaseException as error:
            recording.finish(error)
            raise
        recording.finish(None)

    def _recording(self, scope: Scope, receive: Receive, send: Send) -> _HttpRecording | SocketRecording | None:
        """Return the recording of this connection; ``None`` if it is not recorded."""
        if scope["type"] not in ("http", "websocket"):
            return None
        address = Address(scope["path"], self.paths, partial(asgi_template, scope, is_django=self._is_django))
        if scope["type"] == "websocket":
            return SocketRecording(scope, receive, send, partial(self._routed, address)) if address.is_named else None
        if self.paths is not None and not address.is_named:
            return None
        return _HttpRecording(receive, send, ServedStream(self._origin(scope), lambda: request_headers(scope), scope["method"], address))

    def _routed(self, address: Address, scope: Scope) -> Origin:
        origin = self._origin(scope)
        origin.route = address.route()
        return origin

    def _origin(self, scope: Scope) -> Origin:
        client, server = scope.get("client") or ("", 0), scope.get("server") or ("", 0)
        http = "http/2" if scope.get("http_version") == "2" else "http/1.1"
        return Origin(
            vantage=self.vantage,
            transport=http if scope["type"] == "http" else "websocket",
            engine_id=self.engine_id or (f"{server[0]}:{server[1]}" if server[0] else ""),
            client_address=str(client[0]),
            client_port=int(client[1] or 0),
            server_address=str(server[0]),
            server_port=int(server[1] or 0),
        )


def _flushing(send: Send) -> Send:
    """Wrap the lifespan's ``send``: flush before the shutdown completes, because a server ended by a signal runs no exit handlers."""

    async def wrapped(message: Message) -> None:
        if message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
            with guard("asgi"):
                await asyncio.get_running_loop().run_in_executor(None, flush)
        await send(message)

    return wrapped


class _HttpRecording:
    """The messages of one HTTP request."""

    __slots__ = ("_disconnected", "_read", "_receive", "_send", "_sent_all", "_stream", "current")

    def __init__(self, receive: Receive, send: Send, stream: ServedStream) -> None:
        self._receive, self._send, self._stream = receive, send, stream
        self.current = stream.current
        self._sent_all = self._disconnected = False
        self._read: Callable[[tuple[int, bytes]], None] | None = None

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self._sent_all:
            self._disconnected = True
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            body = message.get("body", b"")
            if body:
                data = body if type(body) is bytes else bytes(body)
                if self._read is not None:
                    self._read((now_ns(), data))
                elif self._stream.is_candidate:
                    self._sent(data)
            if not message.get("more_body", False):
                self._sent_all = True
        elif message["type"] == "http.response.start":
            with guard("asgi"):
                self._started(message)
        try:
            await self._send(message)
        except OSError:
            # The client has gone: the specification lets a server report that in this way.
            self._disconnected, self._sent_all = True, False
            raise
        if self._sent_all:
            # What the application does after the response, such as background tasks, is no part of the stream.
            self.finish(None)

    def _sent(self, data: bytes) -> None:
        self._stream.sent(data)
        if self._stream.recorder is not None:
            self._read = self._stream.recorder.read

    def _started(self, message: Message) -> None:
        headers = {bytes(name).lower(): bytes(value) for name, value in message.get("headers", ())}
        self._stream.started(lambda name: headers.get(name.encode(), b"").decode("latin-1"))

    def finish(self, error: BaseException | None) -> None:
        """The application has returned, or raised ``error``. End the stream."""
        recorder = self._stream.recorder
        if recorder is None:
            return
        if self._disconnected or (isinstance(error, asyncio.CancelledError) and _has_left(self._receive)):
            # Middlewares of Starlette's (`BaseHTTPMiddleware`) end the response also then, with an empty part.
            recorder.end("client_cancel")
        elif isinstance(error, asyncio.CancelledError):
            # A server that stops cancels its requests. A client that leaves shows in a message, or in an OSError of a send.
            recorder.end("upstream_error", error_type="server_cancelled")
        elif error is not None:
            recorder.end(error=error)
        elif self._sent_all:
            recorder.end()
        else:
            recorder.end("upstream_error", error_type="response_unfinished")


def _has_left(receive: Receive) -> bool:
    """Whether the message that the client has left waits unread. Daphne queues it, and cancels an application that does not end then.

    Only a queue is looked at, and left as it is: to call another ``receive`` could wait, or run code of a middleware.
    """
    with guard("asgi"):
        queue = getattr(receive, "__self__", None)
        if isinstance(queue, asyncio.Queue):
            waiting = [queue.get_nowait() for _ in range(queue.qsize())]
            for message in waiting:
                queue.put_nowait(message)
            return any(message["type"] == "http.disconnect" for message in waiting)
    return False
