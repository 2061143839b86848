"""Turns the forward passes that an engine publishes over ZMQ into steps.

Sources: SGLang with --enable-forward-pass-metrics, Dynamo's InstrumentedScheduler. A message is one step and is sent by the scheduler when
the step ends, so the time between two messages is the duration of the step. The field ``wall_time`` is the span on the GPU in SGLang and
the scheduler's time in Dynamo, so it is stored separately and never added up. A request that was evicted computes its prompt again and
counts as prefill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from legato_gpu_agent.collectors.decode_errors import DecodeError
from legato_gpu_agent.collectors.measurement import Measured, Measurement, boot_attributes
from legato_gpu_agent.collectors.zmq_subscriber import ZmqSubscriber
from legato_gpu_agent.plugin.model import Engine, Step
from legato_gpu_agent.plugin.protocol import Datagram

__all__ = ["ForwardPasses"]

_VERSION = 1
_COUNT_MAX = 2**31
_NUMBER_MAX = 2**62
_STEP_S_MAX = 3600.0
# A message has about 400 bytes.
_BYTES_MAX = 65_536


class _Scheduled(msgspec.Struct):
    num_prefill_requests: int = 0
    sum_prefill_tokens: int = 0
    num_decode_requests: int = 0


class _Queued(msgspec.Struct):
    num_prefill_requests: int = 0
    num_decode_requests: int = 0


class _Pass(msgspec.Struct):
    version: int
    counter_id: int
    wall_time: float
    scheduled_requests: _Scheduled
    queued_requests: _Queued
    worker_id: str | int = ""
    dp_rank: int = 0


class ForwardPasses:
    """Receives the passes that ``engine_id`` publishes at ``endpoint``; calls ``emit`` for each in the receiving thread.

    ``boot_id``: the boot of the host with the clock of the records.
    """

    def __init__(self, engine_id: str, endpoint: str, emit: Callable[[Datagram], None], every_s: float = 1.0, boot_id: str = "") -> None:
        self.name, self.every_s = f"forward passes {engine_id}", every_s
        self._id, self._emit, self._boot = engine_id, emit, boot_attributes(boot_id)
        self._subscriber = ZmqSubscriber(endpoint, self._take, _BYTES_MAX, expected=f"forward passes of version {_VERSION}")
        self._decoder = msgspec.msgpack.Decoder(_Pass)
        self._start_ns = 0
        self._engine: Engine | None = None
        self._last = -1
        # Arrival time of the previous message, if the next step began then.
        self._before_ns: int | None = None
        self._passes = self._repeated = self._lost_before = 0

    def epoch_ns(self) -> int:
        """Return the epoch of the engine that the steps belong to: the arrival of its first message (ns), 0 before that."""
        return self._engine.epoch_ns if self._engine is not None else 0

    def collect(self, now_ns: int) -> Iterator[Measured]:
        """Yield counters of messages; the first call starts the subscription.

        Raises ``NotAvailable`` after a long silence, ``DecodeError`` if no message can be decoded.
        """
        self._start_ns = self._start_ns or now_ns
        self._subscriber.listen()
        lost, bad = self._subscriber.lost, self._subscriber.bad
        for outcome, count in (("taken", self._passes), ("lost", lost), ("other", self._repeated), ("bad", bad)):
            attributes = (*self._boot, ("legato.engine.id", self._id), ("legato.outcome", outcome))
            yield Measurement("legato.agent.forward_passes", "{message}", float(count), attributes, self._start_ns)

    def close(self) -> None:
        """Stop receiving."""
        self._subscriber.close()

    def _take(self, arrived_ns: int, payload: bytes) -> None:
        """Emit the step of one message. Raises ``DecodeError`` or the decoder's error for an invalid message."""
        message = self._decoder.decode(payload)
        _check(message)
        number, before_ns, last = message.counter_id, self._before_ns, self._last
        self._last, self._before_ns = number, None
        if number == last:
            # A repeated message, or one of an engine that does not number its messages.
            self._repeated += 1
            return
        if self._engine is None or number < last:
            # A number that goes back, also after a heartbeat, is a restarted engine. Losses of the previous run are already counted.
            self._engine, self._lost_before = Engine(self._id, max(arrived_ns, self.epoch_ns() + 1)), self._subscriber.lost
        # A heartbeat (wall_time 0) means that the engine was idle, so the next step did not begin now. Steps are numbered from 1.
        if not message.wall_time:
            return
        self._before_ns = arrived_ns
        if number:
            step = _step_of(message, arrived_ns, before_ns if number == last + 1 else None)
            self._passes += 1
            self._emit(Datagram(self._engine, step, self._subscriber.lost - self._lost_before))


def _check(message: _Pass) -> None:
    """Raise ``DecodeError`` for values out of range."""
    if message.version != _VERSION:
        raise DecodeError(f"version {message.version}")
    scheduled, queued = message.scheduled_requests, message.queued_requests
    counts = [getattr(part, name) for part in (scheduled, queued) for name in part.__struct_fields__]
    if not 0 <= message.wall_time <= _STEP_S_MAX:
        raise DecodeError(f"wall_time is not between 0 and {_STEP_S_MAX:g} s")
    if min(counts) < 0 or max(counts) > _COUNT_MAX or not 0 <= message.counter_id <= _NUMBER_MAX:
        raise DecodeError(f"a count is not between 0 and {_COUNT_MAX:,}, or counter_id is out of range")


def _step_of(message: _Pass, arrived_ns: int, before_ns: int | None) -> Step:
    scheduled, queued = message.scheduled_requests, message.queued_requests
    return Step(
        number=message.counter_id,
        recorded_ns=arrived_ns,
        interval_us=max((arrived_ns - before_ns) // 1000, 0) if before_ns is not None else None,
        running=scheduled.num_prefill_requests + scheduled.num_decode_requests,
        waiting=queued.num_prefill_requests + queued.num_decode_requests,
        prefill_requests=scheduled.num_prefill_requests,
        prefill_tokens=scheduled.sum_prefill_tokens,
        decode_requests=scheduled.num_decode_requests,
        decode_tokens=scheduled.num_decode_requests,
        elapsed_us=round(message.wall_time * 1e6),
    )
