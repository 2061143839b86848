"""The engines on this node, as far as the agent knows them: what each is called, where it listens, and which processes are its.

One idea: whoever finds an engine says so here, and whoever has numbers of processes (the host's, a GPU's) asks here whose they are.
Processes are looked for seldom, as it means to walk /proc; those of other users cannot be seen, and then nobody is said to own them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from urllib.parse import urlsplit

from legato_gpu_agent.collectors.addresses import is_local
from legato_gpu_agent.collectors.procfs import Proc
from legato_gpu_agent.plugin.identity import server_of

__all__ = ["Neighbours"]

_LOOK_EVERY_S = 15.0
_TGI = "text-generation"
_ENGINES_MAX = 64


class Neighbours:
    """Engines by id. Safe for several threads. ``gpus``: how many the node has, by whoever counted them."""

    def __init__(self, proc: Proc, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc, self._clock = proc, clock
        self.gpus = 0
        self._matched = False
        self._ports: dict[str, int] = {}
        self._pids: dict[str, tuple[int, ...]] = {}
        self._looked_s = float("-inf")
        self._holders: dict[int, set[int]] = {}
        self._seen: set[int] = set()
        self._lock, self._looking = threading.Lock(), threading.Lock()

    def tell(self, engine_id: str, url: str = "") -> None:
        """There is such an engine; ``url``, else its id, says at which port of this host."""
        # One that was told without its port, by its plugin, may be told with it later.
        known = self._ports.get(engine_id)
        if known or (known is not None and not url):
            return
        try:
            parts = urlsplit(url or f"//{engine_id.split('/')[0]}")
            port = parts.port if is_local(parts.hostname or "") else None
        except ValueError:
            port = None
        with self._lock:
            if engine_id not in self._ports and len(self._ports) >= _ENGINES_MAX:
                # Any id may come in a datagram: one without a port goes first, else the one told longest ago.
                del self._ports[next((name for name, known in self._ports.items() if not known), next(iter(self._ports)))]
            self._ports[engine_id] = port or 0
            self._looked_s = float("-inf")

    def pids(self) -> dict[str, tuple[int, ...]]:
        """Of each engine, its processes: the one that listens, and all that come from it. Those that are not known are empty."""
        # A look takes time, and only who asks whose processes are whose waits for it: an engine is told of at once.
        with self._looking:
            now_s = self._clock()
            with self._lock:
                is_due, ports = now_s - self._looked_s >= _LOOK_EVERY_S, dict(self._ports)
                if is_due:
                    self._looked_s = now_s
            if is_due:
                self._pids = self._look(ports)
            return dict(self._pids)

    def owners_of(self, pids: Sequence[int], is_part: bool = False) -> tuple[str, ...]:
        """The engines that these processes, of a GPU or a part of one, are of.

        Where none of a GPU's processes can be seen (another user's, or numbers of another namespace) and the node has one GPU and one
        engine, that one; not once an engine's own were seen on it, as those that cannot be seen are others' then.
        """
        known = self.pids()
        owners = sorted(engine for engine, own in known.items() if set(own) & set(pids))
        servers = set(map(server_of, known))
        self._matched |= bool(owners)
        if owners or not pids or is_part or self._matched or self.gpus != 1 or len(servers) != 1:
            return tuple(owners)
        seen = any(known.values()) and any(self._proc.parent(pid) is not None for pid in pids)
        return () if seen else tuple(servers)

    def _look(self, ports: dict[str, int]) -> dict[str, tuple[int, ...]]:
        wanted = {engine: port for engine, port in ports.items() if port}
        listening = self._proc.listening() if wanted else {}
        inodes: dict[int, str] = {}
        # Engines behind one server (id/1, id/2) share its socket: its processes are said to be of the one with the plain id.
        for engine in sorted(wanted, key=lambda engine: server_of(engine) != engine):
            if wanted[engine] in listening:
                inodes.setdefault(listening[wanted[engine]], engine)
        out: dict[str, tuple[int, ...]] = dict.fromkeys(ports, ())
        if not inodes:
            return out
        parents = {pid: parent for pid in self._proc.pids() if (parent := self._proc.parent(pid)) is not None}
        children: dict[int, list[int]] = {}
        for pid, parent in parents.items():
            children.setdefault(parent, []).append(pid)
        self._holders = {inode: self._holders_of(inode, parents) for inode in inodes}
        self._seen = set(parents)
        for inode, engine in inodes.items():
            # A socket is inherited: of those that hold it the eldest is the engine's root.
            holders = self._holders[inode]
            roots = [self._launcher(pid, parents) for pid in sorted(holders) if parents[pid] not in holders]
            out[engine] = tuple(sorted(_family(roots, children)))
        return out

    def _launcher(self, pid: int, parents: dict[int, int]) -> int:
        """Whom an engine's processes come from, where the one that listens is one of several: TGI's router beside its shards."""
        parent = parents[pid]
        return parent if all(self._proc.command(each).startswith(_TGI) for each in (pid, parent)) else pid

    def _holders_of(self, inode: int, pids: Collection[int]) -> set[int]:
        """The processes that hold this socket. To look through all files of all is dear: while one that held it does, only those that are
        new are asked besides, as one comes by a socket when it begins.
        """
        known = self._holders.get(inode, set())
        holders = {pid for pid in pids if (pid in known or pid not in self._seen) and self._proc.holds(pid, inode)}
        return holders if holders & known else {pid for pid in pids if self._proc.holds(pid, inode)}


def _family(roots: Sequence[int], children: dict[int, list[int]]) -> set[int]:
    found: set[int] = set()
    left = list(roots)
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += children.get(pid, ())
    return found
