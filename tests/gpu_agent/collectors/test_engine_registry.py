"""Whose processes are whose: real ones that listen, and a written /proc for what is hard to come by."""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import sys
import threading

import pytest

from helpers.platform.families import family
from helpers.platform.proctree import Process, node, write
from helpers.servers.ports import free_port
from legato_gpu_agent.collectors.engine_registry import Neighbours
from legato_gpu_agent.collectors.procfs import Proc

LIVE = Proc(pathlib.Path("/proc"))
LOOK_EVERY_S = 15.0


class Clock:
    """Stands still unless told."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> pathlib.Path:
    """Two engines on ports 8000 and 8001, each with a child; a launcher above the first, and somebody else."""
    root = node(tmp_path / "proc")
    engines = [Process(10, parent=2, sockets=(111,)), Process(11, parent=10), Process(20, sockets=(222,)), Process(21, parent=20)]
    write(root, listening={8000: 111, 8001: 222}, processes=[Process(2), *engines, Process(30), Process(31, parent=30)])
    return root


def test_an_engine_is_all_that_come_from_who_listens(clock: Clock) -> None:
    """Of real processes: the one that listens, its child and its grandchild; not those that stand beside, nor what started it."""
    neighbours = Neighbours(LIVE, clock)
    beside = [sys.executable, "-I", "-S", "-c", "open(0).read()"]
    with family() as one, family() as other, subprocess.Popen(beside, stdin=subprocess.PIPE) as stranger:
        neighbours.tell(f"127.0.0.1:{one.port}")
        neighbours.tell("prod", f"http://localhost:{other.port}/v1")
        assert neighbours.pids() == {f"127.0.0.1:{one.port}": tuple(sorted(one.pids)), "prod": tuple(sorted(other.pids))}
        assert [neighbours.owners_of([pid]) for pid in one.pids] == [(f"127.0.0.1:{one.port}",)] * 3
        assert neighbours.owners_of([stranger.pid, other.pids[2]]) == ("prod",)
        assert neighbours.owners_of([stranger.pid, os.getpid()]) == ()


def test_an_engine_that_went_has_no_processes(clock: Clock) -> None:
    """It is known for as long as the look before holds; then it is there without any, and its next life is found."""
    neighbours = Neighbours(LIVE, clock)
    with family() as engine:
        neighbours.tell("e", f"http://127.0.0.1:{engine.port}")
        before = neighbours.pids()
        assert before == {"e": tuple(sorted(engine.pids))}
        engine.end()
        clock.now_s += LOOK_EVERY_S - 0.1
        assert neighbours.pids() == before
        clock.now_s += 0.2
        assert neighbours.pids() == {"e": ()}


def test_an_engine_whose_eldest_died_is_those_that_still_listen(clock: Clock) -> None:
    """The socket was inherited: the child that holds it is the root then."""
    neighbours = Neighbours(LIVE, clock)
    with family() as engine:
        neighbours.tell("e", f"http://127.0.0.1:{engine.port}")
        engine.process.kill()
        engine.process.wait()
        assert neighbours.pids() == {"e": tuple(sorted(engine.pids[1:]))}


def test_processes_are_looked_for_seldom(tree: pathlib.Path, clock: Clock) -> None:
    """Every fifteen seconds, and at once when another engine is told; an engine that is told again costs nothing."""
    neighbours = Neighbours(Proc(tree), clock)
    neighbours.tell("127.0.0.1:8000")
    assert neighbours.pids() == {"127.0.0.1:8000": (10, 11)}
    write(tree, processes=[Process(12, sockets=(111,))])
    neighbours.tell("127.0.0.1:8000")
    assert neighbours.pids() == {"127.0.0.1:8000": (10, 11)}
    neighbours.tell("prod", "http://127.0.0.1:8001")
    assert neighbours.pids() == {"127.0.0.1:8000": (12,), "prod": ()}


def test_what_is_given_out_is_a_copy(tree: pathlib.Path, clock: Clock) -> None:
    """Who changes it changes nothing."""
    neighbours = Neighbours(Proc(tree), clock)
    neighbours.tell("127.0.0.1:8000")
    neighbours.pids().clear()
    assert neighbours.pids() == {"127.0.0.1:8000": (10, 11)}


@pytest.mark.parametrize(
    ("engine_id", "url", "pids"),
    [
        ("127.0.0.1:8000", "", (10, 11)),
        ("localhost:8000", "", (10, 11)),
        ("0.0.0.0:8000", "", (10, 11)),
        ("[::1]:8000", "", (10, 11)),
        ("127.0.0.1:8000/1", "", (10, 11)),
        ("prod", "http://127.0.0.1:8001", (20, 21)),
        ("127.0.0.1:8000", "http://127.0.0.1:8001", (20, 21)),
        ("prod/3", "http://[::1]:8001/base", (20, 21)),
        ("prod", "", ()),
        ("127.0.0.1", "", ()),
        ("127.0.0.1:8002", "", ()),
        ("127.0.0.1:99999", "", ()),
        ("127.0.0.1:port", "", ()),
        ("gpu7.example:8000", "", ()),
        ("prod", "http://gpu7.example:8000", ()),
        ("10.1.2.3:8000", "", ()),
        ("[::]:8000", "", (10, 11)),
        ("127.0.0.2:8000", "", (10, 11)),
        ("prod", "http://127.0.0.2:8001", (20, 21)),
        ("prod", "http://10.1.2.3:8001", ()),
    ],
)
def test_where_an_engine_listens(tree: pathlib.Path, clock: Clock, engine_id: str, url: str, pids: tuple[int, ...]) -> None:
    """Its URL says it, else its id; a port of another host is none of this one's, and an id without a port is known without processes."""
    neighbours = Neighbours(Proc(tree), clock)
    neighbours.tell(engine_id, url)
    assert neighbours.pids() == {engine_id: pids}


