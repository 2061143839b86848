"""The plugins' end of the pipe: it never blocks, keeps a bounded backlog, and counts losses."""

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

from legato_gpu_agent.agent.pipe_reader import PipeReader
from legato_gpu_agent.plugin.model import Engine
from legato_gpu_agent.plugin.pipe_writer import BACKLOG_MAX, PipeWriter
from legato_gpu_agent.plugin.protocol import SCHEDULER, pack_entries


class Clock:
    """A clock that moves only when the test sets it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return the path of the pipe."""
    return tmp_path / "s"


@pytest.fixture
def clock() -> Clock:
    """Return the writer's clock."""
    return Clock()


@pytest.fixture
def writer(path: pathlib.Path, clock: Clock) -> Iterator[PipeWriter]:
    """Create the writer of a plugin, before there is a pipe."""
    writer = PipeWriter(str(path), clock)
    yield writer
    writer.close()


@contextlib.contextmanager
def agent(path: pathlib.Path) -> Iterator[PipeReader]:
    """Run an agent that reads only when the test does."""
    with contextlib.closing(PipeReader(path)) as reader:
        yield reader


def datagrams(first: int, last: int, size: int = 40) -> list[bytes]:
    """Return a datagram per number, of about the given size."""
    return [next(pack_entries(SCHEDULER, Engine("e", number), [bytes(size)])) for number in range(first, last)]


def test_datagrams_arrive_in_order(path: pathlib.Path, writer: PipeWriter) -> None:
    """Each unchanged."""
    with agent(path) as reader:
        assert all(writer.send(each) for each in datagrams(0, 5))
        assert reader.read() == datagrams(0, 5) and reader.read() == [] and writer.dropped == 0


def test_without_an_agent_the_newest_datagrams_are_kept(path: pathlib.Path, writer: PipeWriter, clock: Clock) -> None:
    """Calls return at once, datagrams beyond the backlog are counted, and a later agent reads the newest ones in order."""
    started = time.monotonic()
    for each in datagrams(0, BACKLOG_MAX + 100):
        assert not writer.send(each)
    assert time.monotonic() - started < 5 and writer.dropped == 100
    with agent(path) as reader:
        clock.now_s += 2
        while not writer.flush():
            pass
        assert reader.read() == datagrams(100, BACKLOG_MAX + 100)


