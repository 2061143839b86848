"""Sources of `legato.wrap` that are not open yet: coroutines and context managers that send their request when they are opened.

A generator opens them with its first item, so the stream's clock starts just before the request. Closing the generator closes them.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Any

__all__ = ["is_unsent", "opened"]


def opened(source: Any) -> Iterable[Any] | AsyncIterable[Any] | None:
    """Return an iterable over what a coroutine or a manager opens; the source itself if it is iterable; ``None`` for anything else."""
    if _is_open(source):
        return source  # type: ignore[no-any-return]
    if inspect.isawaitable(source) or hasattr(source, "__aenter__"):
        return _opened_async(source)
    return _opened(source) if hasattr(source, "__enter__") else None


def is_unsent(source: Any) -> bool:
    """Whether the request is sent only when the source is opened. A task or a future may have sent it."""
    return not _is_open(source) and (not inspect.isawaitable(source) or inspect.iscoroutine(source))


def _is_open(source: Any) -> bool:
    """Whether this can be iterated over. A future is iterable, too: it is how `await` works."""
    return isinstance(source, AsyncIterable) or (isinstance(source, Iterable) and not inspect.isawaitable(source))


def _opened(manager: Any) -> Iterator[Any]:
    with manager as source:
        yield from source


async def _opened_async(source: Any) -> AsyncIterator[Any]:
    if inspect.isawaitable(source):
        source = await source
    if isinstance(source, AsyncIterable):
        async for item in source:
            yield item
        return
    async with source as entered:
        async for item in entered:
            yield item
