"""The demo's child processes: none outlives the demo, and a failure is reported with its log."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

import pytest
from rich.console import Console

from demo.processes import ChildFailed, Children, choose_port
from demo.run import Endpoints, _legato

# A module of the standard library that runs as a server; with a bad port it fails.
SERVER = ["http.server", "--bind", "127.0.0.1"]


def _greet(listener: socket.socket) -> None:
    """Answer each connection with the greeting of ZMTP, until the listener is closed."""
    with contextlib.suppress(OSError):
        while True:
            with listener.accept()[0] as connection:
                connection.sendall(b"\xff" + bytes(8) + b"\x7f\r\n")


def _ended(process: subprocess.Popen[str]) -> bool:
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_children_end_with_the_context_also_after_an_error(tmp_path: pathlib.Path) -> None:
    """When an exception leaves the context, its children and their process groups have ended."""
    port = choose_port(0)
    with pytest.raises(ZeroDivisionError), Children(tmp_path) as children:
        process = children.start("web", [*SERVER, str(port)])
        children.wait_ready("web", f"http://127.0.0.1:{port}/")
        raise ZeroDivisionError
    assert _ended(process)


def test_a_child_that_dies_is_reported_with_its_log(tmp_path: pathlib.Path) -> None:
    """The error contains the name, the exit status and the end of the log."""
    with Children(tmp_path) as children:
        children.start("web", [*SERVER, "no-port"])
        with pytest.raises(ChildFailed, match=r"(?s)web ended with status \d.*no-port"):
            children.wait_ready("web", "http://127.0.0.1:9/", timeout_s=30)
        with pytest.raises(ChildFailed, match="web ended with status"):
            children.check()


def test_a_child_that_never_answers_is_reported(tmp_path: pathlib.Path) -> None:
    """Waiting for a child that does not answer ends with an error on time-out."""
    with Children(tmp_path) as children:
        children.start("web", [*SERVER, str(choose_port(0))])
        started = time.monotonic()
        with pytest.raises(ChildFailed, match="did not answer"):
            children.wait_ready("web", "http://127.0.0.1:9/", timeout_s=0.2)
        assert time.monotonic() - started < 10


def test_the_preferred_port_is_chosen_if_it_is_free() -> None:
    """If another process listens on the preferred port, a different one is chosen."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        assert choose_port(taken) != taken
    free = choose_port(0)
    assert choose_port(free) == free and free < 32_768


def test_a_given_port_that_is_taken_is_refused() -> None:
    """The message names the demo's option, not the variable of `legato serve`, which the demo sets itself."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(OSError, match=f"port {taken} is in use: give --read-port another one"):
            Endpoints.choose(read_port=taken)
    free = choose_port(0)
    assert Endpoints.choose(otlp_port=free).otlp_port == free


def test_a_report_that_fails_does_not_end_the_demo(capfd: pytest.CaptureFixture[str]) -> None:
    """It would take the store, which holds what was recorded, and the web page with it."""
    _legato("report", endpoints=Endpoints.choose_other(), console=Console(width=120))
    printed = capfd.readouterr()
    assert "legato report ended with status 1; the demo goes on" in printed.out and "no `legato serve`" in printed.err


def test_a_server_of_another_protocol_is_no_answer(tmp_path: pathlib.Path) -> None:
    """If a program that does not speak HTTP has taken the port, the error is that of the child, which could not listen."""
    with socket.create_server(("127.0.0.1", 0)) as other, Children(tmp_path) as children:
        taken = other.getsockname()[1]
        threading.Thread(target=_greet, args=(other,), daemon=True).start()
        children.start("web", [*SERVER, str(taken)])
        with pytest.raises(ChildFailed, match=r"(?s)web ended with status 1.*Address already in use"):
            children.wait_ready("web", f"http://127.0.0.1:{taken}/", timeout_s=30)


def test_an_interruption_while_a_child_starts_leaves_none_behind(tmp_path: pathlib.Path) -> None:
    """SIGINT directly after the fork is deferred until the child is listed, so the child is stopped."""
    script = (
        "import os, pathlib, signal, subprocess, sys\n"
        "from demo.processes import Children\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "started = subprocess.Popen\n"
        "class Interrupted(started):\n"
        "    def __init__(self, *given, **named):\n"
        "        super().__init__(*given, **named)\n"
        "        (folder / 'pid').write_text(str(self.pid))\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "subprocess.Popen = Interrupted\n"
        "with Children(folder) as children:\n"
        "    children.start('web', ['http.server', '--bind', '127.0.0.1', '0'])\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=30)
    assert "KeyboardInterrupt" in done.stderr and done.returncode != 0
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
