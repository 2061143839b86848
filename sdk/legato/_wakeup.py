"""Signals that arrive just before the main thread waits in the kernel.

Python runs the handler of a signal in the main thread, between two instructions. A signal ends a wait that has begun; one that arrives
between the last instruction and the wait, or that another thread receives, does not. The handler would then run after the wait: never, in a
worker of a pool that waits for its next task, and `Pool.terminate` waits for that worker. So a thread here is woken by each signal
(`signal.set_wakeup_fd`) and sends it to the main thread again until the handler has begun. Nothing here handles a signal.

An application may close all descriptors, as daemons do, and their numbers then are those of its files. So Legato's have high numbers, which
the kernel gives to a new file only when it has no lower one, and are looked at before each use.

A process has one wake-up descriptor, and event loops need it. So the application sees none of Legato's, and may set its own, which is as
good: it wakes the main thread. Legato's returns when the application has removed that one.
"""

from __future__ import annotations

import _socket
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from legato._signals import has_system_threads, without_signals

if sys.platform != "win32":
    import fcntl
    import resource

__all__ = ["forget", "watch"]

_AGAIN_S = 0.1
# The kernel adds the process, user and group that wrote: a forked child has the descriptor until `forget`, or until it runs a program.
_SENDER = struct.Struct("3i")
# The end that the thread reads, and the descriptor of the other one, which Python writes the numbers of signals to.
_pair: tuple[_socket.socket, int] | None = None
# Bound here, because tests of applications replace `time.sleep`.
_sleep = time.sleep
_HIGH = 768
# Device and inode of both ends: whether the numbers are still those of these sockets.
_identities: tuple[object, object] = None, None
# What the application chose with its last descriptor.
_warns = False
_real: Any = getattr(signal, "set_wakeup_fd", None)


def watch(number: int, handler: Callable[..., None], has_begun: Callable[[], bool]) -> None:
    """Send each signal with this number that arrives to the main thread again, until ``has_begun`` returns true.

    To be called in the main thread, before ``handler`` is set; a handler that the application sets later gets each signal once. Nothing is
    done where threads are greenlets, or where signals cannot be sent to threads (Windows). Raises ``OSError`` at too many open files,
    ``RuntimeError`` at too many threads; then nothing was changed.
    """
    global _identities, _pair
    if _pair is not None or not has_system_threads() or not hasattr(signal, "pthread_kill"):
        return
    # Datagrams, because each has a sender.
    reads, writes = (_moved(end) for end in _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_DGRAM))
    if sys.platform == "linux":
        reads.setsockopt(_socket.SOL_SOCKET, _socket.SO_PASSCRED, 1)
    writes.setblocking(False)
    _identities = _identity(reads.fileno()), _identity(writes.fileno())
    main = threading.main_thread().ident or 0
    thread = threading.Thread(target=_repeat, args=(reads, number, handler, main, has_begun), name="legato-signals", daemon=True)
    without_signals(thread.start)
    # The number alone: Python may still write to it when the modules' objects are gone.
    _pair = reads, writes.detach()
    before = _real(_pair[1], warn_on_full_buffer=False)
    if before != -1:
        _real(before, warn_on_full_buffer=False)
    patched: Any = signal
    patched.set_wakeup_fd = _set_wakeup_fd


def _moved(end: _socket.socket) -> _socket.socket:
    """Return this end with a high number. Raises ``OSError`` at too many open files."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    least = _HIGH if limit == resource.RLIM_INFINITY else min(_HIGH, limit * 3 // 4)
    number = fcntl.fcntl(end.fileno(), fcntl.F_DUPFD_CLOEXEC, least)
    end.close()
    return _socket.socket(end.family, end.type, end.proto, number)


def _identity(fd: int) -> object:
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _set_wakeup_fd(fd: int, /, *, warn_on_full_buffer: bool = True) -> int:
    """Stands in for ``signal.set_wakeup_fd``: returns -1 where the descriptor of before is Legato's, and sets that one for -1."""
    global _warns
    if _pair is None:
        return int(_real(fd, warn_on_full_buffer=warn_on_full_buffer))
    ours = _pair[1]
    if fd == -1:
        before = int(_real(ours if _identity(ours) == _identities[1] else -1, warn_on_full_buffer=False))
    else:
        before = int(_real(fd, warn_on_full_buffer=warn_on_full_buffer))
        _warns = warn_on_full_buffer
    return -1 if before == ours else before


def _receive(reads: _socket.socket) -> int:
    """Wait for a signal; return its number, or 0 if it arrived in another process, which must not end this one."""
    if sys.platform != "linux":
        return reads.recv(1)[0]
    numbers, added, _, _ = reads.recvmsg(1, _socket.CMSG_SPACE(_SENDER.size))
    return numbers[0] if added and _SENDER.unpack(added[0][2])[0] == os.getpid() else 0


def _repeat(reads: _socket.socket, number: int, handler: Callable[..., None], main: int, has_begun: Callable[[], bool]) -> None:
    # The application may close the descriptor.
    with suppress(OSError):
        while _identity(reads.fileno()) == _identities[0]:
            received = _receive(reads)
            while received == number and signal.getsignal(number) is handler:
                _sleep(_AGAIN_S)
                if has_begun():
                    break
                signal.pthread_kill(main, number)


def forget() -> None:
    """Stop in a forked child, which would wake its parent's thread. To be called within the fork."""
    global _pair
    if _pair is None:
        return
    reads, writes = _pair
    _pair = None
    patched: Any = signal
    if signal.set_wakeup_fd is _set_wakeup_fd:
        patched.set_wakeup_fd = _real
    # The application may have closed its descriptor, and this may be a second interpreter of the process.
    with suppress(OSError, ValueError):
        before = _real(-1)
        if before not in (-1, writes):
            _real(before, warn_on_full_buffer=_warns)
    if _identity(writes) == _identities[1]:
        os.close(writes)
    if _identity(reads.fileno()) == _identities[0]:
        reads.close()
    reads.detach()
