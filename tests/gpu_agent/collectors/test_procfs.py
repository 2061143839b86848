"""/proc: the values of a written tree, a recorded tree and this machine, and missing files."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from helpers.platform.examples import examples
from helpers.platform.families import family
from helpers.platform.proctree import RECORDED, Process, node, put, write
from legato_gpu_agent.collectors import procfs as module
from legato_gpu_agent.collectors.base import NotAvailable
from legato_gpu_agent.collectors.procfs import Listener, Proc

LIVE = Proc(pathlib.Path("/proc"))
UNPRIVILEGED = 65_534
READERS: dict[str, Callable[[Proc], Any]] = {
    "stat": Proc.cpu_seconds,
    "pressure/io": lambda proc: proc.pressure_seconds("io"),
    "meminfo": Proc.memory_bytes,
    "vmstat": lambda proc: proc.counters("vmstat", ["pgmajfault"]),
    "net/snmp": lambda proc: proc.protocol("net/snmp", "Tcp"),
    "net/dev": lambda proc: list(proc.interfaces()),
    "5/task/5/schedstat": lambda proc: proc.threads_ns(5),
}


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> pathlib.Path:
    return node(tmp_path / "proc")


@contextlib.contextmanager
def another_user() -> Iterator[None]:
    """Read files in this thread as an unprivileged user, because root may read everything."""
    libc = ctypes.CDLL(None)
    before = libc.setfsuid(UNPRIVILEGED)
    try:
        yield
    finally:
        libc.setfsuid(before)


def test_cpu_time_is_in_seconds_by_mode(tree: pathlib.Path) -> None:
    """Ticks become seconds, of all CPUs and of each. Guest time is not separate, and lines of other kinds are skipped."""
    seconds = Proc(tree).cpu_seconds()
    one = {"user": 4.0, "nice": 0.1, "system": 1.0, "idle": 90.0, "iowait": 0.4, "interrupt": 0.0, "softirq": 0.2, "steal": 0.3}
    assert (seconds["0"], seconds["1"], set(seconds)) == (one, one, {"", "0", "1"})
    assert seconds[""] == pytest.approx({mode: 2 * value for mode, value in one.items()})
    assert Proc(tree).cpu_seconds(each=False) == {"": seconds[""]}


def test_the_values_of_the_node(tree: pathlib.Path) -> None:
    """Pressure is in seconds, memory in bytes where the file has kB, and counters are unchanged."""
    proc = Proc(tree)
    assert proc.pressure_seconds("cpu") == {"some": 1.5, "full": 0.0}
    assert proc.pressure_seconds("io") == {"some": 2.0, "full": 1.0}
    memory = proc.memory_bytes()
    assert (memory["MemTotal"], memory["HugePages_Total"]) == (1_000 * 1024, 3)
    assert proc.counters("vmstat", ("pswpin", "pgmajfault", "pgfault")) == {"pswpin": 3, "pgmajfault": 5}
    assert dict(proc.protocol("net/snmp", "Tcp")) == {"RtoAlgorithm": 1, "MaxConn": -1, "OutSegs": 1_000, "RetransSegs": 7}
    assert dict(proc.protocol("net/snmp", "Sctp")) == {}
    put(tree, "net/netstat", "TcpExt: OutSegs\nTcpExt: 5\nTcp: OutSegs\nTcp: 6\n")
    assert proc.protocol("net/netstat", "Tcp") == {"OutSegs": 6} and proc.protocol("net/netstat", "TcpExt") == {"OutSegs": 5}
    assert dict(proc.interfaces()) == {"lo": [*range(16)], "eth0": [*range(100, 116)], "ib0": [*range(200, 216)]}


def test_a_recorded_machine() -> None:
    """The files of a real kernel: the CPUs add up to their sum, and values are those of the files."""
    proc = Proc(RECORDED)
    seconds = proc.cpu_seconds()
    assert len(seconds) == 3 and min(map(len, seconds.values())) == 8
    for mode, value in seconds[""].items():
        assert seconds["0"][mode] + seconds["1"][mode] == pytest.approx(value, abs=0.05)
    for resource in ("cpu", "memory", "io"):
        pressure = proc.pressure_seconds(resource)
        (some, full) = (RECORDED / "pressure" / resource).read_text(encoding="ascii").splitlines()
        assert pressure == {"some": int(some.split("total=")[1]) / 1e6, "full": int(full.split("total=")[1]) / 1e6}
    memory = proc.memory_bytes()
    assert memory["MemTotal"] % 1024 == 0 and memory["MemFree"] + memory["Cached"] < memory["MemTotal"] < 1 << 50
    assert proc.counters("vmstat", ["pgmajfault"])["pgmajfault"] > 0
    tcp, extended = proc.protocol("net/snmp", "Tcp"), proc.protocol("net/netstat", "TcpExt")
    assert (tcp["MaxConn"], 0 < tcp["RetransSegs"] < tcp["OutSegs"], "TCPLostRetransmit" in extended) == (-1, True, True)
    assert {name: len(values) for name, values in proc.interfaces()} == {"lo": 16, "ifb0": 16, "ifb1": 16, "eth0": 16}


def test_this_machine() -> None:
    """The running kernel: this process has its parent, its threads, its listening port and its socket."""
    own = os.getpid()
    assert own in LIVE.pids() and LIVE.parent(own) == os.getppid()
    threads = LIVE.threads_ns(own)
    assert threads[str(own)][0] > 0 and all(waited >= 0 for _, waited in threads.values()) and len(threads) >= threading.active_count()
    assert LIVE.cpu_seconds()[""]["user"] > 0 and LIVE.memory_bytes()["MemTotal"] > 1 << 20
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        listening = LIVE.listening()
        inode = os.fstat(listener.fileno()).st_ino
        assert listening[listener.getsockname()[1]] == inode and other.getsockname()[1] not in listening
        assert LIVE.holds(own, inode) and not LIVE.holds(own, 1)
    assert not LIVE.holds(own, inode)
    run = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    run.wait()
    assert (LIVE.parent(run.pid), LIVE.holds(run.pid, 1)) == (None, False)
    with pytest.raises(NotAvailable, match=f"process {run.pid} has ended"):
        LIVE.threads_ns(run.pid)


@pytest.mark.parametrize("name", READERS)
def test_a_missing_file_is_not_available(tmp_path: pathlib.Path, name: str) -> None:
    """The error names the file, or that the process has ended."""
    where = "process 5" if name.startswith("5") else str(tmp_path / name)
    with pytest.raises(NotAvailable) as caught:
        READERS[name](Proc(tmp_path))
    assert where in str(caught.value)
    assert (Proc(tmp_path).listening(), Proc(tmp_path).pids(), Proc(tmp_path / "no").pids()) == ({}, [], [])


@pytest.mark.parametrize("name", [name for name in READERS if not name.startswith("5")])
def test_an_unreadable_file_is_not_available(tree: pathlib.Path, name: str) -> None:
    """For a file of another user the error names the file and the reason."""
    (tree / name).chmod(0)
    with another_user(), pytest.raises(NotAvailable) as caught:
        READERS[name](Proc(tree))
    assert str(caught.value) == f"this user may not read {tree / name}"


def test_processes(tree: pathlib.Path) -> None:
    """Each has its parent, its sockets, and for each thread the time it ran and waited."""
    threads = {7: (1_500_000_000, 250_000_000), 8: (500_000_000, 50_000_000)}
    write(tree, processes=[Process(7, parent=3, threads=threads, sockets=(111, 112)), Process(9, parent=7)])
    proc = Proc(tree)
    assert (sorted(proc.pids()), proc.parent(7), proc.parent(9), proc.parent(8)) == ([7, 9], 3, 7, None)
    assert proc.threads_ns(7) == {str(thread): times for thread, times in threads.items()}
    assert [proc.holds(7, inode) for inode in (111, 112, 11, 1112)] == [True, True, False, False] and not proc.holds(9, 111)


@pytest.mark.parametrize("name", ["python3", "a b", ") S 99 (", "x) R 1", "((", "vllm::EngineCor", "tab\tnew\nline)", "größe ✓", ""])
def test_a_name_may_contain_any_character(tree: pathlib.Path, name: str) -> None:
    """For any name of a process, its parent is the number after the last parenthesis."""
    write(tree, processes=[Process(7, parent=3, name=name)])
    assert Proc(tree).parent(7) == 3


def test_a_real_name_may_contain_any_character() -> None:
    """As the kernel writes it."""
    program = "import sys; open('/proc/self/comm', 'w').write('a) S 1 (b'); print(open('/proc/self/comm').read()); sys.stdin.read()"
    command = [sys.executable, "-I", "-S", "-u", "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None and run.stdout.readline() == "a) S 1 (b\n"
        assert LIVE.parent(run.pid) == os.getpid()


def test_sockets_of_other_users_are_invisible(tree: pathlib.Path) -> None:
    """A process with unreadable files holds no socket; its public values stay known."""
    write(tree, processes=[Process(7, parent=3, sockets=(111,))])
    assert Proc(tree).holds(7, 111)
    (tree / "7" / "fd").chmod(0)
    with another_user():
        assert not Proc(tree).holds(7, 111)
    (tree / "7" / "fd").chmod(0o700)
    with family() as engine:
        inode = LIVE.listening()[engine.port]
        assert [LIVE.holds(pid, inode) for pid in engine.pids] == [True, True, False]


def test_a_process_that_ends_during_a_read_has_ended(tree: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may report it (ESRCH) after the file was opened: that is not a failure either."""
    runs: list[subprocess.Popen[str]] = []

    def slow(handle: int) -> bytes:
        runs[-1].communicate()
        return whole(handle)

    whole = module._read_all
    monkeypatch.setattr(module, "_read_all", slow)
    for ask in (LIVE.parent, LIVE.threads_ns):
        with subprocess.Popen([sys.executable, "-I", "-S", "-c", "open(0).read()"], stdin=subprocess.PIPE, text=True) as run:
            runs.append(run)
            if ask == LIVE.parent:
                assert ask(run.pid) is None
            else:
                with pytest.raises(NotAvailable, match="has ended"):
                    ask(run.pid)


