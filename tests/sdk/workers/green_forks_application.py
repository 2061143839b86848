"""An application with greenlets that forks in every way while its streams are exported: `green_forks_application.py gevent|eventlet OTLP`.

The endpoint replies late, so each fork but the first falls into an export of the parent. Each process has its own model names. It prints
what became of the parent's streams, and which of its other greenlets ran in a child that ended at once.
"""

from __future__ import annotations

import sys

if sys.argv[1] == "gevent":
    from gevent import get_hub, monkey, spawn

    monkey.patch_all()
    # gevent does it after the first fork, too late for a child that has ended by then: os.waitpid would wait for ever (gevent 26.9.0).
    get_hub().loop.install_sigchld()
else:
    import eventlet

    eventlet.monkey_patch()
    spawn = eventlet.spawn

import multiprocessing
import os
import threading
import time
from multiprocessing.connection import Connection

import legato

legato.configure(sys.argv[2], service_name="workers")
_forking = multiprocessing.get_context("fork")
_parent = os.getpid()
_ends_at_once = False
EXPORT_S = 1.0


def record(model: str) -> None:
    """Record a stream that is ended twice, as most are: by its last read, and when it is closed."""
    with legato.stream(model=model) as recorder:
        recorder.record(1)
        recorder.end()


def others() -> None:
    """What the application does besides. In a child that only ends, it must not run."""
    while os.getpid() == _parent:
        time.sleep(0.001)
    if _ends_at_once:
        os.write(1, b"another greenlet ran\n")


def at_once() -> int:
    """Fork a child that ends at once."""
    global _ends_at_once
    _ends_at_once = True
    child = os.fork()
    if not child:
        os._exit(0)
    _ends_at_once = False
    return child


def idle() -> int:
    """Fork a child that lives longer than the parent's export, and ends without a stream."""
    child = os.fork()
    if not child:
        time.sleep(2 * EXPORT_S)
        os._exit(0)
    return child


def recording(number: int) -> int:
    """Fork a child that records a stream."""
    child = os.fork()
    if not child:
        record(f"child-{number}")
        os._exit(0)
    return child


def stay(started: Connection) -> None:
    """Begin a stream and wait to be terminated."""
    with legato.stream(model="terminated-0") as recorder:
        recorder.record(1)
        started.send("open")
        time.sleep(60)


def processes() -> None:
    """Children of `multiprocessing`, of which one is terminated with an open stream."""
    ready, started = _forking.Pipe(duplex=False)
    children = [_forking.Process(target=record, args=("process-0",)), _forking.Process(target=stay, args=(started,))]
    for child in children:
        child.start()
    ready.recv()
    children[1].terminate()
    for child in children:
        child.join()


def main() -> None:
    """Fork in every way, once before an export and once within each."""
    record("parent-0")
    time.sleep(EXPORT_S / 2)
    spawn(others)
    time.sleep(0.01)
    os.waitpid(at_once(), 0)
    children = [idle(), recording(0)]
    for number in (1, 2):
        record(f"parent-{number}")
        flushing = threading.Thread(target=legato.flush, args=(30,))
        flushing.start()
        time.sleep(EXPORT_S / 2)
        children += [idle(), recording(number)]
        flushing.join()
    processes()
    for child in children:
        os.waitpid(child, 0)
    flushed, counters = legato.flush(30), legato.stats()
    print(flushed, counters["started"], counters["exported"], flush=True)


if __name__ == "__main__":
    main()
