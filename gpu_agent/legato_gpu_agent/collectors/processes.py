"""The engines' own processes: how much CPU they had, and how long their threads waited for one.

One idea: a thread that was ready and had no CPU is the host's fault, and the kernel counts that wait (schedstat); an engine is the sum of
its processes' threads. What of a process that ended is lost does not make the sum go back: only what threads gain is added.
"""

from __future__ import annotations

from collections.abc import Iterator

from legato_gpu_agent.collectors import Absent
from legato_gpu_agent.neighbours import Neighbours
from legato_gpu_agent.proc import Proc
from legato_gpu_agent.readings import Found, Reading

__all__ = ["Processes"]


class Processes:
    """Counters of CPU time and of waiting for a CPU, by engine."""

    name = "processes"

    def __init__(self, proc: Proc, neighbours: Neighbours, every_s: float = 1.0) -> None:
        self.every_s = every_s
        self._proc, self._neighbours = proc, neighbours
        self._before: dict[int, tuple[float, float]] = {}
        self._sums: dict[str, list[float]] = {}
        self._since_ns: dict[str, int] = {}

    def collect(self, now_ns: int) -> Iterator[Found]:
        """Two counters of seconds and a gauge of threads, an engine. Raises ``Absent`` while no process of an engine can be seen."""
        engines = {engine: pids for engine, pids in self._neighbours.pids().items() if pids}
        if not engines:
            raise Absent("no process of an engine can be seen: none listens on this host, or it runs as another user")
        seen: dict[int, tuple[float, float]] = {}
        for engine, pids in engines.items():
            sums = self._sums.setdefault(engine, [0.0, 0.0])
            since_ns = self._since_ns.setdefault(engine, now_ns)
            threads = 0
            for pid in pids:
                try:
                    ran_s, waited_s, count = self._proc.process_seconds(pid)
                except Absent:
                    continue
                seen[pid] = (ran_s, waited_s)
                before = self._before.get(pid, (ran_s, waited_s))
                sums[0] += max(ran_s - before[0], 0.0)
                sums[1] += max(waited_s - before[1], 0.0)
                threads += count
            whose = (("legato.engine.id", engine),)
            yield Reading("process.cpu.time", "s", sums[0], whose, since_ns)
            yield Reading("legato.process.run_queue.wait_time", "s", sums[1], whose, since_ns)
            yield Reading("process.thread.count", "{thread}", float(threads), whose)
        if not seen:
            raise Absent(f"no schedstat of {', '.join(engines)}: its processes have just gone, or the kernel keeps none")
        self._before = seen
