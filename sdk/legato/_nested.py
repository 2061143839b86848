"""Whether an iterator that an application wraps is one that an instrumentation records, or will record once it is started.

Libraries hand out objects that have the response, or generators over it. A generator of a library starts its request with the first item.
"""

from __future__ import annotations

from typing import Any

from legato._openai import ItemIterator

__all__ = ["is_of_library", "is_recorded_already"]

_LIBRARIES = ("ollama", "google.genai", "anthropic", "openai", "httpx", "httpx2", "litellm")


def is_recorded_already(source: Any) -> bool:
    """Whether this is the stream of a response that `_openai` or `_httpx` records."""
    if isinstance(getattr(source, "_iterator", None), ItemIterator):
        return True
    frame = _frame(source)
    owner = frame.f_locals.get("self") if frame is not None else None
    return any(hasattr(each, "_legato") for each in (source, owner, getattr(source, "response", None)))


def is_of_library(source: Any) -> bool:
    """Whether this is a generator of a library that sends requests, and not one of the application."""
    frame = _frame(source)
    module = str(frame.f_globals.get("__name__", "")) if frame is not None else ""
    return any(module == name or module.startswith(f"{name}.") for name in _LIBRARIES)


def _frame(source: Any) -> Any:
    return getattr(source, "gi_frame", None) or getattr(source, "ag_frame", None)
