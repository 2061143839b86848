"""`legato.wrap`: records any iterator of chunks, sync or async.

Each item is a chunk with the time at which the source yielded it; `_items` measures it later. The time until the application requests the
next item is its hold. An iterator is above the network, so reads and TTFB are unknown (``transport`` = ``iterator``). The wrapper passes
items on unchanged. It ends the stream when the source is exhausted or raises, on ``close``, and when the wrapper is garbage-collected. A
stream that an instrumentation records already is passed on without a second recording. What can be opened is in `_opening`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack
from functools import partial
from typing import Any, Generic, TypeVar, overload

from legato._clock import now_ns
from legato._errors import guard
from legato._items import Items, size_of
from legato._loop import LoopLag, watch_loop
from legato._nested import is_of_library, is_recorded_already
from legato._opening import close_opened, entered, entered_async, is_async_manager, is_manager, is_open, is_unsent
from legato._recorder import Origin
from legato._socket import QUIET_NS
from legato._state import recording_settings
from legato._stream import begin
from legato._wrap_recording import ItemRecording, Measure, Start

__all__ = ["AsyncWrapped", "Wrapped", "size_of", "wrap"]

T = TypeVar("T")


class _Wrapper(Generic[T]):
    """What both wrappers have. ``_source``: the iterator; ``None`` until ``_unopened`` is open."""

    def __init__(self, given: Any, source: Any, recording: ItemRecording) -> None:
        self._recording = recording
        self._source = source
        self._unopened: Any = given if source is None else None
        # A library's stream, of which the iterator is a generator: to close that leaves the connection open.
        self._stream: Any = given if source is not None and source is not given else None
        # What a coroutine returned; a manager that it returned is left as managers are.
        self._opened: Any = None
        # Leaves the manager that a `with` of the application entered.
        self._stack: Any = None
        self._loop: LoopLag | None = None

    def __del__(self) -> None:
        self._recording.finish("client_cancel")


class Wrapped(_Wrapper[T], Iterator[T]):
    """A recorded iterator. As a context manager it closes its source, or enters and leaves a source that is a manager."""

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        self._recording.requested()
        try:
            if self._source is None or self._recording.is_lazy:
                with self._recording.first():
                    if self._source is None:
                        self._source = entered(self._unopened, self._recording.look)
                    item: T = next(self._source)
                self._recording.is_lazy = False
            else:
                item = next(self._source)
        except BaseException as error:
            self._recording.raised(error, StopIteration)
            raise
        return self._recording.received(item)

    def close(self) -> None:
        """End the stream as a cancel, and close the source if it has a ``close`` method."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Wrapped[T]:
        if self._source is None:
            self._recording.requested()
            try:
                with self._recording.first(), ExitStack() as stack:
                    opened = stack.enter_context(self._unopened)
                    self._recording.look(opened)
                    self._source = iter(opened)
                    self._stack = stack.pop_all()
            except BaseException as error:
                self._recording.finish(error=error)
                raise
        return self

    def __exit__(self, *exception: Any) -> bool | None:
        self._recording.finish("client_cancel")
        if self._stack is not None:
            stack, self._stack = self._stack, None
            return bool(stack.__exit__(*exception))
        if self._source is None:
            # What was never opened stays closed.
            self._source = entered(self._unopened, self._recording.look)
        try:
            _close(self._source)
        finally:
            _close(self._stream)
        return None


