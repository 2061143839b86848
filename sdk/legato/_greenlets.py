"""Legato's background threads where they are greenlets: a forked child of gevent or eventlet goes on with copies of them.

A copy that waits for the reply to an export would take it from the connection that it shares with its parent, or shut that connection
down. The parent would wait in vain and send the streams again. So at the fork each copy gets another socket, and is noted to be ended as
soon as the child's loop runs. Nothing here switches or waits, and threads of the system, which a child does not have, are not concerned.
"""

from __future__ import annotations

import _socket
import os
import socket
import sys
from contextlib import suppress
from typing import Any

__all__ = ["end_copies", "is_loop", "note"]

_greenlets: list[Any] = []


def _current() -> Any:
    module = sys.modules.get("greenlet")
    return module.getcurrent() if module is not None else None


def is_loop() -> bool:
    """Whether this runs in the loop of gevent or eventlet, which must not wait: as a handler of a signal while all greenlets wait."""
    current, hubs = _current(), sys.modules.get("eventlet.hubs")
    if current is None or current.parent is None:
        return False
    return hasattr(current, "loop") or (hubs is not None and hubs.get_hub().greenlet is current)


def note() -> None:
    """Remember the greenlet that runs, if it is one."""
    found = _current()
    # A thread of the system has a greenlet without a parent.
    if found is not None and found.parent is not None:
        _greenlets.append(found)


def end_copies(reason: type[BaseException]) -> None:
    """Raise ``reason`` in the copies before anything else runs in them. To be called in a forked child, within the fork."""
    copies, _greenlets[:] = list(_greenlets), []
    for each in copies:
        with suppress(Exception):
            _disconnect(each)
            _schedule(each, reason)


def _disconnect(copy: Any) -> None:
    """Replace the socket that the copy waits for, also in the frames of libraries: the descriptor stays, and has no other end."""
    frame = copy.gr_frame
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, socket.socket) and found.fileno() >= 0:
            ours, other = _socket.socketpair()
            os.dup2(ours.fileno(), found.fileno(), inheritable=False)
            ours.close()
            other.close()
        frame = frame.f_back


def _schedule(copy: Any, reason: type[BaseException]) -> None:
    loop = getattr(copy.parent, "loop", None)
    if loop is not None:
        loop.run_callback(_end, copy, reason)
    elif "eventlet.hubs" in sys.modules:
        sys.modules["eventlet.hubs"].get_hub().schedule_call_global(0, _end, copy, reason)


def _end(copy: Any, reason: type[BaseException]) -> None:
    # The greenlets of another thread of the system are not in the child.
    with suppress(sys.modules["greenlet"].error):
        copy.throw(reason)
