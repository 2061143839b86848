"""The collector runner: every failure of a collector is recorded and retried, and does not affect other collectors."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator

import pytest

from helpers.servers.waiting import until
from legato_gpu_agent.agent import collector_runner as module
from legato_gpu_agent.agent.buffer import Buffer
from legato_gpu_agent.agent.collector_runner import CollectorRunner, Status
from legato_gpu_agent.agent.self_metrics import SelfMetrics
from legato_gpu_agent.collectors.base import NotAvailable
from legato_gpu_agent.collectors.measurement import Measured, Measurement

NOW = 1_700_000_000_000_000_000
FOUND = Measurement("m", "1", 1.0)


class Fake:
    """A collector with a given behaviour for each round; the last one repeats."""

    def __init__(self, *rounds: Callable[[], Iterable[Measured]], name: str = "fake", every_s: float = 0.01) -> None:
        self.name, self.every_s = name, every_s
        self._rounds, self.rounds_made = list(rounds), 0

    def collect(self, now_ns: int) -> Iterable[Measured]:
        self.rounds_made += 1
        return self._rounds[min(self.rounds_made, len(self._rounds)) - 1]()


def succeed() -> Iterable[Measured]:
    return [FOUND, FOUND]


def failing(error: BaseException, after: int = 0) -> Callable[[], Iterable[Measured]]:
    """Return a behaviour that raises after a number of measurements."""

    def collect() -> Iterator[Measured]:
        for _ in range(after):
            yield FOUND
        raise error

    return collect


def failing_at_once() -> Iterable[Measured]:
    raise MemoryError("big")


def make_runner(*rounds: Callable[[], Iterable[Measured]], every_s: float = 1.0) -> tuple[CollectorRunner, Buffer, SelfMetrics]:
    """Return a runner that is not started; the test runs its rounds."""
    buffer, metrics = Buffer(), SelfMetrics()
    return CollectorRunner(Fake(*rounds, every_s=every_s), buffer, metrics, clock_ns=lambda: NOW), buffer, metrics


def metric(metrics: SelfMetrics, name: str, **labels: str) -> float | None:
    """Return a metric's value as a scrape returns it."""
    return metrics.registry.get_sample_value(f"legato_agent_collector_{name}", {"collector": "fake", **labels})


def ups(buffer: Buffer) -> list[float]:
    """Return the values of `collector.up` in the buffer, each with the time of its round."""
    samples, _ = buffer.drain()
    assert all(time_ns == NOW for time_ns, _ in samples)
    return [found.value for _, found in samples if isinstance(found, Measurement) and found.metric.endswith("collector.up")]


def ended(name: str) -> bool:
    """Return whether no thread of this collector runs."""
    return not any(thread.name == f"legato {name}" for thread in threading.enumerate())


def test_a_successful_round() -> None:
    """Its measurements are in the buffer with the time of the round, and one more that it is up; status and metrics agree."""
    runner, buffer, metrics = make_runner(succeed)
    assert (runner.status().state, metric(metrics, "up")) == ("waiting", 0)
    status = runner.run_once()
    assert status == runner.status() and (status.name, status.state, status.why, status.measurements) == ("fake", "up", "", 2)
    samples, datagrams = buffer.drain()
    up = Measurement("legato.agent.collector.up", "1", 1.0, (("legato.collector", "fake"),))
    assert samples == [(NOW, FOUND), (NOW, FOUND), (NOW, up)] and datagrams == []
    assert metric(metrics, "up") == 1 and metric(metrics, "duration_seconds") == status.duration_s >= 0


