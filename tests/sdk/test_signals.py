"""The threads that the SDK starts receive no signals: those that the application blocks stay blocked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the masks of other threads are read from Linux's /proc")
ENVIRON = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def run(application: str) -> subprocess.CompletedProcess[str]:
    """Run an application to its end."""
    return subprocess.run([sys.executable, "-c", application], env=ENVIRON, capture_output=True, text=True, timeout=100, check=False)


MASKS = """
import multiprocessing, os, pathlib, signal, threading
import legato
from legato import _exits
legato.configure("http://127.0.0.1:9")
own = lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ())
before = own()
def blocked(thread):
    status = pathlib.Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    found = int(next(line for line in status.splitlines() if line.startswith("SigBlk:")).split()[1], 16)
    return all(found >> (number - 1) & 1 for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGALRM))
def work():
    with legato.stream(model="m") as recorder: recorder.record(1)
    for thread in threading.enumerate():
        if thread.name.startswith("legato"): print(thread.name, blocked(thread), flush=True)
    print("main", own() == before, flush=True)
    _exits._close = lambda seconds: print("end", {signal.SIGUSR1, signal.SIGTERM, signal.SIGINT} <= own(), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
child = multiprocessing.get_context("fork").Process(target=work)
child.start(); child.join(); print(child.exitcode)
"""


def test_each_thread_begins_with_all_signals_blocked() -> None:
    """Also the one that sends the last streams of a worker that is terminated; the thread that starts them keeps its mask."""
    done = run(MASKS)
    lines = done.stdout.splitlines()
    threads = [f"legato-{name} True" for name in ("in-flight", "sender", "signals", "worker")]
    assert sorted(lines[:4]) == threads and lines[4:] == ["main True", "end True", str(-signal.SIGTERM)], (done.stdout, done.stderr)


WAITS = """
import os, signal, sys
import legato
legato.configure("http://127.0.0.1:9")
with legato.stream(model="m") as recorder: recorder.record(1)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.kill(os.getpid(), signal.SIGUSR1)
print(signal.sigwait([signal.SIGUSR1]) == signal.SIGUSR1, flush=True)
os._exit(0)
"""


def test_an_application_waits_for_a_signal_that_it_blocks() -> None:
    """After its first stream, as before it."""
    done = run(WAITS)
    assert (done.returncode, done.stdout.split()) == (0, ["True"]), done.stderr


RAISES = """
import signal
from legato import _signals
before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
class Late(Exception): pass
def late(*_): raise Late
signal.signal(signal.SIGUSR1, late)
try: _signals.without_signals(signal.raise_signal, signal.SIGUSR1)
except Late: print("raised")
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before | {signal.SIGUSR2})
"""


def test_a_handler_that_raises_leaves_the_mask_as_it_was() -> None:
    """The signal arrives while all are blocked."""
    done = run(RAISES)
    assert done.stdout.split() == ["raised", "True"], done.stderr


STARTED = """
import os, signal, threading
import legato
class Late(Exception): pass
def late(*_): raise Late
signal.signal(signal.SIGUSR1, late)
real, started = threading.Thread.start, []
def start(thread):
    real(thread)
    started.append(thread.name)
    if started.count(thread.name) == 1: signal.raise_signal(signal.SIGUSR1)
threading.Thread.start = start
legato.configure("http://127.0.0.1:9")
for _ in range(6):
    try: legato.stream(model="m").end()
    except Late: print("raised")
print(*sorted(started), flush=True)
os._exit(0)
"""


def test_a_handler_that_raises_within_the_start_of_a_thread_starts_no_second_one() -> None:
    """The signal arrives while all are blocked, and its handler runs as soon as they are not."""
    done = run(STARTED)
    assert done.stdout.split() == [*["raised"] * 3, "legato-in-flight", "legato-sender", "legato-worker"], (done.stdout, done.stderr)