def test_listening_sockets(tree: pathlib.Path) -> None:
    """Of IPv4 and IPv6, by port, without connections from the same port; incomplete lines are skipped."""
    write(tree, listening={8000: 111, 30000: 222}, listening6={8000: 333, 65535: 444})
    proc = Proc(tree)
    assert proc.listening() == {8000: 111, 30000: 222, 65535: 444}
    lines = (tree / "net/tcp").read_text(encoding="ascii").splitlines()
    put(
        tree,
        "net/tcp",
        "\n".join([lines[0], "", "0:", lines[1][:30], "x" * 300, lines[1].replace("1F40", "ZZZZ"), lines[2], lines[1][:60]]),
    )
    assert proc.listening() == {30000: 222, 8000: 333, 65535: 444}
    (tree / "net/tcp6").unlink()
    assert proc.listening() == {30000: 222}


_SOCKET = "   0: {}:{:04X} {}:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 {} 1 0 100 0 0 10 0\n"


@pytest.mark.skipif(sys.byteorder == "big", reason="the kernel writes addresses in its machine's order: these are another's")
@pytest.mark.parametrize(
    ("table", "written", "address"),
    [
        ("tcp", "00000000", ""),
        ("tcp", "0100007F", "127.0.0.1"),
        ("tcp", "0500000A", "10.0.0.5"),
        ("tcp6", "00000000000000000000000000000000", ""),
        ("tcp6", "00000000000000000000000001000000", "::1"),
        ("tcp6", "000000FD000000000000000005000000", "fd00::5"),
        ("tcp6", "B80D012078563412000000000F0E0D0C", "2001:db8:1234:5678::c0d:e0f"),
        ("tcp6", "0000000000000000FFFF00000500000A", "10.0.0.5"),
        ("tcp6", "0000000000000000FFFF000000000000", ""),
    ],
)
def test_the_address_of_a_socket(tree: pathlib.Path, table: str, written: str, address: str) -> None:
    """One address of the host, or all; an IPv4 address of an IPv6 socket is returned as IPv4."""
    put(tree, f"net/{table}", "head\n" + _SOCKET.format(written, 8000, "0" * len(written), 111))
    assert Proc(tree).listeners() == {8000: Listener(111, address)} and Proc(tree).listening() == {8000: 111}


