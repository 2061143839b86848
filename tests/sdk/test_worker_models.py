"""Streams of applications in every worker model, each a process with real servers: every stream arrives exactly once, none is lost.

The export interval is a minute where a stream must be sent by the end of its process, and no application calls `legato.flush()`.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from helpers.builders.completions import completions_server
from helpers.servers.ports import free_port
from helpers.servers.receiver import Receiver, receiver

HERE = pathlib.Path(__file__).parent / "workers"
ENVIRON = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
PATIENCE_S = 60
# Requests one after the other, at least and at most, and requests that are open while the server is stopped.
REQUESTS, REQUESTS_MAX, OPEN = 4, 200, 2
PYTHON = (sys.executable, "-W", "ignore")
GUNICORN = (*PYTHON, "-m", "gunicorn", "--bind", "127.0.0.1:{port}", "--no-control-socket")
# The command, and the number of processes that must have answered.
SERVERS = {
    "sync": ((*GUNICORN, "--preload", "--workers=2", "--max-requests=2", "web_application:wsgi"), 2),
    "gthread": ((*GUNICORN, "--worker-class=gthread", "--threads=4", "web_application:wsgi"), 1),
    "gevent": ((*GUNICORN, "--preload", "--worker-class=gevent", "--max-requests=2", "web_application:wsgi"), 2),
    "uvicorn_worker": ((*GUNICORN, "--preload", "-k", "uvicorn_worker.UvicornWorker", "--max-requests=2", "web_application:asgi"), 2),
    "uvicorn": ((*PYTHON, "-m", "uvicorn", "--workers=2", "--port={port}", "--log-level=warning", "web_application:asgi"), 1),
}


@contextlib.contextmanager
def _running(command: Sequence[str], environ: dict[str, str], interval_ms: int = 60_000) -> Iterator[subprocess.Popen[str]]:
    """Run a command, and end it by SIGKILL if it is still running after the block."""
    settings = ENVIRON | {"LEGATO_EXPORT_INTERVAL_MS": str(interval_ms)} | environ
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=HERE, env=settings, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            yield process
        finally:
            # Children of a process that failed hold its pipes open.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _listens(process: subprocess.Popen[str], port: int) -> bool:
    for _ in range(PATIENCE_S * 10):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return True
        if process.poll() is not None:
            return False
        time.sleep(0.1)
    return False


def _answered(url: str, opened: list[str]) -> str:
    """Read one answer to its end, note in ``opened`` that it has begun, and return the server's process.

    A worker of uvicorn that ends after its last request resets a connection that it has just accepted, and its application never learns of
    the request: it is sent again. A stream that the application had begun would be recorded twice, and the test would fail.
    """
    try:
        return _read(url, opened)
    except httpx.ReadError:
        return _read(url, opened)


def _read(url: str, opened: list[str]) -> str:
    with httpx.stream("POST", url, timeout=PATIENCE_S) as response:
        opened.append(url)
        assert response.read().endswith(b"data: [DONE]\n\n")
        return response.headers["x-process"]


def _complaints(errors: str) -> list[str]:
    """The lines of a log that show a failure."""
    return [line for line in errors.splitlines() if "Traceback" in line or "Legato failed" in line]


def _models(endpoint: Receiver) -> dict[str, int]:
    return dict(Counter(stream.model for stream in endpoint.streams))


@pytest.mark.parametrize("name", SERVERS)
def test_servers_with_worker_processes_lose_no_stream(name: str) -> None:
    """With `configure()` before the fork or in each worker; over restarts of workers and a stop while streams are open."""
    command, processes_min = SERVERS[name]
    opened: list[str] = []
    with completions_server() as server, receiver() as endpoint, ThreadPoolExecutor(OPEN) as pool:
        port = free_port()
        ready = [part.format(port=port) for part in command]
        with _running(ready, {"SERVER": server, "LEGATO_ENDPOINT": endpoint.url}) as process:
            assert _listens(process, port), process.communicate()
            url, processes = f"http://127.0.0.1:{port}/m-", set[str]()
            # A worker of gevent notices only once a second that it has answered its last request.
            while len(opened) < REQUESTS or (len(processes) < processes_min and len(opened) < REQUESTS_MAX):
                processes.add(_answered(f"{url}{len(opened)}", opened))
                time.sleep(0.05)
            requests = len(opened) + OPEN
            answers = [pool.submit(_answered, f"{url}{number}", opened) for number in range(len(opened), requests)]
            while len(opened) < requests and not all(answer.done() for answer in answers):
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            processes |= {answer.result() for answer in answers}
            errors = process.communicate(timeout=PATIENCE_S)[1]
    streams = {stream.model: stream for stream in endpoint.streams}
    assert _models(endpoint) == {"served": requests} | {f"m-{number}": 1 for number in range(requests)}, errors
    served = {stream.span_id for stream in endpoint.streams if stream.model == "served"}
    assert {streams[f"m-{number}"].parent_id for number in range(requests)} == served
    assert {stream.outcome for stream in endpoint.streams} == {"complete"}
    assert len(processes) >= processes_min and not _complaints(errors), errors


def test_celery_children_that_are_replaced_or_stopped_lose_no_stream(tmp_path: pathlib.Path) -> None:
    """A child that had its two tasks ends by `os._exit`, the other by the worker's warm shutdown; its parent sends SIGTERM to both."""
    with completions_server() as server, receiver() as endpoint:
        command = [*PYTHON, "celery_application.py", str(tmp_path)]
        with _running(command, {"SERVER": server, "LEGATO_ENDPOINT": endpoint.url}) as process:
            assert process.stdout is not None
            ended = [process.stdout.readline().split() for _ in range(3)]
            process.send_signal(signal.SIGTERM)
            errors = process.communicate(timeout=PATIENCE_S)[1]
    assert _models(endpoint) == {f"task-{number}": 1 for number in range(3)}, (ended, errors)
    assert len({process for _, process in ended}) == 2 and not _complaints(errors), errors


