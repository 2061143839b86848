"""The step buffer: each step of an engine once, in order, in spans that can hold them."""

from __future__ import annotations

import pytest

from legato_gpu_agent.agent.otlp_spans import steps_request
from legato_gpu_agent.agent.step_buffer import ENGINES_MAX, EXTRAS_MAX, FLUSH_STEPS_MAX, Flush, StepBuffer
from legato_gpu_agent.plugin.model import Engine, FinishedRequest, SchedulerEvent, Step
from legato_gpu_agent.plugin.protocol import BadDatagram, Datagram
from legato_ingest.otlp.batch import Limits
from legato_ingest.otlp.convert import convert_spans

NOW = 1_700_000_000_000_000_000
SECOND = 10**9
ENGINE = Engine("e", 5)


def step(number: int, at_ns: int | None = None, engine: Engine = ENGINE, dropped: int = 0) -> Datagram:
    """Return a step's datagram, by default 30 ms after the previous one."""
    return Datagram(engine, Step(number, NOW + 30_000_000 * number if at_ns is None else at_ns), dropped)


def numbers(step_buffer: StepBuffer, now_ns: int = NOW) -> list[list[int]]:
    """Return the step numbers of each flush."""
    return [[each.number for each in flush.steps] for flush in step_buffer.flushes(now_ns)]


def test_steps_are_sorted() -> None:
    """Within a flush."""
    step_buffer = StepBuffer()
    for number in (2, 1, 4, 3):
        step_buffer.add(step(number), NOW)
    assert numbers(step_buffer) == [[1, 2, 3, 4]] and numbers(step_buffer) == []


@pytest.mark.parametrize(("number", "reason"), [(2, "late"), (3, "late"), (5, "repeated")])
def test_a_step_is_accepted_once(number: int, reason: str) -> None:
    """A repeated step, or one after its flush, is rejected."""
    step_buffer = StepBuffer()
    step_buffer.add(step(3), NOW)
    assert numbers(step_buffer) == [[3]]
    step_buffer.add(step(5), NOW)
    with pytest.raises(BadDatagram, match=reason):
        step_buffer.add(step(number), NOW)
    assert numbers(step_buffer) == [[5]]


def test_engines_and_epochs_are_separate() -> None:
    """A restarted engine begins at 1 again; another engine has a separate flush."""
    step_buffer = StepBuffer()
    for engine in (ENGINE, Engine("e", 6), Engine("f", 5)):
        step_buffer.add(step(1, engine=engine), NOW)
    flushes = list(step_buffer.flushes(NOW))
    assert {flush.engine for flush in flushes} == {ENGINE, Engine("e", 6), Engine("f", 5)}
    spans = [steps_request(flush.engine, flush.steps).resource_spans[0].scope_spans[0].spans[0] for flush in flushes]
    assert len({span.span_id for span in spans}) == 3


def test_scheduler_events_belong_to_the_newest_epoch() -> None:
    """The scheduler's process has another epoch; its events wait for the engine's steps."""
    step_buffer = StepBuffer()
    event = SchedulerEvent(NOW, "r", "prefill", 9)
    step_buffer.add(Datagram(Engine("e", 77), events=(event,)), NOW)
    assert list(step_buffer.flushes(NOW)) == []
    step_buffer.add(step(1, engine=Engine("e", 9)), NOW)
    step_buffer.add(step(1), NOW)
    assert {flush.engine.epoch_ns: list(flush.events) for flush in step_buffer.flushes(NOW)} == {5: [], 9: [event]}


def test_finished_requests_are_sent_with_steps() -> None:
    """Requests that arrive before their step wait for it."""
    step_buffer = StepBuffer()
    ended = FinishedRequest(1, "r")
    step_buffer.add(Datagram(ENGINE, finished=(ended,)), NOW)
    assert list(step_buffer.flushes(NOW)) == []
    step_buffer.add(step(1), NOW)
    (flush,) = step_buffer.flushes(NOW)
    assert list(flush.finished) == [ended]


