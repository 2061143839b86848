"""The processes of engines in other network namespaces, and of those behind forwarders. The registry's tests have the other cases."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from helpers.platform.proctree import Process, node, write
from legato_gpu_agent.collectors.engine_processes import EngineProcesses, KnownEngine, Pipe
from legato_gpu_agent.collectors.engine_registry import EngineRegistry
from legato_gpu_agent.collectors.procfs import Proc
from legato_gpu_agent.plugin.pipe import file_id

ID = "127.0.0.1:8000"
PLUGIN = KnownEngine(8000, has_plugin=True)
Found = dict[str, tuple[int, ...]]
POD = {"network": "2", "listening": {8000: 555}}


@pytest.fixture
def pipe(tmp_path: pathlib.Path) -> pathlib.Path:
    """The agent's pipe."""
    path = tmp_path / "engine.pipe"
    os.mkfifo(path)
    return path


class _Searched(Proc):
    """Notes in ``tree`` the processes that are asked whether they hold the pipe."""

    def __init__(self, root: pathlib.Path, tree: Tree) -> None:
        super().__init__(root)
        self._tree = tree

    def holds_file(self, pid: int, name: str, file_id: tuple[int, int]) -> bool:
        """Return whether it does."""
        self._tree.searched.add(pid)
        return super().holds_file(pid, name, file_id)


class Tree:
    """A written /proc, and what is found in it for these engines."""

    def __init__(self, root: pathlib.Path, pipe: pathlib.Path) -> None:
        self._root, self._pipe = node(root), Pipe(pipe.name, file_id(pipe.stat()))
        self._found = EngineProcesses(_Searched(root, self))
        self.searched = set[int]()
        """The processes that the last look asked whether they hold the pipe."""

    def find(
        self, engines: dict[str, KnownEngine], *processes: Process, listening: dict[int, int] | None = None, is_writing: bool = True
    ) -> Found:
        """Write the processes, and look. ``is_writing``: all engines have written since the last look."""
        write(self._root, processes=processes, listening=listening or {})
        self.searched.clear()
        return self._found.find(engines, self._pipe, engines if is_writing else ())


@pytest.fixture
def tree(tmp_path: pathlib.Path, pipe: pathlib.Path) -> Tree:
    return Tree(tmp_path / "proc", pipe)


def pod(pid: int, pipe: pathlib.Path, name: str = "", listening: int = 555) -> tuple[Process, Process]:
    """Return a server in its own network namespace that holds the pipe, and its child."""
    environ = {"PATH": "/bin", "LEGATO_ENGINE_ID": name} if name else {"OTHER_LEGATO_ENGINE_ID": "x"}
    server = Process(pid, sockets=(listening,), files=(pipe,), environ=environ, network=str(pid), listening={8000: listening})
    return server, Process(pid + 1, parent=pid, network=str(pid))


def test_an_engine_in_a_pod_has_its_processes(tree: Tree, pipe: pathlib.Path) -> None:
    """It listens at no port of the host, and holds the pipe."""
    assert tree.find({ID: PLUGIN}, *pod(10, pipe), Process(30)) == {ID: (10, 11)}


def test_a_published_port_is_not_the_engine(tree: Tree, pipe: pathlib.Path) -> None:
    """Docker's proxy listens at the port on the host; without a plugin nothing is known of the engine."""
    proxy = Process(20, name="docker-proxy", sockets=(111,), network="1")
    assert tree.find({ID: PLUGIN}, *pod(10, pipe), proxy, listening={8000: 111}) == {ID: (10, 11)}
    assert tree.find({ID: KnownEngine(8000)}, *pod(10, pipe), proxy, listening={8000: 111}) == {ID: ()}


def test_a_stranger_at_the_port_is_not_the_engine(tree: Tree, pipe: pathlib.Path) -> None:
    """Another server of the host at the port of an engine in a pod, also while the engine is not visible."""
    stranger = Process(20, sockets=(111,), network="1")
    assert tree.find({ID: PLUGIN}, *pod(10, pipe), stranger, listening={8000: 111}) == {ID: (10, 11)}
    assert tree.find({ID: PLUGIN}, stranger, listening={8000: 111}) == {ID: ()}


def test_two_pods_are_known_by_their_names(tree: Tree, pipe: pathlib.Path) -> None:
    """Each listens at the same port of its namespace; with one name in the environment the other pod has none of its processes."""
    two = [*pod(10, pipe, "a"), *pod(20, pipe, "b", 556)]
    assert tree.find({"a": KnownEngine(has_plugin=True), "b": KnownEngine(has_plugin=True)}, *two) == {"a": (10, 11), "b": (20, 21)}
    assert tree.find({"a": KnownEngine(has_plugin=True), ID: PLUGIN}, *pod(10, pipe, "a"), *pod(20, pipe)) == {"a": (10, 11), ID: (20, 21)}
    assert tree.find({"a": KnownEngine(has_plugin=True)}, *two) == {"a": (10, 11)}


