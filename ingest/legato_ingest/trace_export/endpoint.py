"""The OTLP endpoint of a trace backend: it sends a request over HTTP and says what became of it.

What may be sent again and what may not follows OTLP's specification, with one difference: a wrong address or token (3xx, 401, 403, 404, …)
is tried again as well, because its repair should not cost spans. The module decides nothing about when to try again.
"""

from __future__ import annotations

import contextlib
import gzip
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import unquote, urlsplit

import httpx
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

from legato_ingest.errors import SettingsError
from legato_ingest.settings import Settings

__all__ = ["Endpoint", "Refused", "TryLater", "check", "headers_of", "retry_after_s"]

_PATH = "/v1/traces"
_CONNECT_S, _REPLY_S = 3.0, 10.0
_REPLY_BYTES_MAX = 65_536
_RETRY_AFTER_S_MAX = 3600.0
# Statuses with which an endpoint refuses the content of a request. All others but 2xx are about the endpoint.
_CONTENT = frozenset((400, 406, 411, 413, 414, 415, 416, 417, 422, 431))
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class TryLater(Exception):
    """The endpoint does not take spans now. ``reason`` is a short name for a counter; ``after_s``: the wait that it asked for."""

    def __init__(self, reason: str, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason, self.after_s = reason, after_s


class Refused(Exception):
    """The endpoint refuses this request for good. ``is_size``: because it is too large."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.reason, self.is_size = f"Http{status}", status == 413


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


def retry_after_s(value: str, now: datetime) -> float | None:
    """Return the seconds of a Retry-After header, at most an hour; None without a valid one. It may be a number or a date."""
    seconds = math.nan
    with contextlib.suppress(ValueError, OverflowError):
        seconds = float(value)
    if math.isnan(seconds):
        with contextlib.suppress(ValueError, OverflowError, TypeError):
            seconds = (parsedate_to_datetime(value) - now).total_seconds()
    return None if math.isnan(seconds) else min(max(seconds, 0.0), _RETRY_AFTER_S_MAX)


class Endpoint:
    """The endpoint of the settings. One thread uses it."""

    def __init__(self, settings: Settings) -> None:
        self._url = _url_of(settings.traces_export_endpoint)
        self._headers: Mapping[str, str] = {
            **headers_of(settings.traces_export_headers.get_secret_value()),
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "gzip",
            "Accept-Encoding": "identity",
        }
        self._client = httpx.Client(timeout=httpx.Timeout(_REPLY_S, connect=_CONNECT_S))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def send(self, request: ExportTraceServiceRequest) -> int:
        """Send spans, and return how many of them the endpoint rejected. Raises ``TryLater`` and ``Refused``."""
        body = gzip.compress(request.SerializeToString(), 6, mtime=0)
        try:
            with self._client.stream("POST", self._url, content=body, headers=self._headers) as reply:
                _check_status(reply)
                return _rejected(_content(reply))
        except httpx.HTTPError as error:
            raise TryLater(type(error).__name__) from None


def _url_of(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query and not parts.fragment and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise SettingsError("LEGATO_TRACES_EXPORT_ENDPOINT is not a base URL of OTLP over HTTP, such as http://127.0.0.1:4318")
    if parts.username is not None or parts.password is not None:
        raise SettingsError("LEGATO_TRACES_EXPORT_ENDPOINT contains credentials: set LEGATO_TRACES_EXPORT_HEADERS instead")
    base = endpoint.rstrip("/")
    return base if base.endswith(_PATH) else base + _PATH


def _check_status(reply: httpx.Response) -> None:
    if 200 <= reply.status_code < 300:
        return
    if reply.status_code in _CONTENT:
        raise Refused(reply.status_code)
    raise TryLater(f"Http{reply.status_code}", retry_after_s(reply.headers.get("Retry-After", ""), datetime.now(UTC)))


def _content(reply: httpx.Response) -> bytes:
    """Return the body, or its beginning if it is longer than any reply of OTLP."""
    content = b""
    for part in reply.iter_raw():
        content += part
        if len(content) > _REPLY_BYTES_MAX:
            return b""
    return content


def _rejected(content: bytes) -> int:
    """Return the number of rejected spans. A reply that cannot be read accepted all of them: its status says so."""
    try:
        return max(0, int(ExportTraceServiceResponse.FromString(content).partial_success.rejected_spans))
    except DecodeError:
        return 0