@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_greenlets_and_their_forks_lose_no_stream(library: str) -> None:
    """In a forked child the parent's greenlets go on, Legato's too. Eventlet works as far as this, and is refused by a warning."""
    with completions_server() as server, receiver() as endpoint:
        command = [*PYTHON, "green_application.py", library, server, endpoint.url]
        with _running(command, {}, interval_ms=500) as process:
            printed, errors = process.communicate(timeout=PATIENCE_S)
    ways = Counter(stream.model.rpartition("-")[0] for stream in endpoint.streams)
    assert set(_models(endpoint).values()) == {1} and ways == {"greenlet": 10, "parent": 1, "child": 4}, (ways, errors)
    assert process.returncode == 0 and printed.split() == ["4", "11"], (printed, errors)
    assert errors.count("eventlet is not supported") == (library == "eventlet")
    assert not _complaints(errors), errors


def test_a_notebooks_kernel_loses_no_stream() -> None:
    """Its set-up may run twice, an interrupt ends only its cell's stream, and the shutdown sends the rest."""
    with completions_server() as server, receiver() as endpoint:
        with _running([*PYTHON, "notebook_session.py", server, endpoint.url], {}) as process:
            printed, errors = process.communicate(timeout=PATIENCE_S * 2)
    assert printed.strip() == str(["", "", "", "", "", "KeyboardInterrupt", "", ""]), errors
    outcomes = Counter((stream.model, stream.outcome) for stream in endpoint.streams)
    complete = {(model, "complete"): 1 for model in ("first", "second", "awaited", "after")}
    assert outcomes == complete | {("hang", "client_cancel"): 1, ("hang", "abandoned"): 1}, errors


def test_threads_that_record_at_the_same_time_lose_no_chunk() -> None:
    """Two threads for each stream. The script also runs under a Python without a GIL."""
    with receiver() as endpoint:
        with _running([*PYTHON, "threads_application.py", endpoint.url], {}) as process:
            printed, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    found = json.loads(printed)
    streams = found["streams"]
    assert found["flushed"] and _models(endpoint) == {f"m-{number}": 1 for number in range(streams)}, errors
    assert {found["stats"][name] for name in ("started", "ended", "exported")} == {streams}, errors
    assert not any(found["stats"][name] for name in ("live", "queued", "waiting", "lost", "faults")), errors
    assert {stream.chunks for stream in endpoint.streams} == {found["chunks"]}