def test_no_name_is_looked_up(tree: pathlib.Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id comes in a datagram, and the loop that reads those waits for nobody's answer."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("a name was looked up"))
    neighbours = Neighbours(Proc(tree), clock)
    neighbours.tell("gpu7:8000")
    neighbours.tell("prod", "http://gpu7:8001")
    assert set(neighbours.pids().values()) == {()}


@pytest.mark.parametrize("engine_id", ["[", "[::1", "//[x]:1", "a℀b:1", "/", ":", "\0", "🦊:8000", "x" * 255, "127.0.0.1:-1"])
def test_no_id_breaks_it(tree: pathlib.Path, clock: Clock, engine_id: str) -> None:
    """A datagram may hold any text: it is an engine without a port, and the others are found."""
    neighbours = Neighbours(Proc(tree), clock)
    neighbours.tell(engine_id)
    neighbours.tell("127.0.0.1:8000")
    assert neighbours.pids() == {engine_id: (), "127.0.0.1:8000": (10, 11)}


def test_a_port_may_be_told_later(tree: pathlib.Path, clock: Clock) -> None:
    """Its plugin may speak before its page is found; a port that is known stays."""
    neighbours = Neighbours(Proc(tree), clock)
    neighbours.tell("prod")
    assert neighbours.pids() == {"prod": ()}
    neighbours.tell("prod", "http://127.0.0.1:8001")
    assert neighbours.pids() == {"prod": (20, 21)}
    neighbours.tell("prod")
    neighbours.tell("prod", "http://127.0.0.1:8000")
    assert neighbours.pids() == {"prod": (20, 21)}


@pytest.mark.parametrize("order", [("127.0.0.1:8000", "127.0.0.1:8000/1"), ("127.0.0.1:8000/1", "127.0.0.1:8000")])
def test_engines_behind_one_server_share_its_processes(tree: pathlib.Path, clock: Clock, order: tuple[str, str]) -> None:
    """They are the plain id's, in whatever order the ranks speak, and each process is counted once."""
    neighbours = Neighbours(Proc(tree), clock)
    for engine_id in order:
        neighbours.tell(engine_id)
        neighbours.pids()
    assert neighbours.pids() == {"127.0.0.1:8000": (10, 11), "127.0.0.1:8000/1": ()}
    assert neighbours.owners_of([11]) == ("127.0.0.1:8000",)


def test_owners(tree: pathlib.Path, clock: Clock) -> None:
    """Those whose they are; nobody where they are of strangers, or where there is nobody."""
    neighbours = Neighbours(Proc(tree), clock)
    assert neighbours.owners_of([10]) == ()
    neighbours.tell("127.0.0.1:8000")
    assert [neighbours.owners_of(pids) for pids in ([10], [11, 999], [30], [2], [])] == [("127.0.0.1:8000",)] * 2 + [()] * 3
    neighbours.tell("127.0.0.1:8001")
    both = ("127.0.0.1:8000", "127.0.0.1:8001")
    assert [neighbours.owners_of(pids) for pids in ([21], [10, 20], [31])] == [("127.0.0.1:8001",), both, ()]


def test_the_only_engine_owns_what_nobody_can_be_seen_to_own(tree: pathlib.Path, clock: Clock) -> None:
    """Where the processes of the only engine are hidden; with two engines it could be either's."""
    neighbours = Neighbours(Proc(tree), clock)
    neighbours.tell("prod")
    assert [neighbours.owners_of(pids) for pids in ([10], [])] == [(), ()]
    neighbours.gpus = 1
    assert [neighbours.owners_of(pids) for pids in ([10], [])] == [("prod",), ()]
    neighbours.tell("other")
    assert neighbours.owners_of([10]) == ()


@pytest.mark.parametrize(("gpu_pids", "owners"), [([999], ("127.0.0.1:8000",)), ([30], ()), ([11, 999], ("127.0.0.1:8000",)), ([], ())])
def test_the_only_engine_owns_the_only_gpu(tree: pathlib.Path, clock: Clock, gpu_pids: list[int], owners: tuple[str, ...]) -> None:
    """Numbers that are nobody's here are of another namespace, so they may be its; a process that is seen to be a stranger's is not. Ranks
    of one server are one engine.
    """
    neighbours = Neighbours(Proc(tree), clock)
    neighbours.gpus = 1
    neighbours.tell("127.0.0.1:8000")
    neighbours.tell("127.0.0.1:8000/1")
    assert neighbours.owners_of(gpu_pids) == owners and neighbours.owners_of([999], is_part=True) == ()


def test_an_id_may_have_slashes(tree: pathlib.Path, clock: Clock) -> None:
    """Only a number behind the last one is a rank."""
    neighbours = Neighbours(Proc(tree), clock)
    neighbours.gpus = 1
    neighbours.tell("team/llama")
    neighbours.tell("team/llama/1")
    assert neighbours.owners_of([999]) == ("team/llama",)
    neighbours.tell("team/qwen")
    assert neighbours.owners_of([999]) == ()


def test_what_is_seen_of_an_engine_ends_the_guess(tree: pathlib.Path, clock: Clock) -> None:
    """Numbers are of one namespace, as one of them was the engine's: a process that cannot be seen is somebody else's."""
    neighbours = Neighbours(Proc(tree), clock)
    neighbours.gpus = 1
    neighbours.tell("127.0.0.1:8000")
    assert [neighbours.owners_of([pid]) for pid in (999, 11, 999)] == [("127.0.0.1:8000",)] * 2 + [()]


def test_a_router_beside_its_shards(tree: pathlib.Path, clock: Clock) -> None:
    """TGI's launcher starts the router, which listens, and the shards, which compute: all of them are the engine."""
    name = "text-generation"
    tgi = [Process(2, name=name), Process(10, parent=2, name=name, sockets=(111,)), Process(12, parent=2), Process(13, parent=12)]
    write(tree, processes=[*tgi, Process(30)])
    neighbours = Neighbours(Proc(tree), clock)
    neighbours.tell("127.0.0.1:8000")
    assert neighbours.pids() == {"127.0.0.1:8000": (2, 10, 12, 13)} and neighbours.owners_of([13]) == ("127.0.0.1:8000",)


def test_a_port_without_processes_that_can_be_seen(tree: pathlib.Path, clock: Clock) -> None:
    """An engine of another user listens, and whose it is cannot be seen: it has none, and the others theirs."""
    write(tree, processes=[Process(10), Process(11, parent=10), Process(20, sockets=(222,))])
    neighbours = Neighbours(Proc(tree), clock)
    neighbours.tell("127.0.0.1:8000")
    neighbours.tell("127.0.0.1:8001")
    assert neighbours.pids() == {"127.0.0.1:8000": (), "127.0.0.1:8001": (20,)}


def test_a_family_has_branches(tree: pathlib.Path, clock: Clock) -> None:
    """All children of all children are the engine's, also where they hold no socket."""
    below = [Process(pid, parent=parent) for pid, parent in ((11, 10), (12, 10), (13, 11), (14, 11), (15, 12), (16, 15), (40, 30))]
    write(tree, processes=[Process(10, sockets=(111,)), Process(30), *below])
    neighbours = Neighbours(Proc(tree), clock)
    neighbours.tell("127.0.0.1:8000")
    assert neighbours.pids() == {"127.0.0.1:8000": (10, 11, 12, 13, 14, 15, 16)}


def test_a_process_that_is_its_own_ancestor_ends_no_look(tree: pathlib.Path, clock: Clock) -> None:
    """Numbers are used again while they are read: a circle is walked once."""
    write(tree, processes=[Process(10, parent=12, sockets=(111,)), Process(11, parent=10), Process(12, parent=11)])
    neighbours = Neighbours(Proc(tree), clock)
    neighbours.tell("127.0.0.1:8000")
    assert neighbours.pids() == {"127.0.0.1:8000": (10, 11, 12)}


def test_engines_without_end_are_bounded(tree: pathlib.Path, clock: Clock) -> None:
    """Sixty-four are known, and a new one always: for it goes whoever has no port, then who was told longest ago."""
    neighbours = Neighbours(Proc(tree), clock)
    neighbours.tell("prod", "http://127.0.0.1:8000")
    for number in range(1_000):
        neighbours.tell(f"stranger {number}")
    assert neighbours.owners_of([10]) == ("prod",) and len(neighbours.pids()) == 64
    for number in range(100):
        neighbours.tell(f"127.0.0.1:{9_000 + number}")
    neighbours.tell("127.0.0.1:8001")
    assert len(neighbours.pids()) == 64 and "prod" not in neighbours.pids() and neighbours.pids()["127.0.0.1:8001"] == (20, 21)


def test_nothing_listens(clock: Clock, tmp_path: pathlib.Path) -> None:
    """Neither at that port, nor where there is no /proc."""
    for proc in (LIVE, Proc(tmp_path)):
        neighbours = Neighbours(proc, clock)
        assert neighbours.pids() == {}
        neighbours.tell("e", f"http://127.0.0.1:{free_port()}")
        clock.now_s += LOOK_EVERY_S
        assert neighbours.pids() == {"e": ()}


def test_many_threads_tell_and_ask(tree: pathlib.Path) -> None:
    """At once, while it looks each time: every engine is known in the end, and nobody fails."""
    steps = iter(range(1_000_000))
    neighbours = Neighbours(Proc(tree), lambda: 100.0 * next(steps))
    failed: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for number in range(first, first + 15):
                neighbours.tell(f"127.0.0.1:{8_000 + number}")
                neighbours.owners_of([11])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(15 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and len(neighbours.pids()) == 60 and neighbours.owners_of([11]) == ("127.0.0.1:8000",)


class Watched(Proc):
    """Says whose files were looked through, and may be made to wait there."""

    def __init__(self, root: pathlib.Path) -> None:
        super().__init__(root)
        self.asked: list[int] = []
        self.begun, self.go = threading.Event(), threading.Event()
        self.go.set()

    def holds(self, pid: int, inode: int) -> bool:
        self.asked.append(pid)
        self.begun.set()
        self.go.wait(10)
        return super().holds(pid, inode)


def test_files_of_others_are_looked_through_once(tree: pathlib.Path, clock: Clock) -> None:
    """While one that held the socket holds it, only the new are asked; when none does any more, all are. A child may lose its parent."""
    proc = Watched(tree)
    neighbours = Neighbours(proc, clock)
    neighbours.tell("127.0.0.1:8000")
    assert neighbours.pids() == {"127.0.0.1:8000": (10, 11)} and {2, 10, 11, 20, 21, 30, 31} == set(proc.asked)
    write(tree, processes=[Process(10, sockets=(111,)), Process(11, parent=10), Process(12, parent=11, sockets=(111,)), Process(30)])
    proc.asked.clear()
    clock.now_s += LOOK_EVERY_S
    assert neighbours.pids() == {"127.0.0.1:8000": (10, 11, 12)} and sorted(proc.asked) == [10, 12]
    write(tree, processes=[Process(10, sockets=(111,)), Process(12, parent=1, sockets=(111,)), Process(30)])
    clock.now_s += LOOK_EVERY_S
    assert neighbours.pids() == {"127.0.0.1:8000": (10, 12)}
    write(tree, processes=[Process(30, sockets=(111,))])
    clock.now_s += LOOK_EVERY_S
    assert neighbours.pids() == {"127.0.0.1:8000": (30,)}


def test_an_engine_is_told_while_somebody_looks(tree: pathlib.Path, clock: Clock) -> None:
    """The loop that reads datagrams tells: it does not wait for a walk through /proc, and what it tells is looked for next."""
    proc = Watched(tree)
    neighbours = Neighbours(proc, clock)
    neighbours.tell("127.0.0.1:8000")
    proc.go.clear()
    looker = threading.Thread(target=neighbours.pids)
    looker.start()
    assert proc.begun.wait(10)
    neighbours.tell("127.0.0.1:8001")
    assert looker.is_alive()
    proc.go.set()
    looker.join()
    assert neighbours.pids() == {"127.0.0.1:8000": (10, 11), "127.0.0.1:8001": (20, 21)}
