"""Streams of forked children, and of processes that end in every way but a kill: each arrives exactly once."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from collections import Counter

import pytest

from helpers.builders.completions import completions_server
from helpers.servers.receiver import receiver

HERE = pathlib.Path(__file__).parent
ENVIRON = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"} | {"LEGATO_EXPORT_INTERVAL_MS": "60000"}
STREAMS = {"parent": 2, "fork": 3, "grandchild": 1, "process": 2, "forkserver": 1, "terminated": 1, "pool_terminated": 4, "pool_joined": 3}
STREAMS["executor"] = 4


@pytest.mark.skipif(sys.platform != "linux", reason="the fork server and the signals are Linux's")
def test_no_stream_of_a_child_is_lost_or_doubled() -> None:
    """By real clients in children of `multiprocessing` and of `os.fork`; the counters of the parent are its own streams."""
    with completions_server() as server, receiver() as endpoint:
        command = [sys.executable, str(HERE / "fork_application.py"), server, endpoint.url]
        done = subprocess.run(command, env=ENVIRON, capture_output=True, text=True, timeout=100, check=False)
        streams = endpoint.streams
    assert done.returncode == 0 and done.stdout.split() == ["True", "2", "2", "2"], (done.stdout, done.stderr)
    models = Counter(stream.model for stream in streams)
    assert set(models.values()) == {1}, models
    assert Counter(model.rpartition("-")[0] for model in models) == STREAMS
    assert len({stream.span_id for stream in streams}) == len({stream.trace_id for stream in streams}) == len(streams)


QUICK = """
import os, sys, legato
legato.configure(%r)
if sys.argv[1] == "without_streams":
    child = os.fork()
    if not child:
        assert os._exit.__module__ == "posix"
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    import multiprocessing, signal
    def work(number):
        if number: signal.signal(signal.SIGTERM, lambda *_: os._exit(9))
        before = signal.getsignal(signal.SIGTERM)
        with legato.stream(model="m") as recorder: recorder.record(1)
        assert (signal.getsignal(signal.SIGTERM) is before) == bool(number)
        os.kill(os.getpid(), signal.SIGTERM)
    for number in range(2):
        child = multiprocessing.get_context("fork").Process(target=work, args=(number,))
        child.start(); child.join(); print(child.exitcode)
    print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""


@pytest.mark.parametrize(("way", "printed"), [("without_streams", "7"), ("with_signals", f"{-signal.SIGTERM} 9 True")])
def test_children_end_as_they_did(way: str, printed: str) -> None:
    """A child without streams has the real `os._exit`. SIGTERM still ends a child by that signal, and an application's handler stays."""
    with receiver() as endpoint:
        command = [sys.executable, "-c", QUICK % endpoint.url, way]
        done = subprocess.run(command, env=ENVIRON, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == printed.split(), done.stderr
    assert len(endpoint.streams) == (0 if way == "without_streams" else 2)


WAITING = """
import multiprocessing, signal, threading, time, legato
legato.configure(%r)
def wait(absent):
    with legato.stream(model="m") as recorder: recorder.record(1)
    other = threading.Thread(target=time.sleep, args=(60,), daemon=True)
    other.start()
    threading.Timer(1, signal.pthread_kill, (other.ident, signal.SIGTERM)).start()
    absent.acquire()
def start(absent):
    with legato.stream(model="m") as recorder: recorder.record(1)
    child = context.Process(target=wait, args=(absent,))
    child.start(); child.join(); print(child.exitcode, flush=True)
context = multiprocessing.get_context("fork")
for target in (wait, start):
    child = context.Process(target=target, args=(context.Semaphore(0),))
    child.start(); child.join(); print(child.exitcode, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="another thread receives the signal")
def test_a_signal_that_does_not_interrupt_the_main_thread_ends_a_child() -> None:
    """As one does that arrives just before a pool's worker waits for a task. Also in a child of a child, which leaves its parent alone."""
    with receiver() as endpoint:
        command = [sys.executable, "-c", WAITING % endpoint.url]
        done = subprocess.run(command, env=ENVIRON, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == [str(-signal.SIGTERM), str(-signal.SIGTERM), "0"], (done.stdout, done.stderr)
    assert len(endpoint.streams) == 3


ABSENT = """
import multiprocessing, os, time, legato
legato.configure("http://127.0.0.1:9")
def work():
    with legato.stream(model="m") as recorder: recorder.record(1)
def run():
    started = time.monotonic()
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start(); child.join()
    return child.exitcode, time.monotonic() - started
runs = [run()]
while runs[-1][1] >= 4 and len(runs) < 3: runs.append(run())
print(len(runs), {code for code, _ in runs} == {0}, runs[-1][1] < 4)
"""


def test_an_absent_server_does_not_hold_up_children() -> None:
    """The exporter would try for ten seconds; the child ends much earlier, and says that its stream is lost.

    On a busy machine a child may not know yet that the server is absent, and then it waits longer: one of three must not.
    """
    done = subprocess.run([sys.executable, "-c", ABSENT], env=ENVIRON, capture_output=True, text=True, timeout=60, check=False)
    children, *found = done.stdout.split()
    assert found == ["True", "True"], done.stderr
    assert done.stderr.count("lost at the end of the process: 1.") == int(children), done.stderr


APPLICATION = """
import multiprocessing, os, signal
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
import legato
class Printer(SpanExporter):
    def export(self, spans):
        os.write(1, "".join(f"{span.name}\\n" for span in spans).encode())
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL: os.kill(os.getpid(), signal.SIGTERM)
        return SpanExportResult.SUCCESS
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(Printer(), schedule_delay_millis=60_000))
trace.set_tracer_provider(provider)
def work(number):
    with legato.stream(model=str(number)) as recorder: recorder.record(1)
context = multiprocessing.get_context("fork")
child = context.Process(target=work, args=(0,))
child.start(); child.join()
with context.Pool(2) as pool: pool.map(work, [1, 2])
child = os.fork()
if not child:
    work(3)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_children_flush_the_applications_provider() -> None:
    """Without `configure()`, the batches of the application's provider in the children are exported, too.

    A signal that ends a pool's worker while it exports, with OpenTelemetry's lock held, neither hangs nor loses anything.
    """
    done = subprocess.run([sys.executable, "-c", APPLICATION], env=ENVIRON, capture_output=True, text=True, timeout=60, check=False)
    assert sorted(done.stdout.splitlines()) == [f"chat {number}" for number in range(4)], done.stderr


MEANWHILE = """
import multiprocessing, os, signal, sys, threading
from legato import _exits
def close(seconds):
    print("sent", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
def work(way):
    _exits.before_end(close)
    if way == "return": threading.Thread(target=threading.Event().wait).start()
    else: os._exit(7)
for way in ("return", "exit"):
    child = multiprocessing.get_context("fork").Process(target=work, args=(way,))
    child.start(); child.join(60); print(child.exitcode, flush=True); child.kill()
"""


def test_a_signal_while_a_worker_sends_its_streams_ends_it_afterwards() -> None:
    """The worker returned or called `os._exit`; threads of the application may run on for ever."""
    done = subprocess.run([sys.executable, "-c", MEANWHILE], env=ENVIRON, capture_output=True, text=True, timeout=150, check=False)
    assert done.stdout.split() == ["sent", str(-signal.SIGTERM)] * 2, done.stderr
