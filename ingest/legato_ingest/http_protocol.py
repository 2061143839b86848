"""HTTP/1.1 of all listeners: uvicorn's protocol over httptools, with bounds on what one client can hold.

httptools parses a request in a third of the time of h11, but keeps a head of any size in memory, and uvicorn waits for ever for a client
that sends slowly or does not read its reply. So heads, the requests that wait in a connection, connections, and the time without progress
are bounded. Nothing is routed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["CONNECTIONS_MAX", "HEAD_BYTES_MAX", "HttpProtocol"]

# Bytes of the request line, all headers and all trailers. h11 has the same bound.
HEAD_BYTES_MAX = 64 * 1024
CONNECTIONS_MAX = 2_048
"""Connections of one listener."""
# A header of two bytes takes more than a hundred in memory, and a request that waits for the reply before it some KB.
_HEADERS_MAX, _WAITING_MAX = 256, 16
# Seconds between two checks of a connection; seconds for its head; seconds without progress after which it ends. Progress is so many bytes
# of a body, or so many bytes of a reply that the client has read between two checks.
_CHECK_S, _HEAD_S, _STALLED_S, _BODY_BYTES_MIN, _READ_BYTES_MIN = 10.0, 30.0, 60.0, 64 * 1024, 4 * 1024
# Pieces of a body that may be smaller than so many bytes on average: each costs a call, whatever its size.
_PIECES_MAX, _PIECE_BYTES_MIN = 1_024, 32
# After so many bytes, other connections have their turn: libuv would read 32 buffers of one connection, 8 MB, before it looks at another.
_TURN_BYTES = 64 * 1024
_INVALID = "Invalid HTTP request received."
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class _TooMany(ValueError):
    """Headers, pieces of a body, or requests that wait. The parser ends the connection with status 400."""


class HttpProtocol(HttpToolsProtocol):
    """A connection. It is closed when a head exceeds its bound, when as many bytes bring nothing that the parser can pass on, when a body
    consists of tiny pieces, and when its client makes no progress."""

    _head_bytes = _silent_bytes = _headers = _body_bytes = _unsent = _pieces = _pieces_bytes = 0
    # What is awaited from the client: a head, a body, or nothing; since when; and since when it has not read.
    _awaited = "head"
    _since_s = _unread_since_s = 0.0
    _has_served = _has_read = False
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self._since_s = self._unread_since_s = self.loop.time()
        self._timer = self.loop.call_later(_CHECK_S, self._check)
        if len(self.connections) > CONNECTIONS_MAX:
            _end_one(cast("Iterable[object]", self.connections))

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Receive bytes of the connection."""
        self._silent_bytes += len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        if max(self._silent_bytes, self._head_bytes) > HEAD_BYTES_MAX and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()
        if len(data) >= _TURN_BYTES and not self.transport.is_closing():
            self.transport.pause_reading()
            self.loop.call_soon(self._take_turn)

    def on_message_begin(self) -> None:
        """A request begins."""
        if len(self.pipeline) >= _WAITING_MAX:
            raise _TooMany(f"more than {_WAITING_MAX} requests wait in one connection")
        self._head_bytes = self._headers = self._pieces = self._pieces_bytes = 0
        self.expect("head")
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A part of the request line has been read."""
        self._count_head(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header or trailer has been read."""
        self._headers += 1
        if self._headers > _HEADERS_MAX:
            raise _TooMany(f"a request with more than {_HEADERS_MAX} headers")
        self._count_head(name + value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head has been read."""
        self.expect("body")
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body has been read."""
        self._silent_bytes = 0
        self._body_bytes += len(body)
        self._pieces += 1
        self._pieces_bytes += len(body)
        if self._pieces > _PIECES_MAX and self._pieces_bytes < self._pieces * _PIECE_BYTES_MIN:
            raise _TooMany(f"a body of {self._pieces_bytes} bytes in {self._pieces} pieces")
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request has been read."""
        self._silent_bytes = 0
        if self.parser.should_upgrade():
            return
        self._has_served = True
        self.expect("")
        super().on_message_complete()

    def resume_writing(self) -> None:
        """The client has read most of what waited for it."""
        self._has_read = True
        super().resume_writing()

    def _should_upgrade(self) -> bool:
        # No listener has WebSockets. uvicorn would divide the header Connection, of up to 64 KiB, for each piece of a body.
        return False

    def _parse(self, data: bytes) -> None:
        """Give the parser bytes of the connection. An Upgrade is ignored (RFC 9110, section 7.8).

        Java's client asks for h2c with its requests, also with a body. The parser of httptools ends such a request with its head, so the
        head is parsed again without the Upgrade.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self.parser.get_method() == b"CONNECT":
                self.send_400_response("CONNECT is not supported.")
                return
            head = self._head_without_upgrade()
            self.parser = httptools.HttpRequestParser(self)
            # uvicorn sets the same on its parser: bytes after the last request of a connection do not refuse that request.
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self._parse(head + data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.logger.warning(_INVALID)
            self.send_400_response(_INVALID)

    def _head_without_upgrade(self) -> bytes:
        kept = [b"%s: %s\r\n" % pair for pair in self.headers if pair[0] not in (b"upgrade", b"connection", b"http2-settings")]
        if any(word.strip().lower() == b"close" for name, value in self.headers if name == b"connection" for word in value.split(b",")):
            kept.append(b"connection: close\r\n")
        version = self.parser.get_http_version().encode()
        return b"%s %s HTTP/%s\r\n%s\r\n" % (self.parser.get_method(), self.url, version, b"".join(kept))

    def _take_turn(self) -> None:
        """Read on, unless the application has not taken what was read."""
        if not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def expect(self, what: str) -> None:
        """Take note of what the client has to send next: a ``head``, a ``body``, or nothing (empty)."""
        self._awaited, self._since_s, self._body_bytes = what, self.loop.time(), 0

    def is_idle(self) -> bool:
        """Whether no request is under way."""
        return self._awaited == "head" or (self.cycle is not None and self.cycle.response_complete)

    def age(self) -> tuple[bool, float]:
        """Return whether it has brought a request, and since when it waits for its client (the loop's clock)."""
        return self._has_served, self._since_s

    def _count_head(self, part: bytes) -> None:
        self._silent_bytes = 0
        self._head_bytes += len(part)

    def _check(self) -> None:
        """End the connection if its client makes no progress, else look again later."""
        now_s, unsent = self.loop.time(), self.transport.get_write_buffer_size()
        if not unsent or self._has_read or self._unsent - unsent >= _READ_BYTES_MIN:
            self._unread_since_s = now_s
        self._unsent, self._has_read = unsent, False
        if self._awaited == "body" and (self._body_bytes >= _BODY_BYTES_MIN or self.flow.read_paused):
            self._since_s, self._body_bytes = now_s, 0
        limit_s = {"head": _HEAD_S, "body": _STALLED_S}.get(self._awaited, float("inf"))
        if now_s - self._since_s > limit_s or now_s - self._unread_since_s > _STALLED_S:
            # To close it would wait until the client has read everything.
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(_CHECK_S, self._check)


def _end_one(connections: Iterable[Any]) -> None:
    """End the connection without a request that waits longest, first of those that never brought one."""
    idle = [each for each in connections if isinstance(each, HttpProtocol) and each.is_idle()]
    if idle:
        min(idle, key=HttpProtocol.age).transport.abort()
