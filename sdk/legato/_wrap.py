"""`legato.wrap`: records any iterator of chunks, sync or async.

Each item is a chunk with the time at which the source yielded it; `_items` measures it later. The time until the application requests the
next item is its hold. An iterator is above the network, so reads and TTFB are unknown (``transport`` = ``iterator``). The wrapper passes
items on unchanged. It ends the stream when the source is exhausted or raises, on ``close``, and when the wrapper is garbage-collected. A
stream that an instrumentation records already is passed on without a second recording.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar, overload

from legato._clock import now_ns
from legato._context import superseding
from legato._errors import guard
from legato._items import Items, size_of
from legato._loop import LoopLag, watch_loop
from legato._nested import is_of_library, is_recorded_already
from legato._opening import is_unsent, opened
from legato._recorder import Origin, StreamRecorder
from legato._socket import QUIET_NS
from legato._state import settings
from legato._stream import begin

__all__ = ["AsyncWrapped", "Wrapped", "size_of", "wrap"]

T = TypeVar("T")
Measure = Callable[[Any], int]
Start = Callable[[], StreamRecorder]


class _ItemRecording:
    """The recording that both wrappers share: chunks, holds and the end. ``is_lazy``: the source may yet begin a recorded stream.

    ``start`` makes the recorder: at once, or with the first item if ``is_unsent``, because the request is sent then.
    """

    __slots__ = ("_handed_over_ns", "_measure", "_start", "is_lazy", "recorder")

    def __init__(self, start: Start | None, measure: Measure | None, *, is_lazy: bool, is_unsent: bool) -> None:
        self.recorder: StreamRecorder | None = None
        self.is_lazy = is_lazy
        self._measure = measure
        self._handed_over_ns = 0
        self._start = start
        if not is_unsent:
            self._begin()

    def _begin(self) -> None:
        start, self._start = self._start, None
        if start is None:
            return
        self.recorder = start()
        if self.is_lazy:
            # Another instrumentation may take the stream, so it is not reported before its first item.
            self.recorder.asked = False

    def requested(self) -> None:
        """The application requests the next item, which ends the hold of the previous one."""
        if self._start is not None:
            self._begin()
        if self.recorder is None:
            return
        self.recorder.left_ns = 0
        if self._handed_over_ns:
            self.recorder.held(now_ns() - self._handed_over_ns)
            self._handed_over_ns = 0

    def received(self, item: T) -> T:
        """The source yielded an item. Record it and return it for the application."""
        if self.recorder is None:
            return item
        self.recorder.asked = True
        if self._measure is None:
            self.recorder.read((now_ns(), bytes(item) if isinstance(item, bytearray) else item))  # type: ignore[arg-type]
        else:
            size = 0
            with guard("measure of wrap()"):
                size = self._measure(item)
            self.recorder.record(size)
        self._handed_over_ns = now_ns()
        return item

    def first(self) -> AbstractContextManager[None]:
        """Return the context in which the source yields its first item: only then a lazy source sends its request."""
        if not self.is_lazy:
            return nullcontext()
        self.is_lazy = False
        return superseding(self._supersede)

    def _supersede(self) -> None:
        if self.recorder is not None:
            self.recorder.discard()
            self.recorder = None

    def raised(self, error: BaseException, exhausted: type[BaseException]) -> None:
        """The source raised: ``exhausted`` is its normal end, anything else an error."""
        if isinstance(error, exhausted):
            self.finish()
        else:
            self.finish(error=error)

    def finish(self, outcome: str = "complete", error: BaseException | None = None) -> None:
        """End the stream, and with it the hold of the last item. One that has not sent its request does not begin."""
        self._start = None
        self.requested()
        if self.recorder is not None:
            self.recorder.end(outcome, error)


class Wrapped(Iterator[T]):
    """A recorded iterator."""

    def __init__(self, source: Iterable[T], recording: _ItemRecording) -> None:
        self._source = iter(source)
        self._recording = recording

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        self._recording.requested()
        try:
            if self._recording.is_lazy:
                with self._recording.first():
                    item = next(self._source)
            else:
                item = next(self._source)
        except BaseException as error:
            self._recording.raised(error, StopIteration)
            raise
        return self._recording.received(item)

    def close(self) -> None:
        """End the stream as a cancel, and close the source if it has a ``close`` method."""
        self._recording.finish("client_cancel")
        close = getattr(self._source, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Wrapped[T]:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._recording.finish("client_cancel")


class AsyncWrapped(AsyncIterator[T]):
    """A recorded asynchronous iterator."""

    def __init__(self, source: AsyncIterable[T], recording: _ItemRecording) -> None:
        self._source = source.__aiter__()
        self._recording = recording
        self._loop: LoopLag | None = None

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        self._recording.requested()
        requested = now_ns()
        recorder = self._recording.recorder
        if self._loop is None and recorder is not None:
            with guard("event-loop lag"):
                self._loop = watch_loop(recorder)
        try:
            if self._recording.is_lazy:
                with self._recording.first():
                    item = await self._source.__anext__()
            else:
                item = await self._source.__anext__()
        except asyncio.CancelledError as error:
            self._cancelled(error)
            raise
        except BaseException as error:
            self._recording.raised(error, StopAsyncIteration)
            raise
        now = now_ns()
        recorder = self._recording.recorder
        if self._loop is not None and recorder is not None and now - requested > QUIET_NS:
            recorder.late(now, self._loop.lag_ns(requested, now))
        return self._recording.received(item)

    def _cancelled(self, error: asyncio.CancelledError) -> None:
        """A time-out of the application, which may ask again; if it does not, the stream is cancelled now. A generator has then ended."""
        recorder = self._recording.recorder
        if recorder is None or (inspect.isasyncgen(self._source) and self._source.ag_frame is None):
            self._recording.finish(error=error)
        else:
            recorder.leave()

    async def aclose(self) -> None:
        """End the stream as a cancel, and close the source if it has an ``aclose`` method."""
        self._recording.finish("client_cancel")
        close = getattr(self._source, "aclose", None)
        if close is not None:
            await close()

    async def __aenter__(self) -> AsyncWrapped[T]:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._recording.finish("client_cancel")


@overload
def wrap(
    source: Iterable[T] | AbstractContextManager[Iterable[T]],
    *,
    model: str = "",
    provider: str = "",
    measure: Measure | None = None,
    transport: str = "iterator",
    vantage: str = "client",
    start_ns: int | None = None,
) -> Wrapped[T]: ...
@overload
def wrap(
    source: AsyncIterable[T] | Awaitable[AsyncIterable[T]] | AbstractAsyncContextManager[AsyncIterable[T]],
    *,
    model: str = "",
    provider: str = "",
    measure: Measure | None = None,
    transport: str = "iterator",
    vantage: str = "client",
    start_ns: int | None = None,
) -> AsyncWrapped[T]: ...


def wrap(
    source: Any,
    *,
    model: str = "",
    provider: str = "",
    measure: Measure | None = None,
    transport: str = "iterator",
    vantage: str = "client",
    start_ns: int | None = None,
) -> Wrapped[T] | AsyncWrapped[T]:
    """Record an iterator of chunks, sync or async. Return a wrapper; iterate over that instead of the source.

    A coroutine that returns an iterator, or a context manager that yields one, is opened with the first item: its request is sent then.

    Items may be text, bytes or lines of a body in a known format, and objects or dictionaries of the libraries of OpenAI, Anthropic, Google
    and Ollama. ``measure`` returns the UTF-8 bytes of content in any other item. ``transport``: ``websocket``, ``http/2``, … if the
    items are single reads of the network. ``vantage``: ``server`` in a server.

    ``start_ns``: ``time.monotonic_ns()`` from just before the request was sent. Without it the stream starts with this call; if that was
    after the request, the time to first token is unknown.

    Raises ``TypeError`` for any other ``source``.
    """
    items = opened(source)
    if items is None:
        raise TypeError(f"wrap() got {type(source).__name__}: expected an iterable, a coroutine or a context manager")
    unsent = is_unsent(source)
    origin = Origin(model=model, provider=provider, transport=transport, vantage=vantage, engine_id=settings().engine_id)
    origin.is_start_known = start_ns is not None or unsent
    start: Start | None = None
    if not is_recorded_already(source):
        start = partial(begin, origin, start_ns=start_ns, body=Items() if measure is None else None)
    is_lazy = vantage == "client" and (items is not source or is_of_library(source))
    recording = _ItemRecording(start, measure, is_lazy=is_lazy, is_unsent=unsent)
    if isinstance(items, AsyncIterable):
        return AsyncWrapped(items, recording)
    return Wrapped(items, recording)