def test_a_missing_pipe_is_logged_once(path: pathlib.Path, writer: PipeWriter, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """In the engine's log, with the remedy; not if the pipe goes while it is open, because the agent still reads it."""
    for _ in range(3):
        writer.send(*datagrams(0, 1))
        clock.now_s += 1
    (record,) = caplog.records
    assert f"there is no pipe at {path}: start legato-gpu-agent, or set LEGATO_ENGINE_PIPE" in record.getMessage()
    other = path.with_name("other")
    with agent(other), contextlib.closing(PipeWriter(str(other), clock)) as late:
        assert late.send(*datagrams(0, 1))
        other.unlink()
        clock.now_s += 1
        assert late.send(*datagrams(0, 1)) and len(caplog.records) == 1


def test_a_full_pipe_does_not_block(path: pathlib.Path, writer: PipeWriter) -> None:
    """An agent that does not read costs no time and, within the capacity of pipe and backlog, no datagram."""
    with agent(path) as reader:
        started = time.monotonic()
        for each in datagrams(0, 700, 4_000):
            writer.send(each)
        assert time.monotonic() - started < 5
        found = reader.read()
        assert 200 < len(found) < 700 and writer.dropped == 0
        while not writer.flush():
            found += reader.read()
        assert found + reader.read() == datagrams(0, 700, 4_000)


def test_an_agent_that_stops_reading_costs_only_datagrams(path: pathlib.Path, writer: PipeWriter, clock: Clock) -> None:
    """Beyond the capacity of pipe and backlog each lost datagram is counted, calls return at once, and the newest ones are kept."""
    sent = 4_000
    with agent(path) as reader:
        started = time.monotonic()
        for each in datagrams(0, sent, 4_000):
            clock.now_s += 0.02
            writer.send(each)
        assert time.monotonic() - started < 15
        in_pipe = reader.read()
        assert in_pipe == datagrams(0, len(in_pipe), 4_000) and len(in_pipe) + BACKLOG_MAX + writer.dropped == sent
        kept: list[bytes] = []
        while not writer.flush():
            kept += reader.read()
        assert kept + reader.read() == datagrams(sent - BACKLOG_MAX, sent, 4_000)


def test_a_restarted_agent_misses_nothing(path: pathlib.Path, writer: PipeWriter) -> None:
    """Datagrams sent between two agents are in the pipe, and no call fails in between."""
    with agent(path) as reader:
        writer.send(datagrams(0, 1)[0])
        assert reader.read() == datagrams(0, 1)
    assert all(writer.send(each) for each in datagrams(1, 200))
    with agent(path) as reader:
        writer.send(datagrams(200, 201)[0])
        assert reader.read() == datagrams(1, 201)


def test_a_replaced_pipe_is_followed(path: pathlib.Path, writer: PipeWriter, clock: Clock) -> None:
    """As when a service's folder is removed: the contents of the old pipe go into the new one first."""
    with agent(path):
        writer.send(datagrams(0, 1)[0])
    shutil.rmtree(path.parent)
    for each in datagrams(1, 10):
        clock.now_s += 2
        assert writer.send(each)
    with agent(path) as reader:
        assert writer.send(datagrams(10, 11)[0]) and reader.read() == []
        clock.now_s += 2
        assert writer.send(datagrams(11, 12)[0])
        assert reader.read() == datagrams(0, 12) and writer.dropped == 0


def test_two_engines_follow_a_new_pipe(path: pathlib.Path, writer: PipeWriter, clock: Clock) -> None:
    """The first writer that notices moves all contents of the old pipe: the steps of each arrive completely and in order."""
    other = PipeWriter(str(path), clock)
    with agent(path):
        for each in datagrams(0, 3_000):
            assert other.send(each) and writer.send(each)
    path.unlink()
    with agent(path) as reader:
        clock.now_s += 2
        assert writer.send(datagrams(3_000, 3_001)[0]) and other.send(datagrams(3_000, 3_001)[0])
        assert reader.read() == [each for each in datagrams(0, 3_001) for _ in range(2)]
    other.close()


def test_a_new_pipe_that_is_too_small(path: pathlib.Path, writer: PipeWriter, clock: Clock) -> None:
    """Contents of the old pipe beyond its capacity are kept in the backlog, the newest of them, in order, and the others are counted."""
    with agent(path):
        for each in datagrams(0, 2_000, 400):
            assert writer.send(each)
    path.unlink()
    with agent(path) as reader, pytest.MonkeyPatch.context() as patch:
        fcntl.fcntl(reader._pipe, fcntl.F_SETPIPE_SZ, 65_536)
        patch.delattr(fcntl, "F_SETPIPE_SZ")
        clock.now_s += 2
        assert not writer.send(datagrams(2_000, 2_001, 400)[0])
        found = reader.read()
        first = len(found)
        while not writer.flush():
            found += reader.read()
        found += reader.read()
    assert 100 < first < 200 and writer.dropped == 2_001 - len(found) > 0
    assert found == datagrams(0, first, 400) + datagrams(2_001 - (len(found) - first), 2_001, 400)


def test_a_descriptor_closed_by_other_code(path: pathlib.Path, writer: PipeWriter, clock: Clock) -> None:
    """As when a process becomes a daemon: nothing is raised, and nothing is written to another file with the same descriptor number."""
    with agent(path) as reader:
        assert writer.send(datagrams(0, 1)[0]) and writer._pipe is not None
        os.close(writer._pipe)
        assert not writer.send(datagrams(1, 2)[0])
        clock.now_s += 2
        assert writer.send(datagrams(2, 3)[0])
        number = writer._pipe
        os.close(number)
        other_file = os.open(path.with_name("precious"), os.O_WRONLY | os.O_CREAT)
        os.dup2(other_file, number)
        clock.now_s += 2
        assert writer.send(datagrams(3, 4)[0])
        for each in {number, other_file}:
            os.close(each)
        assert path.with_name("precious").read_bytes() == b"" and reader.read() == datagrams(0, 4)


@pytest.mark.parametrize("kind", ["file", "folder", "link to a file", "link to a pipe", "device"])
def test_files_other_than_pipes_are_not_written_to(path: pathlib.Path, writer: PipeWriter, kind: str, clock: Clock) -> None:
    """Any other file or link stays unchanged, and datagrams are kept."""
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
    assert not writer.send(datagrams(0, 1)[0]) and other.read_text(encoding="utf-8") == "precious"
    if kind == "file":
        assert path.read_text(encoding="utf-8") == "precious"
    shutil.rmtree(path) if kind == "folder" else path.unlink()
    with agent(path) as reader:
        clock.now_s += 2
        assert writer.send(datagrams(1, 2)[0]) and reader.read() == datagrams(0, 2)


def test_a_pipe_without_a_reader_ends_no_engine(path: pathlib.Path) -> None:
    """Also in a process with the default action for SIGPIPE, as some commands set it."""
    program = (
        "import signal, sys; signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
        "from legato_gpu_agent.plugin.pipe_writer import PipeWriter\n"
        "writer = PipeWriter(sys.argv[1])\n"
        "for line in sys.stdin: print(writer.send(bytes(100)), flush=True)\n"
    )
    command = [sys.executable, "-c", program, str(path)]
    with agent(path), subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as engine:
        assert engine.stdin and engine.stdout
        engine.stdin.write("\n")
        assert engine.stdout.readline() == "True\n"
    with agent(path):
        pass
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as engine:
        assert engine.stdin and engine.stdout
        for _ in range(3):
            engine.stdin.write("\n")
            assert engine.stdout.readline() == "True\n"
        engine.stdin.close()
        assert engine.wait(10) == 0 != -signal.SIGPIPE


def test_datagrams_of_many_writers_are_not_torn(path: pathlib.Path) -> None:
    """Four processes write at once into a pipe that is repeatedly full."""
    program = (
        "import sys, time\n"
        "from legato_gpu_agent.plugin.protocol import SCHEDULER, pack_entries\n"
        "from legato_gpu_agent.plugin.pipe_writer import PipeWriter\n"
        "from legato_gpu_agent.plugin.model import Engine\n"
        "writer = PipeWriter(sys.argv[1])\n"
        "for number in range(900): writer.send(next(pack_entries(SCHEDULER, Engine(sys.argv[2], number), [bytes(3 * number + 1)])))\n"
        "while not writer.flush(): time.sleep(0.001)\n"
        "assert not writer.dropped; sys.stdin.read()\n"
    )
    with agent(path) as reader:
        fcntl.fcntl(reader._pipe, fcntl.F_SETPIPE_SZ, 65_536)
        command = [sys.executable, "-c", program, str(path)]
        engines = [subprocess.Popen([*command, name], stdin=subprocess.PIPE) for name in "abcd"]
        found: list[bytes] = []
        until = time.monotonic() + 30
        while len(found) < 3_600 and time.monotonic() < until:
            found += reader.read()
        for engine in engines:
            engine.communicate()
        assert [engine.returncode for engine in engines] == [0] * 4
    for name in "abcd":
        expected = [next(pack_entries(SCHEDULER, Engine(name, number), [bytes(3 * number + 1)])) for number in range(900)]
        assert [each for each in found if each in set(expected)] == expected
    assert len(found) == 3_600
