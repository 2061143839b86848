"""The host: its CPUs, pressure, memory and network, from /proc.

One idea: totals since the start where the kernel has them, so that nothing falls between two rounds; each CPU alone only every tenth round,
as a node may have hundreds. Each is a collector of its own: a kernel without one has the others.
"""

from __future__ import annotations

from collections.abc import Iterator

from legato_gpu_agent.collectors import Absent
from legato_gpu_agent.collectors.counter_starts import Counters
from legato_gpu_agent.collectors.measurement import Found, Reading
from legato_gpu_agent.collectors.procfs import Proc

__all__ = ["Cpu", "Memory", "Network", "Pressure"]

_EACH_CPU_EVERY = 10
_CPUS_MAX = 512
_INTERFACES_MAX = 64
_PAGED = ("pgmajfault", "pswpin", "pswpout")


class _Host:
    name = ""

    def __init__(self, proc: Proc, every_s: float = 1.0) -> None:
        self.every_s = every_s
        self._proc, self._counters = proc, Counters()

    def _count(self, metric: str, unit: str, value: float, now_ns: int, **attributes: str) -> Reading:
        pairs = tuple(sorted((key.replace("__", "."), text) for key, text in attributes.items()))
        return Reading(metric, unit, value, pairs, self._counters.since_ns((metric, pairs), value, now_ns))


class Cpu(_Host):
    """Time of all CPUs by mode, and the share of each mode since the round before; of each CPU how idle it was and what was stolen."""

    name = "cpu"

    def __init__(self, proc: Proc, every_s: float = 1.0) -> None:
        super().__init__(proc, every_s)
        self._before: dict[str, dict[str, float]] = {}
        self._told: dict[str, float] = {}
        self._round = 0

    def collect(self, now_ns: int) -> Iterator[Found]:
        """Counters at once, shares from the second round on."""
        each = self._round % _EACH_CPU_EVERY == 0
        seconds = self._proc.cpu_seconds(each)
        for mode, value in seconds.get("", {}).items():
            # Linux takes some iowait and idle back now and then: no counter began anew.
            self._told[mode] = max(value, self._told.get(mode, 0.0))
            yield self._count("system.cpu.time", "s", self._told[mode], now_ns, cpu__mode=mode)
        yield from self._shares(seconds, "", tuple(seconds.get("", {})))
        for cpu in list(seconds)[1 : _CPUS_MAX + 1] if each else ():
            yield from self._shares(seconds, cpu, ("idle", "steal"))
        self._round += 1

    def _shares(self, seconds: dict[str, dict[str, float]], cpu: str, modes: tuple[str, ...]) -> Iterator[Reading]:
        now, before = seconds.get(cpu, {}), self._before.get(cpu)
        self._before[cpu] = now
        if before is None:
            return
        grown = {mode: max(value - before.get(mode, 0.0), 0.0) for mode, value in now.items()}
        passed = sum(grown.values())
        which = (("cpu.logical_number", cpu),) if cpu else ()
        for mode in modes:
            if passed > 0 and mode in grown:
                yield Reading("system.cpu.utilization", "1", grown[mode] / passed, (*which, ("cpu.mode", mode)))


class Pressure(_Host):
    """How long tasks waited for a CPU, memory or a disk (PSI): ``some`` of them, or all (``full``)."""

    name = "pressure"

    def collect(self, now_ns: int) -> Iterator[Found]:
        """Counters of seconds. Raises ``Absent`` on a kernel without PSI."""
        for resource in ("cpu", "memory", "io"):
            try:
                seconds = self._proc.pressure_seconds(resource)
            except (Absent, OSError) as error:
                raise Absent(f"the kernel keeps no pressure (psi=1 turns it on): {error}") from None
            for kind, value in seconds.items():
                yield self._count("legato.host.pressure.time", "s", value, now_ns, resource=resource, kind=kind)


class Memory(_Host):
    """What is used and free, and what went to and from the disk."""

    name = "memory"

    def collect(self, now_ns: int) -> Iterator[Found]:
        """Gauges of bytes, and counters of pages where the kernel has them."""
        memory = self._proc.memory_bytes()
        free = memory["MemFree"]
        cached = memory.get("Cached", 0) + memory.get("Buffers", 0) + memory.get("SReclaimable", 0)
        for state, value in (("used", memory["MemTotal"] - free - cached), ("free", free), ("cached", cached)):
            yield Reading("system.memory.usage", "By", float(value), (("system.memory.state", state),))
        try:
            paged = self._proc.counters("vmstat", _PAGED)
        except Absent:
            return
        yield self._count("system.paging.faults", "{fault}", paged.get("pgmajfault", 0), now_ns, system__paging__type="major")
        for direction, key in (("in", "pswpin"), ("out", "pswpout")):
            yield self._count("system.paging.operations", "{operation}", paged.get(key, 0), now_ns, system__paging__direction=direction)


class Network(_Host):
    """Segments that TCP sent again, and what each interface carried, refused and dropped."""

    name = "network"

    def collect(self, now_ns: int) -> Iterator[Found]:
        """Counters."""
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
