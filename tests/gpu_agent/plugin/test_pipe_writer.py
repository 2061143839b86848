"""The plugins' end of the pipe: it never waits, keeps a little, and counts what it loses."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from legato_gpu_agent.agent.pipe_reader import Inlet
from legato_gpu_agent.plugin.model import Engine
from legato_gpu_agent.plugin.pipe_writer import BACKLOG_MAX, Outlet
from legato_gpu_agent.plugin.protocol import SCHEDULER, join


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    """Where the agent listens."""
    return tmp_path / "s"


@pytest.fixture
def clock() -> Clock:
    """The outlet's."""
    return Clock()


@pytest.fixture
def outlet(path: pathlib.Path, clock: Clock) -> Iterator[Outlet]:
    """A plugin's, before there is a pipe."""
    outlet = Outlet(str(path), clock)
    yield outlet
    outlet.close()


@contextlib.contextmanager
def listening(path: pathlib.Path) -> Iterator[Inlet]:
    """An agent that reads nothing by itself."""
    with contextlib.closing(Inlet(path)) as inlet:
        yield inlet


def said(first: int, last: int, size: int = 40) -> list[bytes]:
    """A datagram for each number, about so long."""
    return [next(join(SCHEDULER, Engine("e", number), [bytes(size)])) for number in range(first, last)]


def test_datagrams_arrive_in_order(path: pathlib.Path, outlet: Outlet) -> None:
    """Each as it was, one by one."""
    with listening(path) as inlet:
        assert all(outlet.send(each) for each in said(0, 5))
        assert inlet.read() == said(0, 5) and inlet.read() == [] and outlet.dropped == 0


def test_nobody_listens(path: pathlib.Path, outlet: Outlet, clock: Clock) -> None:
    """Calls return at once; what is beyond the backlog is counted; an agent that comes later gets the newest, in order."""
    started = time.monotonic()
    for each in said(0, BACKLOG_MAX + 100):
        assert not outlet.send(each)
    assert time.monotonic() - started < 1.0 and outlet.dropped == 100
    with listening(path) as inlet:
        clock.now_s += 2
        while not outlet.catch_up():
            pass
        assert inlet.read() == said(100, BACKLOG_MAX + 100)


def test_a_full_pipe_is_waited_for_without_waiting(path: pathlib.Path, outlet: Outlet) -> None:
    """An agent that does not read costs no time and, within pipe and backlog, no datagram."""
    with listening(path) as inlet:
        started = time.monotonic()
        for each in said(0, 700, 4_000):
            outlet.send(each)
        assert time.monotonic() - started < 1.0
        found = inlet.read()
        assert 200 < len(found) < 700 and outlet.dropped == 0
        while not outlet.catch_up():
            found += inlet.read()
        assert found + inlet.read() == said(0, 700, 4_000)


def test_an_agent_that_restarts_misses_nothing(path: pathlib.Path, outlet: Outlet) -> None:
    """What is said between two agents is in the pipe, and no call fails for that."""
    with listening(path) as inlet:
        outlet.send(said(0, 1)[0])
        assert inlet.read() == said(0, 1)
    assert all(outlet.send(each) for each in said(1, 200))
    with listening(path) as inlet:
        outlet.send(said(200, 201)[0])
        assert inlet.read() == said(1, 201)


def test_a_pipe_that_was_taken_away_is_followed(path: pathlib.Path, outlet: Outlet, clock: Clock) -> None:
    """As when a service's folder goes with it: what the old pipe holds goes into the new one first."""
    with listening(path):
        outlet.send(said(0, 1)[0])
    shutil.rmtree(path.parent)
    for each in said(1, 10):
        clock.now_s += 2
        assert outlet.send(each)
    with listening(path) as inlet:
        assert outlet.send(said(10, 11)[0]) and inlet.read() == []
        clock.now_s += 2
        assert outlet.send(said(11, 12)[0])
        assert inlet.read() == said(0, 12) and outlet.dropped == 0


def test_two_engines_follow_a_new_pipe(path: pathlib.Path, outlet: Outlet, clock: Clock) -> None:
    """Whichever looks first moves all that the old one holds: the steps of each come in their order, all of them."""
    other = Outlet(str(path), clock)
    with listening(path):
        for each in said(0, 3_000):
            assert other.send(each) and outlet.send(each)
    path.unlink()
    with listening(path) as inlet:
        clock.now_s += 2
        assert outlet.send(said(3_000, 3_001)[0]) and other.send(said(3_000, 3_001)[0])
        assert inlet.read() == [each for each in said(0, 3_001) for _ in range(2)]
    other.close()


def test_a_new_pipe_that_is_too_small(path: pathlib.Path, outlet: Outlet, clock: Clock) -> None:
    """What the old one held beyond it is kept, the newest of it, before what is newer, and counted."""
    with listening(path):
        for each in said(0, 2_000, 400):
            assert outlet.send(each)
    path.unlink()
    with listening(path) as inlet, pytest.MonkeyPatch.context() as patch:
        fcntl.fcntl(inlet._pipe, fcntl.F_SETPIPE_SZ, 65_536)
        patch.delattr(fcntl, "F_SETPIPE_SZ")
        clock.now_s += 2
        assert not outlet.send(said(2_000, 2_001, 400)[0])
        found = inlet.read()
        first = len(found)
        while not outlet.catch_up():
            found += inlet.read()
        found += inlet.read()
    assert 100 < first < 200 and outlet.dropped == 2_001 - len(found) > 0
    assert found == said(0, first, 400) + said(2_001 - (len(found) - first), 2_001, 400)


