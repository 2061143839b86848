"""The demo's child processes: start, wait until ready, and stop, also after errors and interrupts.

Each child leads a separate process group, so that Ctrl-C reaches only the demo, which then stops the children in reverse order. A server
can therefore flush its spans before the store stops. If the demo itself is killed, Linux kills its children.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType

__all__ = ["ChildFailed", "Children", "choose_port", "raise_priority"]

_PR_SET_PDEATHSIG = 1
# Below the ports that Linux chooses for outgoing connections (32,768 and above), so that no client takes a port before its server does.
_PORTS, _PORTS_TRIED = (10_000, 32_000), 100
_chosen = set[int]()
_STOP_S = 15.0
# After a failure the store may be down. A child then cannot flush its spans, so waiting longer is useless.
_STOP_AFTER_FAILURE_S = 2.0


class ChildFailed(Exception):
    """A process of the demo failed or did not become ready. The message contains the end of its log."""


def choose_port(preferred: int) -> int:
    """Return ``preferred`` if that port is free on 127.0.0.1, otherwise another free port (0: any) that was not returned before.

    Raises ``OSError`` if there is none.
    """
    others = [port for port in random.SystemRandom().sample(range(*_PORTS), _PORTS_TRIED) if port not in _chosen]
    for port in [preferred, *others] if preferred else others:
        with socket.socket() as probe:
            # Servers set this too: a port with connections in TIME_WAIT can be bound.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            _chosen.add(port)
            return port
    raise OSError("no free port on 127.0.0.1")


def raise_priority() -> None:
    """Raise this process's CPU priority if permitted (as root), because stalls of a busy machine are not part of the recording."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)


class Children:
    """The processes of one demo. Use it as a context manager: leaving it stops all of them."""

    def __init__(self, log_dir: pathlib.Path) -> None:
        self._log_dir = log_dir
        self._running: dict[str, subprocess.Popen[str]] = {}

    def start(
        self, name: str, module: Sequence[str], environ: Mapping[str, str] | None = None, *, piped: bool = False
    ) -> subprocess.Popen[str]:
        """Run ``python -m module…`` with the log file ``{name}.log``; ``piped`` returns its standard output to the caller instead."""
        with (self._log_dir / f"{name}.log").open("w", encoding="utf-8") as log, _signals_deferred():
            process = subprocess.Popen(
                [sys.executable, "-m", *module],
                env={**os.environ, **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else log,
                stderr=log,
                text=True,
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )
            self._running[name] = process
        return process

    def check(self) -> None:
        """Raise ``ChildFailed`` if a child that was not stopped has failed."""
        for name, process in self._running.items():
            if process.poll() not in (None, 0):
                raise self._failed(name, f"ended with status {process.returncode}")

    def wait_ready(self, name: str, url: str, timeout_s: float = 60) -> None:
        """Wait until ``url`` answers 200. Raises ``ChildFailed`` if the process ends first or on time-out."""
        process = self._running[name]
        deadline = time.monotonic() + timeout_s
        while not _answers(url):
            if process.poll() is not None:
                raise self._failed(name, f"ended with status {process.returncode} before it answered")
            if time.monotonic() > deadline:
                raise self._failed(name, f"did not answer at {url} within {timeout_s:.0f} s")
            time.sleep(0.05)

    def wait(self, name: str) -> None:
        """Wait until this child exits. Raises ``ChildFailed`` if its exit status is not 0."""
        if self._running[name].wait():
            raise self._failed(name, f"ended with status {self._running[name].returncode}")

    def stop(self, name: str, patience_s: float = _STOP_S) -> None:
        """Send SIGTERM to a child; after it has exited, or after ``patience_s``, send SIGKILL to its process group."""
        process = self._running.pop(name)
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(patience_s)
            except subprocess.TimeoutExpired:
                pass
        if process.stdout is not None:
            process.stdout.close()
        _kill_group(process)

    def _failed(self, name: str, what: str) -> ChildFailed:
        path = self._log_dir / f"{name}.log"
        tail = path.read_text(encoding="utf-8", errors="replace").splitlines()[-20:]
        return ChildFailed("\n".join([f"{name} {what}; the end of its log {path}:", *(f"  {line}" for line in tail)]))

    def __enter__(self) -> Children:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        patience_s = _STOP_S if kind is None or not issubclass(kind, Exception) else _STOP_AFTER_FAILURE_S
        # Ignored, because a second Ctrl-C would interrupt this and leave children running.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for name in reversed(list(self._running)):
                self.stop(name, patience_s)
        finally:
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _signals_deferred() -> Iterator[None]:
    """Defer SIGINT and SIGTERM to the end of the block. A child that is started but not yet listed would otherwise be left running."""
    received: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda arrived, _: received.append(arrived)) for number in numbers}
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, before[number])
    if received:
        signal.raise_signal(received[0])


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError, http.client.HTTPException):
        # No HTTP: a process of another program has taken the port, so the child ends with an error that says so.
        return False


def _kill_group(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()


def _end_with_parent() -> None:
    # SIGKILL, because a child that flushes its spans would wait for the store, which ends too. A killed `serve` loses no acknowledged row.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
