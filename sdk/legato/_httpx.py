"""`legato.instrument_httpx()`: records the streamed responses of every library that is based on httpx or httpx2.

These are anthropic, google-genai, ollama, the handlers of LiteLLM, and requests by hand. The patched function is the client's ``send``
with ``stream=True``: above it are the libraries, below it any transport. A response is recorded if its content type, or its address
at Gemini, is that of a stream; the format comes from its events. Requests that another instrumentation records are left alone.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from legato._clock import now_ns
from legato._context import is_recorded, recorded, unrecorded
from legato._errors import ConfigurationError, guard
from legato._patches import Patch, Patches
from legato._reads import AsyncReads, Reads, attaching, connection_of, mark
from legato._recorder import StreamRecorder
from legato._request import SentRequest
from legato._state import settings, setup

__all__ = ["PACKAGES", "async_stream_class", "instrument_httpx", "instrument_package", "stream_class", "uninstrument_httpx"]

PACKAGES = ("httpx", "httpx2")
_patches = Patches("send")


def instrument_httpx() -> None:
    """Record every streamed response that httpx and httpx2 receive from now on. Further calls have no effect.

    Raises ``ConfigurationError`` if neither is installed.
    """
    installed = [name for name in PACKAGES if importlib.util.find_spec(name)]
    if not installed:
        raise ConfigurationError("neither httpx nor httpx2 is installed: pip install httpx")
    for name in installed:
        instrument_package(name)


def instrument_package(name: str) -> None:
    """Record what this one of the ``PACKAGES`` receives. It is imported if it was not."""
    if not settings().disabled:
        package = importlib.import_module(name)
        _install(package.Client, _patched, package)
        _install(package.AsyncClient, _patched_async, package)


@setup
def _install(client: Any, patch: Callable[..., Any], package: Any) -> None:
    _patches.install(client, functools.partial(patch, package=package))


@setup
def uninstrument_httpx() -> None:
    """Undo ``instrument_httpx``. Streams that are running are still recorded to their end."""
    _patches.undo()


def _patched(original: Callable[..., Any], patch: Patch, package: Any) -> Callable[..., Any]:
    make = stream_class(package.SyncByteStream)

    @functools.wraps(original)
    def send(self: Any, request: Any, **more: Any) -> Any:
        if not patch.is_on:
            return original(self, request, **more)
        sent = _sent(request, more)
        below = _below(self, request, package, is_sent=sent is not None)
        if sent is None:
            with below:
                return original(self, request, **more)
        try:
            with sent.carried(request.headers), below:
                response = original(self, request, **more)
        except BaseException as error:
            sent.failed(error)
            raise
        with guard("instrument_httpx"):
            _attach(sent, response, make)
        return response

    return send


def _patched_async(original: Callable[..., Any], patch: Patch, package: Any) -> Callable[..., Any]:
    make = async_stream_class(package.AsyncByteStream)

    @functools.wraps(original)
    async def send(self: Any, request: Any, **more: Any) -> Any:
        if not patch.is_on:
            return await original(self, request, **more)
        sent = _sent(request, more)
        below = _below(self, request, package, is_sent=sent is not None)
        if sent is None:
            with below:
                return await original(self, request, **more)
        try:
            with sent.carried(request.headers), below:
                response = await original(self, request, **more)
        except BaseException as error:
            sent.failed(error)
            raise
        with guard("instrument_httpx"):
            _attach(sent, response, make)
        return response

    return send


def _sent(request: Any, more: dict[str, Any]) -> SentRequest | None:
    """Return the request if its response may be a stream that is recorded here."""
    if not more.get("stream") or is_recorded():
        return None
    with guard("instrument_httpx"):
        try:
            content = request.content
        except Exception:
            # The request's own body is streamed.
            content = b""
        url = request.url
        return SentRequest(request.method, url.scheme, str(url.host), url.port, str(url.path), request.headers, content, now_ns())
    return None


def _below(client: Any, request: Any, package: Any, *, is_sent: bool) -> AbstractContextManager[None]:
    """Return the context of the transport. One that runs an application in this process must not hide that application's requests."""
    if is_sent or is_recorded():
        with guard("instrument_httpx"):
            if isinstance(client._transport_for_url(request.url), (package.ASGITransport, package.WSGITransport)):
                return unrecorded()
    return recorded() if is_sent else nullcontext()


def _attach(sent: SentRequest, response: Any, make: Callable[..., Any]) -> None:
    """Record the response's stream if it is one."""
    # A hook of the application may have read it.
    recorder = sent.answered(response.status_code, response.headers, is_read=hasattr(response, "_content"))
    if recorder is not None:
        with attaching("instrument_httpx", recorder):
            connection_of(response, recorder.origin)
            mark(response, recorder)
            response.stream = make(recorder, response, holds=True)


@functools.cache
def stream_class(base: Any) -> Any:
    """Return the class of recorded streams of this package. ``base``: its ``SyncByteStream``."""

    class RecordedStream(base):  # type: ignore[misc]
        def __init__(self, recorder: StreamRecorder, response: Any, *, holds: bool) -> None:
            self._reads = Reads(recorder, response, holds=holds)
            self._source = response.stream

        def __iter__(self) -> Any:
            return self._reads.iterate(iter(self._source))

        def close(self) -> None:
            self._reads.closing()
            self._source.close()

    return RecordedStream


@functools.cache
def async_stream_class(base: Any) -> Any:
    """Return the same of asynchronous streams. ``base``: ``AsyncByteStream``."""

    class RecordedStream(base):  # type: ignore[misc]
        def __init__(self, recorder: StreamRecorder, response: Any, *, holds: bool) -> None:
            self._reads = AsyncReads(recorder, response, holds=holds)
            self._source = response.stream

        def __aiter__(self) -> Any:
            return self._reads.iterate(aiter(self._source))

        async def aclose(self) -> None:
            self._reads.closing()
            await self._source.aclose()

    return RecordedStream
