"""One collector's thread: whatever a collector does, it is told, it is asked again, and it costs the others nothing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator

import pytest

from helpers.servers.waiting import until
from legato_gpu_agent.agent.otlp_metrics import Sample
from legato_gpu_agent.agent.self_metrics import Metrics
from legato_gpu_agent.collectors import Absent
from legato_gpu_agent.collectors import runner as module
from legato_gpu_agent.collectors.measurement import Found, Reading
from legato_gpu_agent.collectors.runner import Basket, Status, Watch
from legato_gpu_agent.plugin.model import Engine
from legato_gpu_agent.plugin.protocol import Datagram

NOW = 1_700_000_000_000_000_000
FOUND = Reading("m", "1", 1.0)


class Fake:
    """A collector that does what it is given, round by round; the last thing for ever."""

    def __init__(self, *rounds: Callable[[], Iterable[Found]], name: str = "fake", every_s: float = 0.01) -> None:
        self.name, self.every_s = name, every_s
        self._rounds, self.asked = list(rounds), 0

    def collect(self, now_ns: int) -> Iterable[Found]:
        self.asked += 1
        return self._rounds[min(self.asked, len(self._rounds)) - 1]()


def well() -> Iterable[Found]:
    return [FOUND, FOUND]


def failing(error: BaseException, after: int = 0) -> Callable[[], Iterable[Found]]:
    """Raises, after so many readings."""

    def collect() -> Iterator[Found]:
        for _ in range(after):
            yield FOUND
        raise error

    return collect


def at_once() -> Iterable[Found]:
    raise MemoryError("big")


def watched(*rounds: Callable[[], Iterable[Found]], every_s: float = 1.0) -> tuple[Watch, Basket, Metrics]:
    """Not started: its rounds are asked one by one."""
    basket, metrics = Basket(), Metrics()
    return Watch(Fake(*rounds, every_s=every_s), basket, metrics, clock_ns=lambda: NOW), basket, metrics


def metric(metrics: Metrics, name: str, **labels: str) -> float | None:
    """A value as a scrape shows it."""
    return metrics.registry.get_sample_value(f"legato_agent_collector_{name}", {"collector": "fake", **labels})


def told(basket: Basket) -> list[float]:
    """What the samples in the basket say of the collector: 1 up, 0 not; each is of the round's moment."""
    samples, _ = basket.empty()
    assert all(sample.time_ns == NOW for sample in samples)
    return [sample.found.value for sample in samples if isinstance(sample.found, Reading) and sample.found.metric.endswith("collector.up")]


def ended(name: str) -> bool:
    """Whether no thread of this collector runs."""
    return not any(thread.name == f"legato {name}" for thread in threading.enumerate())


def test_a_round_that_goes_well() -> None:
    """Its readings are in the basket with the round's time, with one that says that it is up; so say status and metrics."""
    watch, basket, metrics = watched(well)
    assert (watch.status().state, metric(metrics, "up")) == ("waiting", 0)
    status = watch.round()
    assert status == watch.status() and (status.name, status.state, status.why, status.readings) == ("fake", "up", "", 2)
    samples, told_steps = basket.empty()
    up = Reading("legato.agent.collector.up", "1", 1.0, (("legato.collector", "fake"),))
    assert samples == [Sample(NOW, FOUND), Sample(NOW, FOUND), Sample(NOW, up)] and told_steps == []
    assert metric(metrics, "up") == 1 and metric(metrics, "duration_seconds") == status.duration_s >= 0


@pytest.mark.parametrize(
    ("collect", "state", "why", "error"),
    [
        (failing(Absent("no driver here")), "absent", "no driver here", ""),
        (failing(Absent("no driver here"), after=3), "absent", "no driver here", ""),
        (failing(OSError(5, "Input/output error"), after=3), "down", "OSError: [Errno 5] Input/output error", "OSError"),
        (failing(KeyError("MemFree")), "down", "KeyError: 'MemFree'", "KeyError"),
        (failing(ValueError("x" * 10_000)), "down", "ValueError: " + "x" * 288, "ValueError"),
        (failing(RecursionError("deep")), "down", "RecursionError: deep", "RecursionError"),
        (at_once, "down", "MemoryError: big", "MemoryError"),
        (lambda: None, "down", "TypeError: 'NoneType' object is not iterable", "TypeError"),
        (lambda: iter(lambda: FOUND, None), "down", "ValueError: more than 20,000 readings in one round", "ValueError"),
        (lambda: [FOUND] * 20_001, "down", "ValueError: more than 20,000 readings in one round", "ValueError"),
        (lambda: [FOUND] * 20_000, "up", "", ""),
        (lambda: [], "up", "", ""),
    ],
)
def test_how_a_round_may_end(collect: Callable[[], Iterable[Found]], state: str, why: str, error: str) -> None:
    """Of one that fails nothing is kept, however much it found before: it is down, with its error counted, or absent, which is no error."""
    watch, basket, metrics = watched(collect)
    status = watch.round()
    assert (status.state, status.why) == (state, why)
    samples, _ = basket.empty()
    assert len(samples) == status.readings + 1 and (status.readings == 0 or state == "up")
    assert samples[-1].found == Reading("legato.agent.collector.up", "1", float(state == "up"), (("legato.collector", "fake"),))
    assert metric(metrics, "up") == (state == "up")
    counts = [each for family in metrics.collector_errors.collect() for each in family.samples if each.name.endswith("_total")]
    assert {each.labels["type"]: each.value for each in counts} == ({error: 1} if error else {})


