"""The engines known on this node: the id of each, its port, and its processes.

Discovery and the plugins' datagrams register engines here; collectors look up which engine owns a process of the host or of a GPU. The
processes are looked up at most every 15 s, because it requires a walk through /proc.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from legato_gpu_agent.collectors.addresses import is_local
from legato_gpu_agent.collectors.engine_processes import EngineProcesses, KnownEngine, Pipe
from legato_gpu_agent.collectors.procfs import Proc
from legato_gpu_agent.plugin.identity import server_id

__all__ = ["EngineRegistry"]

_SCAN_EVERY_S = 15.0
_ENGINES_MAX = 64


class EngineRegistry:
    """Engines by id. Safe for several threads.

    ``gpus``: number of GPUs of the node, set by the GPU collector. ``pipe``: the pipe from the plugins, set by the agent.
    """

    def __init__(self, proc: Proc, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc, self._clock = proc, clock
        self._processes = EngineProcesses(proc)
        self.gpus = 0
        self.pipe: Pipe | None = None
        self._has_matched = False
        self._engines: dict[str, KnownEngine] = {}
        self._pids: dict[str, tuple[int, ...]] = {}
        self._writing: set[str] = set()
        self._scanned_s = float("-inf")
        self._lock, self._scanning = threading.Lock(), threading.Lock()

    def register(self, engine_id: str, url: str = "", has_plugin: bool = False) -> None:
        """Register an engine; its port comes from ``url``, or else from the id. ``has_plugin``: a plugin in it writes to the pipe."""
        # A plugin registers an engine without a port; discovery may add the port later.
        before = self._engines.get(engine_id)
        if before and has_plugin:
            self._writing.add(engine_id)
        if before and (before.port or not url) and (before.has_plugin or not has_plugin):
            return
        host, port = _place(url or f"//{engine_id.split('/')[0]}")
        is_local_host = is_local(host)
        with self._lock:
            if engine_id not in self._engines and len(self._engines) >= _ENGINES_MAX:
                # A datagram may carry any id, so the oldest engine without a port is removed, or else the oldest one.
                oldest = next((name for name, each in self._engines.items() if not each.port), next(iter(self._engines)))
                del self._engines[oldest]
                self._writing.discard(oldest)
            if has_plugin:
                self._writing.add(engine_id)
            known = self._engines.get(engine_id, KnownEngine())
            has_plugin |= known.has_plugin
            self._engines[engine_id] = KnownEngine(
                # The port of a plugin's engine is one of its network namespace, with any address.
                port=known.port or (port if is_local_host or has_plugin else 0),
                is_remote=not has_plugin and (known.is_remote or (bool(url) and not is_local_host)),
                has_plugin=has_plugin,
            )
            self._scanned_s = float("-inf")

    def pids(self) -> dict[str, tuple[int, ...]]:
        """Return the processes of each engine: its server and all its descendants; empty where they are not visible."""
        # A scan takes time. Only callers of this method wait for it; `register` takes the other lock.
        with self._scanning:
            now_s = self._clock()
            with self._lock:
                is_due, engines = now_s - self._scanned_s >= _SCAN_EVERY_S, dict(self._engines)
                if is_due:
                    self._scanned_s = now_s
                    writing, self._writing = self._writing, set()
            if is_due:
                self._pids = self._processes.find(engines, self.pipe, writing)
            return dict(self._pids)

    def owners_of(self, pids: Sequence[int], is_part: bool = False) -> tuple[str, ...]:
        """Return the engines that own these processes of a GPU; ``is_part``: of a part of a GPU.

        If none of the processes is visible (another user's, or PIDs of another namespace) and the node has one GPU and one engine, that
        engine owns them. This does not apply once an engine's own processes were seen on the GPU: then invisible ones belong to others.
        An engine of another host owns nothing here.
        """
        known = self.pids()
        owners = sorted(engine for engine, own in known.items() if set(own) & set(pids))
        servers = {server_id(engine) for engine in known if engine in self._engines and not self._engines[engine].is_remote}
        self._has_matched |= bool(owners)
        if owners or not pids or is_part or self._has_matched or self.gpus != 1 or len(servers) != 1:
            return tuple(owners)
        is_visible = any(known.values()) and any(self._proc.parent(pid) is not None for pid in pids)
        return () if is_visible else tuple(servers)


def _place(url: str) -> tuple[str, int]:
    """Return the host and the port of a URL, '' and 0 where it has none."""
    try:
        parts = urlsplit(url)
        return parts.hostname or "", parts.port or 0
    except ValueError:
        return "", 0
