"""Forward passes as SGLang and Dynamo publish them, over a real ZMQ publisher: each is one step."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.platform.engine_sources import NOW, PublishingEngine, published
from helpers.platform.examples import examples
from helpers.servers.publisher import Publisher, reachable
from helpers.servers.waiting import until
from legato_gpu_agent.agent.buffer import Buffer
from legato_gpu_agent.agent.collector_runner import CollectorRunner
from legato_gpu_agent.agent.otlp_spans import steps_request
from legato_gpu_agent.agent.self_metrics import SelfMetrics
from legato_gpu_agent.agent.step_buffer import StepBuffer
from legato_gpu_agent.collectors import zmq_subscriber
from legato_gpu_agent.collectors.base import NotAvailable
from legato_gpu_agent.collectors.forward_pass import ForwardPasses
from legato_gpu_agent.collectors.measurement import Measurement
from legato_gpu_agent.plugin.model import Step
from legato_gpu_agent.plugin.protocol import Datagram


class ScheduledRequestMetrics(msgspec.Struct):
    """The fields that the engines publish, in their order."""

    num_prefill_requests: int = 0
    sum_prefill_tokens: int = 0
    var_prefill_length: float = 0.0
    sum_prefill_kv_tokens: int = 0
    num_decode_requests: int = 0
    sum_decode_kv_tokens: int = 0
    var_decode_kv_tokens: float = 0.0


class QueuedRequestMetrics(msgspec.Struct):
    """The fields of the queue."""

    num_prefill_requests: int = 0
    sum_prefill_tokens: int = 0
    var_prefill_length: float = 0.0
    num_decode_requests: int = 0
    sum_decode_kv_tokens: int = 0
    var_decode_kv_tokens: float = 0.0


class ForwardPassMetrics(msgspec.Struct):
    """A message."""

    version: int = 1
    worker_id: str = ""
    dp_rank: int = 0
    counter_id: int = 0
    wall_time: float = 0.0
    scheduled_requests: ScheduledRequestMetrics = msgspec.field(default_factory=ScheduledRequestMetrics)
    queued_requests: QueuedRequestMetrics = msgspec.field(default_factory=QueuedRequestMetrics)


def a_pass(number: int, wall_time: float = 0.01, decode: int = 3, **more: Any) -> bytes:
    """Return a pass of some decoding requests; a heartbeat with ``wall_time`` 0."""
    scheduled = ScheduledRequestMetrics(num_decode_requests=decode if wall_time else 0)
    return msgspec.msgpack.encode(ForwardPassMetrics(counter_id=number, wall_time=wall_time, scheduled_requests=scheduled, **more))


def with_fields(**changed: Any) -> bytes:
    """Return a pass as a map with changes; ``None`` removes a field."""
    fields = {**msgspec.to_builtins(msgspec.msgpack.decode(a_pass(5))), **changed}
    return msgspec.msgpack.encode({key: value for key, value in fields.items() if value is not None})


class World(PublishingEngine):
    """An engine that publishes forward passes."""

    def __init__(self, publisher: Publisher) -> None:
        super().__init__(publisher)
        self.collector: ForwardPasses = ForwardPasses("e", publisher.endpoint, self.emitted.append)

    def counts(self) -> dict[str, float]:
        """Return messages by outcome, without outcomes of 0."""
        out = {}
        for each in self.collector.collect(NOW):
            assert isinstance(each, Measurement) and each.metric == "legato.agent.forward_passes" and each.start_ns == NOW
            out[dict(each.attributes)["legato.outcome"]] = each.value
            assert dict(each.attributes)["legato.engine.id"] == "e"
        assert set(out) == {"taken", "lost", "other", "bad"}
        return {what: count for what, count in out.items() if count}

    def has_emitted(self, count: int) -> bool:
        """Return whether that many were emitted."""
        return len(self.emitted) == count

    @property
    def steps(self) -> list[Step]:
        """Return the emitted steps."""
        return [each.step for each in self.emitted if each.step is not None]


@pytest.fixture
def world() -> Iterator[World]:
    """A world for one test."""
    with published(World) as each:
        yield each


@pytest.fixture(scope="module")
def lasting() -> Iterator[World]:
    """A world for many examples."""
    with published(World) as each:
        yield each


def test_passes_name_the_boot_of_their_clock() -> None:
    """So that they can be joined to the streams of a server on that host, because a pass names no request."""
    passes = ForwardPasses("e", "tcp://127.0.0.1:9", lambda _: None, boot_id="boot-1")
    try:
        found = [dict(each.attributes)["legato.boot.id"] for each in passes.collect(NOW)]
    finally:
        passes.close()
    assert set(found) == {"boot-1"}


def test_a_pass_is_a_step(world: World) -> None:
    """Its number, arrival, contents and queue. Prefill tokens are the computed ones; a decoding request has one token."""
    whole = ForwardPassMetrics(
        worker_id="w",
        counter_id=12,
        wall_time=0.0215,
        scheduled_requests=ScheduledRequestMetrics(2, 1_500, 7.5, 64, 9, 40_000, 2.5),
        queued_requests=QueuedRequestMetrics(4, 9_000, 1.5, 3, 8_000, 0.5),
    )
    world.publish(a_pass(11), msgspec.msgpack.encode(whole))
    first, step = world.steps
    assert step == Step(
        number=12,
        recorded_ns=step.recorded_ns,
        interval_us=(step.recorded_ns - first.recorded_ns) // 1000,
        running=11,
        waiting=7,
        prefill_requests=2,
        prefill_tokens=1_500,
        decode_requests=9,
        decode_tokens=9,
        elapsed_us=21_500,
    )
    assert {each.engine.id for each in world.emitted} == {"e"} and world.collector.epoch_ns() == first.recorded_ns
    assert world.counts() == {"taken": 2}


def test_passes_are_emitted_between_rounds(world: World) -> None:
    """The time of a pass does not depend on a round: here there is none."""
    for number in range(1, 6):
        world.publisher.publish(number, a_pass(number))
        until(partial(world.has_emitted, number))
    stamps = [step.recorded_ns for step in world.steps]
    assert stamps == sorted(stamps) and len(set(stamps)) == 5


def test_only_consecutive_passes_have_an_interval(world: World) -> None:
    """Neither the first, nor one after a gap; messages in the gap are counted as lost."""
    world.publish(a_pass(3), a_pass(4), first=3)
    world.publish(a_pass(8), a_pass(9), first=8)
    assert [(step.number, step.interval_us is not None) for step in world.steps] == [(3, False), (4, True), (8, False), (9, True)]
    assert [each.dropped for each in world.emitted] == [0, 0, 3, 3] and world.counts() == {"taken": 4, "lost": 3}


def test_a_heartbeat_is_not_a_step(world: World) -> None:
    """The next pass did not begin when the heartbeat arrived."""
    world.publish(a_pass(1), a_pass(2), first=1)
    for number, payload in ((3, a_pass(3, wall_time=0)), (4, a_pass(4)), (5, a_pass(5))):
        world.publisher.publish(number, payload)
    until(lambda: len(world.emitted) == 4)
    assert [(step.number, step.interval_us is not None) for step in world.steps] == [(1, False), (2, True), (4, False), (5, True)]


@pytest.mark.parametrize("idle", [False, True])
def test_a_restarted_engine_is_another_one(world: World, idle: bool) -> None:
    """Its numbers start again, also after heartbeats; losses of the previous run are not reported again."""
    world.publish(a_pass(20), first=20)
    world.publish(a_pass(23), first=23)
    if idle:
        world.publisher.publish(24, a_pass(24, wall_time=0))
    world.publisher.close()
    with Publisher(world.publisher.endpoint) as successor:
        successor.wait()
        for number in range(3):
            successor.publish(number, a_pass(number))
        until(lambda: len(world.emitted) == 4)
    before, after = world.emitted[:2], world.emitted[2:]
    assert len({each.engine for each in before}) == len({each.engine for each in after}) == 1
    assert after[0].engine.epoch_ns > before[0].engine.epoch_ns and world.collector.epoch_ns() == after[0].engine.epoch_ns
    assert [(step.number, step.interval_us is not None) for step in world.steps[2:]] == [(1, True), (2, True)]
    assert [each.dropped for each in world.emitted] == [0, 2, 0, 0]
    step_buffer, now_ns = StepBuffer(), world.steps[-1].recorded_ns
    assert sum(step_buffer.add(each, now_ns) for each in world.emitted) == 2
    assert [[step.number for step in flush.steps] for flush in step_buffer.flushes(now_ns)] == [[20, 23], [1, 2]]


def test_repeated_numbers_are_not_steps(world: World) -> None:
    """An unnumbered or repeated message is not a failure; it starts no engine and no interval."""
    world.publish(a_pass(6), a_pass(6), a_pass(6), a_pass(7), first=1)
    assert [(step.number, step.interval_us) for step in world.steps] == [(6, None), (7, None)]
    assert len({each.engine for each in world.emitted}) == 1 and world.counts() == {"taken": 2, "other": 2}
    world.publish(a_pass(7))
    assert world.counts() == {"taken": 2, "other": 3}


NAN, INFINITY = float("nan"), float("inf")
BAD = {
    "another version": with_fields(version=2),
    "no version": with_fields(version=None),
    "no number": with_fields(counter_id=None),
    "a number below 0": with_fields(counter_id=-1),
    "a number beyond all": with_fields(counter_id=2**63),
    "a number that is none": with_fields(counter_id="5"),
    "no time": with_fields(wall_time=None),
    "a time below 0": with_fields(wall_time=-0.001),
    "no such time": with_fields(wall_time=NAN),
    "an endless time": with_fields(wall_time=INFINITY),
    "a day": with_fields(wall_time=86_400.0),
    "nothing scheduled": with_fields(scheduled_requests=None),
    "another schedule": with_fields(scheduled_requests=[1, 2, 3]),
    "fewer than none": with_fields(scheduled_requests={"num_decode_requests": -1}),
    "fewer than none wait": with_fields(queued_requests={"num_prefill_requests": -1}),
    "more than there can be": with_fields(scheduled_requests={"sum_prefill_tokens": 2**40}),
    "half a request": with_fields(scheduled_requests={"num_decode_requests": 0.5}),
    "a list": msgspec.msgpack.encode([1, "", 0, 5, 0.01, {}, {}]),
    "nothing": b"",
    "cut": a_pass(5)[:-1],
    "half": a_pass(5)[: len(a_pass(5)) // 2],
    "too much": a_pass(5) + b"\x00",
    "deep": b"\x81\xa1x" + b"\x91" * 60_000 + b"\xc0",
    "a map that claims to be long": b"\xdf\xff\xff\xff\xff",
    "no text": with_fields(worker_id=b"\xff"),
    "bad text": a_pass(5).replace(b"\xa0", b"\xa1\xff", 1),
}


@pytest.mark.parametrize("payload", BAD.values(), ids=BAD.keys())
def test_an_invalid_pass_is_not_a_step(world: World, payload: bytes) -> None:
    """It counts as bad; the next pass is accepted, without an interval."""
    world.publish(a_pass(4), payload, a_pass(6), first=4)
    assert [(step.number, step.interval_us) for step in world.steps] == [(4, None), (6, None)]
    assert world.counts() == {"taken": 2, "bad": 1}


def test_an_engine_of_another_version_is_down(world: World) -> None:
    """With the reason, as long as no message can be decoded; it is up with the next good message, also a heartbeat."""
    runner = CollectorRunner(world.collector, Buffer(), SelfMetrics())
    assert runner.run_once().state == "up"
    world.publish(with_fields(version=2), with_fields(version=2))
    why = "no messages could be decoded (2 received); the last: version 2; expected forward passes of version 1"
    for _ in range(2):
        status = runner.run_once()
        assert (status.state, status.why) == ("down", f"DecodeError: {world.publisher.endpoint}: {why}")
    world.publish(with_fields(wall_time="the prompt of a customer"))
    assert "(3 received); the last: Expected `float`, got `str` - at `$.wall_time`; expected" in runner.run_once().why
    world.publish(a_pass(6, wall_time=0), with_fields(version=2))
    assert runner.run_once().state == "up"
    world.publish(with_fields(version=2))
    assert "(1 received)" in runner.run_once().why
    world.publish(a_pass(7))
    assert runner.run_once().state == "up" and world.counts() == {"taken": 1, "bad": 5}


def test_unknown_fields_are_skipped(world: World) -> None:
    """Fields of later versions, and fields left out with the value 0."""
    world.publish(with_fields(more=[1, {"a": 2}], queued_requests={"new": 1.5}, scheduled_requests={}, worker_id=7))
    (step,) = world.steps
    assert (step.running, step.waiting, step.prefill_tokens) == (0, 0, 0)


def test_an_endpoint_without_a_publisher_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the silence; the receiving thread is ended by close."""
    monkeypatch.setattr(zmq_subscriber, "_SILENT_S", 0.0)
    threads = threading.active_count()
    passes = ForwardPasses("e", "tcp://127.0.0.1:9", lambda _: None)
    with pytest.raises(NotAvailable, match="no message from tcp://127.0.0.1:9"):
        list(passes.collect(NOW))
    passes.close()
    assert threading.active_count() == threads and passes.epoch_ns() == 0


