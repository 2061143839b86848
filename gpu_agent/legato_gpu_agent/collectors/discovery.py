"""Finds the metrics endpoints of engines on this node: those of the settings, and listening ports that engines use by default.

A listening port is probed once, and again only when another socket listens there, when its server was not ready, or when 5 minutes have
passed. A probe is a GET of the metrics path, to loopback, or to the one address of this host at which the socket listens.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator, Sequence

from legato_gpu_agent.collectors.addresses import local_addresses
from legato_gpu_agent.collectors.base import Collector, NotAvailable
from legato_gpu_agent.collectors.engine_metrics import METRICS_PATHS, EngineMetrics
from legato_gpu_agent.collectors.engine_registry import EngineRegistry
from legato_gpu_agent.collectors.http_fetch import Fetcher, FetchError
from legato_gpu_agent.collectors.measurement import Measured, Measurement
from legato_gpu_agent.collectors.procfs import Listener, Proc
from legato_gpu_agent.engines.registry import ENGINES, detect_engine
from legato_gpu_agent.plugin.identity import ENGINE_ID, LOOPBACK, client_host, host_and_port

__all__ = ["EngineDiscovery"]

PORTS = frozenset(port for engine in ENGINES.values() for port in engine.ports)
_PROBE_AGAIN_S = 300.0
_PROBE_TIMEOUT_S = 2.0
_NOT_READY = 503


class EngineDiscovery:
    """Adds a collector for each metrics endpoint that it finds, by calling ``add``.

    ``configured``: pairs of id (or '') and URL. With ``proc``, listening ports are probed too, except those of the URLs in ``excluded``, at
    which a read removes data that another collector needs.
    """

    name, every_s = "engines", 15.0

    def __init__(
        self,
        configured: Sequence[tuple[str, str]],
        proc: Proc | None,
        engine_registry: EngineRegistry,
        add: Callable[[Collector], None],
        scrape_every_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        boot_id: str = "",
        excluded: Sequence[str] = (),
    ) -> None:
        self._unresolved, self._unresolved_excluded = list(configured), list(excluded)
        self._iterated = {url.rstrip("/") for url in excluded}
        self._proc, self._engine_registry, self._add = proc, engine_registry, add
        self._scrape_every_s, self._boot_id, self._clock = scrape_every_s, boot_id, clock
        self._known: set[str] = set()
        self._claimed: dict[int, set[str]] = {}
        self._probed: dict[int, tuple[int, float]] = {}
        self._is_loading = False

    def collect(self, now_ns: int) -> Iterator[Measured]:
        """Yield the number of known endpoints. Raises ``NotAvailable`` without any."""
        # Names are resolved here, where nothing else waits for it, in every round until they are resolved.
        self._unresolved_excluded = [url for url in self._unresolved_excluded if self._claim(url) is None]
        self._unresolved = [each for each in self._unresolved if self._add_engine(*each) is None]
        self._is_loading = False
        if self._proc is not None:
            for port, listener in self._proc.listeners().items():
                if port not in PORTS or self._is_claimed(listener, port):
                    continue
                url = _url_of(listener, port)
                if self._is_engine(url, port, listener.inode):
                    self._add_engine(self._name_of(listener), url)
        if not self._known:
            missing = "no engine's metrics endpoint was found: set LEGATO_ENGINES to the URL of an engine that serves /metrics"
            raise NotAvailable(missing, is_coming=self._is_loading)
        yield Measurement("legato.agent.engines", "{engine}", float(len(self._known)))

    def _add_engine(self, engine_id: str, url: str) -> bool | None:
        """Add a collector for this endpoint once; return whether it is on this host (``None``: its name is not resolved)."""
        # Where the iterations are polled, no other path than that of the metrics is read: it would take iterations.
        kind = "tensorrt_llm" if url.rstrip("/") in self._iterated else ""
        is_local, metrics = self._claim(url), EngineMetrics(url, engine_id, kind, self._scrape_every_s, self._boot_id)
        self._engine_registry.register(metrics.engine_id, f"http://{LOOPBACK}:{host_and_port(url)[1]}" if is_local else url)
        if metrics.engine_id not in self._known:
            self._known.add(metrics.engine_id)
            self._add(metrics)
        return is_local

    def _name_of(self, listener: Listener) -> str:
        """Return the LEGATO_ENGINE_ID of the process that listens, which its plugin and its middleware use; '' without one."""
        proc = self._proc
        holders = [pid for pid in proc.pids() if proc.holds(pid, listener.inode)] if proc else []
        return next((name for pid in holders if proc and (name := proc.variable(pid, ENGINE_ID))), "")

    def _claim(self, url: str) -> bool | None:
        """Exclude the socket at this URL from probes; return whether it is on this host (``None``: its name is not resolved)."""
        host, port = host_and_port(url)
        try:
            addresses = local_addresses(host)
        except OSError:
            return None
        self._claimed.setdefault(port, set()).update(addresses)
        return bool(addresses)

    def _is_claimed(self, listener: Listener, port: int) -> bool:
        """Return whether this socket is already read, or may be one that is excluded under a name that is not resolved.

        A socket at one address is compared by address, a socket at all addresses by port.
        """
        if port in {host_and_port(url)[1] for url in self._unresolved_excluded}:
            return True
        claimed = self._claimed.get(port, set())
        return client_host(listener.address) in claimed if listener.address else bool(claimed)

    def _is_engine(self, url: str, port: int, inode: int) -> bool:
        """Probe a socket that was not probed in the last 5 minutes; return whether a known engine serves metrics there.

        One that does not answer in time, or with 503, may be an engine that loads its model: it is probed again in the next round.
        """
        probed, now_s = self._probed.get(port), self._clock()
        if probed is not None and probed[0] == inode and now_s - probed[1] < _PROBE_AGAIN_S:
            return False
        self._probed[port] = (inode, now_s)
        fetcher = Fetcher(url, _PROBE_TIMEOUT_S)
        for path in METRICS_PATHS:
            try:
                if detect_engine(fetcher.get(path)) is not None:
                    return True
            except (FetchError, OSError, http.client.HTTPException) as error:
                if isinstance(error, TimeoutError) or getattr(error, "status", 0) == _NOT_READY:
                    del self._probed[port]
                    self._is_loading = True
                    return False
            finally:
                fetcher.close()
        return False


def _url_of(listener: Listener, port: int) -> str:
    host = listener.address or LOOPBACK
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
