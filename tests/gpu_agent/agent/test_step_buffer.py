"""What the agent holds between flushes: one engine's steps once each, in order, in spans that can hold them."""

from __future__ import annotations

import pytest

from legato_gpu_agent.agent.otlp_spans import request_of
from legato_gpu_agent.agent.step_buffer import ENGINES_MAX, EXTRAS_MAX, FLUSH_STEPS_MAX, Flush, Pending
from legato_gpu_agent.plugin.model import Engine, FinishedRequest, SchedulerEvent, Step
from legato_gpu_agent.plugin.protocol import BadDatagram, Datagram
from legato_ingest.otlp.batch import Limits
from legato_ingest.otlp.convert import convert_spans

NOW = 1_700_000_000_000_000_000
SECOND = 10**9
ENGINE = Engine("e", 5)


def step(number: int, at_ns: int | None = None, engine: Engine = ENGINE, dropped: int = 0) -> Datagram:
    """A step's datagram, by default 30 ms after the one before."""
    return Datagram(engine, Step(number, NOW + 30_000_000 * number if at_ns is None else at_ns), dropped)


def numbers(pending: Pending, now_ns: int = NOW) -> list[list[int]]:
    """The steps of each flush."""
    return [[each.number for each in flush.steps] for flush in pending.flushes(now_ns)]


def test_steps_out_of_order_are_put_in_order() -> None:
    """Within a flush."""
    pending = Pending()
    for number in (2, 1, 4, 3):
        pending.take(step(number), NOW)
    assert numbers(pending) == [[1, 2, 3, 4]] and numbers(pending) == []


@pytest.mark.parametrize(("number", "reason"), [(2, "late"), (3, "late"), (5, "repeated")])
def test_a_step_is_taken_once(number: int, reason: str) -> None:
    """One that comes again, or after its flush, is refused."""
    pending = Pending()
    pending.take(step(3), NOW)
    assert numbers(pending) == [[3]]
    pending.take(step(5), NOW)
    with pytest.raises(BadDatagram, match=reason):
        pending.take(step(number), NOW)
    assert numbers(pending) == [[5]]


def test_engines_and_epochs_are_apart() -> None:
    """An engine that restarts begins at one again; another engine is another flush."""
    pending = Pending()
    for engine in (ENGINE, Engine("e", 6), Engine("f", 5)):
        pending.take(step(1, engine=engine), NOW)
    flushes = list(pending.flushes(NOW))
    assert {flush.engine for flush in flushes} == {ENGINE, Engine("e", 6), Engine("f", 5)}
    spans = [request_of(flush.engine, flush.steps).resource_spans[0].scope_spans[0].spans[0] for flush in flushes]
    assert len({span.span_id for span in spans}) == 3


def test_the_scheduler_speaks_for_the_newest_epoch() -> None:
    """Its process has another epoch; its events go with the engine's steps, and wait for them."""
    pending = Pending()
    event = SchedulerEvent(NOW, "r", "prefill", 9)
    pending.take(Datagram(Engine("e", 77), events=(event,)), NOW)
    assert list(pending.flushes(NOW)) == []
    pending.take(step(1, engine=Engine("e", 9)), NOW)
    pending.take(step(1), NOW)
    assert {flush.engine.epoch_ns: list(flush.events) for flush in pending.flushes(NOW)} == {5: [], 9: [event]}


def test_finished_requests_go_with_the_steps() -> None:
    """Those that came before their step wait for it."""
    pending = Pending()
    ended = FinishedRequest(1, "r")
    pending.take(Datagram(ENGINE, finished=(ended,)), NOW)
    assert list(pending.flushes(NOW)) == []
    pending.take(step(1), NOW)
    (flush,) = pending.flushes(NOW)
    assert list(flush.finished) == [ended]


def stored(flush: Flush) -> tuple[list[tuple[int, int]], list[str]]:
    """What ingest makes of a flush: numbers and times of the steps' rows, and the requests' ids."""
    found = convert_spans(request_of(flush.engine, flush.steps, flush.finished, flush.events), tenant="", now_ns=NOW, limits=Limits())
    assert found.rejected.num_rows == 0
    steps = [(row["step"], row["recorded_at"].value) for row in found.steps.to_pylist()]
    return steps, [row["response_id"] for row in found.requests.to_pylist()]


def test_what_comes_after_the_last_step_goes_with_it_once_more() -> None:
    """An engine that goes quiet takes no step for hours: after some seconds its requests are sent, and the step is the row that it was."""
    pending, ended, event = Pending(), FinishedRequest(3, "r"), SchedulerEvent(NOW, "r", "prefill", 9)
    # Times that are no whole µs: of a span's steps the first alone keeps what is beyond them.
    for number, at_ns in ((1, NOW + 999), (2, NOW + 5_000_500), (3, NOW + 9_000_001)):
        pending.take(step(number, at_ns), NOW)
    (first,) = pending.flushes(NOW)
    pending.take(Datagram(ENGINE, finished=(ended,)), NOW + SECOND)
    pending.take(Datagram(Engine("e", 77), events=(event,)), NOW + SECOND)
    assert list(pending.flushes(NOW + 3 * SECOND)) == []
    (again,) = pending.flushes(NOW + 4 * SECOND)
    assert (first.again, again.again, list(again.finished), list(again.events)) == (False, True, [ended], [event])
    rows, _ = stored(first)
    assert stored(again) == (rows[-1:], ["r"])
    assert list(pending.flushes(NOW + 400 * SECOND)) == [] and numbers(pending, NOW + 700 * SECOND) == [] and pending.engines == 0
    assert pending.forgotten == {"finished": 0, "scheduler": 0}


