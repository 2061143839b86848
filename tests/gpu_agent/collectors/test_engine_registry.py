"""The owners of processes: real processes that listen, and a written /proc for rare cases."""

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
from legato_gpu_agent.collectors.engine_registry import EngineRegistry
from legato_gpu_agent.collectors.procfs import Proc

LIVE = Proc(pathlib.Path("/proc"))
POLL_EVERY_S = 15.0


class Clock:
    """A clock that moves only when the test sets it."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> pathlib.Path:
    """Two engines on ports 8000 and 8001, each with a child, a launcher above the first, and an unrelated process."""
    root = node(tmp_path / "proc")
    engines = [Process(10, parent=2, sockets=(111,)), Process(11, parent=10), Process(20, sockets=(222,)), Process(21, parent=20)]
    write(root, listening={8000: 111, 8001: 222}, processes=[Process(2), *engines, Process(30), Process(31, parent=30)])
    return root


def test_an_engine_owns_all_descendants_of_the_listener(clock: Clock) -> None:
    """With real processes: the listener, its child and its grandchild, and neither siblings nor the parent."""
    engine_registry = EngineRegistry(LIVE, clock)
    sibling = [sys.executable, "-I", "-S", "-c", "open(0).read()"]
    with family() as one, family() as other, subprocess.Popen(sibling, stdin=subprocess.PIPE) as unrelated:
        engine_registry.register(f"127.0.0.1:{one.port}")
        engine_registry.register("prod", f"http://localhost:{other.port}/v1")
        assert engine_registry.pids() == {f"127.0.0.1:{one.port}": tuple(sorted(one.pids)), "prod": tuple(sorted(other.pids))}
        assert [engine_registry.owners_of([pid]) for pid in one.pids] == [(f"127.0.0.1:{one.port}",)] * 3
        assert engine_registry.owners_of([unrelated.pid, other.pids[2]]) == ("prod",)
        assert engine_registry.owners_of([unrelated.pid, os.getpid()]) == ()


def test_a_stopped_engine_has_no_processes(clock: Clock) -> None:
    """Until the next scan the last result holds; then it has none, and a restarted engine is found."""
    engine_registry = EngineRegistry(LIVE, clock)
    with family() as engine:
        engine_registry.register("e", f"http://127.0.0.1:{engine.port}")
        before = engine_registry.pids()
        assert before == {"e": tuple(sorted(engine.pids))}
        engine.end()
        clock.now_s += POLL_EVERY_S - 0.1
        assert engine_registry.pids() == before
        clock.now_s += 0.2
        assert engine_registry.pids() == {"e": ()}


def test_each_scan_knows_which_engines_have_written(clock: Clock, tree: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the plugins' datagrams since the scan before; a scrape is none."""
    engine_registry, seen = EngineRegistry(Proc(tree), clock), list[set[str]]()

    def find(_: object, __: object, writing: set[str]) -> dict[str, tuple[int, ...]]:
        seen.append(writing)
        return {}

    monkeypatch.setattr(engine_registry._processes, "find", find)
    for written in (("a", "b"), ("b",), ()):
        engine_registry.register("scraped", "http://127.0.0.1:8000")
        for engine in written:
            engine_registry.register(engine, has_plugin=True)
        clock.now_s += POLL_EVERY_S
        engine_registry.pids()
    assert seen == [{"a", "b"}, {"b"}, set()]


def test_an_engine_without_its_root_owns_the_remaining_listeners(clock: Clock) -> None:
    """The socket was inherited, so the child that holds it is the root."""
    engine_registry = EngineRegistry(LIVE, clock)
    with family() as engine:
        engine_registry.register("e", f"http://127.0.0.1:{engine.port}")
        engine.process.kill()
        engine.process.wait()
        assert engine_registry.pids() == {"e": tuple(sorted(engine.pids[1:]))}


def test_scans_are_rare(tree: pathlib.Path, clock: Clock) -> None:
    """Every 15 s, and at once when an engine is registered; registering it again causes no scan."""
    engine_registry = EngineRegistry(Proc(tree), clock)
    engine_registry.register("127.0.0.1:8000")
    assert engine_registry.pids() == {"127.0.0.1:8000": (10, 11)}
    write(tree, processes=[Process(12, sockets=(111,))])
    engine_registry.register("127.0.0.1:8000")
    assert engine_registry.pids() == {"127.0.0.1:8000": (10, 11)}
    engine_registry.register("prod", "http://127.0.0.1:8001")
    assert engine_registry.pids() == {"127.0.0.1:8000": (12,), "prod": ()}


