"""Whether an iterator that an application wraps is one that an instrumentation records, or will record once it is started.

Libraries hand out objects that have the response, or generators over it. A generator of a library starts its request with the first item.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from legato._openai import ItemIterator
from legato._reads import AsyncReads, Reads
from legato._recorder import StreamRecorder

__all__ = ["is_of_library", "is_recorded_already"]

_LIBRARIES = ("ollama", "google.genai", "anthropic", "openai", "httpx", "httpx2", "litellm")
_CLIENTS = (*_LIBRARIES, "aiohttp", "requests")
_FIELDS = ("response", "_response", "http_response", "_raw_stream", "completion_stream", "response_stream", "streaming_response")
_DEPTH = 4


def is_recorded_already(source: Any, *, is_opened: bool = False) -> bool:
    """Whether this is the stream of a response that an instrumentation records.

    ``is_opened``: a coroutine or a manager of the application has just opened it. A generator among its local variables, or with the
    stream among its own, is then the same stream; the loop of an application that was given as it is may do more.
    """
    return any(_is_marked(each) for each in _within(source, _DEPTH, is_opened, {}))


def _within(value: Any, depth: int, is_opened: bool, seen: dict[int, Any]) -> Iterator[Any]:
    """Yield an object and what it has: in the fields in which libraries keep a response or a stream, and in a generator's variables."""
    if value is None or id(value) in seen:
        return
    seen[id(value)] = value
    yield value
    if depth:
        for each in (*(_attribute(value, name) for name in _FIELDS), *_variables(value, is_opened)):
            yield from _within(each, depth - 1, is_opened, seen)


def _variables(value: Any, is_opened: bool) -> Iterable[Any]:
    """Return the variables of a generator: all of a library's, and of the application's its object, unless it opened the source."""
    frame = _frame(value)
    if frame is None:
        return ()
    found = frame.f_locals
    if _is_in(_CLIENTS, frame.f_globals.get("__name__")):
        return list(found.values())
    # An application's other objects may run anything when an attribute is asked for.
    parts = [each for each in found.values() if _frame(each) is not None or _is_in(_CLIENTS, type(each).__module__)] if is_opened else []
    return (found.get("self"), *parts)


def _is_marked(value: Any) -> bool:
    if isinstance(value, (Reads, AsyncReads)) or isinstance(_attribute(value, "_iterator"), ItemIterator):
        return True
    extensions = _attribute(value, "extensions")
    marked = extensions.get("legato") if isinstance(extensions, dict) else _attribute(value, "_legato")
    return isinstance(marked, StreamRecorder)


def _attribute(value: Any, name: str) -> Any:
    try:
        return getattr(value, name, None)
    except Exception:
        # A property of an application's object may raise anything.
        return None


def is_of_library(source: Any) -> bool:
    """Whether this is a generator or an object of a library that sends requests, and not one of the application."""
    frame = _frame(source)
    return _is_in(_LIBRARIES, frame.f_globals.get("__name__") if frame is not None else type(source).__module__)


def _is_in(packages: tuple[str, ...], module: object) -> bool:
    return any(module == name or str(module).startswith(f"{name}.") for name in packages)


def _frame(source: Any) -> Any:
    found = _attribute(source, "gi_frame") or _attribute(source, "ag_frame")
    return found if isinstance(found, FrameType) else None
