"""Signals are the application's: Legato's threads receive none.

The kernel gives a signal to any thread that does not block it. A thread that blocks none would get the signals that the application blocks
in its threads to wait for them (`signal.sigwait`) or to put them off, and the process would end by them.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import signal
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any, TypeVar

__all__ = ["has_system_threads", "mask", "without_signals"]

_Returned = TypeVar("_Returned")
mask: Any = getattr(_signal, "pthread_sigmask", None)
"""``signal.pthread_sigmask`` without Python code around it, in which the handler of a signal could raise before anything was done."""
# A fault of the thread itself, which the kernel does not put off.
_FAULTS = frozenset(("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP"))
_BLOCKED = frozenset(signal.valid_signals()) - {getattr(signal, name, None) for name in _FAULTS}


def has_system_threads() -> bool:
    """Whether new threads are those of the system, not greenlets."""
    return isinstance(_thread.start_new_thread, BuiltinFunctionType)


def without_signals(start: Callable[..., _Returned], *given: Any) -> _Returned:
    """Call ``start``, which starts a thread that receives no signals: a new thread has the mask of the one that starts it."""
    if mask is None or not has_system_threads():
        return start(*given)
    before = mask(signal.SIG_BLOCK, ())
    try:
        mask(signal.SIG_BLOCK, _BLOCKED)
        return start(*given)
    finally:
        mask(signal.SIG_SETMASK, before)