def is_step_for_the_wire(emitted: Datagram) -> bool:
    """Return whether it can be encoded."""
    assert emitted.step is not None
    return bool(steps_request(emitted.engine, [emitted.step]).SerializeToString())


def arbitrary_messages() -> st.SearchStrategy[bytes]:
    """Random bytes, passes with changed bytes, and maps with random numbers under the right names."""
    numbers = st.one_of(st.integers(-(2**63), 2**64 - 1), st.floats(), st.none(), st.text(max_size=3))
    requests = st.dictionaries(st.sampled_from(ScheduledRequestMetrics.__struct_fields__), numbers, max_size=4)
    fields = st.fixed_dictionaries(
        {"version": st.just(1), "counter_id": st.one_of(st.integers(0, 2**64 - 1), numbers), "wall_time": numbers},
        optional={"scheduled_requests": requests, "queued_requests": requests, "dp_rank": numbers},
    )
    changed = st.builds(lambda at, byte: a_pass(5)[:at] + bytes([byte]) + a_pass(5)[at + 1 :], st.integers(0, 200), st.integers(0, 255))
    return st.one_of(st.binary(max_size=40), changed, fields.map(msgspec.msgpack.encode))


def test_any_message_is_harmless(lasting: World) -> None:
    """For any published message a round raises nothing else, each step can be encoded, and the state does not grow."""
    held: list[int] = []

    @examples(30)
    @given(st.lists(arbitrary_messages(), min_size=1, max_size=5))
    def check(payloads: list[bytes]) -> None:
        lasting.emitted.clear()
        lasting.publish(*payloads, a_pass(2), a_pass(1, decode=77))
        assert lasting.steps[-1].decode_requests == 77
        assert all(is_step_for_the_wire(each) for each in lasting.emitted)
        lasting.counts()
        lasting.emitted.clear()
        held.append(sum(1 for _ in reachable(lasting.collector)))

    check()
    assert max(held) < 2 * held[0] + 100


def test_close_ends_the_thread() -> None:
    """No thread remains."""
    threads = threading.active_count()
    with published(World) as each:
        each.publish(a_pass(1))
        assert each.has_emitted(1) and threading.active_count() == threads + 1
    assert threading.active_count() == threads
