"""GET, for pages of an engine beside us: one connection that is kept, a bound on time and on bytes.

One idea: an engine that hangs, drips or sends without end costs its own collector a known time and memory, and nobody else anything. The
standard library's HTTP client. It follows no redirect and knows nothing of pages.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from typing import Any
from urllib.parse import urlsplit

from legato_gpu_agent import __version__

__all__ = ["BYTES_MAX", "FetchError", "Fetcher", "patience_s"]

BYTES_MAX = 8 * 2**20
"""A page that is longer is not read to its end: a busy vLLM's has 51 KB."""
_PIECE = 65_536
_HEADERS = {"User-Agent": f"legato-gpu-agent/{__version__}", "Accept": "text/plain;version=0.0.4, */*;q=0.1"}


def patience_s(every_s: float, least_s: float = 2.0) -> float:
    """How long to wait for a page that is read so often: two rounds, at least what its server may need, and 10 s at most."""
    return min(max(2 * every_s, least_s), 10.0)


class FetchError(Exception):
    """What came is no page: a status, a length, a time that is up."""


class Fetcher:
    """Pages below the URL ``base``. Not safe for several threads at once."""

    def __init__(self, base: str, timeout_s: float = 5.0) -> None:
        self._parts, self._timeout_s = urlsplit(base), timeout_s
        self._connection: http.client.HTTPConnection | None = None

    def get(self, path: str) -> bytes:
        """The body at this path, whole. Raises ``FetchError``, ``OSError`` or ``http.client.HTTPException``."""
        kept = self._connection is not None
        try:
            return self._get(path)
        except (ConnectionError, http.client.BadStatusLine):
            # A connection that was kept may have been closed meanwhile: once more, on a new one.
            if not kept:
                raise
        return self._get(path)

    def close(self) -> None:
        """Give the connection up."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _get(self, path: str) -> bytes:
        """One attempt; what fails takes its connection with it."""
        whole = False
        try:
            body, whole = self._read(path)
        finally:
            if not whole:
                self.close()
        return body

    def _read(self, path: str) -> tuple[bytes, bool]:
        """The body, and whether the connection may be kept."""
        body = bytearray()
        try:
            connection = self._connected()
            connection.request("GET", self._parts.path.rstrip("/") + path, headers=_HEADERS)
            # Closed when it is read: until then the connection takes no other request.
            with connection.getresponse() as answer:
                if answer.status != 200:
                    raise FetchError(f"{path} answers {answer.status} {answer.reason}"[:120])
                while piece := answer.read1(_PIECE):
                    body += piece
                    if len(body) > BYTES_MAX:
                        raise FetchError(f"{path} is longer than {BYTES_MAX // 2**20} MiB")
                if answer.length:
                    raise FetchError(f"{path} was cut off: {answer.length:,} bytes are missing")
                return bytes(body), not answer.will_close
        except TimeoutError:
            raise TimeoutError(f"{path} was not whole after {self._timeout_s:g} s: {len(body):,} bytes had come") from None

    def _connected(self) -> http.client.HTTPConnection:
        """The connection that is kept, else a new one."""
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
            self._connection = kind(self._parts.hostname or "", self._parts.port, timeout=self._timeout_s)
            self._connection.response_class = _Answer
            self._connection.connect()
        self._connection.sock.settimeout(self._timeout_s)
        return self._connection


class _Answer(http.client.HTTPResponse):
    """An answer that is over, its headers too, when the socket's time is up: by itself each byte would have that time anew."""

    def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
        super().__init__(sock, *arguments, **named)
        self.fp = io.BufferedReader(_Timed(sock, self.fp.detach()))


class _Timed(io.RawIOBase):
    def __init__(self, sock: socket.socket, raw: Any) -> None:
        self._sock, self._raw = sock, raw
        self._until_s = time.monotonic() + (sock.gettimeout() or 0.0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("its time is up")
        self._sock.settimeout(left_s)
        count: int | None = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()