@pytest.mark.skipif(sys.byteorder == "big", reason="the kernel writes addresses in its machine's order: these are another's")
def test_several_sockets_at_a_port(tree: pathlib.Path) -> None:
    """The one that is reached through loopback, in any order, or else the first. Invalid addresses are skipped."""
    written = ["0500000A", "0100007F", "0600000A"]
    put(tree, "net/tcp", "head\n" + "".join(_SOCKET.format(each, 8000, "0" * 8, 111 + at) for at, each in enumerate(written)))
    put(tree, "net/tcp6", "head\n" + _SOCKET.format("000000FD000000000000000005000000", 8001, "0" * 32, 222))
    assert Proc(tree).listeners() == {8000: Listener(112, "127.0.0.1"), 8001: Listener(222, "fd00::5")}
    incomplete = [_SOCKET.format(each, 8000, "0" * 8, 111) for each in ("", "05", "0500000G", "0500000A0500000A")]
    put(tree, "net/tcp", "head\n" + "".join([*incomplete, _SOCKET.format("0600000A", 8000, "0" * 8, 333)]))
    assert Proc(tree).listeners()[8000] == Listener(333, "10.0.0.6")


def test_the_address_of_a_real_socket() -> None:
    """As the running kernel writes it."""
    with socket.create_server(("127.0.0.2", 0)) as one, socket.create_server(("", 0)) as other:
        listeners = LIVE.listeners()
        assert listeners[one.getsockname()[1]] == (os.fstat(one.fileno()).st_ino, "127.0.0.2")
        assert listeners[other.getsockname()[1]] == (os.fstat(other.fileno()).st_ino, "")


