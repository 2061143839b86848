"""`legato.wrap`: records any iterator of chunks, sync or async.

Each item is a chunk with the time at which the source yielded it. The time until the application requests the next item is its hold. An
iterator is above the network, so reads and TTFB are unknown (``transport`` = ``iterator``). The wrapper passes items on unchanged. It
ends the stream when the source is exhausted or raises, on ``close``, and when the wrapper is garbage-collected.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Any, TypeVar, overload

from legato._clock import now_ns
from legato._errors import guard
from legato._loop import LoopLag, watch_loop
from legato._recorder import Origin, StreamRecorder
from legato._socket import QUIET_NS
from legato._state import settings
from legato._stream import begin

__all__ = ["AsyncWrapped", "Wrapped", "size_of", "wrap"]

T = TypeVar("T")
Measure = Callable[[Any], int]


def size_of(item: Any) -> int:
    """Return the UTF-8 bytes of an item's content. Items may be text, bytes, or OpenAI chunks (objects or dictionaries); others are 0."""
    if isinstance(item, str):
        return len(item) if item.isascii() else len(item.encode("utf-8", "surrogatepass"))
    if isinstance(item, (bytes, bytearray)):
        return len(item)
    choices = item.get("choices") if isinstance(item, dict) else getattr(item, "choices", None)
    if choices:
        delta = _get(choices[0], "delta")
        return size_of(_get(delta, "content") or "") if delta is not None else 0
    delta = _get(item, "delta")
    return size_of(delta) if isinstance(delta, str) else 0


def _get(item: Any, name: str) -> Any:
    return item.get(name) if isinstance(item, dict) else getattr(item, name, None)


class _ItemRecording:
    """The recording that both wrappers share: chunks, holds and the end."""

    __slots__ = ("_handed_over_ns", "_measure", "recorder")

    def __init__(self, recorder: StreamRecorder, measure: Measure) -> None:
        self.recorder = recorder
        self._measure = measure
        self._handed_over_ns = 0

    def requested(self) -> None:
        """The application requests the next item, which ends the hold of the previous one."""
        if self._handed_over_ns:
            self.recorder.held(now_ns() - self._handed_over_ns)
            self._handed_over_ns = 0

    def received(self, item: T) -> T:
        """The source yielded an item. Record it and return it for the application."""
        size = 0
        with guard("measure of wrap()"):
            size = self._measure(item)
        self.recorder.record(size)
        self._handed_over_ns = now_ns()
        return item

    def raised(self, error: BaseException, exhausted: type[BaseException]) -> None:
        """The source raised: ``exhausted`` is its normal end, anything else an error."""
        if isinstance(error, exhausted):
            self.finish()
        else:
            self.finish(error=error)

    def finish(self, outcome: str = "complete", error: BaseException | None = None) -> None:
        """End the stream, and with it the hold of the last item."""
        self.requested()
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
        if self._loop is None:
            with guard("event-loop lag"):
                self._loop = watch_loop(self._recording.recorder)
        try:
            item = await self._source.__anext__()
        except BaseException as error:
            self._recording.raised(error, StopAsyncIteration)
            raise
        now = now_ns()
        if self._loop is not None and now - requested > QUIET_NS:
            self._recording.recorder.late(now, self._loop.lag_ns(requested, now))
        return self._recording.received(item)

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
def wrap(source: Iterable[T], *, model: str = "", provider: str = "", measure: Measure | None = None) -> Wrapped[T]: ...
@overload
def wrap(source: AsyncIterable[T], *, model: str = "", provider: str = "", measure: Measure | None = None) -> AsyncWrapped[T]: ...


def wrap(
    source: Iterable[T] | AsyncIterable[T], *, model: str = "", provider: str = "", measure: Measure | None = None
) -> Wrapped[T] | AsyncWrapped[T]:
    """Record an iterator of chunks, sync or async. Return a wrapper; iterate over that instead of the source.

    ``measure`` returns the UTF-8 bytes of content in an item; the default supports text, bytes and OpenAI's chunks. The stream starts
    with this call. Raises ``TypeError`` if ``source`` is not iterable.
    """
    if not isinstance(source, (Iterable, AsyncIterable)):
        raise TypeError(f"wrap() got {type(source).__name__}: expected an iterable or an asynchronous iterable")
    recorder = begin(Origin(model=model, provider=provider, engine_id=settings().engine_id))
    recording = _ItemRecording(recorder, measure or size_of)
    if isinstance(source, AsyncIterable):
        return AsyncWrapped(source, recording)
    return Wrapped(source, recording)
