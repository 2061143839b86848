"""Servers for tests: an application in a thread, and `legato serve` in a separate process."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn

from helpers.builders.spans import native_span, request
from helpers.servers.ports import free_port
from helpers.servers.stores import copy_migrated

__all__ = ["Served", "legato", "legato_json", "post_streams", "serve_process", "served", "serving"]

_PATIENCE_S = 180


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signal handlers to pytest."""
        yield


@contextlib.contextmanager
def served(app: Any, **options: Any) -> Iterator[str]:
    """Serve an application with uvicorn and these options in a thread, and yield its URL."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = _Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=5, **options))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + _PATIENCE_S
    while not server.started:
        assert time.monotonic() < deadline and thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(_PATIENCE_S)
        listener.close()


@dataclass(frozen=True)
class Served:
    """A running `legato serve`."""

    process: subprocess.Popen[str]
    environ: dict[str, str]
    store: pathlib.Path
    otlp: str
    read: str


def post_streams(served: Served, streams: int, timeout_s: float = 60) -> httpx.Response:
    """Send so many streams in one request, and return the reply."""
    body = request()
    for _ in range(streams):
        native_span(body)
    headers = {"content-type": "application/x-protobuf"}
    return httpx.post(f"{served.otlp}/v1/traces", content=body.SerializeToString(), headers=headers, timeout=timeout_s)


def legato(*arguments: str, environ: Mapping[str, str] | None = None, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Run the command `legato` and return its result."""
    command = [sys.executable, "-m", "legato_ingest", *arguments]
    return subprocess.run(command, env={**os.environ, **(environ or {})}, capture_output=True, text=True, timeout=timeout_s, check=False)


def legato_json(*arguments: str, environ: Mapping[str, str] | None = None) -> Any:
    """Run a command with ``--json`` and return its answer. Fails with what the command wrote if it has none."""
    done = legato(*arguments, "--json", environ=environ)
    assert done.returncode == 0 and done.stdout, f"legato {' '.join(arguments)} ended with status {done.returncode}: {done.stderr}"
    return json.loads(done.stdout)


@contextlib.contextmanager
def serve_process(store: pathlib.Path, *, prefix: Sequence[str] = (), python: str = sys.executable, **settings: str) -> Iterator[Served]:
    """Run `legato serve` on free ports (or LEGATO_OTLP_PORT of ``settings``) and yield when it is ready; stop it at the end.

    ``prefix`` is a command that runs it, ``python`` the interpreter. If ``store`` does not exist, it becomes a copy of a store with the
    whole schema; in a folder that exists and is empty, `legato serve` creates the store itself.
    """
    if not store.exists() and "LEGATO_STORE" not in settings:
        copy_migrated(store)
    otlp, read = int(settings.get("LEGATO_OTLP_PORT") or free_port()), free_port()
    environ = {
        # The default ports are those of one server on a host; several benches may run beside each other.
        "LEGATO_WEB_PORT": "0",
        "LEGATO_OTLP_GRPC_PORT": "0",
        **os.environ,
        "LEGATO_STORE": f"chdb://{store}",
        "LEGATO_OTLP_PORT": str(otlp),
        "LEGATO_READ_PORT": str(read),
        "LEGATO_READ_URL": f"http://127.0.0.1:{read}",
        **settings,
    }
    with serving(environ, prefix=prefix, python=python) as process:
        yield Served(process, environ, store, f"http://127.0.0.1:{otlp}", f"http://127.0.0.1:{read}")


@contextlib.contextmanager
def serving(environ: Mapping[str, str], *, prefix: Sequence[str] = (), python: str = sys.executable) -> Iterator[subprocess.Popen[str]]:
    """Run `legato serve` with exactly these settings, yield the process when it is ready, and stop it at the end."""
    command = [*prefix, python, "-m", "legato_ingest", "serve"]
    scheme = "https" if "LEGATO_TLS_CERT_FILE" in environ else "http"
    with subprocess.Popen(command, env={**os.environ, **environ}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            _await_ready(process, f"{scheme}://127.0.0.1:{environ['LEGATO_OTLP_PORT']}/readyz")
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _await_ready(process: subprocess.Popen[str], url: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        assert process.poll() is None, process.stdout and process.stdout.read()
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url, verify=False).status_code == 200:
                return
        time.sleep(0.05)
    raise AssertionError(f"{url} was not ready in {_PATIENCE_S} s")
