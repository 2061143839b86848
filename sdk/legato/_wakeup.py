"""Signals that arrive just before the main thread waits in the kernel.

Python runs the handler of a signal in the main thread, between two instructions. A signal ends a wait that has begun; one that arrives
between the last instruction and the wait, or that another thread receives, does not. The handler would then run after the wait: never, in a
worker of a pool that waits for its next task, and `Pool.terminate` waits for that worker. So a thread here is woken by each signal
(`signal.set_wakeup_fd`) and sends it to the main thread again until the handler has begun. Nothing here handles a signal.
"""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import BuiltinFunctionType

__all__ = ["forget", "watch"]

_AGAIN_S = 0.1
# What the thread reads, and what Python writes the numbers of signals to.
_pipe: tuple[int, int] | None = None
# Bound here, because tests of applications replace `time.sleep`.
_sleep = time.sleep


def watch(number: int, has_begun: Callable[[], bool]) -> None:
    """Send each signal with this number that arrives to the main thread again, until ``has_begun`` returns true.

    To be called in the main thread. Nothing is done where an event loop of the application is woken by signals already, and where threads
    are greenlets.
    """
    global _pipe
    if _pipe is not None or not isinstance(_thread.start_new_thread, BuiltinFunctionType):
        return
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    before = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)
        os.close(reads)
        os.close(writes)
        return
    _pipe = reads, writes
    main = threading.main_thread().ident or 0
    threading.Thread(target=_repeat, args=(reads, number, main, has_begun), name="legato-signals", daemon=True).start()


def _repeat(reads: int, number: int, main: int, has_begun: Callable[[], bool]) -> None:
    handler = signal.getsignal(number)
    while numbers := os.read(reads, 4096):
        # A handler that the application has set since gets each signal once.
        while number in numbers and signal.getsignal(number) is handler:
            _sleep(_AGAIN_S)
            if has_begun():
                break
            signal.pthread_kill(main, number)


def forget() -> None:
    """Stop in a forked child, which would wake its parent's thread. To be called within the fork."""
    global _pipe
    if _pipe is None:
        return
    reads, writes = _pipe
    _pipe = None
    with suppress(ValueError):
        before = signal.set_wakeup_fd(-1)
        if before not in (-1, writes):
            signal.set_wakeup_fd(before)
    os.close(reads)
    os.close(writes)
