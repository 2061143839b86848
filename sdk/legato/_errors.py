"""Legato's own faults: logged once for each place, never raised into the application.

One idea: telemetry must not break what it watches. Under pytest a fault is raised instead, or nobody would ever see it in tests. The hot
path is not guarded: it holds nothing that can fail.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["ConfigurationError", "faults", "guard"]

_log = logging.getLogger("legato")
_seen: set[str] = set()
faults: dict[str, int] = {}


class ConfigurationError(ValueError):
    """A setting that cannot be used, or a package that is missing. Raised only while configuring, never while recording."""


@contextmanager
def guard(place: str) -> Iterator[None]:
    """Run a block of Legato's own: its exceptions end here (under pytest they go on)."""
    try:
        yield
    except Exception as error:
        faults[place] = faults.get(place, 0) + 1
        if "PYTEST_CURRENT_TEST" in os.environ:
            raise
        if place not in _seen:
            _seen.add(place)
            # The message might quote what was streamed, so only the place and the type are logged.
            _log.warning("Legato failed in %s (%s); the application is not affected, and this is said once", place, type(error).__name__)
            _log.debug("the fault in %s", place, exc_info=True)
