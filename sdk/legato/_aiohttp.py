"""`legato.instrument_aiohttp()`: records the streamed responses of the package aiohttp.

The patched function is the session's ``_request``, through which all requests pass; ``response.content`` is replaced by a reader that
records what it reads. aiohttp decompresses before, unless the application asked for the body as it is, so the bytes are those of the
events and not those on the wire.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import json
import weakref
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from legato._clock import now_ns
from legato._context import is_recorded, recorded
from legato._errors import ConfigurationError, guard
from legato._loop import LoopLag, watch_loop
from legato._patches import Patch, Patches
from legato._reads import attaching
from legato._recorder import StreamRecorder
from legato._request import SentRequest
from legato._socket import QUIET_NS
from legato._state import settings, setup

__all__ = ["instrument_aiohttp", "uninstrument_aiohttp"]

_patches = Patches("_request")


def instrument_aiohttp() -> None:
    """Record every streamed response that aiohttp's client receives from now on. Further calls have no effect.

    Raises ``ConfigurationError`` if aiohttp is not installed.
    """
    if not importlib.util.find_spec("aiohttp"):
        raise ConfigurationError("the package aiohttp is not installed: pip install aiohttp")
    if not settings().disabled:
        _install(importlib.import_module("aiohttp").ClientSession)


@setup
def _install(session: Any) -> None:
    _patches.install(session, _patched)


@setup
def uninstrument_aiohttp() -> None:
    """Undo ``instrument_aiohttp``. Streams that are running are still recorded to their end."""
    _patches.undo()


def _patched(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    async def request(self: Any, method: str, str_or_url: Any, **more: Any) -> Any:
        sent = None
        if patch.is_on and not is_recorded():
            with guard("instrument_aiohttp"):
                sent = _sent(self, method, str_or_url, more)
        if sent is None:
            return await original(self, method, str_or_url, **more)
        try:
            with recorded():
                response = await original(self, method, str_or_url, **more)
        except BaseException as error:
            sent.failed(error)
            raise
        with guard("instrument_aiohttp"):
            # A middleware of the application may have read it.
            is_read = getattr(response, "_body", None) is not None
            is_decoded = _decompresses(self, more)
            recorder = sent.answered(response.status, response.headers, is_decoded=is_decoded, is_read=is_read)
            if recorder is not None:
                with attaching("instrument_aiohttp", recorder):
                    _attach(recorder, response)
        return response

    return request


def _decompresses(session: Any, more: dict[str, Any]) -> bool:
    """Whether the session decompresses the response of a request with these arguments. A proxy passes it on as it is."""
    chosen = more.get("auto_decompress")
    return bool(getattr(session, "_auto_decompress", True) if chosen is None else chosen)


def _sent(session: Any, method: str, url: Any, more: dict[str, Any]) -> SentRequest:
    """Return the request, with its trace context added to the headers in ``more``."""
    base = getattr(session, "_base_url", None)
    parts = urlsplit(str(base.join(url if not isinstance(url, str) else type(base)(url)) if base is not None else url))
    body = more.get("json")
    content = more.get("data")
    if isinstance(body, dict):
        content = json.dumps({key: body[key] for key in ("model", "stream", "jsonrpc") if isinstance(body.get(key), (str, bool))})
    if isinstance(content, str):
        content = content.encode("utf-8", "replace")
    given = more.get("headers") or {}
    # Pairs: a name may be repeated.
    pairs = list(given.items() if hasattr(given, "items") else given)
    headers = {str(name).lower(): str(value) for name, value in pairs}
    data = content if isinstance(content, bytes) else b""
    sent = SentRequest(method.upper(), parts.scheme, parts.hostname or "", parts.port, parts.path, headers, data, now_ns())
    carrier = sent.trace_headers()
    if carrier or not hasattr(given, "items"):
        more["headers"] = [*pairs, *carrier.items()]
    return sent


def _attach(recorder: StreamRecorder, response: Any) -> None:
    response.content = _RecordedContent(recorder, response.content)
    response._legato = recorder
    for name in ("close", "release"):
        setattr(response, name, _closing(recorder, weakref.ref(response), name))


def _closing(recorder: StreamRecorder, response_of: weakref.ref[Any], name: str) -> Callable[[], Any]:
    """Return a replacement of the method. It does not keep the response: in a reference cycle that would keep its connection."""

    def closing() -> Any:
        recorder.end("client_cancel")
        response = response_of()
        return getattr(type(response), name)(response) if response is not None else None

    return closing


class _RecordedContent:
    """A response's reader, also for ``isinstance``. What it does not record is that of the reader below.

    Names of parameters are aiohttp's.
    """

    def __init__(self, recorder: StreamRecorder, content: Any) -> None:
        self._legato, self._content = recorder, content
        self._loop: LoopLag | None = None
        self._read_ns = self._handed_over_ns = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._content)

    async def _take(self, read: Callable[..., Any], *arguments: Any) -> Any:
        recorder, requested = self._legato, self._requested()
        if not self._read_ns and self._loop is None:
            with guard("event-loop lag"):
                self._loop = watch_loop(recorder)
        try:
            found = await read(*arguments)
        except asyncio.CancelledError:
            # A time-out of the application, which may ask again; if it does not, the stream is cancelled now.
            recorder.leave()
            raise
        except BaseException as error:
            recorder.end(error=error)
            raise
        return self._received(found, requested)

    def _requested(self) -> int:
        """The application requests a read, which ends the hold of the previous one. Return the time (monotonic ns)."""
        requested = now_ns()
        self._legato.left_ns = 0
        if self._handed_over_ns:
            self._legato.held_read((self._read_ns, requested - self._handed_over_ns))
            # The next request may follow one that was cancelled: that time was not the application's.
            self._handed_over_ns = 0
        return requested

    def _received(self, found: Any, requested: int) -> Any:
        """Record what was read, and return it. ``requested``: when it was requested (monotonic ns)."""
        recorder, now = self._legato, now_ns()
        data = found[0] if isinstance(found, tuple) else found
        if data:
            if self._loop is not None and now - requested > QUIET_NS:
                recorder.late(now, self._loop.lag_ns(requested, now))
            recorder.read((now, bytes(data)))
            self._read_ns = now
        if self._content.at_eof():
            recorder.end()
        self._handed_over_ns = now_ns() if data else 0
        return found

    async def readany(self) -> Any:
        return await self._take(self._content.readany)

    async def readline(self, *limits: Any, **named: Any) -> Any:
        return await self._take(functools.partial(self._content.readline, *limits, **named))

    async def readuntil(self, *limits: Any, **named: Any) -> Any:
        return await self._take(functools.partial(self._content.readuntil, *limits, **named))

    async def readchunk(self) -> Any:
        return await self._take(self._content.readchunk)

    async def readexactly(self, n: int) -> Any:
        return await self._take(self._content.readexactly, n)

    def read_nowait(self, n: int = -1) -> Any:
        requested = self._requested()
        return self._received(self._content.read_nowait(n), requested)

    async def read(self, n: int = -1) -> Any:
        if n >= 0:
            return await self._take(self._content.read, n)
        # Part by part, as it arrives: the reader below would return all of it at once.
        parts = []
        while part := await self.readany():
            parts.append(part)
        return b"".join(parts)

    def __aiter__(self) -> _Parts:
        return _Parts(self, self.readline)

    def iter_any(self) -> _Parts:
        return _Parts(self, self.readany)

    def iter_chunked(self, n: int) -> _Parts:
        return _Parts(self, functools.partial(self.read, n))

    def iter_chunks(self) -> _Parts:
        return _Parts(self, self.readchunk, (b"", False))


class _Parts:
    """What is read until a read returns ``end``. As aiohttp's own it goes on after a read that was cancelled, which a generator does not:
    an application may send a sign of life after each time-out, and ask again.
    """

    __slots__ = ("_end", "_legato", "_read")

    def __init__(self, content: _RecordedContent, read: Callable[[], Awaitable[Any]], end: object = b"") -> None:
        self._legato, self._read, self._end = content._legato, read, end

    def __aiter__(self) -> _Parts:
        return self

    async def __anext__(self) -> Any:
        part = await self._read()
        if part == self._end:
            raise StopAsyncIteration
        return part