def stored(flush: Flush) -> tuple[list[tuple[int, int]], list[str]]:
    """Return the rows that ingest makes of a flush: numbers and times of the steps, and the ids of the requests."""
    found = convert_spans(steps_request(flush.engine, flush.steps, flush.finished, flush.events), tenant="", now_ns=NOW, limits=Limits())
    assert found.rejected.num_rows == 0
    steps = [(row["step"], row["recorded_at"].value) for row in found.steps.to_pylist()]
    return steps, [row["response_id"] for row in found.requests.to_pylist()]


def test_late_requests_are_sent_with_the_repeated_last_step() -> None:
    """An idle engine makes no step for hours: after 3 s its requests are sent, and the repeated step is the same row as before."""
    step_buffer, ended, event = StepBuffer(), FinishedRequest(3, "r"), SchedulerEvent(NOW, "r", "prefill", 9)
    # Times with fractions of a µs: only the first step of a span keeps them.
    for number, at_ns in ((1, NOW + 999), (2, NOW + 5_000_500), (3, NOW + 9_000_001)):
        step_buffer.add(step(number, at_ns), NOW)
    (first,) = step_buffer.flushes(NOW)
    step_buffer.add(Datagram(ENGINE, finished=(ended,)), NOW + SECOND)
    step_buffer.add(Datagram(Engine("e", 77), events=(event,)), NOW + SECOND)
    assert list(step_buffer.flushes(NOW + 3 * SECOND)) == []
    (again,) = step_buffer.flushes(NOW + 4 * SECOND)
    assert (first.again, again.again, list(again.finished), list(again.events)) == (False, True, [ended], [event])
    rows, _ = stored(first)
    assert stored(again) == (rows[-1:], ["r"])
    assert (
        list(step_buffer.flushes(NOW + 400 * SECOND)) == [] and numbers(step_buffer, NOW + 700 * SECOND) == [] and step_buffer.engines == 0
    )
    assert step_buffer.forgotten == {"finished": 0, "scheduler": 0}


def test_waiting_records_are_sent_at_the_end() -> None:
    """At once, also for an engine with an ended epoch; scheduler events go to the newest epoch."""
    step_buffer, newer = StepBuffer(), Engine("e", 6)
    for engine in (ENGINE, newer):
        step_buffer.add(step(4, engine=engine), NOW)
    assert len(list(step_buffer.flushes(NOW))) == 2
    for engine in (ENGINE, newer):
        step_buffer.add(Datagram(engine, finished=(FinishedRequest(4, f"r{engine.epoch_ns}"),)), NOW)
    step_buffer.add(Datagram(Engine("e", 77), events=(SchedulerEvent(NOW, "r", "prefill", 9),)), NOW)
    flushes = list(step_buffer.flushes(NOW, closing=True))
    assert [(flush.engine.epoch_ns, stored(flush)[1], len(flush.events)) for flush in flushes] == [(5, ["r5"], 0), (6, ["r6"], 1)]
    assert step_buffer.forgotten == {"finished": 0, "scheduler": 0}


@pytest.mark.parametrize("closing", [False, True])
def test_records_without_a_step_are_counted(closing: bool) -> None:
    """After ten minutes, or at the end, because their time is unknown."""
    step_buffer = StepBuffer()
    step_buffer.add(Datagram(ENGINE, finished=(FinishedRequest(4, "r"), FinishedRequest(4, "s"))), NOW)
    step_buffer.add(Datagram(Engine("f", 1), events=(SchedulerEvent(NOW, "r", "prefill", 9),)), NOW)
    assert list(step_buffer.flushes(NOW + 500 * SECOND)) == [] and step_buffer.forgotten == {"finished": 0, "scheduler": 0}
    assert list(step_buffer.flushes(NOW + (500 if closing else 601) * SECOND, closing)) == []
    assert step_buffer.forgotten == {"finished": 2, "scheduler": 1}


