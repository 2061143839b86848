"""Large replies of all readers take bounded memory, whether their clients read them or not.

A reply is written in pieces, each when the client has read most of the one before, so that what waits in a connection is small, also behind
TLS. The rest of all replies together is bounded: beyond that, the next large reply is 503. The module knows no endpoint.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.shares import Shares

__all__ = ["REPLY_BYTES_MAX", "BoundedReplies", "reads_as"]

REPLY_BYTES_MAX = 512 * 2**20
"""Bytes of large replies in memory. A tenant has half of it at most; readers of all tenants may have all of it."""
# Smaller bodies are written at once.
_PIECE = 64 * 1024
_BUSY = b"too much of earlier replies has not been read: retry later\n"
_BUSY_BODY: Message = {"type": "http.response.body", "body": _BUSY}
_BUSY_HEADERS = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(_BUSY)), (b"retry-after", b"2")]
# Where the tenant is in the scope of a request, and the share of replies without one, such as the files of the web page.
_TENANT, _ANONYMOUS = "legato.tenant", "without credentials"


class BoundedReplies:
    """An app with bounded replies. Several apps on one event loop share ``held``."""

    def __init__(self, app: ASGIApp, held: Shares) -> None:
        self._app, self._held = app, held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        is_http = scope["type"] == "http"
        await self._app(scope, receive, _Reply(scope, send, self._held).send if is_http else send)


def reads_as(scope: Scope, tenant: str) -> None:
    """Take note that a request was authenticated: its reply counts towards the share of this tenant."""
    scope[_TENANT] = tenant


class _Reply:
    """One reply. Its start waits for its body, because it is another one if there is no room. A stream, without a length, starts at
    once."""

    def __init__(self, scope: Scope, send: Send, held: Shares) -> None:
        self._scope, self._send, self._held = scope, send, held
        self._start: Message | None = None
        self._is_refused = False

    async def send(self, message: Message) -> None:
        """Send a message of the app."""
        if message["type"] == "http.response.start" and any(name.lower() == b"content-length" for name, _ in message.get("headers", ())):
            self._start = message
            return
        body = message.get("body", b"") if message["type"] == "http.response.body" else b""
        messages, self._start = ([self._start] if self._start is not None else []), None
        if self._is_refused:
            return
        if len(body) <= _PIECE:
            await self._send_all([*messages, message])
            return
        tenant = self._scope.get(_TENANT, _ANONYMOUS)
        share = "" if tenant == ALL_TENANTS else tenant
        if messages and not self._held.has_room(share, len(body)):
            self._is_refused = True
            await self._send_all([{"type": "http.response.start", "status": 503, "headers": _BUSY_HEADERS}, _BUSY_BODY])
            return
        # Counted before anything is awaited.
        self._held.add(share, len(body))
        try:
            await self._send_all(messages)
            for first in range(0, len(body), _PIECE):
                await self._send({"type": "http.response.body", "body": body[first : first + _PIECE], "more_body": True})
            # Written when the client has read most of the last piece.
            await self._send({"type": "http.response.body", "body": b"", "more_body": message.get("more_body", False)})
        finally:
            self._held.add(share, -len(body))

    async def _send_all(self, messages: Iterable[Message]) -> None:
        for message in messages:
            await self._send(message)
