"""The plugins' end of the socket: it never waits, keeps a little, and counts what it loses."""

from __future__ import annotations

import pathlib
import socket
import time
from collections.abc import Iterator

import pytest

from legato_gpu_agent.outlet import BACKLOG_MAX, Outlet


@pytest.fixture
def path(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Where the agent listens."""
    yield tmp_path / "s"


def listen(path: pathlib.Path) -> socket.socket:
    """An agent that reads nothing by itself."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    door.bind(str(path))
    door.setblocking(False)
    return door


def received(door: socket.socket) -> list[bytes]:
    """What the socket holds."""
    found = []
    while True:
        try:
            found.append(door.recv(65_536))
        except BlockingIOError:
            return found


def test_datagrams_arrive_in_order(path: pathlib.Path) -> None:
    """Each as it was, one by one."""
    with listen(path) as door:
        outlet = Outlet(str(path))
        sent = [bytes([i]) * 10 for i in range(5)]
        for datagram in sent:
            outlet.send(datagram)
        assert received(door) == sent and outlet.dropped == 0
        outlet.close()


def test_nobody_listens(path: pathlib.Path) -> None:
    """Calls return at once; what is beyond the backlog is counted; an agent that comes later gets the newest, in order."""
    now = [0.0]
    outlet = Outlet(str(path), clock=lambda: now[0])
    started = time.monotonic()
    for i in range(BACKLOG_MAX + 100):
        outlet.send(b"%d" % i)
    assert time.monotonic() - started < 1.0
    assert outlet.dropped == 100
    with listen(path) as door:
        now[0] = 2.0
        found: list[bytes] = []
        for _ in range(BACKLOG_MAX):
            outlet.catch_up()
            found += received(door)
        assert found == [b"%d" % i for i in range(100, BACKLOG_MAX + 100)]
        outlet.close()


def test_a_full_queue_is_waited_for_without_waiting(path: pathlib.Path) -> None:
    """An agent that does not read costs no time and, within the backlog, no datagram."""
    with listen(path) as door:
        outlet = Outlet(str(path))
        started = time.monotonic()
        for i in range(900):
            outlet.send(b"%d" % i)
        assert time.monotonic() - started < 1.0
        found = received(door)
        assert 0 < len(found) < 900
        while len(found) < 900 and time.monotonic() - started < 10:
            outlet.catch_up()
            found += received(door)
        assert found == [b"%d" % i for i in range(900)] and outlet.dropped == 0
        outlet.close()


def test_an_agent_that_restarts_is_found_again(path: pathlib.Path) -> None:
    """What was said meanwhile reaches the new one."""
    now = [0.0]
    outlet = Outlet(str(path), clock=lambda: now[0])
    with listen(path) as door:
        outlet.send(b"before")
        assert received(door) == [b"before"]
    path.unlink()
    outlet.send(b"between")
    with listen(path) as door:
        outlet.send(b"too soon to look again")
        assert received(door) == []
        now[0] = 5.0
        outlet.send(b"after")
        assert received(door) == [b"between", b"too soon to look again", b"after"]
        outlet.close()
