"""Which collectors run on this node, each under its watch.

One idea: one table says what there is; some of them find more while they run (an engine that comes up, a GPU), and those join. It knows no
OTLP and no engine.
"""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Sequence

from legato_gpu_agent.agent.self_metrics import Metrics
from legato_gpu_agent.agent.settings import Settings, SettingsError
from legato_gpu_agent.collectors import Collector
from legato_gpu_agent.collectors.discovery import EngineFinder
from legato_gpu_agent.collectors.engine_registry import Neighbours
from legato_gpu_agent.collectors.host import Cpu, Memory, Network, Pressure
from legato_gpu_agent.collectors.nvml import GpuErrors, GpuFinder, Nvml
from legato_gpu_agent.collectors.processes import Processes
from legato_gpu_agent.collectors.procfs import Proc
from legato_gpu_agent.collectors.runner import Basket, Watch
from legato_gpu_agent.plugin.identity import engine_id_of

__all__ = ["Roster"]

_WATCHES_MAX = 256


class Roster:
    """The collectors of this node. They begin with ``start``; those that are added later begin at once."""

    def __init__(self, settings: Settings, basket: Basket, metrics: Metrics) -> None:
        self._basket, self._metrics = basket, metrics
        self.neighbours = Neighbours(Proc(settings.proc))
        self._watches: list[Watch] = []
        self._lock = threading.Lock()
        self._started = False
        for collector in self._table(settings):
            self.add(collector)

    def _table(self, settings: Settings) -> Sequence[Collector]:
        """What is looked for on every node."""
        proc, nvml, every_s = Proc(settings.proc), Nvml(), settings.sample_ms / 1000
        # The host's counters are totals: more often than once a second they tell nothing that an engine's pages do not.
        host_s = max(every_s, 1.0)
        return (
            EngineFinder(
                settings.engines,
                proc if settings.engine_scan else None,
                self.neighbours,
                self.add,
                every_s,
                boot_id=proc.boot_id(),
                taken=[url for _, url in settings.iterations],
            ),
            GpuFinder(nvml, self.neighbours, self.add, every_s),
            GpuErrors(nvml, host_s),
            Cpu(proc, host_s),
            Pressure(proc, host_s),
            Memory(proc, host_s),
            Network(proc, host_s),
            Processes(proc, self.neighbours, host_s),
            *self._told(settings),
        )

    def _told(self, settings: Settings) -> Sequence[Collector]:
        """What engines tell of every step and request, where it was said how. Raises ``SettingsError`` where it cannot be read."""
        if not (settings.forward_passes or settings.kv_events or settings.iterations or settings.request_files):
            return ()
        try:
            from legato_gpu_agent.collectors.forward_pass import ForwardPasses
            from legato_gpu_agent.collectors.kv_events import KvEvents
            from legato_gpu_agent.collectors.sglang_requests import RequestFiles
            from legato_gpu_agent.collectors.trtllm_iterations import Iterations
            from legato_gpu_agent.collectors.trtllm_requests import PerfMetrics
        except ImportError as error:
            wanted = "pip install 'legato-gpu-agent[events]'"
            raise SettingsError(f"{error.name} is not installed, which reads what engines tell of their steps: {wanted}") from None
        tell, every_s, boot_id = self._basket.tell, settings.sample_ms / 1000, Proc(settings.proc).boot_id()
        steps: dict[str, ForwardPasses | Iterations] = {}
        servers = {name or engine_id_of(url): url for name, url in settings.iterations}
        for name, url in servers.items():
            steps[name] = Iterations(url, name, tell, every_s, boot_id)
        for name, endpoint in settings.forward_passes:
            if name in steps:
                raise SettingsError(f"LEGATO_ITERATIONS and LEGATO_FORWARD_PASSES both tell the steps of {name}: leave one of them out")
            steps[name] = ForwardPasses(name, endpoint, tell, boot_id=boot_id)
        epochs = {name: each.epoch_ns for name, each in steps.items()}
        for name, _ in settings.request_files:
            if name not in epochs:
                wanted = f"set LEGATO_FORWARD_PASSES={name}=tcp://HOST:PORT, too"
                raise SettingsError(f"LEGATO_REQUEST_FILES names {name}, whose steps nobody tells, and requests go with steps: {wanted}")
        files = [RequestFiles(name, pathlib.Path(path), tell, epoch_ns=epochs[name]) for name, path in settings.request_files]
        requests = [PerfMetrics(url, name, tell, every_s, epochs[name]) for name, url in servers.items()]
        return [*steps.values(), *requests, *files, *(KvEvents(name, endpoint) for name, endpoint in settings.kv_events)]

    def add(self, collector: Collector) -> None:
        """One more, but for one of the same name."""
        with self._lock:
            if len(self._watches) >= _WATCHES_MAX or any(watch.name == collector.name for watch in self._watches):
                return
            watch = Watch(collector, self._basket, self._metrics)
            self._watches.append(watch)
            started = self._started
        if started:
            watch.start()

    def start(self) -> None:
        """Begin to ask all of them."""
        with self._lock:
            self._started = True
            watches = list(self._watches)
        for watch in watches:
            watch.start()

    def stop(self) -> None:
        """Ask nobody any more."""
        for watch in self.watches():
            watch.stop()

    def watches(self) -> list[Watch]:
        """All, in the order in which they came."""
        with self._lock:
            return list(self._watches)

    def heed(self, now_ns: int) -> None:
        """Have those told that hang: they cannot tell it themselves."""
        for watch in self.watches():
            watch.heed(now_ns)
