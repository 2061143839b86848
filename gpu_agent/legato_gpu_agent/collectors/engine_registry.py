"""The engines known on this node: the id of each, its port, and its processes.

Discovery and the plugins' datagrams register engines here; collectors look up which engine owns a process of the host or of a GPU. The
processes are looked up at most every 15 s, because it requires a walk through /proc. Processes of other users are not visible; they have no
owner here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from urllib.parse import urlsplit

from legato_gpu_agent.collectors.addresses import is_local
from legato_gpu_agent.collectors.procfs import Proc
from legato_gpu_agent.plugin.identity import server_id

__all__ = ["EngineRegistry"]

_SCAN_EVERY_S = 15.0
_TGI = "text-generation"
_ENGINES_MAX = 64


class EngineRegistry:
    """Engines by id. Safe for several threads. ``gpus``: number of GPUs of the node, set by the GPU collector."""

    def __init__(self, proc: Proc, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc, self._clock = proc, clock
        self.gpus = 0
        self._has_matched = False
        self._ports: dict[str, int] = {}
        self._pids: dict[str, tuple[int, ...]] = {}
        self._scanned_s = float("-inf")
        self._holders: dict[int, set[int]] = {}
        self._visible: set[int] = set()
        self._lock, self._scanning = threading.Lock(), threading.Lock()

    def register(self, engine_id: str, url: str = "") -> None:
        """Register an engine; the port on this host comes from ``url``, or else from the id."""
        # A plugin registers an engine without a port; discovery may add the port later.
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
                # A datagram may carry any id, so the oldest engine without a port is removed, or else the oldest one.
                del self._ports[next((name for name, known in self._ports.items() if not known), next(iter(self._ports)))]
            self._ports[engine_id] = port or 0
            self._scanned_s = float("-inf")

    def pids(self) -> dict[str, tuple[int, ...]]:
        """Return the processes of each engine: the one that listens and all its descendants; empty where they are not visible."""
        # A scan takes time. Only callers of this method wait for it; `register` takes the other lock.
        with self._scanning:
            now_s = self._clock()
            with self._lock:
                is_due, ports = now_s - self._scanned_s >= _SCAN_EVERY_S, dict(self._ports)
                if is_due:
                    self._scanned_s = now_s
            if is_due:
                self._pids = self._scan(ports)
            return dict(self._pids)

    def owners_of(self, pids: Sequence[int], is_part: bool = False) -> tuple[str, ...]:
        """Return the engines that own these processes of a GPU; ``is_part``: of a part of a GPU.

        If none of the processes is visible (another user's, or PIDs of another namespace) and the node has one GPU and one engine, that
        engine owns them. This does not apply once an engine's own processes were seen on the GPU: then invisible ones belong to others.
        """
        known = self.pids()
        owners = sorted(engine for engine, own in known.items() if set(own) & set(pids))
        servers = set(map(server_id, known))
        self._has_matched |= bool(owners)
        if owners or not pids or is_part or self._has_matched or self.gpus != 1 or len(servers) != 1:
            return tuple(owners)
        is_visible = any(known.values()) and any(self._proc.parent(pid) is not None for pid in pids)
        return () if is_visible else tuple(servers)

    def _scan(self, ports: dict[str, int]) -> dict[str, tuple[int, ...]]:
        with_port = {engine: port for engine, port in ports.items() if port}
        listening = self._proc.listening() if with_port else {}
        inodes: dict[int, str] = {}
        # Engines behind one server (id/1, id/2) share its socket: its processes are assigned to the engine with the plain id.
        for engine in sorted(with_port, key=lambda engine: server_id(engine) != engine):
            if with_port[engine] in listening:
                inodes.setdefault(listening[with_port[engine]], engine)
        out: dict[str, tuple[int, ...]] = dict.fromkeys(ports, ())
        if not inodes:
            return out
        parents = {pid: parent for pid in self._proc.pids() if (parent := self._proc.parent(pid)) is not None}
        children: dict[int, list[int]] = {}
        for pid, parent in parents.items():
            children.setdefault(parent, []).append(pid)
        self._holders = {inode: self._holders_of(inode, parents) for inode in inodes}
        self._visible = set(parents)
        for inode, engine in inodes.items():
            # Child processes inherit a socket, so a holder without a parent among the holders is a root of the engine.
            holders = self._holders[inode]
            roots = [self._launcher(pid, parents) for pid in sorted(holders) if parents[pid] not in holders]
            out[engine] = tuple(sorted(_descendants(roots, children)))
        return out

    def _launcher(self, pid: int, parents: dict[int, int]) -> int:
        """Return the root of an engine's processes. TGI's router listens and has the shards as siblings, so there it is the parent."""
        parent = parents[pid]
        return parent if all(self._proc.command(each).startswith(_TGI) for each in (pid, parent)) else pid

    def _holders_of(self, inode: int, pids: Collection[int]) -> set[int]:
        """Return the processes that hold this socket.

        A search through the open files of all processes is expensive. While a known holder still holds the socket, only known holders and
        new processes are checked, because a process gets a socket when it starts.
        """
        known = self._holders.get(inode, set())
        holders = {pid for pid in pids if (pid in known or pid not in self._visible) and self._proc.holds(pid, inode)}
        return holders if holders & known else {pid for pid in pids if self._proc.holds(pid, inode)}


def _descendants(roots: Sequence[int], children: dict[int, list[int]]) -> set[int]:
    """Return the roots and all their descendants."""
    found: set[int] = set()
    left = list(roots)
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += children.get(pid, ())
    return found
