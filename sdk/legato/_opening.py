"""Sources of `legato.wrap` that are not open yet: coroutines, tasks, context managers. What they are, how they are opened and closed.

A manager that the application does not enter itself, by `with legato.wrap(manager)`, is entered by a generator with its first item. The
generator leaves it at its end, also if the application drops it; an asynchronous one then leaves it in another task.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Any

__all__ = ["close_opened", "entered", "entered_async", "is_async_manager", "is_manager", "is_open", "is_unsent"]

Look = Callable[[Any], None]
# Their managers send the request when they are entered.
_LIBRARIES = ("openai.", "anthropic.")


def is_open(source: Any) -> bool:
    """Whether this can be iterated over. A future is iterable, too: it is how `await` works."""
    return isinstance(source, AsyncIterable) or (isinstance(source, Iterable) and not inspect.isawaitable(source))


def is_async_manager(source: Any) -> bool:
    """Whether `async with` opens this."""
    return hasattr(source, "__aenter__")


def is_manager(source: Any) -> bool:
    """Whether `with` or `async with` opens this."""
    return hasattr(source, "__enter__") or is_async_manager(source)


def is_unsent(source: Any) -> bool:
    """Whether the request is certainly sent only when this is opened.

    A task may have sent it. A manager may only close what was sent before, as `contextlib.closing` does; one made of a generator has not
    run any of its lines yet.
    """
    if inspect.iscoroutine(source):
        return True
    generator, kind = getattr(source, "gen", None), type(source)
    if inspect.isgenerator(generator) or inspect.isasyncgen(generator):
        return is_manager(source)
    return is_manager(source) and kind.__module__.startswith(_LIBRARIES) and kind.__name__.endswith("Manager")


def entered(manager: Any, look: Look) -> Iterator[Any]:
    """Enter the manager with the first item, pass what it yields to ``look``, and yield the items of that."""
    with manager as source:
        look(source)
        yield from source


async def entered_async(manager: Any, look: Look) -> AsyncIterator[Any]:
    """Do the same with an asynchronous manager."""
    async with manager as source:
        look(source)
        async for item in source:
            yield item


async def close_opened(opened: Any, items: Any) -> None:
    """Close what a coroutine returned, as its class allows: ``aclose``, ``close`` or ``__aexit__``; else its iterator."""
    for target in (opened, items):
        for name in ("aclose", "close"):
            close = getattr(target, name, None)
            if close is not None:
                closing = close()
                if inspect.isawaitable(closing):
                    await closing
                return
        leave = getattr(target, "__aexit__", None)
        if leave is not None:
            await leave(None, None, None)
            return