def test_a_huge_file_is_read_up_to_a_bound(tree: pathlib.Path) -> None:
    """Of an endless table of sockets 4 MiB are read, complete lines only; a line without end yields nothing."""
    write(tree, listening={port: port + 100_000 for port in range(1, 40_001)})
    proc = Proc(tree)
    text = proc.text("net/tcp")
    assert (tree / "net/tcp").stat().st_size > 4 * 2**20 > len(text) > 4 * 2**20 - 200 and text.endswith("\n")
    listening = proc.listening()
    assert len(listening) == text.count("\n") - 1 and all(inode == port + 100_000 for port, inode in listening.items())
    put(tree, "vmstat", "x" * 5 * 2**20)
    assert proc.counters("vmstat", ["x"]) == {}


@pytest.mark.parametrize(
    ("name", "incomplete"),
    [
        ("stat", "cpu  1 2 x\n"),
        ("stat", "cpu  1 2\n\n"),
        ("pressure/io", "some avg10=0.00 avg60=0.0\n"),
        ("pressure/io", "some avg10=0.00 total=\n"),
        ("meminfo", "MemTotal:   kB\n"),
        ("vmstat", "pgmajfault\n"),
        ("net/snmp", "Tcp: OutSegs RetransSegs\nTcp: 1\n"),
        ("net/dev", "head\nhead\neth0: 1 é 2\n"),
    ],
)
def test_an_incomplete_file_yields_no_false_value(tree: pathlib.Path, name: str, incomplete: str) -> None:
    """An empty file yields nothing; lines without numbers, or with words in place of numbers, are an error."""
    put(tree, name, "")
    assert not READERS[name](Proc(tree))
    put(tree, name, incomplete)
    with pytest.raises((ValueError, KeyError)):
        READERS[name](Proc(tree))


@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_any_bytes_are_accepted_in_shared_tables(tmp_path: pathlib.Path, data: bytes) -> None:
    """For any contents of the tables of sockets and processes, the result is a value or nothing."""
    write(tmp_path, listening={8000: 111}, listening6={}, processes=[Process(5, threads={5: (1, 1), 6: (2, 2)})])
    for name in ("net/tcp6", "5/stat", "5/task/6/schedstat"):
        (tmp_path / name).write_bytes(data)
    proc = Proc(tmp_path)
    assert proc.listening()[8000] == 111 and len(proc.threads_ns(5)) in (1, 2)
    assert proc.parent(5) is None or data.split()
    assert proc.pids() == [5] and not proc.holds(5, 1)
