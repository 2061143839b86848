"""The engines' own processes: how much CPU they had, and how long their threads waited for one.

One idea: a thread that was ready and had no CPU is the host's fault, and the kernel counts that wait (schedstat); an engine is the sum of
its processes' threads. Only what each thread gains is added: one that ends takes its total along, which hides nothing that another gained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from legato_gpu_agent.collectors import Absent
from legato_gpu_agent.collectors.engine_registry import Neighbours
from legato_gpu_agent.collectors.measurement import Found, Reading
from legato_gpu_agent.collectors.procfs import Proc

__all__ = ["Processes"]

_Threads = Mapping[str, tuple[int, int]]
_NOTHING = (0, 0)


class Processes:
    """Counters of CPU time and of waiting for a CPU, by engine."""

    name = "processes"

    def __init__(self, proc: Proc, neighbours: Neighbours, every_s: float = 1.0) -> None:
        self.every_s = every_s
        self._proc, self._neighbours = proc, neighbours
        self._before: dict[int, _Threads] = {}
        self._before_ns = 0
        self._sums_ns: dict[str, tuple[int, int]] = {}
        self._since_ns: dict[str, int] = {}

    def collect(self, now_ns: int) -> Iterator[Found]:
        """Two counters of seconds and a gauge of threads, an engine. Raises ``Absent`` while no process of an engine can be seen."""
        engines = {engine: pids for engine, pids in self._neighbours.pids().items() if pids}
        if not engines:
            raise Absent("no process of an engine can be seen: none listens on this host, or it runs as another user")
        # Kept when all is read: a round that fails halfway must not count again what it had counted.
        seen: dict[int, _Threads] = {}
        sums_ns = dict(self._sums_ns)
        for engine, pids in engines.items():
            ran_ns, waited_ns = sums_ns.get(engine, _NOTHING)
            since_ns = self._since_ns.setdefault(engine, now_ns)
            threads = 0
            for pid in pids:
                try:
                    now = seen[pid] = self._proc.threads_ns(pid)
                except Absent:
                    continue
                # What a process had before it was first seen is not counted: the counters begin there.
                ran_more_ns, waited_more_ns = _gained(self._before.get(pid, now), now, now_ns - self._before_ns)
                ran_ns, waited_ns, threads = ran_ns + ran_more_ns, waited_ns + waited_more_ns, threads + len(now)
            sums_ns[engine] = (ran_ns, waited_ns)
            whose = (("legato.engine.id", engine),)
            yield Reading("process.cpu.time", "s", ran_ns / 1e9, whose, since_ns)
            yield Reading("legato.process.run_queue.wait_time", "s", waited_ns / 1e9, whose, since_ns)
            yield Reading("process.thread.count", "{thread}", float(threads), whose)
        if not seen:
            raise Absent(f"no schedstat of {', '.join(engines)}: its processes have just gone, or the kernel keeps none")
        self._before, self._sums_ns, self._before_ns = seen, sums_ns, now_ns


def _gained(before: _Threads, now: _Threads, passed_ns: int) -> tuple[int, int]:
    """What threads ran and waited more than before. All of it where the thread is new, or another with the number of one that ended; but
    no more than has passed since then, as one that was not seen the time before may be old.
    """
    ran_ns = waited_ns = 0
    for thread, (ran, waited) in now.items():
        known = before.get(thread)
        if known is None or ran < known[0] or waited < known[1]:
            known = max(ran - passed_ns, 0), max(waited - passed_ns, 0)
        ran_ns += ran - known[0]
        waited_ns += waited - known[1]
    return ran_ns, waited_ns
