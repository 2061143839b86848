"""SIGTERM in workers of `multiprocessing` that recorded a stream: what their children and their event loops notice of its handling."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the signals are Linux's")
ENVIRON = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def run(application: str, *arguments: str) -> tuple[list[str], str]:
    """Run an application to its end; return the words that it printed, and what it logged."""
    command = [sys.executable, "-c", application, *arguments]
    done = subprocess.run(command, env=ENVIRON, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.split(), done.stderr


FORK = """
import multiprocessing, os, select, signal, sys
early = lambda: None
# Registered before Legato's, so it runs in the child before Legato's.
os.register_at_fork(after_in_child=lambda: early())
from legato import _exits, _wakeup
_wakeup._repeat = lambda *_: None
is_blocked = lambda: signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
def work():
    global early
    _exits.before_end(lambda seconds: None)
    early = lambda: (os.kill(os.getpid(), signal.SIGTERM), print(is_blocked(), flush=True))
    child = os.fork()
    if not child:
        os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    early = lambda: None
    child = os.fork()
    if not child:
        print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, is_blocked(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print(signal.getsignal(signal.SIGTERM) is _exits._terminated, is_blocked(), flush=True)
    print(bool(select.select([_wakeup._pair[0]], [], [], 0)[0]), flush=True)
child = multiprocessing.get_context("fork").Process(target=work)
child.start(); child.join(); print(child.exitcode)
"""


def test_a_child_that_is_terminated_within_its_fork_ends_and_its_parent_does_not() -> None:
    """The signal waits until the child has no handler, so Python cannot discard it, and wakes no thread of the parent."""
    printed, logged = run(FORK)
    in_the_fork, child, parent = ["True", str(-signal.SIGTERM)], ["True", "False"], ["True", "False", "False"]
    assert printed == [*in_the_fork, *child, *parent, "0"], logged


OTHER = """
import multiprocessing, os, signal, subprocess, sys
from legato import _exits, _wakeup
_wakeup._repeat = lambda *_: None
def work():
    _exits.before_end(lambda seconds: None)
    reads, writes = _wakeup._pair
    subprocess.run([sys.executable, "-c", f"import os; os.write({writes}, bytes([{int(signal.SIGTERM)}]))"], pass_fds=[writes], check=True)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    os.kill(os.getpid(), signal.SIGUSR1)
    print(_wakeup._receive(reads), _wakeup._receive(reads), flush=True)
child = multiprocessing.get_context("fork").Process(target=work)
child.start(); child.join(); print(child.exitcode)
"""


def test_a_signal_of_another_process_is_not_taken_for_one_of_this() -> None:
    """A child that C code forked has the wake-up descriptor, and Python writes to it there."""
    printed, logged = run(OTHER)
    assert printed == ["0", str(int(signal.SIGUSR1)), "0"], logged


LOOP = """
import asyncio, importlib, multiprocessing, os, signal, sys, threading, time
from legato import _exits
is_first = sys.argv[2] == "stream_first"
async def main():
    if not is_first: _exits.before_end(lambda seconds: print("sent", flush=True))
    woken, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, woken.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    await woken.wait()
    loop.remove_signal_handler(signal.SIGUSR1)
def work(absent):
    new_loop = importlib.import_module(sys.argv[1]).new_event_loop
    if is_first: _exits.before_end(lambda seconds: print("sent", flush=True))
    with asyncio.Runner(loop_factory=new_loop) as runner: runner.run(main())
    other = threading.Thread(target=time.sleep, args=(60,), daemon=True)
    other.start()
    # To another thread, so it does not interrupt the wait of the main thread.
    threading.Timer(1, signal.pthread_kill, (other.ident, signal.SIGTERM)).start()
    absent.acquire()
context = multiprocessing.get_context("fork")
child = context.Process(target=work, args=(context.Semaphore(0),))
child.start(); child.join(50); print(child.exitcode); child.kill()
"""


@pytest.mark.parametrize(("loop", "order"), [("asyncio", "stream_first"), ("asyncio", "loop_first"), ("uvloop", "stream_first")])
def test_an_event_loop_may_have_the_wakeup_descriptor(loop: str, order: str) -> None:
    """The application's handlers run while its loop does, and SIGTERM ends a worker that waits in the kernel afterwards."""
    pytest.importorskip(loop)
    printed, logged = run(LOOP, loop, order)
    assert printed == ["sent", str(-signal.SIGTERM)], logged


HIDDEN = """
import multiprocessing, os, signal
from legato import _exits
def work():
    real = signal.set_wakeup_fd
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    _exits.before_end(lambda seconds: None)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    print(signal.set_wakeup_fd(writes, warn_on_full_buffer=False) == -1)
    os.kill(os.getpid(), signal.SIGUSR1)
    print(os.read(reads, 9)[0] == signal.SIGUSR1, signal.set_wakeup_fd(-1) == writes, signal.set_wakeup_fd(-1) == -1, flush=True)
    child = os.fork()
    if not child:
        print(signal.set_wakeup_fd is real, real(-1) == -1, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    try: signal.set_wakeup_fd(writes + 100)
    except (OSError, ValueError): print("refused", flush=True)
child = multiprocessing.get_context("fork").Process(target=work)
child.start(); child.join(); print(child.exitcode)
"""


def test_the_application_does_not_see_legatos_descriptor() -> None:
    """Trio warns of another library's: an error where warnings are errors."""
    printed, logged = run(HIDDEN)
    assert printed == ["True"] * 6 + ["refused", "0"], logged


RAISES = """
import multiprocessing, os, signal, sys
from legato import _exits
sys.unraisablehook = lambda *_: None
calls, real = [], _exits._get_ident
def late():
    calls.append(1)
    if len(calls) == 2: raise TimeoutError
    return real()
def work():
    _exits.before_end(lambda seconds: None)
    _exits._get_ident = late
    child = os.fork()
    if child: os.waitpid(child, 0)
    print(signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()), flush=True)
    if not child: os._exit(0)
child = multiprocessing.get_context("fork").Process(target=work)
child.start(); child.join(); print(child.exitcode)
"""


def test_a_handler_that_raises_within_a_fork_leaves_no_signal_blocked() -> None:
    """Such as one of a time-out, where the mask is restored: in the parent, and in the child with the programs that it runs."""
    printed, logged = run(RAISES)
    assert printed == ["False", "False", "0"], logged


CLOSED = """
import multiprocessing, os, signal, sys, tempfile
from legato import _exits, _wakeup
def work(way):
    _exits.before_end(lambda seconds: None)
    numbers = _wakeup._pair[0].fileno(), _wakeup._pair[1]
    signal.signal(signal.SIGUSR1, lambda *_: None)
    if way == "own":
        reads, writes = os.pipe()
        os.set_blocking(writes, False)
        signal.set_wakeup_fd(writes)
        os.close(writes)
    else:
        os.closerange(3, 256 if way == "low" else 1024)
        files = [tempfile.TemporaryFile(buffering=0) for _ in range(12)]
        os.kill(os.getpid(), signal.SIGUSR1)
        print(sum(os.fstat(file.fileno()).st_size for file in files), flush=True)
    if way == "reused":
        for number in numbers: os.dup2(files[0].fileno(), number)
        print(signal.set_wakeup_fd(-1), signal.set_wakeup_fd(-1), flush=True)
        os.kill(os.getpid(), signal.SIGUSR1)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    print(signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)
    if way == "reused": print(sum(os.fstat(number).st_size for number in numbers), flush=True)
    os._exit(0)
child = multiprocessing.get_context("fork").Process(target=work, args=(sys.argv[1],))
child.start(); child.join(); print(child.exitcode)
"""


@pytest.mark.parametrize(
    ("way", "printed", "at_last"), [("own", [], []), ("low", ["0"], []), ("all", ["0"], []), ("reused", ["0", "-1", "-1"], ["0"])]
)
def test_an_application_may_close_all_descriptors(way: str, printed: list[str], at_last: list[str]) -> None:
    """Its files may get their numbers: nothing is written into them and nothing closes them, and SIGTERM is not left blocked."""
    found, logged = run(CLOSED, way)
    assert found == [*printed, "False", "True", *at_last, "0"], logged
