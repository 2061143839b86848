"""`legato.instrument_openai()`: records the streams of the `openai` package.

Timestamps are taken where the HTTP library yields bytes, before anything decodes them, so that reads, TTFB and coalesced events are
exact. The iterator that the application uses is wrapped only to measure how long the application holds each item. The patched function
is the client's ``request``, through which all streaming calls pass, including helpers and raw responses. Neither httpx nor httpx2 is
imported, so releases of `openai` based on either work.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from legato._body import OPENAI_PATHS, Body
from legato._clock import now_ns
from legato._context import began, carried_by, is_recorded, recorded
from legato._errors import ConfigurationError, guard
from legato._formats import OPENAI
from legato._hosts import provider_at
from legato._httpx import async_stream_class, stream_class
from legato._patches import Patch, Patches
from legato._reads import attaching, connection_of, mark
from legato._recorder import Origin, StreamRecorder
from legato._request import is_callers_error
from legato._state import settings, setup
from legato._stream import begin

__all__ = ["ItemIterator", "instrument_openai", "uninstrument_openai"]

_patches = Patches("request")


def instrument_openai() -> None:
    """Record the streaming chat completions, completions and responses of every client from now on. Further calls have no effect.

    Raises ``ConfigurationError`` if `openai` is not installed.
    """
    try:
        from openai._base_client import AsyncAPIClient, SyncAPIClient
    except ImportError as error:
        raise ConfigurationError("the package openai is not installed: pip install openai") from error
    if not settings().disabled:
        _install(SyncAPIClient, _patched)
        _install(AsyncAPIClient, _patched_async)


@setup
def _install(client: Any, patch: Callable[..., Any]) -> None:
    if not _patches.is_on(client):
        # Other instrumentations may have given a subclass its own `request`, which then never reaches that of the base class.
        for each in (client, *(sub for sub in _subclasses(client) if "request" in vars(sub))):
            _patches.install(each, patch)


def _subclasses(client: Any) -> Iterator[Any]:
    for each in client.__subclasses__():
        yield each
        yield from _subclasses(each)


@setup
def uninstrument_openai() -> None:
    """Undo ``instrument_openai``. Streams that are running are still recorded to their end."""
    _patches.undo()


def _patched(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    def request(self: Any, cast_to: Any, options: Any, *given: Any, **more: Any) -> Any:
        recorder = _begin(self, options) if patch.is_on and more.get("stream") else None
        if recorder is None:
            return original(self, cast_to, options, *given, **more)
        try:
            with recorded():
                result = original(self, cast_to, options, *given, **more)
        except BaseException as error:
            _failed(self, recorder, error)
            raise
        with attaching("instrument_openai", recorder):
            _attach(recorder, result, stream_class, "SyncByteStream", _Items)
        return result

    return request


def _patched_async(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    async def request(self: Any, cast_to: Any, options: Any, *given: Any, **more: Any) -> Any:
        recorder = _begin(self, options) if patch.is_on and more.get("stream") else None
        if recorder is None:
            return await original(self, cast_to, options, *given, **more)
        try:
            with recorded():
                result = await original(self, cast_to, options, *given, **more)
        except BaseException as error:
            _failed(self, recorder, error)
            raise
        with attaching("instrument_openai", recorder):
            _attach(recorder, result, async_stream_class, "AsyncByteStream", _AsyncItems)
        return result

    return request


def _failed(client: Any, recorder: StreamRecorder, error: BaseException) -> None:
    """The request raised: a row, unless the caller's own error is the cause, as with the HTTP libraries."""
    is_callers = False
    with guard("instrument_openai"):
        is_callers = is_callers_error(error, getattr(client.base_url, "scheme", ""))
    if is_callers:
        recorder.discard()
    else:
        recorder.end(error=error)


