"""Finds the processes of this node's engines in /proc.

An engine with a plugin is found by the process that holds the agent's pipe open: it may be in another network namespace (a pod, a container
with a published port), where its port says nothing on this host. An engine without a plugin is the process that listens at its port in the
agent's own network namespace, unless that process only forwards. All descendants belong to the engine. Processes of other users are not
visible to an agent without the capability SYS_PTRACE.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from legato_gpu_agent.collectors.procfs import Proc
from legato_gpu_agent.plugin.identity import ENGINE_ID, server_id

__all__ = ["EngineProcesses", "KnownEngine", "Pipe"]

_TGI = "text-generation"
_FORWARDERS = (
    *("docker-proxy", "dockerd", "rootlessport", "slirp4netns", "pasta", "pasta.avx2", "podman", "conmon", "kubectl"),
    *("ssh", "sshd", "socat", "nginx", "haproxy", "envoy", "traefik", "caddy", "systemd"),
)
"""Processes that listen for an engine that is another process, maybe of another host."""


@dataclass(frozen=True, slots=True)
class KnownEngine:
    """What is known of an engine: its port (0: none), whether it is on another host, and whether a plugin in it writes to the pipe."""

    port: int = 0
    is_remote: bool = False
    has_plugin: bool = False


@dataclass(frozen=True, slots=True)
class Pipe:
    """The agent's pipe: its name, and its device and inode, which are the same in each mount namespace."""

    name: str
    file_id: tuple[int, int]


class EngineProcesses:
    """Looks up processes, and remembers between two scans which process holds what. Not safe for several threads at once."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._holders: dict[int, set[int]] = {}
        self._plugins: set[int] = set()
        self._visible: set[int] = set()
        self._servers: set[str] = set()
        self._parents: dict[int, int] = {}
        self._children: dict[int, list[int]] = {}

    def find(self, engines: Mapping[str, KnownEngine], pipe: Pipe | None, writing: Collection[str]) -> dict[str, tuple[int, ...]]:
        """Return the processes of each engine, none where they are not visible.

        Engines behind one server (id/1, id/2) share its processes: they are assigned to the engine with the plain id.
        ``writing``: the engines that wrote to the pipe since the last call.
        """
        ordered = sorted(engines, key=lambda engine: server_id(engine) != engine)
        without = {engine: port for engine in ordered if (port := engines[engine].port) and not engines[engine].has_plugin}
        plugins = [engine for engine in ordered if engines[engine].has_plugin]
        listening = self._proc.listening() if without else {}
        out: dict[str, tuple[int, ...]] = dict.fromkeys(engines, ())
        sockets = {engine: listening[port] for engine, port in without.items() if port in listening}
        if not sockets and not plugins:
            return out
        self._read_parents()
        holders = dict(self._holders)
        self._holders = {}
        found = {engine: self._by_socket(inode, holders) for engine, inode in sockets.items()}
        self._plugins = self._holding(pipe, writing) if plugins and pipe else set()
        found.update(self._of_plugins(plugins, engines, holders))
        self._visible = set(self._parents)
        taken: set[int] = set()
        for engine in sorted(found, key=lambda engine: (not engines[engine].has_plugin, server_id(engine) != engine)):
            out[engine] = tuple(sorted(found[engine] - taken))
            taken |= found[engine]
        return out

    def _read_parents(self) -> None:
        self._parents = {pid: parent for pid in self._proc.pids() if (parent := self._proc.parent(pid)) is not None}
        self._children = {}
        for pid, parent in self._parents.items():
            self._children.setdefault(parent, []).append(pid)

    def _by_socket(self, inode: int, before: Mapping[int, set[int]]) -> set[int]:
        """Return the processes of the engine that holds this socket; none if a forwarder does."""
        holders = self._holders[inode] = self._holders_of(inode, before.get(inode, set()))
        return set() if any(self._proc.command(pid) in _FORWARDERS for pid in holders) else self._tree(holders)

    def _of_plugins(self, engines: Sequence[str], known: Mapping[str, KnownEngine], before: Mapping[int, set[int]]) -> dict[str, set[int]]:
        """Return the processes of each engine with a plugin.

        They are found by the port in the namespace of a plugin, else by the id in its environment, else as the only ones that are left.
        """
        names = {pid: self._proc.variable(pid, ENGINE_ID) for pid in self._plugins}
        found: dict[str, set[int]] = {}
        left = set(self._plugins)
        for engine in engines:
            trees = [self._by_socket(inode, before) for inode in self._listening_at(known[engine].port)]
            own = {pid for tree in trees for pid in tree & left if names[pid] in ("", server_id(engine))}
            found[engine] = set().union(*(tree for tree in trees if tree & own))
            if not found[engine]:
                own = {pid for pid in left if names[pid] == server_id(engine)}
                found[engine] = self._tree(own)
            left -= own
        self._servers = {server_id(engine) for engine in engines if found[engine]}
        missing = [engine for engine in engines if server_id(engine) not in self._servers]
        roots = {pid for pid in left if not names[pid] and self._parents.get(pid) not in left}
        if len(set(map(server_id, missing))) == 1 and len(roots) == 1:
            found[missing[0]] = self._tree(roots)
            self._servers.add(server_id(missing[0]))
        return found

    def _listening_at(self, port: int) -> Iterator[int]:
        """Yield the sockets that listen at this port in the network namespaces of the plugins."""
        namespaces = {self._proc.network(pid): pid for pid in self._plugins} if port else {}
        for pid in namespaces.values():
            if (inode := self._proc.listening(f"{pid}/").get(port)) is not None:
                yield inode

    def _tree(self, pids: Collection[int]) -> set[int]:
        """Return these processes and all their descendants. Child processes inherit files, so one without a parent among them is a root."""
        roots = [self._launcher(pid) for pid in sorted(pids) if self._parents[pid] not in pids]
        return _descendants(roots, self._children)

    def _launcher(self, pid: int) -> int:
        """Return the root of an engine's processes. TGI's router listens and has the shards as siblings, so there it is the parent."""
        parent = self._parents[pid]
        return parent if all(self._proc.command(each).startswith(_TGI) for each in (pid, parent)) else pid

    def _holders_of(self, inode: int, known: set[int]) -> set[int]:
        """Return the processes that hold this socket.

        A search through the open files of all processes is expensive. While a known holder still holds the socket, only known holders and
        new processes are checked, because a process gets a socket when it starts.
        """
        pids = self._parents
        holders = {pid for pid in pids if (pid in known or pid not in self._visible) and self._proc.holds(pid, inode)}
        return holders if holders & known else {pid for pid in pids if self._proc.holds(pid, inode)}

    def _holding(self, pipe: Pipe, writing: Collection[str]) -> set[int]:
        """Return the processes other than the agent that hold the pipe.

        A plugin opens it with its first step, so all processes are searched while an engine that writes is not found, and once when one is
        gone.
        """
        known, own = self._plugins, self._proc.own_pid()

        def search(pids: Collection[int]) -> set[int]:
            return {pid for pid in pids if pid != own and self._proc.holds_file(pid, pipe.name, pipe.file_id)}

        still = search(known & self._parents.keys())
        if still == known and self._servers.issuperset(map(server_id, writing)):
            return still | search(self._parents.keys() - self._visible - known)
        return search(self._parents)


def _descendants(roots: Sequence[int], children: Mapping[int, Sequence[int]]) -> set[int]:
    """Return the roots and all their descendants."""
    found: set[int] = set()
    left = list(roots)
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += children.get(pid, ())
    return found