def test_a_pipe_that_is_closed_beneath_it(path: pathlib.Path, outlet: Outlet, clock: Clock) -> None:
    """As by a process that becomes a daemon: nothing is raised, and nothing is written to the file that has its number now."""
    with listening(path) as inlet:
        assert outlet.send(said(0, 1)[0]) and outlet._pipe is not None
        os.close(outlet._pipe)
        assert not outlet.send(said(1, 2)[0])
        clock.now_s += 2
        assert outlet.send(said(2, 3)[0])
        number = outlet._pipe
        os.close(number)
        precious = os.open(path.with_name("precious"), os.O_WRONLY | os.O_CREAT)
        os.dup2(precious, number)
        clock.now_s += 2
        assert outlet.send(said(3, 4)[0])
        for each in {number, precious}:
            os.close(each)
        assert path.with_name("precious").read_bytes() == b"" and inlet.read() == said(0, 4)


@pytest.mark.parametrize("kind", ["file", "folder", "link to a file", "link to a pipe", "device"])
def test_what_is_no_pipe_is_not_written_to(path: pathlib.Path, outlet: Outlet, kind: str, clock: Clock) -> None:
    """Whatever somebody put there, or linked to: it stays as it is, and datagrams are kept."""
    other = path.with_name("other")
    other.write_text("precious", encoding="utf-8")
    targets = {"link to a file": other, "link to a pipe": path.with_name("pipe"), "device": pathlib.Path("/dev/null")}
    os.mkfifo(path.with_name("pipe"))
    if kind == "folder":
        path.mkdir()
    elif kind == "file":
        path.write_text("precious", encoding="utf-8")
    else:
        path.symlink_to(targets[kind])
    assert not outlet.send(said(0, 1)[0]) and other.read_text(encoding="utf-8") == "precious"
    if kind == "file":
        assert path.read_text(encoding="utf-8") == "precious"
    shutil.rmtree(path) if kind == "folder" else path.unlink()
    with listening(path) as inlet:
        clock.now_s += 2
        assert outlet.send(said(1, 2)[0]) and inlet.read() == said(0, 2)


def test_no_engine_is_ended_by_a_pipe_without_a_reader(path: pathlib.Path) -> None:
    """Also where its process asked to be ended by a broken pipe, as some commands do."""
    program = (
        "import signal, sys; signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
        "from legato_gpu_agent.plugin.pipe_writer import Outlet\n"
        "outlet = Outlet(sys.argv[1])\n"
        "for line in sys.stdin: print(outlet.send(bytes(100)), flush=True)\n"
    )
    command = [sys.executable, "-c", program, str(path)]
    with listening(path), subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as engine:
        assert engine.stdin and engine.stdout
        engine.stdin.write("\n")
        assert engine.stdout.readline() == "True\n"
    with listening(path):
        pass
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as engine:
        assert engine.stdin and engine.stdout
        for _ in range(3):
            engine.stdin.write("\n")
            assert engine.stdout.readline() == "True\n"
        engine.stdin.close()
        assert engine.wait(10) == 0 != -signal.SIGPIPE


def test_many_write_and_no_datagram_is_torn(path: pathlib.Path) -> None:
    """Four processes at once, into a pipe that is full again and again."""
    program = (
        "import sys, time\n"
        "from legato_gpu_agent.plugin.protocol import SCHEDULER, join\n"
        "from legato_gpu_agent.plugin.pipe_writer import Outlet\n"
        "from legato_gpu_agent.plugin.model import Engine\n"
        "outlet = Outlet(sys.argv[1])\n"
        "for number in range(900): outlet.send(next(join(SCHEDULER, Engine(sys.argv[2], number), [bytes(3 * number + 1)])))\n"
        "while not outlet.catch_up(): time.sleep(0.001)\n"
        "assert not outlet.dropped; sys.stdin.read()\n"
    )
    with listening(path) as inlet:
        fcntl.fcntl(inlet._pipe, fcntl.F_SETPIPE_SZ, 65_536)
        command = [sys.executable, "-c", program, str(path)]
        engines = [subprocess.Popen([*command, name], stdin=subprocess.PIPE) for name in "abcd"]
        found: list[bytes] = []
        until = time.monotonic() + 30
        while len(found) < 3_600 and time.monotonic() < until:
            found += inlet.read()
        for engine in engines:
            engine.communicate()
        assert [engine.returncode for engine in engines] == [0] * 4
    for name in "abcd":
        expected = [next(join(SCHEDULER, Engine(name, number), [bytes(3 * number + 1)])) for number in range(900)]
        assert [each for each in found if each in set(expected)] == expected
    assert len(found) == 3_600
