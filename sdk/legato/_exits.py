"""Forks and ends of processes: what a child must reset, and how the last streams leave a process that ends.

A process that ends normally runs its exit handlers (`atexit`). Children of `multiprocessing` do not: they end by `os._exit` after their
finalizers, or by the SIGTERM that `Pool.terminate` and `Process.terminate` send. Children of a plain `os.fork`, such as Celery's, end by
`os._exit` alone. So a child that recorded a stream sends its unsent streams in each of these ways, within `PATIENCE_S`. A process that is
ended by another signal, or by SIGTERM outside of `multiprocessing`, runs nothing here: its own shutdown hook must call `legato.flush`.
"""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from legato._errors import guard
from legato._greenlets import is_loop
from legato._signals import mask, without_signals
from legato._wakeup import forget, watch

__all__ = ["PATIENCE_S", "after_fork", "before_end", "renew"]

PATIENCE_S = 5.0
"""Longest time for which the end of a process waits for its last streams to be exported."""
_real_exit = os._exit
_close: Callable[[float], None] | None = None
_ends_at: float | None = None
_is_ending = False
_is_fork = False
_is_terminated = False
_resets: list[Callable[[], None]] = []
_locks_of = _thread.allocate_lock
# The threads that fork and hold SIGTERM back. The same function before and after the fork, whatever gevent replaces meanwhile.
_forking: set[int] = set()
_get_ident = _thread.get_ident


def after_fork(reset: Callable[[], None]) -> None:
    """Call ``reset``, which makes locks and queues, in each child that is forked from now on, before its own code runs; and in `renew`."""
    _resets.append(reset)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=reset)


def renew() -> None:
    """Make locks and queues again if gevent has replaced Python's threads since. To be called only before the process's first stream.

    A worker of gunicorn does that after the fork, when `configure()` was called in the master. A lock or queue of before would stop
    all greenlets of the process while one waits.
    """
    global _locks_of
    if _thread.allocate_lock is not _locks_of:
        _locks_of = _thread.allocate_lock
        for reset in _resets:
            reset()


def before_end(close: Callable[[float], None]) -> None:
    """Call ``close`` with the seconds that it may take before this process ends. Only the first call in a process has an effect."""
    global _close
    if _close is not None:
        return
    _close = close
    # Exit handlers run last in, first out. This one is registered with the first stream, so it runs before the provider's shutdown.
    atexit.register(_end)
    if _is_fork:
        patched: Any = os
        patched._exit = _exit
    if _is_multiprocessing_child():
        from multiprocessing.util import Finalize

        Finalize(None, _end, exitpriority=1)
        _handle_termination()


def _is_multiprocessing_child() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _handle_termination() -> None:
    """Handle SIGTERM, which ends a pool's workers as soon as their results have arrived; a handler of the application stays."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, _terminated):
        # No handler where none can be watched: streams that are lost are better than a child that does not end.
        with guard("signals"):
            watch(signal.SIGTERM, _terminated, lambda: _is_terminated)
            signal.signal(signal.SIGTERM, _terminated)


def _ending() -> None:
    global _ends_at, _is_ending
    # A child may come here by several ways, of which all together must not take longer.
    _ends_at = _ends_at or time.monotonic() + PATIENCE_S
    _is_ending = True
    try:
        with guard("end of the process"):
            if _close is not None:
                _close(max(0.0, _ends_at - time.monotonic()))
    finally:
        _is_ending = False


def _end() -> None:
    """Send the streams. SIGTERM that arrived meanwhile then ends the process: what follows may wait for threads and children."""
    try:
        _ending()
    finally:
        if _is_terminated:
            _kill(signal.SIGTERM)


def _terminated(number: int, _: FrameType | None) -> None:
    """Send the streams and end. A handler of a signal runs between any two instructions of the main thread, which may hold a lock.

    So another thread sends the streams, and a signal that arrives while the process sends them anyway takes effect afterwards (`_end`).
    Where the main thread runs a loop of greenlets, a second signal ends the process at once.
    """
    global _is_terminated
    _is_terminated = True
    if _is_ending:
        return
    waits, is_left = not is_loop(), False
    done = _thread.allocate_lock()
    done.acquire()

    def end() -> None:
        try:
            _ending()
        finally:
            done.release()
            if not waits:
                os.kill(os.getpid(), number)

    try:
        with guard("end of the process"):
            if not waits:
                # Here, because only the main thread may do it; the loop runs in it, and must not wait.
                signal.signal(number, signal.SIG_DFL)
            # Not `threading.Thread`: the interrupted instruction may be one of that module, which has a lock, too.
            without_signals(_thread.start_new_thread, end, ())
            is_left = not waits
            if waits:
                done.acquire(timeout=PATIENCE_S)
    finally:
        if not is_left:
            _kill(number)


def _kill(number: int) -> None:
    # Outside of the main thread the handler stays, and ends the process in that one.
    with suppress(ValueError):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _exit(status: int) -> None:
    """Stands in for ``os._exit`` in forked children that recorded a stream."""
    try:
        _end()
    finally:
        _real_exit(status)


def _forks() -> None:
    """Hold SIGTERM back in this thread during the fork. Python discards what a child gets before its interpreter is ready.

    A pool's worker that is terminated at once would then stay. So the signal waits until the child ends by it, as without a handler.
    """
    if signal.getsignal(signal.SIGTERM) is _terminated and signal.SIGTERM not in mask(signal.SIG_BLOCK, ()):
        # Noted for longer than it is so: the application's handler of another signal may raise between any two of these lines.
        _forking.add(_get_ident())
        mask(signal.SIG_BLOCK, [signal.SIGTERM])


def _has_forked() -> None:
    """Let SIGTERM through again, in the parent as in the child."""
    if _get_ident() in _forking:
        try:
            mask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        finally:
            _forking.discard(_get_ident())


def _forked() -> None:
    """Begin as a process without streams, which SIGTERM ends at once."""
    global _close, _ends_at, _is_ending, _is_fork, _is_terminated
    _close, _ends_at, _is_ending, _is_fork, _is_terminated = None, None, False, True, False
    try:
        forget()
    finally:
        if signal.getsignal(signal.SIGTERM) is _terminated:
            # Only a second interpreter of the process may not set handlers.
            with suppress(ValueError):
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _has_forked()
        _forking.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_forks, after_in_parent=_has_forked, after_in_child=_forked)
    # Again: Python ignores what a handler of the application raises at the beginning of the first call, and does not repeat that call.
    os.register_at_fork(after_in_parent=_has_forked, after_in_child=_has_forked)
