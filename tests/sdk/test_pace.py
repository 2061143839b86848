"""The pauses of Legato's threads: none within a slice, long ones in general, short ones while a flush or a long queue waits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

from legato import _pace
from legato._pace import Copied, Paced, breathe, check, hurry, in_background, waits_since


class Sleeps:
    """A clock on which only `advance` and sleeping take time."""

    def __init__(self) -> None:
        self.now_ns, self.slept_s = 10**12, list[float]()

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_ns += int(seconds * 1e9)

    def work(self, ns: int, times: int) -> list[float]:
        """The sleeps of so many pieces of work, each of this length."""
        self.slept_s.clear()
        for _ in range(times):
            self.now_ns += ns
            breathe()
        return list(self.slept_s)


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> Sleeps:
    made = Sleeps()
    monkeypatch.setattr(_pace, "now_ns", lambda: made.now_ns)
    monkeypatch.setattr(_pace, "_sleep", made.sleep)
    return made


def in_the_background(work: Callable[[], None]) -> None:
    """Run in a new background thread. An assertion that fails is raised here."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    in_background("test", run).join()
    if errors:
        raise errors[0]


def test_work_takes_a_tenth_of_the_time_unless_it_is_waited_for(sleeps: Sleeps) -> None:
    def work() -> None:
        breathe()
        calm = sleeps.work(10_000, 1000)
        assert 10e6 / (10e6 + sum(calm) * 1e9) == pytest.approx(0.1, abs=0.01)
        with hurry():
            hurried = sleeps.work(10_000, 1000)
        assert sum(hurried) < 0.2 * 10e6 / 1e9
        waits_since(sleeps.now_ns)
        assert sum(sleeps.work(10_000, 1000)) == pytest.approx(sum(calm), rel=0.2)

    in_the_background(work)


@pytest.mark.parametrize("waited_s", [0.6, 1.6, 3600.0])
def test_work_that_waits_takes_a_third_of_the_time(waited_s: float, sleeps: Sleeps) -> None:
    """However long it has waited: without a pause it would keep its turn for 5 ms at each read of an application."""

    def work() -> None:
        waits_since(sleeps.now_ns - int(waited_s * 1e9))
        breathe()
        slept = sum(sleeps.work(10_000, 1000))
        assert 10e6 / (10e6 + slept * 1e9) == pytest.approx(0.3, abs=0.05)

    in_the_background(work)


def test_a_short_piece_of_work_has_no_pause(sleeps: Sleeps) -> None:
    def work() -> None:
        breathe()
        assert not sleeps.work(1_000, 100)

    in_the_background(work)


def test_a_thread_of_the_application_never_pauses(sleeps: Sleeps) -> None:
    """Such a thread builds the span itself where the queue of ended streams is full."""
    assert not sleeps.work(10_000_000, 100)
    check()


def test_work_ends_in_a_copy_of_its_thread(sleeps: Sleeps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under gevent the threads of a forked process go on in the child; what a pause interrupted would be done twice."""

    def work() -> None:
        monkeypatch.setattr("legato._pace.os.getpid", lambda: 1)
        with pytest.raises(Copied):
            breathe()

    in_the_background(work)
    assert len(sleeps.slept_s) == 1


def test_pauses_are_no_sleep_of_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    """An application's test that replaces `time.sleep` must not count Legato's pauses."""
    called: list[float] = []
    monkeypatch.setattr("time.sleep", called.append)
    in_the_background(breathe)
    assert not called


def test_an_exporter_encodes_a_paced_list_like_any_other(sleeps: Sleeps) -> None:
    tracer = TracerProvider().get_tracer("test")
    spans: list[ReadableSpan] = []
    for number in range(5):
        span = tracer.start_span(f"chat {number}")
        span.end()
        assert isinstance(span, ReadableSpan)
        spans.append(span)
    assert encode_spans(Paced(spans)) == encode_spans(spans)
    assert len(sleeps.slept_s) <= 1