@pytest.mark.parametrize(
    ("collect", "state", "why", "error"),
    [
        (failing(NotAvailable("no driver here")), "absent", "no driver here", ""),
        (failing(NotAvailable("no driver here"), after=3), "absent", "no driver here", ""),
        (failing(OSError(5, "Input/output error"), after=3), "down", "OSError: [Errno 5] Input/output error", "OSError"),
        (failing(KeyError("MemFree")), "down", "KeyError: 'MemFree'", "KeyError"),
        (failing(ValueError("x" * 10_000)), "down", "ValueError: " + "x" * 288, "ValueError"),
        (failing(RecursionError("deep")), "down", "RecursionError: deep", "RecursionError"),
        (failing_at_once, "down", "MemoryError: big", "MemoryError"),
        (lambda: None, "down", "TypeError: 'NoneType' object is not iterable", "TypeError"),
        (lambda: iter(lambda: FOUND, None), "down", "ValueError: more than 20,000 measurements in one round", "ValueError"),
        (lambda: [FOUND] * 20_001, "down", "ValueError: more than 20,000 measurements in one round", "ValueError"),
        (lambda: [FOUND] * 20_000, "up", "", ""),
        (lambda: [], "up", "", ""),
    ],
)
def test_results_of_a_round(collect: Callable[[], Iterable[Measured]], state: str, why: str, error: str) -> None:
    """The measurements of a failed round are discarded: the collector is down and its error counted, or absent, which is not an error."""
    runner, buffer, metrics = make_runner(collect)
    status = runner.run_once()
    assert (status.state, status.why) == (state, why)
    samples, _ = buffer.drain()
    assert len(samples) == status.measurements + 1 and (status.measurements == 0 or state == "up")
    assert samples[-1][1] == Measurement("legato.agent.collector.up", "1", float(state == "up"), (("legato.collector", "fake"),))
    assert metric(metrics, "up") == (state == "up")
    counts = [each for family in metrics.collector_errors.collect() for each in family.samples if each.name.endswith("_total")]
    assert {each.labels["type"]: each.value for each in counts} == ({error: 1} if error else {})


def test_errors_are_counted_by_type() -> None:
    """One per round."""
    runner, buffer, metrics = make_runner(failing(OSError("a")), failing(OSError("b")), failing(KeyError("c")), succeed)
    assert [runner.run_once().state for _ in range(5)] == ["down", "down", "down", "up", "up"]
    assert [metric(metrics, "errors_total", type=kind) for kind in ("OSError", "KeyError", "ValueError")] == [2, 1, None]
    assert ups(buffer) == [0, 0, 0, 1, 1]


def test_only_changes_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A warning when it goes down, a line when it comes up, and nothing in between. An absent source is not a warning."""
    runner, _, _ = make_runner(
        succeed, succeed, failing(OSError("gone")), failing(OSError("gone")), succeed, failing(NotAvailable("no driver"))
    )
    with caplog.at_level(logging.INFO, "legato"):
        for _ in range(7):
            runner.run_once()
    logged = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert logged == [
        ("INFO", "fake is up"),
        ("WARNING", "fake is down: OSError: gone"),
        ("INFO", "fake is up"),
        ("INFO", "fake is absent: no driver"),
    ]


def pauses(every_s: float, *rounds: Callable[[], Iterable[Measured]]) -> list[float]:
    """Return the pauses after each of these rounds."""
    runner, _, _ = make_runner(*rounds, every_s=every_s)
    out = []
    for _ in rounds:
        runner.run_once()
        out.append(runner._pause_s())
    return out


def test_pauses() -> None:
    """The interval while it succeeds; twice as long after each consecutive failure, up to 30 s; 60 s for an absent source.

    One that may come soon is looked for again after the interval.
    """
    down, absent = failing(OSError("x")), failing(NotAvailable("x"))
    assert pauses(1.0, *[down] * 8) == [2, 4, 8, 16, 30, 30, 30, 30]
    assert pauses(1.0, *[down] * 2_000)[-1] == 30
    assert pauses(0.1, *[down] * 10) == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30])
    assert pauses(100.0, down, down, absent) == [100, 100, 100]
    assert pauses(1.0, absent, absent, down, absent, down) == [60, 60, 2, 60, 2]
    assert pauses(15.0, failing(NotAvailable("x", is_coming=True)), absent) == [15, 60]
    up, again = pauses(1.0, down, succeed, down)[1:]
    assert 0.9 < up <= 1 and again == 2


def test_a_long_round_is_followed_by_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The duration is subtracted from the pause, which is at least a tenth of the interval: a slow driver is not called without a rest."""
    runner, _, _ = make_runner(succeed)
    for duration_s, pause_s in ((0.0, 1.0), (0.25, 0.75), (0.95, 0.1), (30.0, 0.1)):
        runner._finish(Status("fake", "up", "", 0, duration_s))
        assert runner._pause_s() == pytest.approx(pause_s)