class AsyncWrapped(_Wrapper[T], AsyncIterator[T]):
    """A recorded asynchronous iterator, also a context manager, as `Wrapped` is."""

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
            if self._source is None or self._recording.is_lazy:
                with self._recording.first():
                    if self._source is None:
                        await self._open(None)
                    item: T = await self._source.__anext__()
                self._recording.is_lazy = False
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
        recorder, source = self._recording.recorder, self._source
        if recorder is None or source is None or (inspect.isasyncgen(source) and source.ag_frame is None):
            self._recording.finish(error=error)
        else:
            recorder.leave()

    async def _open(self, stack: AsyncExitStack | None) -> None:
        """Await the coroutine or enter the manager. ``stack``: leaves the manager; without one its generator does."""
        opened = self._unopened
        if not is_async_manager(opened):
            opened = await opened
        if isinstance(opened, AsyncIterable) or not is_async_manager(opened):
            self._opened = opened
        elif stack is None:
            self._source = entered_async(opened, self._recording.look)
            return
        else:
            opened = await stack.enter_async_context(opened)
        self._recording.look(opened)
        self._source = aiter(opened)

    async def aclose(self) -> None:
        """End the stream as a cancel, and close the source if it can be closed."""
        await self.__aexit__(None, None, None)

    async def __aenter__(self) -> AsyncWrapped[T]:
        if self._source is None:
            self._recording.requested()
            try:
                with self._recording.first():
                    async with AsyncExitStack() as stack:
                        await self._open(stack)
                        self._stack = stack.pop_all()
            except BaseException as error:
                self._recording.finish(error=error)
                raise
        return self

    async def __aexit__(self, *exception: Any) -> bool | None:
        self._recording.finish("client_cancel")
        stack, self._stack = self._stack, None
        if self._opened is not None:
            await close_opened(self._opened, self._source)
            return None
        if stack is not None:
            return bool(await stack.__aexit__(*exception))
        if self._source is None:
            # What was never opened stays closed.
            self._source = entered_async(self._unopened, self._recording.look)
            if inspect.iscoroutine(self._unopened):
                self._unopened.close()
        try:
            close = getattr(self._source, "aclose", None)
            if close is not None:
                await close()
        finally:
            if self._stream is not None:
                await close_opened(self._stream, None)
        return None


class WrappedManager(Wrapped[T], AsyncWrapped[T]):
    """A recorded manager that can be entered in both ways: the first `for` or `with`, synchronous or not, decides."""


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

    A coroutine that returns an iterator, or a context manager that yields one, is opened with the first item, or by `with` or `async with`
    over the wrapper, which also leaves the manager. An asynchronous manager needs `async with`, to be left in the task that entered it.

    Items may be text, bytes or lines of a body in a known format, and objects or dictionaries of the libraries of OpenAI, Anthropic, Google
    and Ollama. ``measure`` returns the UTF-8 bytes of content in any other item. ``transport``: ``websocket``, ``http/2``, … if the
    items are single reads of the network. ``vantage``: ``server`` in a server.

    ``start_ns``: ``time.monotonic_ns()`` from just before the request was sent. Without it the time to first token is known only of a
    source that certainly sends its request when it is opened: a coroutine, a manager that is a decorated generator, or one of the
    libraries of OpenAI and Anthropic.

    Raises ``TypeError`` for any other ``source``.
    """
    is_opened = is_open(source)
    kind = _kind(source)
    items = None if not is_opened else aiter(source) if kind is AsyncWrapped else iter(source)
    origin = Origin(model=model, provider=provider, transport=transport, vantage=vantage, engine_id=recording_settings().engine_id)
    origin.is_start_known = start_ns is not None or (not is_opened and is_unsent(source))
    start: Start | None = None
    if not is_recorded_already(source):
        start = partial(begin, origin, start_ns=start_ns, body=Items() if measure is None else None)
    is_of = (inspect.isgenerator(source) or inspect.isasyncgen(source)) and is_of_library(source)
    recording = ItemRecording(
        start,
        measure,
        is_lazy=vantage == "client" and (not is_opened or is_of),
        is_deferred=not is_opened and (is_manager(source) or inspect.iscoroutine(source)),
        is_of_library=is_of,
    )
    return kind(source, items, recording)


def _close(target: Any) -> None:
    close = getattr(target, "close", None)
    if close is not None:
        close()


def _kind(source: Any) -> type[Wrapped[Any] | AsyncWrapped[Any]]:
    """Return the wrapper for this source. Raises ``TypeError`` if there is none."""
    if is_open(source):
        return AsyncWrapped if isinstance(source, AsyncIterable) else Wrapped
    if inspect.isawaitable(source) or is_async_manager(source):
        return WrappedManager if hasattr(source, "__enter__") and not inspect.isawaitable(source) else AsyncWrapped
    if is_manager(source):
        return Wrapped
    raise TypeError(f"wrap() got {type(source).__name__}: expected an iterable, a coroutine or a context manager")
