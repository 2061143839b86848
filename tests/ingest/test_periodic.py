"""Periodic work: a failing step is counted and repeated, runs never overlap, and a run over a damaged store is not recorded."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import pyarrow as pa
import pytest
from prometheus_client import Gauge

from helpers.servers.waiting import until
from legato_ingest.errors import StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.periodic import PeriodicTask, PeriodicWorker, record_run

SOON_S = 0.001


class Closable:
    closed = False

    def close(self) -> None:
        self.closed = True


class Counter(PeriodicWorker[int]):
    """Counts its runs, and the most that ran at the same time."""

    def __init__(self, handle: Closable, metrics: Metrics, **options: object) -> None:
        super().__init__("count", handle, SOON_S, metrics, **options)  # type: ignore[arg-type]
        self.runs = self.running = self.at_once = 0

    def _run(self) -> int:
        self.running += 1
        self.at_once = max(self.at_once, self.running)
        time.sleep(0.002)
        self.runs, self.running = self.runs + 1, self.running - 1
        return self.runs


@pytest.mark.parametrize("error", [StoreUnavailable("no space left"), ZeroDivisionError()], ids=lambda error: type(error).__name__)
def test_a_failing_step_is_counted_and_repeated(error: Exception) -> None:
    """The thread goes on after any error; each is counted under its stage and type."""
    calls, metrics = [], Metrics()

    def step() -> None:
        calls.append(1)
        if len(calls) <= 3:
            raise error

    task = PeriodicTask("stage", step, SOON_S, metrics)
    task.start()
    until(lambda: len(calls) >= 5)
    task.close()
    assert metrics.errors.labels("stage", type(error).__name__)._value.get() == 3


def test_a_task_without_its_turn_does_nothing() -> None:
    """It starts with the turn, without a restart."""
    calls: list[int] = []
    turn = threading.Event()
    asked = threading.Semaphore(0)

    def my_turn() -> bool:
        asked.release()
        return turn.is_set()

    task = PeriodicTask("stage", lambda: calls.append(1), SOON_S, Metrics(), my_turn=my_turn)
    task.start()
    assert all(asked.acquire(timeout=60) for _ in range(3)) and not calls
    turn.set()
    until(lambda: bool(calls))
    task.close()


def test_close_waits_for_the_running_step_and_starts_no_other() -> None:
    """A step sees ``closing`` and returns early; a task that was never started closes at once."""
    began, ended = threading.Event(), list[int]()

    def step() -> None:
        began.set()
        assert task.closing.wait(10)
        ended.append(1)

    task = PeriodicTask("stage", step, SOON_S, Metrics())
    task.start()
    assert began.wait(10)
    task.close()
    assert ended == [1]
    PeriodicTask("stage", step, SOON_S, Metrics()).close()


def test_runs_of_a_worker_never_overlap() -> None:
    """The thread and calls of ``step()`` take turns; ``close()`` closes the handle last."""
    handle = Closable()
    worker = Counter(handle, Metrics())
    worker.start()
    others = [threading.Thread(target=worker.step) for _ in range(4)]
    for thread in others:
        thread.start()
    for thread in others:
        thread.join()
    until(lambda: worker.runs >= 6)
    assert not handle.closed and not worker.stopping
    worker.close()
    runs = worker.runs
    assert handle.closed and worker.stopping and worker.at_once == 1
    time.sleep(0.01)  # Longer than the interval: a thread that still ran would run again.
    assert worker.runs == runs


@pytest.mark.parametrize(("turn", "behind_s"), [(True, 90.0), (False, 0.0)])
def test_the_lag_is_the_age_of_what_was_processed(turn: bool, behind_s: float) -> None:
    """In seconds; an instance without the turn has none."""
    lag = Gauge("lag", "lag", registry=None)
    worker = Counter(Closable(), Metrics(), lag=lag, my_turn=lambda: turn)
    worker.until_ms -= 90_000
    (sample,) = next(iter(lag.collect())).samples
    assert sample.value == pytest.approx(behind_s, abs=5)


class Log:
    """A store double that records inserts and can be damaged."""

    def __init__(self, *, damaged: bool = False) -> None:
        self.damaged, self.rows = damaged, list[tuple[str, pa.Table]]()

    def verify(self) -> None:
        if self.damaged:
            raise StoreUnavailable("a part is truncated")

    def insert(self, table: str, rows: pa.Table) -> None:
        self.rows.append((table, rows))


def test_a_run_is_recorded_with_its_times_counts_and_duration() -> None:
    """One row: times in ms, counts, and seconds."""
    log = Log()
    record_run(log, "runs", {"until": 1_795_000_000_123}, {"streams": 7}, time.monotonic() - 2)
    ((table, rows),) = log.rows
    (row,) = rows.to_pylist()
    assert (table, row["streams"], row["tenant"]) == ("runs", 7, "")
    assert row["until"].timestamp() == 1_795_000_000.123 and row["seconds"] == pytest.approx(2, abs=1)


def test_a_run_over_a_damaged_store_is_not_recorded() -> None:
    """What it read may be incomplete; without its row the next run repeats it."""
    log = Log(damaged=True)
    with pytest.raises(StoreUnavailable):
        record_run(log, "runs", {"until": 1}, {"streams": 7}, time.monotonic())
    assert log.rows == []


def test_steps_begin_at_the_interval() -> None:
    """A step that takes a part of the interval shortens the pause after it; a longer one leaves a fifth of the interval."""
    began, ended = list[float](), list[float]()

    def step() -> None:
        began.append(time.monotonic())
        time.sleep(0.15 if len(began) <= 6 else 0.3)
        ended.append(time.monotonic())

    task = PeriodicTask("stage", step, 0.2, Metrics())
    task.start()
    until(lambda: len(ended) >= 8)
    task.close()
    # A busy machine begins some steps late.
    assert min(later - earlier for earlier, later in pairwise(began[:6])) < 0.15 + 0.2
    assert min(begin - end for end, begin in zip(ended, began[1:], strict=False)) > 0.039


def test_a_step_waits_until_there_is_something_to_do() -> None:
    """The time is asked for again after each wait, and at the latest after the interval."""
    delays, asked_s, began_s = iter((0.05, 60.0, 0.0)), list[float](), list[float]()

    def delay_s() -> float:
        asked_s.append(time.monotonic())
        return next(delays, 0.0)

    task = PeriodicTask("stage", lambda: began_s.append(time.monotonic()), 0.2, Metrics(), delay_s=delay_s)
    task.start()
    until(lambda: bool(began_s))
    task.close()
    assert len(asked_s) >= 3 and began_s[0] >= asked_s[2]
    assert asked_s[1] - asked_s[0] >= 0.05 and 0.2 <= asked_s[2] - asked_s[1] < 20