def _begin(client: Any, options: Any) -> StreamRecorder | None:
    """Start a recorder and add its trace context to the request's headers; return ``None`` for requests that are not recorded."""
    with guard("instrument_openai"):
        if is_recorded() or not str(getattr(options, "url", "")).endswith(OPENAI_PATHS):
            return None
        body = options.json_data if isinstance(options.json_data, dict) else {}
        url = getattr(client, "base_url", None)
        origin = Origin(
            model=str(body.get("model") or ""),
            # At an unknown host the protocol is the provider.
            provider=provider_at(str(getattr(url, "host", ""))) or "openai",
            transport="http/1.1",
            server_address=str(getattr(url, "host", "") or ""),
            server_port=int(getattr(url, "port", None) or (443 if getattr(url, "scheme", "") == "https" else 80)),
        )
        recorder = began(begin(origin, sse=True))
        given = options.headers if isinstance(options.headers, dict) else {}
        headers = dict(given)
        if not any(name.lower() == "traceparent" for name in headers):
            headers |= carried_by(recorder.span)
        options.headers = headers
        return recorder
    return None


def _attach(recorder: StreamRecorder, result: Any, stream_class: Callable[[Any], Any], base: str, items: Callable[..., Any]) -> None:
    """Record the response's stream, and the items if the result iterates over them itself. ``base``: the name of the stream's class."""
    recorder.ttfb_ns = now_ns()
    response = getattr(result, "response", None) or getattr(result, "http_response", None)
    if response is None:
        recorder.end("upstream_error", error_type="unknown_response")
        return
    if hasattr(response, "_content"):
        # A hook of the application has read it.
        recorder.discard()
        return
    recorder.opened(Body(encoding=response.headers.get("content-encoding", ""), expects_end=True, format=OPENAI))
    connection_of(response, recorder.origin)
    mark(response, recorder)
    # A raw response has no items, so its reads show how long the application holds the stream.
    has_items = hasattr(result, "_iterator")
    make = stream_class(next(kind for kind in type(response.stream).__mro__ if kind.__name__ == base))
    response.stream = make(recorder, response, holds=not has_items)
    if has_items:
        result._iterator = items(recorder, result._iterator)


class ItemIterator:
    """Common part of the sync and the async iterator over a stream's items.

    A hold is the time from handing an item to the application to the application's request for the next item.
    A stream of `openai` is in a reference cycle with its own generator, so nothing runs when an application leaves its loop and drops the
    stream. Therefore each loop gets a separate generator here, which is closed when the loop is left.
    """

    exhausted: type[BaseException]
    """The exception with which the source ends normally."""

    def __init__(self, recorder: StreamRecorder, source: Any) -> None:
        self._recorder, self._source = recorder, source
        self._steps: Any = None

    def _ended(self, error: BaseException, handed_over_ns: int) -> bool:
        """Record the end of one loop over the items; return whether to re-raise its exception. ``handed_over_ns``: 0 without a hold."""
        if isinstance(error, self.exhausted):
            self._recorder.end()
            return False
        if isinstance(error, GeneratorExit):
            if handed_over_ns:
                self._recorder.held(now_ns() - handed_over_ns)
            self._recorder.leave()
            return False
        self._recorder.end(error=error)
        return True


class _Items(ItemIterator):
    """Replaces the iterator of a synchronous stream."""

    exhausted = StopIteration

    def __iter__(self) -> Iterator[Any]:
        following, held, now = self._source.__next__, self._recorder.held, now_ns
        self._recorder.left_ns = handed_over = 0
        try:
            while True:
                item = following()
                handed_over = now()
                yield item
                held(now() - handed_over)
                handed_over = 0
        except BaseException as error:
            if self._ended(error, handed_over):
                raise

    def __next__(self) -> Any:
        if self._steps is None:
            self._steps = iter(self)
        return next(self._steps)

    def close(self) -> None:
        self._recorder.end("client_cancel")
        self._source.close()


class _AsyncItems(ItemIterator):
    """Replaces the iterator of an asynchronous stream."""

    exhausted = StopAsyncIteration

    async def __aiter__(self) -> AsyncIterator[Any]:
        following, held, now = self._source.__anext__, self._recorder.held, now_ns
        self._recorder.left_ns = handed_over = 0
        try:
            while True:
                item = await following()
                handed_over = now()
                yield item
                held(now() - handed_over)
                handed_over = 0
        except BaseException as error:
            if self._ended(error, handed_over):
                raise

    async def __anext__(self) -> Any:
        if self._steps is None:
            self._steps = self.__aiter__()
        return await self._steps.__anext__()

    async def aclose(self) -> None:
        self._recorder.end("client_cancel")
        await self._source.aclose()
