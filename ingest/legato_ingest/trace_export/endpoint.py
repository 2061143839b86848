"""The OTLP endpoint of a trace backend: it sends a request over HTTP, in limited time, and returns what `replies` says of the reply.

A request runs on an event loop in the caller's thread, because only there one limit covers all of a request, and another thread can end it.
The module decides nothing about when to try again.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import unquote, urlsplit

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from legato_ingest.errors import SettingsError
from legato_ingest.settings import Settings
from legato_ingest.trace_export.replies import Accepted, TryLater, meaning

__all__ = ["Endpoint", "check", "headers_of"]

_PATH = "/v1/traces"
# Limits of a connection's beginning, of a pause in a reply, and of a whole request.
_CONNECT_S, _REPLY_S, _REQUEST_S = 3.0, 10.0, 30.0
# Time that `stop` leaves to a request in progress.
_STOP_S = 0.5
_REPLY_BYTES_MAX = 1_048_576
# Shorter words of a header are not searched in messages: they are no tokens.
_SECRET_MIN = 6
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def check(settings: Settings) -> None:
    """Check the settings of the endpoint. Raises ``SettingsError`` without the value of a header."""
    if settings.traces_export_endpoint:
        _url_of(settings.traces_export_endpoint)
        headers_of(settings.traces_export_headers.get_secret_value())


def headers_of(text: str) -> dict[str, str]:
    """Return the headers of `name=value,name=value` with values percent-encoded, as in OTEL_EXPORTER_OTLP_HEADERS.

    Raises ``SettingsError`` without the value.
    """
    headers = {}
    for place, pair in enumerate((each for each in text.split(",") if each.strip()), 1):
        name, equals, value = (part.strip() for part in pair.partition("="))
        decoded = unquote(value)
        if not equals or not _NAME.fullmatch(name) or not decoded.isascii() or not decoded.isprintable():
            raise SettingsError(
                f"LEGATO_TRACES_EXPORT_HEADERS: header {place} is not NAME=VALUE with printable characters (a comma in a value is %2C)"
            )
        headers[name] = decoded
    return headers


class Endpoint:
    """The endpoint of the settings. One thread sends; any thread may call ``stop``."""

    def __init__(self, settings: Settings) -> None:
        self._url = _url_of(settings.traces_export_endpoint)
        own = headers_of(settings.traces_export_headers.get_secret_value())
        self._headers: Mapping[str, str] = {
            **own,
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "gzip",
            "Accept-Encoding": "identity",
        }
        self._secrets = frozenset(word for value in own.values() for word in value.split() if len(word) >= _SECRET_MIN)
        self._client = httpx.AsyncClient(timeout=httpx.Timeout(_REPLY_S, connect=_CONNECT_S))
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._request: asyncio.Task[Accepted] | None = None
        self._stopped = False

    def stop(self) -> None:
        """Accept no further requests, and end the one in progress within half a second."""
        self._stopped = True
        request = self._request
        if request is not None:
            # A loop that is closed has no request.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(lambda: self._loop.call_later(_STOP_S, request.cancel))

    def close(self) -> None:
        """Close the connections. No request may be in progress."""
        self._stopped = True
        if not self._loop.is_closed():
            self._runner.run(self._client.aclose())
            self._runner.close()

    def send(self, request: ExportTraceServiceRequest) -> Accepted:
        """Send spans, and return what the endpoint accepted. Raises ``TryLater``, ``Failed`` and ``Refused``."""
        body = gzip.compress(request.SerializeToString(), 6, mtime=0)
        try:
            return self._runner.run(self._post(body))
        except (httpx.HTTPError, TimeoutError) as error:
            raise TryLater(type(error).__name__) from None
        except asyncio.CancelledError:
            raise TryLater("Stopped") from None

    async def _post(self, body: bytes) -> Accepted:
        self._request = asyncio.current_task()
        try:
            # Read after the task is known, so that `stop` either ends the task or is seen here.
            if self._stopped:
                raise TryLater("Stopped")
            async with (
                asyncio.timeout(_REQUEST_S),
                self._client.stream("POST", self._url, content=body, headers=self._headers) as reply,
            ):
                content = await _content(reply)
            return meaning(reply.status_code, reply.headers, content, datetime.now(UTC), self._secrets)
        finally:
            self._request = None


def _url_of(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query and not parts.fragment and parts.port != 0
        httpx.URL(endpoint)
    except (ValueError, httpx.InvalidURL):
        valid = False
    if not valid:
        raise SettingsError("LEGATO_TRACES_EXPORT_ENDPOINT is not a base URL of OTLP over HTTP, such as http://127.0.0.1:4318")
    if parts.username is not None or parts.password is not None:
        raise SettingsError("LEGATO_TRACES_EXPORT_ENDPOINT contains credentials: set LEGATO_TRACES_EXPORT_HEADERS instead")
    base = endpoint.rstrip("/")
    return base if base.endswith(_PATH) else base + _PATH


async def _content(reply: httpx.Response) -> bytes:
    """Return the body, or its beginning if it is longer than any reply of OTLP."""
    content = b""
    async for part in reply.aiter_raw():
        content += part
        if len(content) > _REPLY_BYTES_MAX:
            break
    return content
