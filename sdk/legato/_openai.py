"""`legato.instrument_openai()`: records the streams of the `openai` package.

One idea: stamps are taken where bytes leave the HTTP library, before anything decodes them, so that reads, TTFB and coalesced events are
true; the iterator above is watched only for how long the application holds each item. All streaming calls, helpers and raw responses
included, pass through the client's ``request``, which is what is patched. It works with the httpx-based releases and the httpx2-based
ones: nothing of either is imported.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from opentelemetry import propagate, trace

from legato._clock import now_ns
from legato._errors import ConfigurationError, guard
from legato._loop import Lateness, watched
from legato._recorder import Origin, StreamRecorder
from legato._socket import QUIET_NS, looker
from legato._state import settings
from legato._stream import begin

__all__ = ["instrument_openai", "uninstrument_openai"]

PATHS = ("/chat/completions", "/completions", "/responses")
_originals: dict[type, Callable[..., Any]] = {}


def instrument_openai() -> None:
    """Record every streaming chat completion and response of every client from now on. Calling it again does nothing.

    Raises ``ConfigurationError`` when `openai` is not installed.
    """
    try:
        from openai._base_client import AsyncAPIClient, SyncAPIClient
    except ImportError as error:
        raise ConfigurationError("the package openai is not installed: pip install openai") from error
    if _originals or settings().disabled:
        return
    for client, patch in ((SyncAPIClient, _patched), (AsyncAPIClient, _patched_async)):
        _originals[client] = client.request
        client.request = patch(client.request)  # type: ignore[method-assign]


def uninstrument_openai() -> None:
    """Undo ``instrument_openai``. Streams that run are recorded to their end."""
    for client, original in _originals.items():
        client.request = original  # type: ignore[attr-defined]
    _originals.clear()


def _patched(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def request(self: Any, cast_to: Any, options: Any, **more: Any) -> Any:
        recorder = _begin(self, options) if more.get("stream") else None
        if recorder is None:
            return original(self, cast_to, options, **more)
        try:
            result = original(self, cast_to, options, **more)
        except BaseException as error:
            recorder.end(error=error)
            raise
        with guard("instrument_openai"):
            _attach(recorder, result, _Reads, _Items)
        return result

    return request


def _patched_async(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def request(self: Any, cast_to: Any, options: Any, **more: Any) -> Any:
        recorder = _begin(self, options) if more.get("stream") else None
        if recorder is None:
            return await original(self, cast_to, options, **more)
        try:
            result = await original(self, cast_to, options, **more)
        except BaseException as error:
            recorder.end(error=error)
            raise
        with guard("instrument_openai"):
            _attach(recorder, result, _AsyncReads, _AsyncItems)
        return result

    return request


def _begin(client: Any, options: Any) -> StreamRecorder | None:
    """Begin to record and put the trace context into the request's headers; ``None`` for requests that are not watched."""
    with guard("instrument_openai"):
        if not str(getattr(options, "url", "")).endswith(PATHS):
            return None
        body = options.json_data if isinstance(options.json_data, dict) else {}
        url = getattr(client, "base_url", None)
        origin = Origin(
            model=str(body.get("model") or ""),
            provider=_provider(str(getattr(url, "host", ""))),
            transport="http/1.1",
            server_address=str(getattr(url, "host", "") or ""),
            server_port=int(getattr(url, "port", None) or (443 if getattr(url, "scheme", "") == "https" else 80)),
        )
        recorder = begin(origin, sse=True)
        given = options.headers if isinstance(options.headers, dict) else {}
        headers = dict(given)
        if not any(name.lower() == "traceparent" for name in headers):
            propagate.inject(headers, context=trace.set_span_in_context(recorder.span))
        options.headers = headers
        return recorder
    return None


def _provider(host: str) -> str:
    """The semantic conventions' name of who serves at this host; ``openai`` is also the protocol of everybody else's."""
    if host.endswith(".openai.azure.com"):
        return "azure.ai.openai"
    known = {"api.deepseek.com": "deepseek", "api.groq.com": "groq", "api.mistral.ai": "mistral_ai", "api.x.ai": "x_ai"}
    return known.get(host, "openai")


def _attach(recorder: StreamRecorder, result: Any, reads: Callable[..., Any], items: Callable[..., Any]) -> None:
    """Watch the response's bytes, and the items when the result hands them out itself."""
    recorder.ttfb_ns = now_ns()
    response = getattr(result, "response", None) or getattr(result, "http_response", None)
    if response is None:
        recorder.end("upstream_error", error_type="unknown_response")
        return
    recorder.origin.transport = "http/2" if getattr(response, "http_version", "") == "HTTP/2" else "http/1.1"
    _addresses(recorder.origin, response)
    reads(recorder, response)
    if hasattr(result, "_iterator"):
        result._iterator = items(recorder, result._iterator)


