"""The collector registry: which collectors run on this node, according to the settings.

One table lists them. Discovery collectors add more while they run, for each engine and GPU found. The registry does not encode or send
measurements.
"""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Sequence

from legato_gpu_agent.agent.buffer import Buffer
from legato_gpu_agent.agent.collector_runner import CollectorRunner
from legato_gpu_agent.agent.self_metrics import SelfMetrics
from legato_gpu_agent.agent.settings import Settings, SettingsError
from legato_gpu_agent.collectors.base import Collector
from legato_gpu_agent.collectors.discovery import EngineDiscovery
from legato_gpu_agent.collectors.engine_registry import EngineRegistry
from legato_gpu_agent.collectors.host import Cpu, Memory, Network, Pressure
from legato_gpu_agent.collectors.nvml import GpuDiscovery, GpuErrors, Nvml
from legato_gpu_agent.collectors.processes import Processes
from legato_gpu_agent.collectors.procfs import Proc
from legato_gpu_agent.plugin.identity import engine_id_from_url

__all__ = ["CollectorRegistry"]

_RUNNERS_MAX = 256


class CollectorRegistry:
    """The collectors of this node. They start with ``start``; collectors that are added later start at once."""

    def __init__(self, settings: Settings, buffer: Buffer, metrics: SelfMetrics) -> None:
        self._buffer, self._metrics = buffer, metrics
        self.engine_registry = EngineRegistry(Proc(settings.proc))
        self._runners: list[CollectorRunner] = []
        self._lock = threading.Lock()
        self._started = False
        for collector in (*self._always(settings), *self._configured(settings)):
            self.add(collector)

    def _always(self, settings: Settings) -> Sequence[Collector]:
        """Return the collectors of every node."""
        proc, nvml, every_s = Proc(settings.proc), Nvml(), settings.sample_ms / 1000
        # The host's counters are totals, so a shorter interval would add nothing that the engines' metrics do not have.
        host_s = max(every_s, 1.0)
        return (
            EngineDiscovery(
                settings.engines,
                proc if settings.engine_scan else None,
                self.engine_registry,
                self.add,
                every_s,
                boot_id=proc.boot_id(),
                excluded=[url for _, url in settings.iterations],
            ),
            GpuDiscovery(nvml, self.engine_registry, self.add, every_s),
            GpuErrors(nvml, host_s),
            Cpu(proc, host_s),
            Pressure(proc, host_s),
            Memory(proc, host_s),
            Network(proc, host_s),
            Processes(proc, self.engine_registry, host_s),
        )

    def _configured(self, settings: Settings) -> Sequence[Collector]:
        """Return the collectors of steps, requests and events that the settings name.

        Raises ``SettingsError`` without the extra `events`, and for a combination of settings that cannot be read.
        """
        if not (settings.forward_passes or settings.kv_events or settings.iterations or settings.request_files):
            return ()
        try:
            # Inside the function, because these modules need the optional packages msgspec and pyzmq.
            from legato_gpu_agent.collectors.forward_pass import ForwardPasses
            from legato_gpu_agent.collectors.kv_events import KvEvents
            from legato_gpu_agent.collectors.sglang_requests import RequestFiles
            from legato_gpu_agent.collectors.trtllm_iterations import Iterations
            from legato_gpu_agent.collectors.trtllm_requests import PerfMetrics
        except ImportError as error:
            command = "in a checkout of Legato, pip install './gpu_agent[agent,events]'"
            raise SettingsError(f"{error.name} is not installed; it is needed to read an engine's steps and events: {command}") from None
        emit, every_s, boot_id = self._buffer.add_datagram, settings.sample_ms / 1000, Proc(settings.proc).boot_id()
        steps: dict[str, ForwardPasses | Iterations] = {}
        servers = {name or engine_id_from_url(url): url for name, url in settings.iterations}
        for name, url in servers.items():
            steps[name] = Iterations(url, name, emit, every_s, boot_id)
        for name, endpoint in settings.forward_passes:
            if name in steps:
                raise SettingsError(f"LEGATO_ITERATIONS and LEGATO_FORWARD_PASSES both read the steps of {name}: remove one of them")
            steps[name] = ForwardPasses(name, endpoint, emit, boot_id=boot_id)
        epochs = {name: each.epoch_ns for name, each in steps.items()}
        for name, _ in settings.request_files:
            if name not in epochs:
                needed = f"requests are sent with steps: set LEGATO_FORWARD_PASSES={name}=ipc:///run/sglang/fpm.0 too"
                raise SettingsError(f"LEGATO_REQUEST_FILES names {name}, and no setting names a source of its steps; {needed}")
        files = [RequestFiles(name, pathlib.Path(path), emit, epoch_ns=epochs[name]) for name, path in settings.request_files]
        requests = [PerfMetrics(url, name, emit, every_s, epochs[name]) for name, url in servers.items()]
        return [*steps.values(), *requests, *files, *(KvEvents(name, endpoint) for name, endpoint in settings.kv_events)]

    def add(self, collector: Collector) -> None:
        """Add a collector, unless one of the same name exists or there are 256 already."""
        with self._lock:
            if len(self._runners) >= _RUNNERS_MAX or any(runner.name == collector.name for runner in self._runners):
                return
            runner = CollectorRunner(collector, self._buffer, self._metrics)
            self._runners.append(runner)
            started = self._started
        if started:
            runner.start()

    def start(self) -> None:
        """Start all collectors."""
        with self._lock:
            self._started = True
            runners = list(self._runners)
        for runner in runners:
            runner.start()

    def stop(self) -> None:
        """Stop all collectors, without waiting for them."""
        for runner in self.runners():
            runner.stop()

    def runners(self) -> list[CollectorRunner]:
        """Return the runners of all collectors, in the order in which they were added."""
        with self._lock:
            return list(self._runners)

    def report_hung(self, now_ns: int) -> None:
        """Log and count every collector that has not returned in time; its own thread is blocked and cannot."""
        for runner in self.runners():
            runner.report_hung(now_ns)