def test_what_waits_goes_at_the_end() -> None:
    """At once, of an engine whose epoch has ended too; the scheduler's events with the newest."""
    pending, newer = Pending(), Engine("e", 6)
    for engine in (ENGINE, newer):
        pending.take(step(4, engine=engine), NOW)
    assert len(list(pending.flushes(NOW))) == 2
    for engine in (ENGINE, newer):
        pending.take(Datagram(engine, finished=(FinishedRequest(4, f"r{engine.epoch_ns}"),)), NOW)
    pending.take(Datagram(Engine("e", 77), events=(SchedulerEvent(NOW, "r", "prefill", 9),)), NOW)
    flushes = list(pending.flushes(NOW, closing=True))
    assert [(flush.engine.epoch_ns, stored(flush)[1], len(flush.events)) for flush in flushes] == [(5, ["r5"], 0), (6, ["r6"], 1)]
    assert pending.forgotten == {"finished": 0, "scheduler": 0}


@pytest.mark.parametrize("closing", [False, True])
def test_what_no_step_ever_came_for_is_counted(closing: bool) -> None:
    """After ten minutes, or at the end: nobody could say when it was."""
    pending = Pending()
    pending.take(Datagram(ENGINE, finished=(FinishedRequest(4, "r"), FinishedRequest(4, "s"))), NOW)
    pending.take(Datagram(Engine("f", 1), events=(SchedulerEvent(NOW, "r", "prefill", 9),)), NOW)
    assert list(pending.flushes(NOW + 500 * SECOND)) == [] and pending.forgotten == {"finished": 0, "scheduler": 0}
    assert list(pending.flushes(NOW + (500 if closing else 601) * SECOND, closing)) == []
    assert pending.forgotten == {"finished": 2, "scheduler": 1}


def test_what_a_plugin_lost_is_counted_once() -> None:
    """It tells its total in every step."""
    pending = Pending()
    assert [pending.take(step(number, dropped=lost), NOW) for number, lost in ((1, 0), (2, 5), (3, 5), (4, 7))] == [0, 5, 0, 2]


def test_a_clock_that_goes_back_begins_a_span() -> None:
    """A span's times only rise; so does one where a pause is longer than a column can say."""
    pending = Pending()
    hour_ns = 3_600 * 10**9
    for number, at_ns in ((1, NOW), (2, NOW + 5), (3, NOW - 10**9), (4, NOW), (5, NOW + 2 * hour_ns), (2**40, NOW + 2 * hour_ns)):
        pending.take(step(number, at_ns), NOW)
    assert numbers(pending) == [[1, 2], [3, 4], [5], [2**40]]


def test_a_flood_is_cut() -> None:
    """No span holds more than its bound, and a full engine asks for a flush."""
    pending = Pending()
    for number in range(1, FLUSH_STEPS_MAX + 3):
        pending.take(step(number), NOW + 30_000_000 * number)
    assert pending.is_full
    assert [len(each) for each in numbers(pending)] == [FLUSH_STEPS_MAX, 2]


def test_the_hostile_are_bounded() -> None:
    """Engines without end are refused beyond a number; silent ones are forgotten; times far off are no steps."""
    pending = Pending()
    for number in range(ENGINES_MAX):
        pending.take(step(1, engine=Engine(f"e{number}", 1)), NOW)
    with pytest.raises(BadDatagram, match="engines"):
        pending.take(step(1, engine=Engine("one more", 1)), NOW)
    with pytest.raises(BadDatagram, match="time"):
        pending.take(step(9, at_ns=1), NOW)
    assert len(numbers(pending)) == ENGINES_MAX and numbers(pending, NOW + 700 * 10**9) == [] and pending.engines == 0


def test_the_scheduler_is_bounded() -> None:
    """Of events without steps the oldest go, and are counted."""
    pending = Pending()
    for number in range(20):
        pending.take(Datagram(ENGINE, events=tuple(SchedulerEvent(number, "r", "resume", 1) for _ in range(1000))), NOW)
    assert pending.overflowed["scheduler"] == 20_000 - EXTRAS_MAX
    pending.take(step(1), NOW)
    (flush,) = pending.flushes(NOW)
    assert len(flush.events) == EXTRAS_MAX and flush.events[-1].time_ns == 19


def test_events_of_engines_without_steps_are_forgotten() -> None:
    """After ten minutes; until then as many engines as may be are kept, and a new one has its place afterwards."""
    pending, event = Pending(), SchedulerEvent(1, "r", "resume", 1)
    for number in range(64):
        pending.take(Datagram(Engine(f"stranger {number}", 1), events=(event,)), NOW)
    with pytest.raises(BadDatagram, match="engines"):
        pending.take(Datagram(Engine("new", 1), events=(event,)), NOW)
    assert not list(pending.flushes(NOW + 601 * 10**9))
    pending.take(Datagram(Engine("new", 1), events=(event,)), NOW + 601 * 10**9)