def test_errors_are_counted_by_type() -> None:
    """One a round."""
    watch, basket, metrics = watched(failing(OSError("a")), failing(OSError("b")), failing(KeyError("c")), well)
    assert [watch.round().state for _ in range(5)] == ["down", "down", "down", "up", "up"]
    assert [metric(metrics, "errors_total", type=kind) for kind in ("OSError", "KeyError", "ValueError")] == [2, 1, None]
    assert told(basket) == [0, 0, 0, 1, 1]


def test_the_log_tells_changes_alone(caplog: pytest.LogCaptureFixture) -> None:
    """A warning when it goes down, a line when it comes up, and nothing in between; what is absent is no warning."""
    watch, _, _ = watched(well, well, failing(OSError("gone")), failing(OSError("gone")), well, failing(Absent("no driver")))
    with caplog.at_level(logging.INFO, "legato"):
        for _ in range(7):
            watch.round()
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert said == [
        ("INFO", "fake is up"),
        ("WARNING", "fake is down: OSError: gone"),
        ("INFO", "fake is up"),
        ("INFO", "fake is absent: no driver"),
    ]


def pauses(every_s: float, *rounds: Callable[[], Iterable[Found]]) -> list[float]:
    """Until the next, after each of these rounds."""
    watch, _, _ = watched(*rounds, every_s=every_s)
    out = []
    for _ in rounds:
        watch.round()
        out.append(watch._pause_s())
    return out


def test_pauses() -> None:
    """A steady beat while it is well; twice as long for each failure in a row up to half a minute; a minute where it is absent."""
    down, absent = failing(OSError("x")), failing(Absent("x"))
    assert pauses(1.0, *[down] * 8) == [2, 4, 8, 16, 30, 30, 30, 30]
    assert pauses(1.0, *[down] * 2_000)[-1] == 30
    assert pauses(0.1, *[down] * 10) == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30])
    assert pauses(100.0, down, down, absent) == [100, 100, 100]
    assert pauses(1.0, absent, absent, down, absent, down) == [60, 60, 2, 60, 2]
    up, again = pauses(1.0, down, well, down)[1:]
    assert 0.9 < up <= 1 and again == 2


def test_a_round_that_takes_long_leaves_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it took is taken off the pause, but for a tenth of the beat: a slow driver is never asked without a rest."""
    watch, _, _ = watched(well)
    for took_s, pause_s in ((0.0, 1.0), (0.25, 0.75), (0.95, 0.1), (30.0, 0.1)):
        watch._tell(Status("fake", "up", "", 0, took_s))
        assert watch._pause_s() == pytest.approx(pause_s)


def test_a_collector_that_hangs_is_told_and_blocks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its status and its metric say so while it hangs, the others go on meanwhile, and when it is over it goes on too."""
    monkeypatch.setattr(module, "_HANGS_S", 0.02)
    release, basket, metrics = threading.Event(), Basket(), Metrics()

    def hanging() -> Iterable[Found]:
        release.wait()
        return well()

    stuck, free = Fake(well, hanging), Fake(well, name="free")
    watches = [Watch(collector, basket, metrics) for collector in (stuck, free)]
    try:
        for watch in watches:
            watch.start()
        until(lambda: watches[0].status().state == "hanging")
        seen = free.asked
        until(lambda: free.asked > seen + 5)
        status = watches[0].status()
        assert status.why.startswith("its round has been running for") and status.duration_s > 0.03 and metric(metrics, "up") == 0
        assert watches[1].status().state == "up" and stuck.asked == 2
        basket.empty()
        release.set()
        until(lambda: watches[0].status().state == "up" and stuck.asked > 3)
        assert metric(metrics, "up") == 1
    finally:
        release.set()
        for watch in watches:
            watch.stop()
    until(lambda: ended("fake") and ended("free"))