def test_two_pods_with_one_id_are_one_engine(tree: Tree, pipe: pathlib.Path) -> None:
    """Their steps have one id too."""
    assert tree.find({ID: PLUGIN}, *pod(10, pipe), *pod(20, pipe, listening=556)) == {ID: (10, 11, 20, 21)}


def test_a_plugin_that_cannot_be_assigned_belongs_to_none(tree: Tree, pipe: pathlib.Path) -> None:
    """The only plugin left is the only engine left; with two of either nothing is claimed."""
    one, other = Process(10, files=(pipe,)), Process(20, files=(pipe,))
    named = KnownEngine(has_plugin=True)
    assert tree.find({"a": named, "a/1": named}, one, Process(11, parent=10, files=(pipe,))) == {"a": (10, 11), "a/1": ()}
    assert tree.find({"a": named}, one, other) == {"a": ()}
    assert tree.find({"a": named, "b": named}, one) == {"a": (), "b": ()}


def test_api_servers_belong_to_their_server(tree: Tree, pipe: pathlib.Path) -> None:
    """Several API servers hold the pipe; the process above them listens and has the engine as another child."""
    above = Process(10, sockets=(555,), **POD)  # type: ignore[arg-type]
    apis = [Process(pid, parent=10, sockets=(555,), files=(pipe,), **POD) for pid in (11, 12)]  # type: ignore[arg-type]
    assert tree.find({ID: PLUGIN}, above, *apis, Process(13, parent=10)) == {ID: (10, 11, 12, 13)}


def test_a_restarted_plugin_is_found_again(tree: Tree, pipe: pathlib.Path) -> None:
    """It opens the pipe after it was first seen; a process that opened another file of the name is none."""
    assert tree.find({ID: PLUGIN}, *pod(10, pipe)) == {ID: (10, 11)}
    bare = Process(40, sockets=(557,), network="3", listening={8000: 557})
    assert tree.find({ID: PLUGIN}, bare) == {ID: ()}
    other = pipe.parent / "folder" / pipe.name
    other.parent.mkdir()
    os.mkfifo(other)
    assert tree.find({ID: PLUGIN}, Process(40, sockets=(557,), files=(other,), network="3", listening={8000: 557})) == {ID: ()}
    assert tree.find({ID: PLUGIN}, *pod(40, pipe)) == {ID: (40, 41)}


def test_an_engine_that_has_ended_is_not_searched_for(tree: Tree, pipe: pathlib.Path) -> None:
    """All files of a node's processes were read every 15 s. When it writes again, it is found."""
    both = {"a": KnownEngine(has_plugin=True), "b": KnownEngine(has_plugin=True)}
    other, stranger = pod(20, pipe, "b", 556), Process(30)
    assert tree.find(both, *pod(10, pipe, "a"), *other, stranger) == {"a": (10, 11), "b": (20, 21)}
    assert tree.find(both, *other, stranger, is_writing=False) == {"a": (), "b": (20, 21)} and 30 in tree.searched
    assert tree.find(both, *other, stranger, is_writing=False) == {"a": (), "b": (20, 21)} and tree.searched == {20}
    assert tree.find(both, *other, *pod(30, pipe, "a")) == {"a": (30, 31), "b": (20, 21)}


# Listens at a port of a network namespace where it is alone, with the pipe open, and ends with its input.
_ENGINE = """
import os, socket, sys
pipe = os.open(sys.argv[1], os.O_RDWR)
listener = socket.socket()
listener.bind(("0.0.0.0", 8000))
listener.listen()
os.write(1, b"%d\\n" % os.getpid())
sys.stdin.read()
"""


@contextlib.contextmanager
def isolated(pipe: pathlib.Path) -> Iterator[int]:
    """Run a server in its own network namespace; yield its PID."""
    command = ["unshare", "-n", sys.executable, "-I", "-S", "-c", _ENGINE, str(pipe)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        line = process.stdout.readline()
        try:
            if not line:
                pytest.skip("this user may not create a network namespace")
            yield int(line)
        finally:
            process.stdin.close()


@pytest.mark.skipif(not shutil.which("unshare"), reason="no unshare")
def test_a_real_namespace(pipe: pathlib.Path) -> None:
    """The registry of an agent that holds the pipe too; the engine owns its GPU, and an engine of another host owns none."""
    registry = EngineRegistry(Proc(pathlib.Path("/proc")))
    own = os.open(pipe, os.O_RDWR)
    registry.pipe, registry.gpus = Pipe(pipe.name, file_id(os.fstat(own))), 8
    with isolated(pipe) as pid:
        registry.register(ID, has_plugin=True)
        registry.register("far", "http://10.9.9.9:8000")
        assert registry.pids() == {ID: (pid,), "far": ()} and registry.owners_of([pid]) == (ID,)
    os.close(own)
