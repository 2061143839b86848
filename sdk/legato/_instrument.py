"""`legato.instrument()`: installs every instrumentation that the process can use."""

from __future__ import annotations

import importlib.util
import sys

from legato._httpx import PACKAGES, instrument_httpx, uninstrument_httpx
from legato._openai import instrument_openai, uninstrument_openai
from legato._state import settings

__all__ = ["instrument", "uninstrument"]


def instrument() -> tuple[str, ...]:
    """Record the streams of all libraries that Legato knows, from now on. Return the names of the instrumented packages.

    `openai` is instrumented itself if it was imported before, because importing it takes a second; otherwise its streams are recorded
    through httpx, without the time that the application holds each item. Further calls have no effect on what is instrumented.
    """
    if settings().disabled:
        return ()
    found: list[str] = []
    if "openai" in sys.modules:
        instrument_openai()
        found.append("openai")
    installed = [name for name in PACKAGES if importlib.util.find_spec(name)]
    if installed:
        instrument_httpx()
    return (*found, *installed)


def uninstrument() -> None:
    """Undo ``instrument``, and every instrumentation that was installed by itself."""
    uninstrument_openai()
    uninstrument_httpx()
