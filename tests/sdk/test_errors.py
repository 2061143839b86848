"""Exceptions of the application that arise within the SDK's code, and what is left where the SDK itself was interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

ENVIRON = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
SETUP = """
import faulthandler, gc, logging, signal, sys, threading
faulthandler.dump_traceback_later(80, exit=True)
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
import legato
from legato import _errors, _recorder, _worker
unraisable = []
sys.unraisablehook = unraisable.append
def stream(): return list(legato.wrap(iter("abc")))
"""


def run(application: str) -> list[str]:
    """Run an application to its end; return the words that it printed."""
    command = [sys.executable, "-c", SETUP + application]
    done = subprocess.run(command, env=ENVIRON, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


TIME_OUT = """
class Late(Exception): pass
def late(*_): raise Late
signal.signal(signal.SIGUSR1, late)
def measure(item): signal.raise_signal(signal.SIGUSR1)
try: list(legato.wrap(iter("abc"), measure=measure))
except Late: print("raised")
class Handler(logging.Handler):
    def emit(self, record): signal.raise_signal(signal.SIGUSR1)
logging.getLogger().addHandler(Handler())
try: _errors.warn_once("key", "message")
except Late: print("raised")
logging.getLogger().handlers.clear()
print(len(list(legato.wrap(iter("abc"), measure=lambda item: 1 / 0))), legato.flush(60), _errors.faults)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="the signal is sent to the process itself")
def test_what_a_handler_of_a_signal_raises_reaches_the_application() -> None:
    """Such as a time-out or Celery's SoftTimeLimitExceeded. Other exceptions of what the SDK calls are counted, and do not."""
    assert " ".join(run(TIME_OUT)) == "raised raised 3 True {'measure of wrap()': 3}"


STRICT = """
class Strict(logging.Handler):
    def emit(self, record): raise ValueError(record.getMessage())
logging.getLogger().addHandler(Strict())
real = _worker.Worker._end_span
def once(*given):
    _worker.Worker._end_span = real
    raise OSError
_worker.Worker._end_span = once
print(len(list(legato.wrap(iter("abc"), measure=lambda item: 1 / 0))))
_errors.wrong_call("call", "str", "int")
stream()
legato.flush(60)
print(legato.flush(60), "legato-worker" in [each.name for each in threading.enumerate()], legato.stats()["ended"], sorted(_errors.faults))
"""


def test_a_log_handler_that_raises_stops_nothing() -> None:
    """Neither the application nor the worker's thread."""
    assert " ".join(run(STRICT)) == "3 True True 2 ['call', 'end of a stream', 'measure of wrap()']"


HALF = """
stream()
real, forget = _recorder.Unparsed, _recorder.StreamRecorder.forget
def once(*given):
    _recorder.Unparsed = real
    raise MemoryError
_recorder.Unparsed = once
stream(); gc.collect()
def fails(self):
    _recorder.StreamRecorder.forget = forget
    raise MemoryError
legato.flush(60)
_recorder.StreamRecorder.forget = fails
stream(); legato.flush(60); stream()
print(legato.flush(60), legato.stats()["queued"], legato.stats()["ended"], len(unraisable), sorted(_errors.faults))
"""


def test_a_recorder_that_was_not_made_completely_is_no_stream() -> None:
    """It is not ended, and a fault while a stream is forgotten does not stop the worker."""
    assert " ".join(run(HALF)) == "True 0 3 0 ['end of a stream', 'wrap()']"


STARTING = """
real = _worker.in_background
def interrupted(*given):
    # As the handler of a signal would, which may run between any two instructions.
    if not nested:
        nested.append(1)
        stream()
    return real(*given)
nested = []
_worker.in_background = interrupted
stream()
print(legato.flush(60), legato.stats()["ended"], [each.name for each in threading.enumerate()].count("legato-worker"))
"""


def test_a_stream_may_begin_while_the_worker_is_started() -> None:
    """In the handler of a signal: nothing waits, and there is one worker."""
    assert run(STARTING) == ["True", "2", "1"]


INTERRUPTED = """
stream()
# What Python answers once the handler of a signal has raised within the call.
threading.Thread.is_alive = lambda self: False
stream()
print(legato.flush(60), legato.stats()["ended"], [each.name for each in threading.enumerate()].count("legato-worker"))
"""


def test_an_interrupted_question_starts_no_second_worker() -> None:
    """Whether the thread runs is known from the thread itself."""
    assert run(INTERRUPTED) == ["True", "2", "1"]


NO_THREADS = """
def fails(*given): raise RuntimeError("can't start new thread")
threading._start_new_thread = fails
_worker.warn_once = lambda key, message, *values: print(message % values)
stream()
print(legato.flush(60), legato.stats()["queued"], legato.stats()["handed_over"])
legato.configure("http://127.0.0.1:9")
stream()
began = _worker.now_ns()
print(legato.flush(60), _worker.now_ns() - began < 30e9, legato.stats()["waiting"])
stream()
# The end of the process has no time for the last one.
_worker.Worker.flush = lambda *given: False
"""


def test_no_stream_is_lost_silently_where_no_thread_can_be_started() -> None:
    """As at a limit of processes, or since Python 3.12 at the end of one. A flush makes the spans; those that remain are counted."""
    found = " ".join(run(NO_THREADS))
    assert found.startswith("True 0 1 False True 1 streams are lost at the end of the process: 2."), found