def _addresses(origin: Origin, response: Any) -> None:
    network = (getattr(response, "extensions", None) or {}).get("network_stream")
    if network is None:
        return
    client, server = network.get_extra_info("client_addr"), network.get_extra_info("server_addr")
    if client:
        origin.client_address, origin.client_port = str(client[0]), int(client[1])
    if server:
        origin.server_address, origin.server_port = str(server[0]), int(server[1])


class _Reads:
    """Stands before a response's ``iter_bytes`` and ``close``."""

    def __init__(self, recorder: StreamRecorder, response: Any) -> None:
        self._recorder, self._bytes, self._close = recorder, response.iter_bytes, response.close
        self._look, self._reading = looker(response), False
        response.iter_bytes, response.close = self.iter_bytes, self.close

    def iter_bytes(self, chunk_size: int | None = None) -> Iterator[bytes]:
        recorder, read, look, last = self._recorder, self._recorder.read, self._look, now_ns()
        self._reading = True
        try:
            for data in self._bytes(chunk_size):
                now = now_ns()
                if now - last > QUIET_NS:
                    recorder.look(now, look, len(data))
                last = now
                read((now, data))
                self._reading = False
                yield data
                self._reading = True
        except BaseException as error:
            recorder.end(error=error)
            raise
        recorder.end()

    def close(self) -> None:
        # The HTTP library closes the response of a read that failed before it raises: then the error says how the stream ended.
        if not self._reading:
            self._recorder.end("client_cancel")
        self._close()


class _AsyncReads:
    """Stands before a response's ``aiter_bytes`` and ``aclose``."""

    def __init__(self, recorder: StreamRecorder, response: Any) -> None:
        self._recorder, self._bytes, self._close = recorder, response.aiter_bytes, response.aclose
        self._look, self._reading = looker(response), False
        response.aiter_bytes, response.aclose = self.aiter_bytes, self.aclose

    async def aiter_bytes(self, chunk_size: int | None = None) -> AsyncIterator[bytes]:
        recorder, read, look, last = self._recorder, self._recorder.read, self._look, now_ns()
        loop: Lateness | None = None
        with guard("lateness"):
            loop = watched(recorder)
        asked = last
        self._reading = True
        try:
            async for data in self._bytes(chunk_size):
                now = now_ns()
                if now - last > QUIET_NS:
                    recorder.look(now, look, len(data))
                    if loop is not None:
                        recorder.late(now, loop.late_ns(asked, now))
                last = now
                read((now, data))
                self._reading = False
                yield data
                self._reading = True
                asked = now_ns()
        except BaseException as error:
            recorder.end(error=error)
            raise
        recorder.end()

    async def aclose(self) -> None:
        if not self._reading:
            self._recorder.end("client_cancel")
        await self._close()


class _Items:
    """Stands before a stream's items: the time between giving one and being asked for the next is its hold.

    A stream of `openai` is in a cycle with its own generator, so nothing happens when an application leaves a loop and drops it. But each
    loop gets a generator of its own here, which ends with the loop: that is when the stream was left.
    """

    def __init__(self, recorder: StreamRecorder, source: Any) -> None:
        self._recorder, self._source = recorder, source
        self._steps: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        recorder, following, held, now = self._recorder, self._source.__next__, self._recorder.held, now_ns
        recorder.left_ns = given = 0
        try:
            while True:
                item = following()
                given = now()
                yield item
                held(now() - given)
                given = 0
        except StopIteration:
            recorder.end()
        except GeneratorExit:
            if given:
                held(now() - given)
            recorder.leave()
        except BaseException as error:
            recorder.end(error=error)
            raise

    def __next__(self) -> Any:
        if self._steps is None:
            self._steps = iter(self)
        return next(self._steps)

    def close(self) -> None:
        self._recorder.end("client_cancel")
        self._source.close()


class _AsyncItems:
    """The same for an asynchronous stream."""

    def __init__(self, recorder: StreamRecorder, source: Any) -> None:
        self._recorder, self._source = recorder, source
        self._steps: AsyncIterator[Any] | None = None

    async def __aiter__(self) -> AsyncIterator[Any]:
        recorder, following, held, now = self._recorder, self._source.__anext__, self._recorder.held, now_ns
        recorder.left_ns = given = 0
        try:
            while True:
                item = await following()
                given = now()
                yield item
                held(now() - given)
                given = 0
        except StopAsyncIteration:
            recorder.end()
        except GeneratorExit:
            if given:
                held(now() - given)
            recorder.leave()
        except BaseException as error:
            recorder.end(error=error)
            raise

    async def __anext__(self) -> Any:
        if self._steps is None:
            self._steps = self.__aiter__()
        return await self._steps.__anext__()

    async def aclose(self) -> None:
        self._recorder.end("client_cancel")
        await self._source.aclose()
