"""The flush of the application's tracer provider, which has the streams of a process without `legato.configure()`."""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable

from opentelemetry import trace

from legato._errors import warn_once
from legato._exits import after_fork
from legato._signals import without_signals
from legato._tally import tally

__all__ = ["flush_application"]

# Held while the provider is flushed.
_flushing = _thread.allocate_lock()


def _forked() -> None:
    global _flushing
    _flushing = _thread.allocate_lock()


after_fork(_forked)


def flush_application(deadline: float) -> bool:
    """Flush the application's provider until this monotonic time, if it was given streams. Return False if that failed or was not done.

    OpenTelemetry's processors ignore the time-out, so a thread calls the provider. At the end of the program no thread can be started; a
    provider then has an exit handler, which exports everything.
    """
    force = getattr(trace.get_tracer_provider(), "force_flush", None)
    if force is None or not tally.counts()["handed_over"]:
        return True
    # Not `threading.Thread`: the handler of SIGTERM may have interrupted that module, which has a lock.
    done, results = _thread.allocate_lock(), [False]
    done.acquire()
    try:
        without_signals(_thread.start_new_thread, _force, (force, deadline, results, done))
    except RuntimeError:
        return False
    return done.acquire(timeout=_left(deadline)) and results[0]


def _force(force: Callable[[int], object], deadline: float, results: list[bool], done: _thread.LockType) -> None:
    """Call the provider, one thread at a time: a flush that hangs must not keep ever more threads."""
    lock = _flushing
    try:
        if lock.acquire(timeout=_left(deadline)):
            try:
                # Not every provider returns a value.
                results[0] = force(int(1000 * _left(deadline))) is not False
            finally:
                lock.release()
    except Exception as error:
        warn_once("flush", "the flush of the application's tracer provider failed: %s", type(error).__name__)
    finally:
        done.release()


def _left(deadline: float) -> float:
    """Return the seconds until then, as a lock takes them."""
    return min(max(0.0, deadline - time.monotonic()), _thread.TIMEOUT_MAX)
