"""HTTP GET from an engine on this node, over one kept connection, with a bound on total time and on bytes.

An engine that hangs, sends slowly or without end costs its collector a bounded time and memory and does not affect other collectors. The
module uses the standard library's HTTP client; its timeout applies to each read separately; `_DeadlineReader` makes it a total deadline.
It follows no redirect and does not interpret the body.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from typing import Any
from urllib.parse import urlsplit

from legato_gpu_agent import __version__

__all__ = ["BYTES_MAX", "FetchError", "Fetcher", "fetch_timeout_s"]

BYTES_MAX = 8 * 2**20
"""Maximum length of a body. The exposition text of a busy vLLM has 51 KB."""
_READ_BYTES = 65_536
_HEADERS = {"User-Agent": f"legato-gpu-agent/{__version__}", "Accept": "text/plain;version=0.0.4, */*;q=0.1"}


def fetch_timeout_s(every_s: float, least_s: float = 2.0) -> float:
    """Return the timeout for an endpoint that is read every ``every_s`` seconds: two intervals, between ``least_s`` and 10 s."""
    return min(max(2 * every_s, least_s), 10.0)


class FetchError(Exception):
    """The response cannot be used: its status, its length, or a body that was cut off. ``status``: the status if it is not 200, else 0."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class Fetcher:
    """Fetches paths below the URL ``base``. Not safe for several threads at once."""

    def __init__(self, base: str, timeout_s: float = 5.0) -> None:
        self._parts, self._timeout_s = urlsplit(base), timeout_s
        self._connection: http.client.HTTPConnection | None = None

    def get(self, path: str) -> bytes:
        """Return the complete body at this path. Raises ``FetchError``, ``OSError`` or ``http.client.HTTPException``."""
        kept = self._connection is not None
        try:
            return self._get(path)
        except (ConnectionError, http.client.BadStatusLine):
            # The server may have closed a kept connection in the meantime: retry once on a new one.
            if not kept:
                raise
        return self._get(path)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _get(self, path: str) -> bytes:
        """Make one attempt; a failure closes the connection."""
        keep = False
        try:
            body, keep = self._read(path)
        finally:
            if not keep:
                self.close()
        return body

    def _read(self, path: str) -> tuple[bytes, bool]:
        """Return the body, and whether the connection can be kept."""
        body = bytearray()
        try:
            connection = self._connected()
            connection.request("GET", self._parts.path.rstrip("/") + path, headers=_HEADERS)
            # The response must be closed before the connection accepts another request.
            with connection.getresponse() as response:
                if response.status != 200:
                    raise FetchError(f"{path} answers {response.status} {response.reason}"[:120], response.status)
                while chunk := response.read1(_READ_BYTES):
                    body += chunk
                    if len(body) > BYTES_MAX:
                        raise FetchError(f"{path} is longer than {BYTES_MAX // 2**20} MiB")
                if response.length:
                    raise FetchError(f"{path} was cut off: {response.length:,} bytes are missing")
                return bytes(body), not response.will_close
        except TimeoutError:
            raise TimeoutError(f"{path} was incomplete after {self._timeout_s:g} s: {len(body):,} bytes received") from None

    def _connected(self) -> http.client.HTTPConnection:
        """Return the kept connection, or a new one."""
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
            self._connection = kind(self._parts.hostname or "", self._parts.port, timeout=self._timeout_s)
            self._connection.response_class = _DeadlineResponse
            self._connection.connect()
        self._connection.sock.settimeout(self._timeout_s)
        return self._connection


class _DeadlineResponse(http.client.HTTPResponse):
    """A response that must be complete, headers included, within the socket's timeout."""

    def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
        super().__init__(sock, *arguments, **named)
        self.fp = io.BufferedReader(_DeadlineReader(sock, self.fp.detach()))


class _DeadlineReader(io.RawIOBase):
    """Reads from a socket until its timeout has passed in total; the socket itself restarts its timeout at each read."""

    def __init__(self, sock: socket.socket, raw: Any) -> None:
        self._sock, self._raw = sock, raw
        self._until_s = time.monotonic() + (sock.gettimeout() or 0.0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the deadline has passed")
        self._sock.settimeout(left_s)
        count: int | None = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()