def test_a_hung_collector_blocks_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Status and metric show it while it hangs, other collectors continue, and it continues when the call returns."""
    monkeypatch.setattr(module, "_HANGS_S", 0.02)
    release, buffer, metrics = threading.Event(), Buffer(), SelfMetrics()

    def hanging() -> Iterable[Measured]:
        release.wait()
        return succeed()

    stuck, free = Fake(succeed, hanging), Fake(succeed, name="free")
    runners = [CollectorRunner(collector, buffer, metrics) for collector in (stuck, free)]
    try:
        for runner in runners:
            runner.start()
        until(lambda: runners[0].status().state == "hanging")
        seen = free.rounds_made
        until(lambda: free.rounds_made > seen + 5)
        status = runners[0].status()
        assert status.why.startswith("its round has been running for") and status.duration_s > 0.03 and metric(metrics, "up") == 0
        assert runners[1].status().state == "up" and stuck.rounds_made == 2
        buffer.drain()
        release.set()
        until(lambda: runners[0].status().state == "up" and stuck.rounds_made > 3)
        assert metric(metrics, "up") == 1
    finally:
        release.set()
        for runner in runners:
            runner.stop()
    until(lambda: ended("fake") and ended("free"))


def test_a_hung_round_is_reported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A measurement at each report, with its time; one warning per hang, a line when it ends. Nothing for a round that does not hang."""
    monkeypatch.setattr(module, "_HANGS_S", 0.02)
    release, begun = threading.Event(), threading.Event()

    def hanging() -> Iterable[Measured]:
        begun.set()
        release.wait(30)
        return succeed()

    runner, buffer, metrics = make_runner(succeed, hanging, every_s=0.0)
    runner.report_hung(NOW)
    runner.run_once()
    runner.report_hung(NOW)
    assert ups(buffer) == [1]
    with caplog.at_level(logging.INFO, "legato"):
        thread = threading.Thread(target=runner.run_once)
        thread.start()
        begun.wait(10)
        until(lambda: runner.status().state == "hanging")
        runner.report_hung(NOW)
        runner.report_hung(NOW)
        assert ups(buffer) == [0, 0] and metric(metrics, "up") == 0
        release.set()
        thread.join(10)
    runner.report_hung(NOW)
    assert ups(buffer) == [1] and metric(metrics, "up") == 1
    logged = [(record.levelname, record.getMessage().partition(":")[0]) for record in caplog.records]
    assert logged == [("WARNING", "fake is hanging"), ("INFO", "fake is up")]


def test_a_pause_is_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause of any length does not count: only a running round can hang."""
    monkeypatch.setattr(module, "_HANGS_S", 0.0)
    runner, _, _ = make_runner(succeed, every_s=0.0)
    assert (runner.status().state, runner.run_once().state, runner.status().state) == ("waiting", "up", "up")


def test_stop_is_immediate() -> None:
    """A runner in a pause of an hour ends at once. A hung one is not waited for, not even at the end of the process, and ends after its
    round.
    """
    release = threading.Event()
    resting, stuck = Fake(succeed, name="resting", every_s=3_600), Fake(lambda: [FOUND] * release.wait(), name="stuck")
    runners = [CollectorRunner(collector, Buffer(), SelfMetrics()) for collector in (resting, stuck)]
    for runner in runners:
        runner.start()
    until(lambda: runners[0].status().state == "up" and stuck.rounds_made == 1)
    began_s = time.monotonic()
    for runner in runners:
        runner.stop()
    assert time.monotonic() - began_s < 30
    until(lambda: ended("resting"), 5)
    assert [thread.daemon for thread in threading.enumerate() if thread.name == "legato stuck"] == [True]
    release.set()
    until(lambda: ended("stuck"), 5)
    assert (resting.rounds_made, stuck.rounds_made) == (1, 1)


def test_a_failed_collector_is_retried() -> None:
    """In its own thread, until it succeeds."""
    fake, buffer = Fake(failing(OSError("x")), failing(RuntimeError("y")), succeed, every_s=0.001), Buffer()
    runner = CollectorRunner(fake, buffer, SelfMetrics(), clock_ns=lambda: NOW)
    runner.start()
    until(lambda: runner.status().state == "up")
    runner.stop()
    until(lambda: ended("fake"))
    assert ups(buffer)[:3] == [0, 0, 1]