def test_who_heeds_a_round_that_hangs_tells_of_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A sample each time, of that moment; a warning once a hang; and a line when it is over. Of one that does not hang, nothing."""
    monkeypatch.setattr(module, "_HANGS_S", 0.02)
    release, begun = threading.Event(), threading.Event()

    def hanging() -> Iterable[Found]:
        begun.set()
        release.wait(30)
        return well()

    watch, basket, metrics = watched(well, hanging, every_s=0.0)
    watch.heed(NOW)
    watch.round()
    watch.heed(NOW)
    assert told(basket) == [1]
    with caplog.at_level(logging.INFO, "legato"):
        thread = threading.Thread(target=watch.round)
        thread.start()
        begun.wait(10)
        until(lambda: watch.status().state == "hanging")
        watch.heed(NOW)
        watch.heed(NOW)
        assert told(basket) == [0, 0] and metric(metrics, "up") == 0
        release.set()
        thread.join(10)
    watch.heed(NOW)
    assert told(basket) == [1] and metric(metrics, "up") == 1
    said = [(record.levelname, record.getMessage().partition(":")[0]) for record in caplog.records]
    assert said == [("WARNING", "fake is hanging"), ("INFO", "fake is up")]


def test_a_watch_that_rests_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long its pause is: only a round that runs can hang."""
    monkeypatch.setattr(module, "_HANGS_S", 0.0)
    watch, _, _ = watched(well, every_s=0.0)
    assert (watch.status().state, watch.round().state, watch.status().state) == ("waiting", "up", "up")


def test_stop_ends_soon() -> None:
    """A watch that rests for an hour ends at once; one that hangs is not waited for, nor at the process's end, and ends after its round."""
    release = threading.Event()
    resting, stuck = Fake(well, name="resting", every_s=3_600), Fake(lambda: [FOUND] * release.wait(), name="stuck")
    watches = [Watch(collector, Basket(), Metrics()) for collector in (resting, stuck)]
    for watch in watches:
        watch.start()
    until(lambda: watches[0].status().state == "up" and stuck.asked == 1)
    began_s = time.monotonic()
    for watch in watches:
        watch.stop()
    assert time.monotonic() - began_s < 1
    until(lambda: ended("resting"), 5)
    assert [thread.daemon for thread in threading.enumerate() if thread.name == "legato stuck"] == [True]
    release.set()
    until(lambda: ended("stuck"), 5)
    assert (resting.asked, stuck.asked) == (1, 1)


def test_one_that_fails_is_asked_again() -> None:
    """By itself, in its own thread, until it is well."""
    fake, basket = Fake(failing(OSError("x")), failing(RuntimeError("y")), well, every_s=0.001), Basket()
    watch = Watch(fake, basket, Metrics(), clock_ns=lambda: NOW)
    watch.start()
    until(lambda: watch.status().state == "up")
    watch.stop()
    until(lambda: ended("fake"))
    assert told(basket)[:3] == [0, 0, 1]


def samples(*values: float) -> list[Sample]:
    """One of each value."""
    return [Sample(NOW, Reading("m", "1", value)) for value in values]


def test_a_basket_is_bounded() -> None:
    """The oldest go and are counted, of samples and of steps; emptied, there is room again."""
    basket = Basket(samples_max=3, told_max=2)
    basket.put(samples(1, 2, 3))
    assert basket.overflowed == 0
    basket.put(samples(4))
    basket.put([])
    assert basket.overflowed == 1
    basket.put(samples(5, 6, 7, 8, 9))
    assert basket.overflowed == 6
    datagrams = [Datagram(Engine(name, 1)) for name in "abc"]
    for datagram in datagrams:
        basket.tell(datagram)
    assert basket.overflowed == 7
    assert basket.empty() == (samples(7, 8, 9), datagrams[1:])
    assert basket.empty() == ([], [])
    basket.put(samples(1))
    assert basket.empty() == (samples(1), []) and basket.overflowed == 7


def test_a_basket_of_many_threads_loses_nothing() -> None:
    """What was put in is what came out and what was counted."""
    basket, out = Basket(samples_max=50), 0

    def put() -> None:
        for _ in range(500):
            basket.put(samples(1, 2, 3))

    threads = [threading.Thread(target=put) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        out += len(basket.empty()[0])
    assert out + len(basket.empty()[0]) + basket.overflowed == 4 * 500 * 3
