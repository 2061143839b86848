"""`legato.instrument()`: installs every instrumentation that the process can use."""

from __future__ import annotations

import importlib.util
import sys

from legato._aiohttp import instrument_aiohttp, uninstrument_aiohttp
from legato._httpx import PACKAGES, instrument_httpx, uninstrument_httpx
from legato._openai import instrument_openai, uninstrument_openai
from legato._requests import instrument_requests, uninstrument_requests
from legato._state import settings

__all__ = ["instrument", "uninstrument"]


def instrument() -> tuple[str, ...]:
    """Record the streams of all libraries that Legato knows, from now on. Return the names of the instrumented packages.

    httpx and httpx2 are instrumented if they are installed. The others are if they were imported before. Streams of `openai` without it
    are recorded through httpx, without the time that the application holds each item. Call it again after later imports.
    """
    if settings().disabled:
        return ()
    found: list[str] = []
    for name, install in (("openai", instrument_openai), ("aiohttp", instrument_aiohttp), ("requests", instrument_requests)):
        if name in sys.modules:
            install()
            found.append(name)
    installed = [name for name in PACKAGES if importlib.util.find_spec(name)]
    if installed:
        instrument_httpx()
    return (*found, *installed)


def uninstrument() -> None:
    """Undo ``instrument``, and every instrumentation that was installed by itself."""
    for undo in (uninstrument_openai, uninstrument_httpx, uninstrument_aiohttp, uninstrument_requests):
        undo()
