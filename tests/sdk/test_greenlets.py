"""Forks under gevent and eventlet, and with a stand-in for them: no step of a fork switches, waits or starts a thread."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.servers.receiver import receiver

HERE = pathlib.Path(__file__).parent / "workers"
ENVIRON = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
# The endpoint replies so much later: it is the time in which the application forks.
REPLY_S = 1.0
PATIENCE_S = 60


@contextlib.contextmanager
def slow_endpoint() -> Iterator[tuple[str, Counter[str]]]:
    """Run an endpoint that replies late; yield its URL and the number of times that each stream arrived, by its model."""
    models: Counter[str] = Counter()

    class Slow(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if self.path == "/v1/traces":
                request = ExportTraceServiceRequest.FromString(gzip.decompress(body))
                models.update(span.name[5:] for each in request.resource_spans for scope in each.scope_spans for span in scope.spans)
                time.sleep(REPLY_S)
            with contextlib.suppress(OSError):
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

        def log_message(self, format: str, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", models
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.skipif(sys.platform != "linux", reason="the forks of gevent are those of Linux")
@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_forks_within_an_export_lose_and_double_no_stream(library: str) -> None:
    """A copy of the parent's thread takes no reply from the parent's connection and shuts it down for none, and nothing is sent again.

    No other greenlet runs in a child that ends at once. Eventlet is refused by a warning: a child that is terminated may lose its stream,
    and once in some hundred runs a stream was sent twice (a store has it once).
    """
    # Not imported: eventlet notes each fork from then on, also of other tests.
    if not importlib.util.find_spec(library):
        pytest.skip(f"{library} is not installed")
    with slow_endpoint() as (url, models):
        command = [sys.executable, "-W", "ignore", "green_forks_application.py", library, url]
        settings = ENVIRON | {"LEGATO_EXPORT_INTERVAL_MS": "100"}
        pipe = subprocess.PIPE
        with subprocess.Popen(command, cwd=HERE, env=settings, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
            try:
                printed, errors = process.communicate(timeout=PATIENCE_S)
            finally:
                # Children that hang hold the pipes open.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    expected = {f"{name}-{number}" for name, many in (("parent", 3), ("child", 3), ("process", 1)) for number in range(many)}
    assert expected <= set(models) <= expected | {"terminated-0"}, (models, errors)
    assert library == "eventlet" or ("terminated-0" in models and set(models.values()) == {1}), (models, errors)
    assert (process.returncode, printed.split()) == (0, ["True", "3", "3"]), (printed, errors)
    assert "Legato failed" not in errors and "Traceback" not in errors, errors


# Locks, conditions, threads and sleeps that note each use within the steps of a fork, as those of gevent may switch in each.
STAND_IN = """
import os, sys, threading, time, _thread, queue
used, forking = [], []
def noted(name, real):
    def call(*given, **named):
        if forking: used.append(name)
        return real(*given, **named)
    return call
def lock_class(make, kind):
    class Lock:
        def __init__(self): self._real = make()
        def acquire(self, *given, **named): return noted(kind + ".acquire", self._real.acquire)(*given, **named)
        def release(self): self._real.release()
        def locked(self): return self._real.locked()
        __enter__ = acquire
        def __exit__(self, *_): self.release()
        def __getattr__(self, name): return getattr(self._real, name)
    return Lock
os.register_at_fork(after_in_child=lambda: forking.append(1))
threading.Lock = lock_class(_thread.allocate_lock, "Lock")
threading.RLock = lock_class(threading._CRLock, "RLock")
_thread.allocate_lock = threading._allocate_lock = threading.Lock
threading.Thread.start = noted("Thread.start", threading.Thread.start)
threading.Condition.wait = noted("Condition.wait", threading.Condition.wait)
threading.Event.wait = noted("Event.wait", threading.Event.wait)
_thread.start_new_thread = noted("start_new_thread", _thread.start_new_thread)
time.sleep = noted("sleep", time.sleep)
queue.SimpleQueue = queue._PySimpleQueue
import gc, legato
legato.configure(sys.argv[1])
def hold(recorder, seconds):
    recorder.record(1)
    time.sleep(seconds)
for number in range(3):
    with legato.stream(model="ended") as recorder: hold(recorder, 0)
kept = [legato.stream(model="open") for _ in range(3)]
threading.Thread(target=hold, args=(kept[0], 2), daemon=True).start()
time.sleep(0.5)
kept[1].end()
legato.flush()
# Its end is due in the child, whenever garbage is collected there.
garbage = [legato.stream(model="garbage")]
garbage.append(garbage)
os.register_at_fork(after_in_child=forking.clear)
del garbage
gc.set_threshold(1)
child = os.fork()
if not child:
    os.write(1, (" ".join(used) or "nothing").encode())
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="there is no fork here")
def test_no_step_of_a_fork_uses_a_lock_or_a_thread() -> None:
    """Of Legato and of what it sets up: with ended and open streams and threads, also if garbage is collected within it.

    Under gevent each of them may run the application's other greenlets in the child, before its own code and on the loop of its parent.
    """
    with receiver() as endpoint:
        command = [sys.executable, "-c", STAND_IN, endpoint.url]
        done = subprocess.run(command, env=ENVIRON, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout == "nothing", (done.stdout, done.stderr[-2000:])


THREADS = """
import os, sys, threading, time, legato
legato.configure(sys.argv[1])
over = threading.Event()
def work(number):
    while not over.is_set():
        with legato.stream(model="parent") as recorder: recorder.record(1)
        legato.stats(); legato.flush(0.05)
with legato.stream(model="parent") as recorder: recorder.record(1)
# An import that the first export begins in the parent, and a fork interrupts, never ends in the child.
legato.flush(10)
threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
for thread in threads: thread.start()
for number in range(10):
    child = os.fork()
    if not child:
        with legato.stream(model=f"child-{number}") as recorder: recorder.record(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
over.set()
for thread in threads: thread.join()
print(legato.flush(30), legato.stats()["ended"] == legato.stats()["exported"])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forks_beside_busy_threads_do_not_hang() -> None:
    """Threads of the parent hold Legato's locks at each fork; children record and end, and each stream arrives once."""
    with receiver() as endpoint:
        command = [sys.executable, "-W", "ignore", "-c", THREADS, endpoint.url]
        done = subprocess.run(command, env=ENVIRON, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        streams = endpoint.streams
    assert done.stdout.split() == ["True", "True"], (done.stdout, done.stderr)
    assert Counter(each.model for each in streams if each.model != "parent") == {f"child-{number}": 1 for number in range(10)}, done.stderr
    assert len({each.span_id for each in streams}) == len(streams)


TERMINATED = """
import os, signal, threading
import gevent
from legato import _exits
_exits._close = lambda seconds: print("sent", flush=True)
signal.signal(signal.SIGTERM, _exits._terminated)
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
gevent.sleep(5)
print("alive")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="signals")
def test_a_signal_ends_a_process_with_a_loop_of_gevent() -> None:
    """Also where threads are those of the system: the streams are sent by one of them, which must not change the handling of signals."""
    pytest.importorskip("gevent")
    done = subprocess.run([sys.executable, "-c", TERMINATED], env=ENVIRON, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout.split()) == (-signal.SIGTERM, ["sent"]), done.stderr
