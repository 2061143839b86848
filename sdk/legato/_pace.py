"""Pauses of Legato's background threads, so that threads of the application run meanwhile.

Python runs one thread at a time, and an event loop that reads many streams waits for this turn at each read. When streams end together,
the work for them would delay the streams that go on. `breathe` is called between pieces of the work and sleeps after each quarter of
a millisecond, so that the work takes a tenth of the time at most. During a flush, and behind a long queue, the pauses are short. The
work itself is not limited. Threads that did not call `be_background` never sleep: they are the application's.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from legato._clock import now_ns
from legato._exits import after_fork

__all__ = ["Copied", "Paced", "be_background", "breathe", "hurry", "set_behind"]

_SLICE_NS, _PAUSE_S = 250_000, 0.0025
_HURRIED_SLICE_NS, _HURRIED_PAUSE_S = 1_000_000, 0.0001


class _Pace(threading.local):
    """Of each thread: when its next pause is due (monotonic ns), and whether its work piles up."""

    due_ns = sys.maxsize
    is_behind = False


class Copied(BaseException):
    """Under gevent and eventlet, a fork during a pause: this is the child's copy of a thread, and the parent does the work."""


_pace = _Pace()
_waiting: list[int] = []


def be_background() -> None:
    """Let this thread sleep in `breathe`."""
    _pace.due_ns = 0


def breathe() -> None:
    """Sleep if this thread is a background thread and has worked for a slice since its last pause. Raise ``Copied`` in a copy of it."""
    if now_ns() < _pace.due_ns:
        return
    is_hurried, process = _waiting or _pace.is_behind, os.getpid()
    time.sleep(_HURRIED_PAUSE_S if is_hurried else _PAUSE_S)
    if os.getpid() != process:
        raise Copied
    _pace.due_ns = now_ns() + (_HURRIED_SLICE_NS if is_hurried else _SLICE_NS)


def set_behind(is_behind: bool) -> None:
    """Set whether the work of this thread piles up."""
    _pace.is_behind = is_behind


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


after_fork(_waiting.clear)
