"""CPU time and CPU waits of engines' processes: real processes that compete for one CPU, and written ones that start and end."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from helpers.platform.examples import examples
from helpers.platform.families import family
from helpers.platform.proctree import Process, node, write
from helpers.servers.waiting import until
from legato_gpu_agent.collectors.base import NotAvailable
from legato_gpu_agent.collectors.engine_registry import EngineRegistry
from legato_gpu_agent.collectors.measurement import Measurement
from legato_gpu_agent.collectors.processes import Processes
from legato_gpu_agent.collectors.procfs import Proc

NOW = 1_700_000_000_000_000_000
SECOND = 10**9
CPU, WAIT, THREADS = "process.cpu.time", "legato.process.run_queue.wait_time", "process.thread.count"


class Node:
    """A written /proc with engines on ports 8000 and 8001; every round scans the processes."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root, self._steps, self.now_ns = node(root), iter(range(1_000_000)), NOW
        write(self.root, listening={8000: 111, 8001: 222})
        proc = Proc(self.root)
        engine_registry = EngineRegistry(proc, lambda: 100.0 * next(self._steps))
        engine_registry.register("one", "http://127.0.0.1:8000")
        engine_registry.register("two", "http://127.0.0.1:8001")
        self.collector = Processes(proc, engine_registry)

    def round(self, *processes: Process, now_ns: int = NOW) -> dict[str, tuple[float, float, float]]:
        """Return CPU time, waiting and threads of each engine, with these processes."""
        write(self.root, processes=processes)
        return values(self.collector, now_ns)

    def round_later(self, *processes: Process, after_s: float = 10.0) -> dict[str, tuple[float, float, float]]:
        """The same, some seconds after the last call."""
        self.now_ns += round(after_s * SECOND)
        return self.round(*processes, now_ns=self.now_ns)


@pytest.fixture
def engines(tmp_path: pathlib.Path) -> Node:
    return Node(tmp_path / "proc")


def values(collector: Processes, now_ns: int = NOW) -> dict[str, tuple[float, float, float]]:
    """Return the values by engine."""
    found: dict[str, dict[str, Measurement]] = {}
    for each in collector.collect(now_ns):
        assert isinstance(each, Measurement)
        ((key, engine),) = each.attributes
        assert key == "legato.engine.id"
        found.setdefault(engine, {})[each.metric] = each
    return {engine: (by[CPU].value, by[WAIT].value, by[THREADS].value) for engine, by in found.items()}


def engine(pid: int, threads: Mapping[int, tuple[float, float]], socket: int = 111, parent: int = 1) -> Process:
    """Return a process of an engine, with the seconds that each thread ran and waited."""
    return Process(
        pid, parent, threads={thread: (int(ran * 1e9), int(waited * 1e9)) for thread, (ran, waited) in threads.items()}, sockets=[socket]
    )


def test_real_processes_that_compete_for_a_cpu() -> None:
    """Three processes compute on one CPU: their CPU time grows, and so does the time for which they were ready without a CPU."""
    proc = Proc(pathlib.Path("/proc"))
    engine_registry = EngineRegistry(proc)
    collector = Processes(proc, engine_registry)
    with family(burn=True) as busy:
        engine_registry.register("e", f"http://127.0.0.1:{busy.port}")
        assert values(collector) == {"e": (0.0, 0.0, 3.0)}
        seen = [(0.0, 0.0)]

        def grown() -> bool:
            ran_s, waited_s, threads = values(collector)["e"]
            assert threads == 3 and ran_s >= seen[-1][0] and waited_s >= seen[-1][1]
            seen.append((ran_s, waited_s))
            return ran_s > 0.1 and waited_s > 0.1

        until(grown)


def test_time_before_the_first_round_is_not_counted(engines: Node) -> None:
    """An engine that has run for days starts at 0, in the first round; then the increase of its threads is added."""
    assert engines.round(engine(10, {10: (90_000, 50), 11: (1, 1)})) == {"one": (0.0, 0.0, 2.0)}
    assert engines.round(engine(10, {10: (90_001, 50.5), 11: (1.5, 1)})) == {"one": (1.5, 0.5, 2.0)}
    found = list(engines.collector.collect(NOW + SECOND))
    owner = (("legato.engine.id", "one"),)
    assert found == [
        Measurement(CPU, "s", 1.5, owner, NOW),
        Measurement(WAIT, "s", 0.5, owner, NOW),
        Measurement(THREADS, "{thread}", 2.0, owner),
    ]


def test_all_processes_of_an_engine_are_added_up(engines: Node) -> None:
    """Descendants of the listener too; those of another engine count for that one."""
    other = engine(20, {20: (5, 5)}, socket=222)
    engines.round(engine(10, {10: (1, 1)}), engine(11, {11: (2, 2)}, socket=9, parent=10), other)
    found = engines.round(engine(10, {10: (2, 1)}), engine(11, {11: (4, 2.25)}, socket=9, parent=10), other)
    assert found == {"one": (3.0, 0.25, 2.0), "two": (0.0, 0.0, 1.0)}


def test_a_restarted_engine_continues(engines: Node) -> None:
    """The old processes have ended and new ones start at 0: the sum keeps its value, and then grows with the new ones."""
    engines.round(engine(10, {10: (100, 10)}))
    assert engines.round(engine(10, {10: (107, 12)})) == {"one": (7.0, 2.0, 1.0)}
    assert engines.round(engine(40, {40: (3, 1)})) == {"one": (7.0, 2.0, 1.0)}
    assert engines.round(engine(40, {40: (4, 1.5)})) == {"one": (8.0, 2.5, 1.0)}


