"""The engines' processes: how much CPU time they used, and how long their threads waited for a CPU.

A thread that is ready and has no CPU waits because of the host, and the kernel counts that time (schedstat). The value of an engine is the
sum over the threads of its processes. Only the increase of each thread is added, so a thread that ends does not lower the sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from legato_gpu_agent.collectors.base import NotAvailable
from legato_gpu_agent.collectors.engine_registry import EngineRegistry
from legato_gpu_agent.collectors.measurement import Measured, Measurement
from legato_gpu_agent.collectors.procfs import Proc

__all__ = ["Processes"]

_Threads = Mapping[str, tuple[int, int]]
_ZERO = (0, 0)


class Processes:
    """Counters of CPU time and of waiting for a CPU, per engine."""

    name = "processes"

    def __init__(self, proc: Proc, engine_registry: EngineRegistry, every_s: float = 1.0) -> None:
        self.every_s = every_s
        self._proc, self._engine_registry = proc, engine_registry
        self._before: dict[int, _Threads] = {}
        self._before_ns = 0
        self._sums_ns: dict[str, tuple[int, int]] = {}
        self._start_ns: dict[str, int] = {}

    def collect(self, now_ns: int) -> Iterator[Measured]:
        """Yield two counters of seconds and a gauge of threads per engine. Raises ``NotAvailable`` while no engine process is visible."""
        engines = {engine: pids for engine, pids in self._engine_registry.pids().items() if pids}
        if not engines:
            raise NotAvailable("no process of an engine is visible: no engine listens on this host, or it runs as another user")
        # The state is stored at the end, so that a round that fails halfway is not counted twice.
        seen: dict[int, _Threads] = {}
        sums_ns = dict(self._sums_ns)
        for engine, pids in engines.items():
            ran_ns, waited_ns = sums_ns.get(engine, _ZERO)
            start_ns = self._start_ns.setdefault(engine, now_ns)
            threads = 0
            for pid in pids:
                try:
                    now = seen[pid] = self._proc.threads_ns(pid)
                except NotAvailable:
                    continue
                # The time before a process was first seen is not counted: the counters start there.
                ran_more_ns, waited_more_ns = _increase(self._before.get(pid, now), now, now_ns - self._before_ns)
                ran_ns, waited_ns, threads = ran_ns + ran_more_ns, waited_ns + waited_more_ns, threads + len(now)
            sums_ns[engine] = (ran_ns, waited_ns)
            owner = (("legato.engine.id", engine),)
            yield Measurement("process.cpu.time", "s", ran_ns / 1e9, owner, start_ns)
            yield Measurement("legato.process.run_queue.wait_time", "s", waited_ns / 1e9, owner, start_ns)
            yield Measurement("process.thread.count", "{thread}", float(threads), owner)
        if not seen:
            raise NotAvailable(f"no schedstat of {', '.join(engines)}: its processes have just ended, or the kernel has none")
        self._before, self._sums_ns, self._before_ns = seen, sums_ns, now_ns


def _increase(before: _Threads, now: _Threads, passed_ns: int) -> tuple[int, int]:
    """Return how much longer the threads ran and waited than before, in ns.

    A new thread, or one that reused the number of an ended one, counts in full, but at most with the time that has passed: a thread that
    could not be read in the last round may be old. ``passed_ns`` is negative if the clock was set back; such a thread then counts from now.
    """
    ran_ns, waited_ns, passed_ns = 0, 0, max(passed_ns, 0)
    for thread, (ran, waited) in now.items():
        known = before.get(thread)
        if known is None or ran < known[0] or waited < known[1]:
            known = max(ran - passed_ns, 0), max(waited - passed_ns, 0)
        ran_ns += ran - known[0]
        waited_ns += waited - known[1]
    return ran_ns, waited_ns