def test_results_are_copies(tree: pathlib.Path, clock: Clock) -> None:
    """Changing a result changes nothing else."""
    engine_registry = EngineRegistry(Proc(tree), clock)
    engine_registry.register("127.0.0.1:8000")
    engine_registry.pids().clear()
    assert engine_registry.pids() == {"127.0.0.1:8000": (10, 11)}


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
def test_the_port_of_an_engine(tree: pathlib.Path, clock: Clock, engine_id: str, url: str, pids: tuple[int, ...]) -> None:
    """From its URL, or else from its id. A port of another host does not count; an id without a port has no processes."""
    engine_registry = EngineRegistry(Proc(tree), clock)
    engine_registry.register(engine_id, url)
    assert engine_registry.pids() == {engine_id: pids}


def test_no_name_is_resolved(tree: pathlib.Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id comes from a datagram, and the loop that reads datagrams must not wait for DNS."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("a name was looked up"))
    engine_registry = EngineRegistry(Proc(tree), clock)
    engine_registry.register("gpu7:8000")
    engine_registry.register("prod", "http://gpu7:8001")
    assert set(engine_registry.pids().values()) == {()}


@pytest.mark.parametrize("engine_id", ["[", "[::1", "//[x]:1", "a℀b:1", "/", ":", "\0", "🦊:8000", "x" * 255, "127.0.0.1:-1"])
def test_no_id_raises(tree: pathlib.Path, clock: Clock, engine_id: str) -> None:
    """A datagram may contain any text: it is an engine without a port, and the others are found."""
    engine_registry = EngineRegistry(Proc(tree), clock)
    engine_registry.register(engine_id)
    engine_registry.register("127.0.0.1:8000")
    assert engine_registry.pids() == {engine_id: (), "127.0.0.1:8000": (10, 11)}


def test_a_port_may_be_registered_later(tree: pathlib.Path, clock: Clock) -> None:
    """A plugin may register before its metrics are found; a known port stays."""
    engine_registry = EngineRegistry(Proc(tree), clock)
    engine_registry.register("prod")
    assert engine_registry.pids() == {"prod": ()}
    engine_registry.register("prod", "http://127.0.0.1:8001")
    assert engine_registry.pids() == {"prod": (20, 21)}
    engine_registry.register("prod")
    engine_registry.register("prod", "http://127.0.0.1:8000")
    assert engine_registry.pids() == {"prod": (20, 21)}


@pytest.mark.parametrize("order", [("127.0.0.1:8000", "127.0.0.1:8000/1"), ("127.0.0.1:8000/1", "127.0.0.1:8000")])
def test_engines_behind_one_server_share_its_processes(tree: pathlib.Path, clock: Clock, order: tuple[str, str]) -> None:
    """They belong to the plain id, for any order of registration, and each process counts once."""
    engine_registry = EngineRegistry(Proc(tree), clock)
    for engine_id in order:
        engine_registry.register(engine_id)
        engine_registry.pids()
    assert engine_registry.pids() == {"127.0.0.1:8000": (10, 11), "127.0.0.1:8000/1": ()}
    assert engine_registry.owners_of([11]) == ("127.0.0.1:8000",)


def test_owners(tree: pathlib.Path, clock: Clock) -> None:
    """The owning engines; none for unrelated processes, or without processes."""
    engine_registry = EngineRegistry(Proc(tree), clock)
    assert engine_registry.owners_of([10]) == ()
    engine_registry.register("127.0.0.1:8000")
    assert [engine_registry.owners_of(pids) for pids in ([10], [11, 999], [30], [2], [])] == [("127.0.0.1:8000",)] * 2 + [()] * 3
    engine_registry.register("127.0.0.1:8001")
    both = ("127.0.0.1:8000", "127.0.0.1:8001")
    assert [engine_registry.owners_of(pids) for pids in ([21], [10, 20], [31])] == [("127.0.0.1:8001",), both, ()]


def test_the_only_engine_owns_invisible_processes(tree: pathlib.Path, clock: Clock) -> None:
    """If the processes of the only engine are hidden. With two engines the owner is unknown."""
    engine_registry = EngineRegistry(Proc(tree), clock)
    engine_registry.register("prod")
    assert [engine_registry.owners_of(pids) for pids in ([10], [])] == [(), ()]
    engine_registry.gpus = 1
    assert [engine_registry.owners_of(pids) for pids in ([10], [])] == [("prod",), ()]
    engine_registry.register("other")
    assert engine_registry.owners_of([10]) == ()


@pytest.mark.parametrize(("gpu_pids", "owners"), [([999], ("127.0.0.1:8000",)), ([30], ()), ([11, 999], ("127.0.0.1:8000",)), ([], ())])
def test_the_only_engine_owns_the_only_gpu(tree: pathlib.Path, clock: Clock, gpu_pids: list[int], owners: tuple[str, ...]) -> None:
    """PIDs unknown here belong to another namespace, so they may be the engine's; a visible unrelated process may not. Ranks of one server
    are one engine.
    """
    engine_registry = EngineRegistry(Proc(tree), clock)
    engine_registry.gpus = 1
    engine_registry.register("127.0.0.1:8000")
    engine_registry.register("127.0.0.1:8000/1")
    assert engine_registry.owners_of(gpu_pids) == owners and engine_registry.owners_of([999], is_part=True) == ()


def test_an_engine_of_another_host_owns_no_gpu(tree: pathlib.Path, clock: Clock) -> None:
    """Neither as the only one, nor does it hide the one of this host; a plugin that writes to the pipe is on this host."""
    engine_registry = EngineRegistry(Proc(tree), clock)
    engine_registry.gpus = 1
    engine_registry.register("far", "http://10.9.9.9:8000")
    assert engine_registry.owners_of([999]) == ()
    engine_registry.register("prod")
    assert engine_registry.owners_of([999]) == ("prod",)
    engine_registry.register("far", has_plugin=True)
    assert engine_registry.owners_of([999]) == ()


def test_an_id_may_have_slashes(tree: pathlib.Path, clock: Clock) -> None:
    """Only a number after the last one is a rank."""
    engine_registry = EngineRegistry(Proc(tree), clock)
    engine_registry.gpus = 1
    engine_registry.register("team/llama")
    engine_registry.register("team/llama/1")
    assert engine_registry.owners_of([999]) == ("team/llama",)
    engine_registry.register("team/qwen")
    assert engine_registry.owners_of([999]) == ()


def test_a_visible_process_of_the_engine_ends_the_assumption(tree: pathlib.Path, clock: Clock) -> None:
    """PIDs are of one namespace once one of them was the engine's: an invisible process then belongs to another owner."""
    engine_registry = EngineRegistry(Proc(tree), clock)
    engine_registry.gpus = 1
    engine_registry.register("127.0.0.1:8000")
    assert [engine_registry.owners_of([pid]) for pid in (999, 11, 999)] == [("127.0.0.1:8000",)] * 2 + [()]


def test_a_router_next_to_its_shards(tree: pathlib.Path, clock: Clock) -> None:
    """TGI's launcher starts the router, which listens, and the shards, which compute: all belong to the engine."""
    name = "text-generation"
    tgi = [Process(2, name=name), Process(10, parent=2, name=name, sockets=(111,)), Process(12, parent=2), Process(13, parent=12)]
    write(tree, processes=[*tgi, Process(30)])
    engine_registry = EngineRegistry(Proc(tree), clock)
    engine_registry.register("127.0.0.1:8000")
    assert engine_registry.pids() == {"127.0.0.1:8000": (2, 10, 12, 13)} and engine_registry.owners_of([13]) == ("127.0.0.1:8000",)


def test_a_port_without_visible_processes(tree: pathlib.Path, clock: Clock) -> None:
    """The owner of another user's socket is not visible: that engine has no processes, and the others keep theirs."""
    write(tree, processes=[Process(10), Process(11, parent=10), Process(20, sockets=(222,))])
    engine_registry = EngineRegistry(Proc(tree), clock)
    engine_registry.register("127.0.0.1:8000")
    engine_registry.register("127.0.0.1:8001")
    assert engine_registry.pids() == {"127.0.0.1:8000": (), "127.0.0.1:8001": (20,)}


def test_a_process_tree_has_branches(tree: pathlib.Path, clock: Clock) -> None:
    """All descendants belong to the engine, also those that hold no socket."""
    below = [Process(pid, parent=parent) for pid, parent in ((11, 10), (12, 10), (13, 11), (14, 11), (15, 12), (16, 15), (40, 30))]
    write(tree, processes=[Process(10, sockets=(111,)), Process(30), *below])
    engine_registry = EngineRegistry(Proc(tree), clock)
    engine_registry.register("127.0.0.1:8000")
    assert engine_registry.pids() == {"127.0.0.1:8000": (10, 11, 12, 13, 14, 15, 16)}


def test_a_cycle_of_parents_ends_the_scan(tree: pathlib.Path, clock: Clock) -> None:
    """PIDs can be reused during a scan: a cycle is walked once."""
    write(tree, processes=[Process(10, parent=12, sockets=(111,)), Process(11, parent=10), Process(12, parent=11)])
    engine_registry = EngineRegistry(Proc(tree), clock)
    engine_registry.register("127.0.0.1:8000")
    assert engine_registry.pids() == {"127.0.0.1:8000": (10, 11, 12)}


def test_engines_are_bounded(tree: pathlib.Path, clock: Clock) -> None:
    """Sixty-four are kept, and a new one is always accepted: the oldest without a port is removed for it, or else the oldest."""
    engine_registry = EngineRegistry(Proc(tree), clock)
    engine_registry.register("prod", "http://127.0.0.1:8000")
    for number in range(1_000):
        engine_registry.register(f"other {number}")
    assert engine_registry.owners_of([10]) == ("prod",) and len(engine_registry.pids()) == 64
    for number in range(100):
        engine_registry.register(f"127.0.0.1:{9_000 + number}")
    engine_registry.register("127.0.0.1:8001")
    assert (
        len(engine_registry.pids()) == 64 and "prod" not in engine_registry.pids() and engine_registry.pids()["127.0.0.1:8001"] == (20, 21)
    )


def test_nothing_listens(clock: Clock, tmp_path: pathlib.Path) -> None:
    """At the engine's port, and without a /proc."""
    for proc in (LIVE, Proc(tmp_path)):
        engine_registry = EngineRegistry(proc, clock)
        assert engine_registry.pids() == {}
        engine_registry.register("e", f"http://127.0.0.1:{free_port()}")
        clock.now_s += POLL_EVERY_S
        assert engine_registry.pids() == {"e": ()}


def test_many_threads_register_and_look_up(tree: pathlib.Path) -> None:
    """At once, with a scan each time: all engines are known in the end, and no thread fails."""
    steps = iter(range(1_000_000))
    engine_registry = EngineRegistry(Proc(tree), lambda: 100.0 * next(steps))
    failed: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for number in range(first, first + 15):
                engine_registry.register(f"127.0.0.1:{8_000 + number}")
                engine_registry.owners_of([11])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(15 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and len(engine_registry.pids()) == 60 and engine_registry.owners_of([11]) == ("127.0.0.1:8000",)


class Watched(Proc):
    """Records which processes' files were searched, and can block there."""

    def __init__(self, root: pathlib.Path) -> None:
        super().__init__(root)
        self.searched: list[int] = []
        self.begun, self.go = threading.Event(), threading.Event()
        self.go.set()

    def holds(self, pid: int, inode: int) -> bool:
        self.searched.append(pid)
        self.begun.set()
        self.go.wait(10)
        return super().holds(pid, inode)


def test_files_of_other_processes_are_searched_once(tree: pathlib.Path, clock: Clock) -> None:
    """While a known holder holds the socket, only new processes are searched; otherwise all are. A child may lose its parent."""
    proc = Watched(tree)
    engine_registry = EngineRegistry(proc, clock)
    engine_registry.register("127.0.0.1:8000")
    assert engine_registry.pids() == {"127.0.0.1:8000": (10, 11)} and {2, 10, 11, 20, 21, 30, 31} == set(proc.searched)
    write(tree, processes=[Process(10, sockets=(111,)), Process(11, parent=10), Process(12, parent=11, sockets=(111,)), Process(30)])
    proc.searched.clear()
    clock.now_s += POLL_EVERY_S
    assert engine_registry.pids() == {"127.0.0.1:8000": (10, 11, 12)} and sorted(proc.searched) == [10, 12]
    write(tree, processes=[Process(10, sockets=(111,)), Process(12, parent=1, sockets=(111,)), Process(30)])
    clock.now_s += POLL_EVERY_S
    assert engine_registry.pids() == {"127.0.0.1:8000": (10, 12)}
    write(tree, processes=[Process(30, sockets=(111,))])
    clock.now_s += POLL_EVERY_S
    assert engine_registry.pids() == {"127.0.0.1:8000": (30,)}


def test_registering_does_not_wait_for_a_scan(tree: pathlib.Path, clock: Clock) -> None:
    """The loop that reads datagrams registers engines: it does not wait for a walk through /proc, and the next scan includes the engine."""
    proc = Watched(tree)
    engine_registry = EngineRegistry(proc, clock)
    engine_registry.register("127.0.0.1:8000")
    proc.go.clear()
    looker = threading.Thread(target=engine_registry.pids)
    looker.start()
    assert proc.begun.wait(10)
    engine_registry.register("127.0.0.1:8001")
    assert looker.is_alive()
    proc.go.set()
    looker.join()
    assert engine_registry.pids() == {"127.0.0.1:8000": (10, 11), "127.0.0.1:8001": (20, 21)}
