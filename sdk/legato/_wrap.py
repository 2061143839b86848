"""`legato.wrap`: records any iterator of chunks, sync or async.

One idea: an item is a chunk, stamped when it came; the time until the next is asked for is its hold. Watched here, above the network,
reads and TTFB are unknown, and the span says so (``transport`` = ``iterator``). The wrapper passes items on unchanged and ends the stream
on every way out: the end, an exception, ``close``, or being dropped.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Any, TypeVar, overload

from legato._clock import now_ns
from legato._errors import guard
from legato._recorder import Origin, StreamRecorder
from legato._state import settings
from legato._stream import begin

__all__ = ["AsyncWrapped", "Wrapped", "size_of", "wrap"]

T = TypeVar("T")
Measure = Callable[[Any], int]


def size_of(item: Any) -> int:
    """UTF-8 bytes of an item's content: of text, of bytes, of OpenAI's chunk objects and their dictionaries; else 0."""
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


class _Watch:
    """What both wrappers share: stamps, holds, and the one end."""

    __slots__ = ("_given_ns", "_measure", "recorder")

    def __init__(self, recorder: StreamRecorder, measure: Measure) -> None:
        self.recorder = recorder
        self._measure = measure
        self._given_ns = 0

    def asked(self) -> None:
        if self._given_ns:
            self.recorder.held(now_ns() - self._given_ns)
            self._given_ns = 0

    def came(self, item: Any) -> None:
        size = 0
        with guard("measure of wrap()"):
            size = self._measure(item)
        self.recorder.record(size)
        self._given_ns = now_ns()

    def over(self, outcome: str = "complete", error: BaseException | None = None) -> None:
        self.asked()
        self.recorder.end(outcome, error)


class Wrapped(Iterator[T]):
    """A recorded iterator."""

    def __init__(self, source: Iterable[T], watch: _Watch) -> None:
        self._source = iter(source)
        self._watch = watch

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        self._watch.asked()
        try:
            item = next(self._source)
        except StopIteration:
            self._watch.over()
            raise
        except BaseException as error:
            self._watch.over(error=error)
            raise
        self._watch.came(item)
        return item

    def close(self) -> None:
        """Stop reading: the stream is cancelled, and the source closed where it can be."""
        self._watch.over("client_cancel")
        close = getattr(self._source, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Wrapped[T]:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._watch.over("client_cancel")


class AsyncWrapped(AsyncIterator[T]):
    """A recorded asynchronous iterator."""

    def __init__(self, source: AsyncIterable[T], watch: _Watch) -> None:
        self._source = source.__aiter__()
        self._watch = watch

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        self._watch.asked()
        try:
            item = await self._source.__anext__()
        except StopAsyncIteration:
            self._watch.over()
            raise
        except BaseException as error:
            self._watch.over(error=error)
            raise
        self._watch.came(item)
        return item

    async def aclose(self) -> None:
        """Stop reading: the stream is cancelled, and the source closed where it can be."""
        self._watch.over("client_cancel")
        close = getattr(self._source, "aclose", None)
        if close is not None:
            await close()

    async def __aenter__(self) -> AsyncWrapped[T]:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._watch.over("client_cancel")


@overload
def wrap(source: Iterable[T], *, model: str = "", provider: str = "", measure: Measure | None = None) -> Wrapped[T]: ...
@overload
def wrap(source: AsyncIterable[T], *, model: str = "", provider: str = "", measure: Measure | None = None) -> AsyncWrapped[T]: ...


def wrap(
    source: Iterable[T] | AsyncIterable[T], *, model: str = "", provider: str = "", measure: Measure | None = None
) -> Wrapped[T] | AsyncWrapped[T]:
    """Record an iterator of chunks, sync or async; iterate over the result instead.

    ``measure`` gives the UTF-8 bytes of content in an item; the default knows text, bytes, and OpenAI's chunks. The stream's start is
    this call. Raises ``TypeError`` for what cannot be iterated.
    """
    if not isinstance(source, (Iterable, AsyncIterable)):
        raise TypeError(f"wrap() takes an iterable or an asynchronous one, not {type(source).__name__}")
    recorder = begin(Origin(model=model, provider=provider, engine_id=settings().engine_id))
    watch = _Watch(recorder, measure or size_of)
    if isinstance(source, AsyncIterable):
        return AsyncWrapped(source, watch)
    return Wrapped(source, watch)
