"""Collectors of the host: CPUs, pressure, memory and network, from /proc.

Where the kernel has totals since boot they are used, so that nothing is missed between two rounds. Each CPU separately is read only every
tenth round, because a node may have hundreds. Each resource has a separate collector, so a kernel without one still has the others.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from legato_gpu_agent.collectors.base import NotAvailable
from legato_gpu_agent.collectors.counter_starts import CounterStarts
from legato_gpu_agent.collectors.measurement import Measured, Measurement
from legato_gpu_agent.collectors.procfs import Proc

__all__ = ["Cpu", "Memory", "Network", "Pressure"]

_EACH_CPU_EVERY = 10
_CPUS_MAX = 512
_INTERFACES_MAX = 64
_PAGED = ("pgmajfault", "pswpin", "pswpout")
_PRESSURES = ("cpu", "memory", "io", "irq")


class _HostCollector:
    name = ""

    def __init__(self, proc: Proc, every_s: float = 1.0) -> None:
        self.every_s = every_s
        self._proc, self._counters = proc, CounterStarts()

    def _count(self, metric: str, unit: str, value: float, now_ns: int, **attributes: str) -> Measurement:
        """Return a counter; in the names of attributes two underscores stand for a dot."""
        pairs = tuple(sorted((key.replace("__", "."), text) for key, text in attributes.items()))
        return Measurement(metric, unit, value, pairs, self._counters.start_ns((metric, pairs), value, now_ns))


class Cpu(_HostCollector):
    """Time of all CPUs by mode, the share of each mode since the last round, and of each CPU the shares of idle and stolen time.

    Also the processor time of the agent itself.
    """

    name = "cpu"

    def __init__(self, proc: Proc, every_s: float = 1.0) -> None:
        super().__init__(proc, every_s)
        self._before: dict[str, dict[str, float]] = {}
        self._largest_s: dict[str, float] = {}
        self._round = 0

    def collect(self, now_ns: int) -> Iterator[Measured]:
        """Yield counters of seconds, and from the second round on shares."""
        with_each = self._round % _EACH_CPU_EVERY == 0
        seconds = self._proc.cpu_seconds(with_each)
        for mode, value in seconds.get("", {}).items():
            # Linux sometimes lowers iowait and idle a little, which is not a reset of the counter.
            self._largest_s[mode] = max(value, self._largest_s.get(mode, 0.0))
            yield self._count("system.cpu.time", "s", self._largest_s[mode], now_ns, cpu__mode=mode)
        yield self._count("legato.agent.cpu.time", "s", time.process_time(), now_ns)
        yield from self._shares(seconds, "", tuple(seconds.get("", {})))
        for cpu in list(seconds)[1 : _CPUS_MAX + 1] if with_each else ():
            yield from self._shares(seconds, cpu, ("idle", "steal"))
        self._round += 1

    def _shares(self, seconds: dict[str, dict[str, float]], cpu: str, modes: tuple[str, ...]) -> Iterator[Measurement]:
        now, before = seconds.get(cpu, {}), self._before.get(cpu)
        self._before[cpu] = now
        if before is None:
            return
        grown = {mode: max(value - before.get(mode, 0.0), 0.0) for mode, value in now.items()}
        passed = sum(grown.values())
        number = (("cpu.logical_number", cpu),) if cpu else ()
        for mode in modes:
            if passed > 0 and mode in grown:
                yield Measurement("system.cpu.utilization", "1", grown[mode] / passed, (*number, ("cpu.mode", mode)))


class Pressure(_HostCollector):
    """Pressure stall information (PSI): how long ``some`` or all (``full``) tasks waited for CPU, memory, I/O or interrupts."""

    name = "pressure"

    def collect(self, now_ns: int) -> Iterator[Measured]:
        """Yield counters of seconds for each resource that this kernel has. Raises ``NotAvailable`` on a kernel without PSI."""
        first: Exception | None = None
        has_any = False
        for resource in _PRESSURES:
            try:
                seconds = self._proc.pressure_seconds(resource)
            except (NotAvailable, OSError) as error:
                first = first or error
                continue
            has_any = True
            for kind, value in seconds.items():
                yield self._count("legato.host.pressure.time", "s", value, now_ns, resource=resource, kind=kind)
        if not has_any:
            raise NotAvailable(f"the kernel has no pressure stall information (psi=1 turns it on): {first}")


class Memory(_HostCollector):
    """Used, free and cached memory, page faults and swap."""

    name = "memory"

    def collect(self, now_ns: int) -> Iterator[Measured]:
        """Yield gauges of bytes, and counters of pages where the kernel has them."""
        memory = self._proc.memory_bytes()
        free = memory["MemFree"]
        cached = memory.get("Cached", 0) + memory.get("Buffers", 0) + memory.get("SReclaimable", 0)
        for state, value in (("used", memory["MemTotal"] - free - cached), ("free", free), ("cached", cached)):
            yield Measurement("system.memory.usage", "By", float(value), (("system.memory.state", state),))
        with contextlib.suppress(NotAvailable):
            yield from self._paging(now_ns)

    def _paging(self, now_ns: int) -> Iterator[Measurement]:
        paged = self._proc.counters("vmstat", _PAGED)
        yield self._count("system.paging.faults", "{fault}", paged.get("pgmajfault", 0), now_ns, system__paging__type="major")
        for direction, key in (("in", "pswpin"), ("out", "pswpout")):
            yield self._count("system.paging.operations", "{operation}", paged.get(key, 0), now_ns, system__paging__direction=direction)


class Network(_HostCollector):
    """TCP segments sent and retransmitted; bytes, errors and drops of each interface."""

    name = "network"

    def collect(self, now_ns: int) -> Iterator[Measured]:
        """Yield counters."""
        tcp = self._proc.protocol("net/snmp", "Tcp")
        for metric, key in (("legato.host.tcp.sent", "OutSegs"), ("legato.host.tcp.retransmitted", "RetransSegs")):
            if key in tcp:
                yield self._count(metric, "{segment}", tcp[key], now_ns)
        for place, (interface, values) in enumerate(self._proc.interfaces()):
            if place == _INTERFACES_MAX:
                break
            if interface == "lo" or len(values) < 12:
                continue
            for direction, first in (("receive", 0), ("transmit", 8)):
                for metric, unit, at in (
                    ("system.network.io", "By", first),
                    ("system.network.errors", "{error}", first + 2),
                    ("system.network.packet.dropped", "{packet}", first + 3),
                ):
                    where = {"network__interface__name": interface, "network__io__direction": direction}
                    yield self._count(metric, unit, values[at], now_ns, **where)
