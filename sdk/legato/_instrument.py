"""`legato.instrument()`: installs the instrumentation of each library that is imported, and of the others when they are imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial

from legato import _httpx
from legato._aiohttp import instrument_aiohttp, uninstrument_aiohttp
from legato._errors import ConfigurationError, guard
from legato._httpx import PACKAGES, uninstrument_httpx
from legato._imports import AfterImport, is_imported, is_initializing, is_installed
from legato._openai import instrument_openai, uninstrument_openai
from legato._requests import instrument_requests, uninstrument_requests
from legato._state import settings

__all__ = ["instrument", "instrument_package", "uninstrument"]

_INSTALL: dict[str, Callable[[], None]] = {
    "openai": instrument_openai,
    "aiohttp": instrument_aiohttp,
    "requests": instrument_requests,
    **{name: partial(_httpx.instrument_package, name) for name in PACKAGES},
}
_stuck: set[str] = set()


def _forked() -> None:
    """Note the packages that another thread imported at the fork: their imports never end in the child, and must not be waited for."""
    _stuck.update(name for name in _INSTALL if is_initializing(name))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def instrument() -> tuple[str, ...]:
    """Record the streams of all libraries that Legato knows, from now on. Return the names of those that are installed.

    It imports none of them: a library that was not imported yet is recorded as soon as it is. Further calls have no effect.
    """
    if settings().disabled:
        return ()
    _later.install()
    for name in _INSTALL:
        if name not in _stuck and is_imported(name):
            instrument_package(name)
    return tuple(name for name in _INSTALL if is_installed(name))


def instrument_package(name: str) -> None:
    """Record the streams of one library, which was imported just now. Other names have no effect."""
    install = _INSTALL.get(name)
    if install is None:
        return
    with guard(f"instrument {name}"):
        try:
            install()
        except ConfigurationError:
            # An old release without the classes that are patched. It is based on another library, which is recorded.
            return


def uninstrument() -> None:
    """Undo ``instrument``, and every instrumentation that was installed by itself."""
    _later.remove()
    for undo in (uninstrument_openai, uninstrument_httpx, uninstrument_aiohttp, uninstrument_requests):
        undo()


def _noticed(name: str) -> None:
    """Instrument a package, unless ``uninstrument`` was called while it was imported."""
    if _later in sys.meta_path:
        instrument_package(name)


_later = AfterImport(_INSTALL, _noticed)
