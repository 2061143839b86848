"""`legato.asgi.StreamMiddleware`: records the event streams that a server sends.

Each body message is timestamped when the application hands it to the server. Its bytes are queued for the worker, so nothing is parsed
on the event loop. The stream's span continues the client's trace. Responses other than event streams pass unchanged and have no span.
Backpressure cannot be measured here: a server accepts megabytes before a send waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from opentelemetry import propagate

from legato._clock import now_ns
from legato._errors import guard
from legato._otlp import configure
from legato._recorder import Origin, StreamRecorder
from legato._state import settings
from legato._stream import begin
from legato._worker import flush

__all__ = ["StreamMiddleware"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PATHS = ("/chat/completions", "/completions", "/responses")


class StreamMiddleware:
    """ASGI middleware. Only ``app`` is required, so ``vllm serve --middleware legato.asgi.StreamMiddleware`` works.

    ``paths``: suffixes of the request paths to record. ``vantage``: ``server``, or ``gateway`` in front of other servers.
    ``engine_id``: id of the engine that answers; default LEGATO_ENGINE_ID, else the host and port that the server listens on.
    If LEGATO_ENDPOINT is set, the middleware calls ``legato.configure()``, because a server such as vLLM offers no place for that call.
    """

    def __init__(self, app: App, *, paths: tuple[str, ...] = PATHS, vantage: str = "server", engine_id: str = "") -> None:
        self.app = app
        self.paths = paths
        self.vantage = vantage
        self.engine_id = engine_id or settings().engine_id
        self.disabled = settings().disabled
        if settings().endpoint_given and not self.disabled:
            with guard("asgi"):
                configure()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection. Only HTTP requests to the configured paths are recorded."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, _flushing(send))
            return
        if scope["type"] != "http" or self.disabled or not scope["path"].endswith(self.paths):
            await self.app(scope, receive, send)
            return
        recording: _RequestRecording | None = None
        with guard("asgi"):
            recording = _RequestRecording(scope, receive, send, self._origin(scope))
        if recording is None:
            await self.app(scope, receive, send)
            return
        try:
            await self.app(recording.scope, recording.receive, recording.send)
        except BaseException as error:
            recording.finish(error)
            raise
        recording.finish(None)

    def _origin(self, scope: Scope) -> Origin:
        client, server = scope.get("client") or ("", 0), scope.get("server") or ("", 0)
        return Origin(
            vantage=self.vantage,
            provider="openai",
            transport="http/2" if scope.get("http_version") == "2" else "http/1.1",
            route=scope["path"],
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


class _RequestRecording:
    """One request. The recorder is created once the response's headers show an event stream; its start is the request's arrival."""

    __slots__ = ("_disconnected", "_origin", "_parent", "_receive", "_recorder", "_send", "_sent_all", "_start_ns", "scope")

    def __init__(self, scope: Scope, receive: Receive, send: Send, origin: Origin) -> None:
        self._start_ns = now_ns()
        self._receive, self._send, self._origin = receive, send, origin
        self._recorder: StreamRecorder | None = None
        self._sent_all = self._disconnected = False
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        self._parent = propagate.extract(headers)
        self.scope = scope

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self._sent_all:
            self._disconnected = True
        return message

    async def send(self, message: Message) -> None:
        recorder = self._recorder
        if recorder is not None and message["type"] == "http.response.body":
            body = message.get("body", b"")
            if body:
                recorder.read((now_ns(), body))
            if not message.get("more_body", False):
                self._sent_all = True
        elif message["type"] == "http.response.start":
            with guard("asgi"):
                self._begin(message)
        await self._send(message)

    def _begin(self, message: Message) -> None:
        for name, value in message.get("headers", ()):
            if name.lower() == b"content-type" and value.lower().startswith(b"text/event-stream"):
                self._recorder = begin(self._origin, start_ns=self._start_ns, context=self._parent, sse=True)
                self._recorder.ttfb_ns = now_ns()
                return

    def finish(self, error: BaseException | None) -> None:
        """The application has returned, or raised ``error``. End the stream."""
        recorder = self._recorder
        if recorder is None:
            return
        if error is not None and not self._disconnected:
            recorder.end(error=error)
        elif self._sent_all:
            recorder.end()
        elif self._disconnected:
            recorder.end("client_cancel")
        else:
            recorder.end("upstream_error", error_type="response_unfinished")
