"""Starts the demo's processes, waits until they answer, and ends every one of them, whatever happened.

One idea: each child leads a process group of its own, so that Ctrl-C reaches the demo alone and the children end in order, the last started
first: a server can hand over what it recorded before the store goes. If the demo itself is killed, Linux ends its children.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType

__all__ = ["ChildFailed", "Children", "choose_port", "come_first"]

_PR_SET_PDEATHSIG = 1
_STOP_S = 15.0
# After a failure nobody may be left to take what a child still wants to hand over.
_STOP_AFTER_FAILURE_S = 2.0


class ChildFailed(Exception):
    """A process of the demo ended, or never answered; the message has the end of its log."""


def choose_port(preferred: int) -> int:
    """``preferred`` when nobody has it, else a free port."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            # As servers do: a port whose last connections are still closing can be taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no free port on 127.0.0.1")


def come_first() -> None:
    """Ask the system to run this process before others, where it may (as root): a busy machine's own stalls were not recorded."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)


class Children:
    """The processes of one demo. Use as a context manager: leaving it ends them all."""

    def __init__(self, log_dir: pathlib.Path) -> None:
        self._log_dir = log_dir
        self._running: dict[str, subprocess.Popen[str]] = {}

    def start(
        self, name: str, module: Sequence[str], environ: Mapping[str, str] | None = None, *, piped: bool = False
    ) -> subprocess.Popen[str]:
        """Run ``python -m module…`` with a log file named after it; ``piped`` keeps its standard output for the caller."""
        with (self._log_dir / f"{name}.log").open("w", encoding="utf-8") as log, _undisturbed():
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
        """Raise ``ChildFailed`` when a child ended that nobody stopped."""
        for name, process in self._running.items():
            if process.poll() not in (None, 0):
                raise self._failed(name, f"ended with status {process.returncode}")

    def wait_ready(self, name: str, url: str, timeout_s: float = 60) -> None:
        """Wait until ``url`` answers 200. Raises ``ChildFailed`` when the process ends first or time runs out."""
        process = self._running[name]
        deadline = time.monotonic() + timeout_s
        while not _answers(url):
            if process.poll() is not None:
                raise self._failed(name, f"ended with status {process.returncode} before it answered")
            if time.monotonic() > deadline:
                raise self._failed(name, f"did not answer at {url} within {timeout_s:.0f} s")
            time.sleep(0.05)

    def wait(self, name: str) -> None:
        """Wait until this child ends by itself. Raises ``ChildFailed`` when that was no success."""
        if self._running[name].wait():
            raise self._failed(name, f"ended with status {self._running[name].returncode}")

    def stop(self, name: str, patience_s: float = _STOP_S) -> None:
        """Ask a child to end (SIGTERM), and make it (SIGKILL, its whole group) when it takes too long."""
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
        return ChildFailed("\n".join([f"{name} {what}; its log, {path}, ends:", *(f"  {line}" for line in tail)]))

    def __enter__(self) -> Children:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        patience_s = _STOP_S if kind is None or not issubclass(kind, Exception) else _STOP_AFTER_FAILURE_S
        # A second Ctrl-C would leave children behind.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for name in reversed(list(self._running)):
                self.stop(name, patience_s)
        finally:
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Put Ctrl-C and SIGTERM off until the end: a child that has been started, but is in no list yet, would be left behind."""
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda came_number, _: came.append(came_number)) for number in numbers}
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, before[number])
    if came:
        signal.raise_signal(came[0])


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _kill_group(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()


def _end_with_parent() -> None:
    # At once: with the store gone too, whoever has spans left would wait for it. A killed `serve` loses nothing that it acknowledged.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
