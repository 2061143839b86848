"""Handling of the SDK's own faults: counted, logged once for each place, never raised into the application.

Telemetry must not break the application that it records. Under pytest a fault is raised, so that tests detect it. The per-chunk code is
not guarded, because it contains nothing that can fail.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["ConfigurationError", "faults", "guard", "is_test", "warn_once", "wrong_call", "wrong_setting"]

_log = logging.getLogger("legato")
_seen: set[str] = set()
faults: dict[str, int] = {}
"""Number of faults so far, by place."""
# Re-entrant, because the handler of a signal or a collection of garbage may fail within a thread that counts.
_counting = threading.RLock()


def _forked() -> None:
    global _counting
    _counting = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class ConfigurationError(ValueError):
    """An invalid setting or a missing package. Raised only by configuration calls, never while recording."""


def is_test() -> bool:
    """Whether a test of pytest runs, in which faults are raised."""
    return "PYTEST_CURRENT_TEST" in os.environ


def wrong_call(call: str, found: str, expected: str) -> None:
    """Count a wrong argument of a call, and name the call once in the log. ``found`` is a type or a number, never a text."""
    _count(call)
    if _is_first(call):
        _log_safely(
            logging.WARNING,
            "legato: %s got %s, expected %s. Such values are recorded as unknown; further ones are counted, not logged.",
            call,
            found,
            expected,
        )


def wrong_setting(error: ConfigurationError, effect: str) -> None:
    """Count an invalid setting where nothing may be raised, and log it once with what it leads to."""
    _count("settings")
    warn_once(f"{error} {effect}", "%s. %s", error, effect)


def _count(place: str) -> None:
    with _counting:
        faults[place] = faults.get(place, 0) + 1


def _is_first(key: str) -> bool:
    """Whether this key was not asked for before, by this process or its parent at the fork."""
    with _counting:
        is_first = key not in _seen
        _seen.add(key)
    return is_first


def warn_once(key: str, message: str, *values: object) -> None:
    """Log a warning, unless one with this key was logged before by this process or its parent at the fork."""
    if _is_first(key):
        _log_safely(logging.WARNING, "legato: " + message, *values)


def _log_safely(level: int, message: str, *values: object, exc_info: bool = False) -> None:
    """Log a line. A log handler of the application may raise, which must end neither a thread of Legato nor what the application does."""
    try:
        _log.log(level, message, *values, exc_info=exc_info)
    except Exception as error:
        if _is_of_signal(error):
            raise


@contextmanager
def guard(place: str) -> Iterator[None]:
    """Run a block of the SDK's code; count, log and suppress its exceptions. Under pytest, and of a signal's handler, they are raised on.

    ``place`` names the block in the log and in ``faults``.
    """
    try:
        yield
    except Exception as error:
        if _is_of_signal(error):
            raise
        _count(place)
        if is_test():
            raise
        if _is_first(place):
            # The exception's message could quote streamed text, so the warning contains only the place and the type.
            _log_safely(
                logging.WARNING,
                "Legato failed in %s (%s). The application is not affected; further failures there are counted, not logged. "
                "Log level DEBUG shows the traceback.",
                place,
                type(error).__name__,
            )
            _log_safely(logging.DEBUG, "traceback of the failure in %s", place, exc_info=True)


def _is_of_signal(error: Exception) -> bool:
    """Whether the application's handler of a signal raised this, such as a time-out: it is for the code that the signal interrupted."""
    handlers = [getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()]
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False