def test_losses_of_a_plugin_are_counted_once() -> None:
    """Every step carries the total."""
    step_buffer = StepBuffer()
    assert [step_buffer.add(step(number, dropped=lost), NOW) for number, lost in ((1, 0), (2, 5), (3, 5), (4, 7))] == [0, 5, 0, 2]


def test_losses_of_an_idle_engine_are_not_counted_again() -> None:
    """The buffer forgets an engine after ten minutes; its plugin goes on with the total since its start."""
    step_buffer, later = StepBuffer(), NOW + 601 * 10**9
    assert step_buffer.add(step(1, NOW, dropped=500), NOW) == 500
    assert len(list(step_buffer.flushes(NOW))) == 1 and list(step_buffer.flushes(later)) == [] and step_buffer.engines == 0
    assert [step_buffer.add(step(number, later, dropped=lost), later) for number, lost in ((2, 500), (3, 502))] == [0, 2]


def test_a_clock_that_goes_back_starts_a_new_span() -> None:
    """Times within a span do not decrease; a pause longer than a column can hold also starts a new span."""
    step_buffer = StepBuffer()
    hour_ns = 3_600 * 10**9
    for number, at_ns in ((1, NOW), (2, NOW + 5), (3, NOW - 10**9), (4, NOW), (5, NOW + 2 * hour_ns), (2**40, NOW + 2 * hour_ns)):
        step_buffer.add(step(number, at_ns), NOW)
    assert numbers(step_buffer) == [[1, 2], [3, 4], [5], [2**40]]


def test_many_steps_are_split() -> None:
    """No span holds more than its bound, and a full engine requests a flush."""
    step_buffer = StepBuffer()
    for number in range(1, FLUSH_STEPS_MAX + 3):
        step_buffer.add(step(number), NOW + 30_000_000 * number)
    assert step_buffer.is_full
    assert [len(each) for each in numbers(step_buffer)] == [FLUSH_STEPS_MAX, 2]


def test_invalid_engines_and_times_are_bounded() -> None:
    """Engines beyond the bound are rejected, silent ones are removed, and steps with implausible times are rejected."""
    step_buffer = StepBuffer()
    for number in range(ENGINES_MAX):
        step_buffer.add(step(1, engine=Engine(f"e{number}", 1)), NOW)
    with pytest.raises(BadDatagram, match="engines"):
        step_buffer.add(step(1, engine=Engine("one more", 1)), NOW)
    with pytest.raises(BadDatagram, match="time"):
        step_buffer.add(step(9, at_ns=1), NOW)
    assert len(numbers(step_buffer)) == ENGINES_MAX and numbers(step_buffer, NOW + 700 * 10**9) == [] and step_buffer.engines == 0


def test_scheduler_events_are_bounded() -> None:
    """Beyond the bound the oldest events are dropped and counted."""
    step_buffer = StepBuffer()
    for number in range(20):
        step_buffer.add(Datagram(ENGINE, events=tuple(SchedulerEvent(number, "r", "resume", 1) for _ in range(1000))), NOW)
    assert step_buffer.overflowed["scheduler"] == 20_000 - EXTRAS_MAX
    step_buffer.add(step(1), NOW)
    (flush,) = step_buffer.flushes(NOW)
    assert len(flush.events) == EXTRAS_MAX and flush.events[-1].time_ns == 19


def test_events_of_engines_without_steps_are_forgotten() -> None:
    """After ten minutes. Until then engines up to the bound are kept; afterwards a new one is accepted."""
    step_buffer, event = StepBuffer(), SchedulerEvent(1, "r", "resume", 1)
    for number in range(64):
        step_buffer.add(Datagram(Engine(f"other {number}", 1), events=(event,)), NOW)
    with pytest.raises(BadDatagram, match="engines"):
        step_buffer.add(Datagram(Engine("new", 1), events=(event,)), NOW)
    assert not list(step_buffer.flushes(NOW + 601 * 10**9))
    step_buffer.add(Datagram(Engine("new", 1), events=(event,)), NOW + 601 * 10**9)
