"""Legato's background threads, and the pauses in their work, so that threads of the application run meanwhile.

Python runs one thread at a time, and an event loop that reads many streams waits for this turn at each read. When streams end together,
the work for them would delay the streams that go on. `breathe` is called between pieces of the work and sleeps after each quarter of
a millisecond, so that the work takes a tenth of the time at most; a third, once it has waited for long. Work that a flush waits for has
short pauses, but it has them: a thread that keeps its turn for 5 ms would do so at each read of an application. What is not parsed in time
costs no memory (`_unparsed`). Threads of the application never sleep here.

Under gevent and eventlet, threads are greenlets, and a forked child goes on with copies of its parent's. `check` ends such a copy, and
`_greenlets` ends one that waits.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from legato._clock import now_ns
from legato._errors import guard
from legato._exits import after_fork
from legato._greenlets import end_copies, note
from legato._signals import without_signals

__all__ = ["Background", "Copied", "Paced", "Starter", "breathe", "check", "hurry", "in_background", "waits_since"]

# Lengths of a slice in ns and of the pause after it in s: in general, of late work, and of work that a flush waits for.
_CALM, _LATE, _HURRIED = (250_000, 0.0025), (400_000, 0.001), (600_000, 0.0001)
_LATE_NS = 500_000_000

# Of each background thread: its process, when its next pause is due, and since when its work waits (monotonic ns).
_pace = threading.local()
# Bound here, because tests of applications replace `time.sleep`.
_sleep = time.sleep
_waiting: list[int] = []


class Copied(BaseException):
    """This is the copy that a forked child has of a background thread. The parent does the work."""


class Background(threading.Thread):
    """A thread that says when it is over. If a signal's handler raises within `is_alive`, Python takes a thread that runs for ended."""

    is_over = False


class Starter:
    """Starts a background thread once, also if the handler of a signal begins a stream within the start: that call returns at once."""

    def __init__(self) -> None:
        # Re-entrant, and with a flag: an interruption between both leaves nothing held.
        self._lock, self.is_starting = threading.RLock(), False

    def start(self, runs: Callable[[], bool], start: Callable[[], None]) -> None:
        """Call ``start``, unless the thread runs or is being started. Its exceptions are counted, and not raised.

        ``start`` also keeps the thread: a handler that raised between both would have a second one started. Signals that another thread
        of the application accepts are not held back: then a second thread may start.
        """
        with self._lock:
            if self.is_starting or runs():
                return
            self.is_starting = True
            try:
                with guard("start of a thread"):
                    without_signals(start)
            finally:
                self.is_starting = False


def in_background(name: str, work: Callable[[], None]) -> Background:
    """Run ``work`` in a new daemon thread, in which `breathe` sleeps. To be called by a `Starter`, so that it receives no signals."""
    process = os.getpid()

    def run() -> None:
        _pace.process, _pace.due_ns, _pace.since_ns = process, 0, now_ns()
        try:
            # A greenlet that a fork found before its first step begins in the child, too.
            check()
            note()
            work()
        except Copied:
            _rest()
        finally:
            thread.is_over = True

    thread = Background(target=run, name=name, daemon=True)
    thread.start()
    return thread


def check() -> None:
    """Raise ``Copied`` in a copy of a background thread. To be called after each wait."""
    if getattr(_pace, "process", None) not in (None, os.getpid()):
        raise Copied


def waits_since(time_ns: int) -> None:
    """Set since when (monotonic ns) the work that this thread begins has waited."""
    _pace.since_ns = time_ns


def breathe() -> None:
    """Sleep if this is a background thread that has worked for a slice since its last pause. Raise ``Copied`` in a copy of it."""
    now = now_ns()
    if now < getattr(_pace, "due_ns", sys.maxsize):
        return
    slice_ns, pause_s = _HURRIED if _waiting else _LATE if now - _pace.since_ns >= _LATE_NS else _CALM
    _sleep(pause_s)
    check()
    _pace.due_ns = now_ns() + slice_ns


@contextmanager
def hurry() -> Iterator[None]:
    """Shorten the pauses of all threads while the block, which waits for their work, runs."""
    _waiting.append(1)
    try:
        yield
    finally:
        # A child that was forked meanwhile has an empty list.
        if _waiting:
            _waiting.pop()


class Paced(list[Any]):
    """A list with pauses during each iteration, such as that of an exporter that encodes its items."""

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            breathe()
            yield each


def _rest() -> None:
    """Sleep for ever. A copy cannot end, because Python's `threading` has forgotten it: gevent would print that."""
    while True:
        # It may have noticed by itself that it is a copy.
        with suppress(Copied):
            _sleep(3600)


def _reset() -> None:
    """Begin anew in a forked child, and after gevent has replaced Python's threads."""
    global _pace, _sleep
    _waiting.clear()
    end_copies(Copied)
    if type(_pace) is not threading.local:
        _pace, _sleep = threading.local(), time.sleep


after_fork(_reset)
