"""`legato.wsgi.StreamMiddleware`: records the streams that a WSGI application sends, for example with Flask or Django.

It is the twin of `legato.asgi.StreamMiddleware`, with the same rules. A part of the body is timestamped when the application yields it,
before the server writes it. The callable ``write`` of the specification, which no current framework uses, is passed on without recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from legato._errors import guard
from legato._http_route import Address, is_django, wsgi_template
from legato._otlp import configure_if_given
from legato._recorder import Origin
from legato._served import ServedStream
from legato._state import recording_settings

__all__ = ["StreamMiddleware"]

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]


class StreamMiddleware:
    """WSGI middleware: ``app.wsgi_app = StreamMiddleware(app.wsgi_app)`` in Flask; around ``application`` in Django.

    ``paths``: suffixes of the request paths to record; default any path, with the rules of `_served`. ``vantage`` and ``engine_id``: as
    for `legato.asgi.StreamMiddleware`. If LEGATO_ENDPOINT is set, the middleware calls ``legato.configure()``.
    """

    def __init__(self, app: App, *, paths: tuple[str, ...] | None = None, vantage: str = "server", engine_id: str = "") -> None:
        self.app = app
        self.paths = (paths,) if isinstance(paths, str) else paths
        self.vantage = vantage
        self.engine_id = engine_id or recording_settings().engine_id
        self.disabled = recording_settings().disabled
        self._is_django = is_django(app)
        configure_if_given("wsgi")

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Handle one request."""
        stream: ServedStream | None = None
        if not self.disabled:
            with guard("wsgi"):
                stream = self._stream(environ)
        if stream is None:
            return self.app(environ, start_response)
        recording, is_started = stream, False

        def started(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            nonlocal is_started
            is_started = True
            with guard("wsgi"):
                if recording.recorder is not None and more and more[0]:
                    # The application failed before it sent anything, and answers with an error instead.
                    recording.recorder.end(error=more[0][1])
                named = {name.lower(): value for name, value in headers}
                recording.started(lambda name: named.get(name, ""))
            return start_response(status, headers, *more)

        try:
            with stream.current():
                body = self.app(environ, started)
        except BaseException as error:
            if stream.recorder is not None:
                stream.recorder.end(error=error)
            raise
        # A body that is no stream stays what it is: servers send files and short lists in faster ways.
        return body if is_started and not stream.is_candidate else _RecordedBody(body, stream)

    def _stream(self, environ: Environ) -> ServedStream | None:
        path = str(environ.get("SCRIPT_NAME", "")) + str(environ.get("PATH_INFO", ""))
        address = Address(path, self.paths, partial(wsgi_template, environ, is_django=self._is_django))
        if self.paths is not None and not address.is_named:
            return None
        host, port = str(environ.get("SERVER_NAME", "")), str(environ.get("SERVER_PORT", ""))
        client_port = str(environ.get("REMOTE_PORT", ""))
        origin = Origin(
            vantage=self.vantage,
            transport="http/2" if environ.get("SERVER_PROTOCOL") == "HTTP/2" else "http/1.1",
            engine_id=self.engine_id or (f"{host}:{port}" if host else ""),
            client_address=str(environ.get("REMOTE_ADDR", "")),
            client_port=int(client_port) if client_port.isdecimal() else 0,
            server_address=host,
            server_port=int(port) if port.isdecimal() else 0,
        )
        return ServedStream(origin, lambda: _headers(environ), str(environ.get("REQUEST_METHOD", "")), address)


def _headers(environ: Environ) -> dict[str, str]:
    return {name[5:].replace("_", "-").lower(): str(value) for name, value in environ.items() if name.startswith("HTTP_")}


class _RecordedBody:
    """The body of a response. The server iterates over it, and closes it also if the client has left."""

    def __init__(self, body: Iterable[bytes], stream: ServedStream) -> None:
        self._body, self._stream = body, stream
        self._parts: Iterator[bytes] | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._parts is None:
            self._parts = iter(self._body)
        try:
            # A generator runs between the calls of the server, so the request is current only while it does.
            with self._stream.current():
                part = next(self._parts)
        except StopIteration:
            self._end()
            raise
        except BaseException as error:
            self._end(error=error)
            raise
        if part:
            self._stream.sent(part)
        return part

    def close(self) -> None:
        """End the stream as a cancel if the body was not read to its end, and close the body."""
        self._end("client_cancel")
        close = getattr(self._body, "close", None)
        if close is not None:
            close()

    def _end(self, outcome: str = "complete", error: BaseException | None = None) -> None:
        if self._stream.recorder is not None:
            self._stream.recorder.end(outcome, error)
