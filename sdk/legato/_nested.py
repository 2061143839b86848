"""Whether an iterator that an application wraps is one that an instrumentation records, or will record once it is started.

Libraries hand out objects that have the response, or generators over it. A generator of a library starts its request with the first item.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType
from typing import Any

from legato._openai import ItemIterator
from legato._reads import AsyncReads, Reads
from legato._recorder import StreamRecorder

__all__ = ["is_of_library", "is_recorded_already"]

_LIBRARIES = ("ollama", "google.genai", "anthropic", "openai", "httpx", "httpx2", "litellm")
_FIELDS = ("response", "_response", "http_response", "_raw_stream", "completion_stream")
_DEPTH = 3


def is_recorded_already(source: Any) -> bool:
    """Whether this is the stream of a response that `_openai` or `_httpx` records."""
    frame = _frame(source)
    owner = frame.f_locals.get("self") if frame is not None else None
    return any(_is_marked(each) for each in (*_within(source, _DEPTH), *_within(owner, _DEPTH)))


def _within(value: Any, depth: int) -> Iterator[Any]:
    """Yield an object and what it has in the fields in which libraries keep a response or a stream."""
    if value is None:
        return
    yield value
    if depth:
        for name in _FIELDS:
            yield from _within(_attribute(value, name), depth - 1)


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
    """Whether this is a generator of a library that sends requests, and not one of the application."""
    frame = _frame(source)
    module = str(frame.f_globals.get("__name__", "")) if frame is not None else ""
    return any(module == name or module.startswith(f"{name}.") for name in _LIBRARIES)


def _frame(source: Any) -> Any:
    found = _attribute(source, "gi_frame") or _attribute(source, "ag_frame")
    return found if isinstance(found, FrameType) else None