def test_a_reused_number_lowers_nothing(engines: Node) -> None:
    """Another thread with the same number has a lower value, of one or both: it started at 0, and all of it counts."""
    engines.round_later(engine(10, {10: (100, 10)}))
    engines.round_later(engine(10, {10: (107, 12)}))
    assert engines.round_later(engine(10, {10: (1, 0)})) == {"one": (8.0, 2.0, 1.0)}
    assert engines.round_later(engine(10, {10: (2, 3)})) == {"one": (9.0, 5.0, 1.0)}
    assert engines.round_later(engine(10, {10: (1, 4)})) == {"one": (10.0, 9.0, 1.0)}


def test_an_ended_thread_hides_no_increase(engines: Node) -> None:
    """For any value of the ended thread; all of the time of a new thread counts."""
    engines.round_later(engine(10, {10: (5, 1), 11: (100, 100)}))
    assert engines.round_later(engine(10, {10: (5.25, 1.875)})) == {"one": (0.25, 0.875, 1.0)}
    assert engines.round_later(engine(10, {10: (5.25, 1.875), 12: (0.5, 0.125)})) == {"one": (0.75, 1.0, 2.0)}


def test_an_old_thread_missed_once_adds_only_the_elapsed_time(engines: Node) -> None:
    """Its file could not be read, or it was beyond the bound: at most the time since the last round counts."""
    both = {10: (5, 1), 11: (3_600, 99)}
    engines.round_later(engine(10, both))
    engines.round_later(engine(10, {10: (5, 1)}), after_s=1)
    assert engines.round_later(engine(10, both), after_s=1) == {"one": (1.0, 1.0, 2.0)}


def test_a_failed_round_counts_nothing_twice(engines: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """One engine was read and the next failed: the increase of the first counts once after the next round."""
    other = engine(20, {20: (5, 5)}, socket=222)
    engines.round(engine(10, {10: (1, 1)}), other)
    read = Proc.threads_ns

    def failing(proc: Proc, pid: int) -> dict[str, tuple[int, int]]:
        if pid == 20:
            raise OSError(24, "Too many open files")
        return read(proc, pid)

    monkeypatch.setattr(Proc, "threads_ns", failing)
    with pytest.raises(OSError, match="Too many"):
        engines.round(engine(10, {10: (3, 2)}), other)
    monkeypatch.undo()
    assert engines.round(engine(10, {10: (4, 2)}), other) == {"one": (3.0, 1.0, 1.0), "two": (0.0, 0.0, 1.0)}


def test_threads_and_processes_that_end_lower_nothing(engines: Node) -> None:
    """Their time stays in the sum."""
    engines.round(engine(10, {10: (1, 1), 11: (1, 1)}), engine(12, {12: (5, 5)}, socket=9, parent=10))
    assert engines.round(engine(10, {10: (2, 2), 11: (2, 2)}), engine(12, {12: (6, 6)}, socket=9, parent=10)) == {"one": (3.0, 3.0, 3.0)}
    assert engines.round(engine(10, {10: (2, 2)})) == {"one": (3.0, 3.0, 1.0)}
    assert engines.round(engine(10, {10: (3, 2.5)})) == {"one": (4.0, 3.5, 1.0)}


_THREADS = st.dictionaries(st.integers(10, 15), st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=4)
_ROUND = st.tuples(st.dictionaries(st.integers(10, 13), _THREADS), st.integers(-20, 20))


@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(rounds=[({10: {10: (1, 1)}}, 0), ({10: {10: (1.1, 1.01), 11: (0.001, 0.001)}}, -4)])
@given(st.lists(_ROUND, max_size=6))
def test_no_sum_goes_back(tmp_path: pathlib.Path, rounds: list[tuple[dict[int, dict[int, tuple[float, float]]], int]]) -> None:
    """For any start and end of threads, with any values, also where the clock is set back."""
    engines, before = Node(tmp_path), (0.0, 0.0)
    for processes, after_s in rounds:
        try:
            now = engines.round_later(*(engine(pid, threads) for pid, threads in processes.items()), after_s=after_s)
        except NotAvailable:
            assert not any(processes.values())
            continue
        assert now["one"][0] >= before[0] and now["one"][1] >= before[1]
        before = now["one"][:2]


def test_no_visible_process_is_not_available(engines: Node) -> None:
    """Without an engine, or with invisible processes only, the reason is reported; measurements follow once processes are visible."""
    with pytest.raises(NotAvailable, match="runs as another user"):
        engines.round(Process(30))
    engines.round(engine(10, {10: (1, 1)}))
    engines.round(engine(10, {10: (2, 2)}))
    with pytest.raises(NotAvailable):
        engines.round()
    assert engines.round(engine(40, {40: (3, 3)})) == {"one": (1.0, 1.0, 1.0)}


def test_a_kernel_without_schedstat_is_not_available(engines: Node) -> None:
    """Nothing is reported as 0; one unreadable process among several is skipped."""
    with pytest.raises(NotAvailable, match="no schedstat of one"):
        engines.round(engine(10, {}))
    assert engines.round(engine(10, {}), engine(11, {11: (1, 1)}, socket=9, parent=10)) == {"one": (0.0, 0.0, 1.0)}
    assert engines.round(engine(10, {}), engine(11, {11: (2, 1)}, socket=9, parent=10)) == {"one": (1.0, 0.0, 1.0)}
