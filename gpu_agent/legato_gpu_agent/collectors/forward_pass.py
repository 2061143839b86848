"""Every forward pass of an engine that publishes them (SGLang's --enable-forward-pass-metrics, Dynamo's InstrumentedScheduler), as its
steps.

One idea: a message is a step, and it comes from the scheduler itself the moment the step is over; so the time from one message to the next
is the step. What the message calls its wall time is the GPU's span in SGLang and the scheduler's in Dynamo, so it is kept beside and not
added up. A request that was thrown out computes its prompt again, and is counted among the prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from legato_gpu_agent.collectors.decode_errors import Unusable
from legato_gpu_agent.collectors.measurement import Found, Reading, booted
from legato_gpu_agent.collectors.zmq_subscriber import Subscription
from legato_gpu_agent.plugin.model import Engine, Step
from legato_gpu_agent.plugin.protocol import Datagram

__all__ = ["ForwardPasses"]

_VERSION = 1
_COUNT_MAX = 2**31
_NUMBER_MAX = 2**62
_STEP_S_MAX = 3600.0
# A message has some 400 bytes.
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
    """The passes published at ``endpoint`` by the engine called ``engine_id``; each is given to ``tell``, in the thread that listens.

    ``boot_id``: of the host by whose clock they are recorded.
    """

    def __init__(self, engine_id: str, endpoint: str, tell: Callable[[Datagram], None], every_s: float = 1.0, boot_id: str = "") -> None:
        self.name, self.every_s = f"forward passes {engine_id}", every_s
        self._id, self._tell, self._boot = engine_id, tell, booted(boot_id)
        self._subscription = Subscription(endpoint, self._take, _BYTES_MAX, expected=f"forward passes of version {_VERSION}")
        self._decoder = msgspec.msgpack.Decoder(_Pass)
        self._since_ns = 0
        self._engine: Engine | None = None
        self._last = -1
        # When the message before came, where what follows it began then.
        self._before_ns: int | None = None
        self._passes = self._repeated = self._lost_before = 0

    def epoch_ns(self) -> int:
        """Which engine the steps are of now: when it was first heard (ns since the epoch), 0 before that."""
        return self._engine.epoch_ns if self._engine is not None else 0

    def collect(self, now_ns: int) -> Iterator[Found]:
        """Counters of messages. Listens from the first round on. Raises ``Absent`` after a long silence, ``Unusable`` where all are bad."""
        self._since_ns = self._since_ns or now_ns
        self._subscription.listen()
        lost, bad = self._subscription.lost, self._subscription.bad
        for what, count in (("taken", self._passes), ("lost", lost), ("other", self._repeated), ("bad", bad)):
            whose = (*self._boot, ("legato.engine.id", self._id), ("legato.outcome", what))
            yield Reading("legato.agent.forward_passes", "{message}", float(count), whose, self._since_ns)

    def close(self) -> None:
        """Listen no more."""
        self._subscription.close()

    def _take(self, came_ns: int, payload: bytes) -> None:
        """Raises ``Unusable`` and what the decoder may for what cannot be."""
        message = self._decoder.decode(payload)
        _check(message)
        number, before_ns, last = message.counter_id, self._before_ns, self._last
        self._last, self._before_ns = number, None
        if number == last:
            # Told twice, or by an engine that numbers none.
            self._repeated += 1
            return
        if self._engine is None or number < last:
            # A number that goes back, be it after a heartbeat: an engine that began anew. What was lost of the other is told already.
            self._engine, self._lost_before = Engine(self._id, max(came_ns, self.epoch_ns() + 1)), self._subscription.lost
        # After a heartbeat the engine idled: what comes next did not begin when this came. And steps are numbered from 1.
        if not message.wall_time:
            return
        self._before_ns = came_ns
        if number:
            step = _step_of(message, came_ns, before_ns if number == last + 1 else None)
            self._passes += 1
            self._tell(Datagram(self._engine, step, self._subscription.lost - self._lost_before))


def _check(message: _Pass) -> None:
    """Raises ``Unusable`` for what cannot be."""
    if message.version != _VERSION:
        raise Unusable(f"version {message.version}")
    scheduled, queued = message.scheduled_requests, message.queued_requests
    counts = [getattr(part, name) for part in (scheduled, queued) for name in part.__struct_fields__]
    if not 0 <= message.wall_time <= _STEP_S_MAX:
        raise Unusable(f"a wall_time that is not from 0 to {_STEP_S_MAX:g} s")
    if min(counts) < 0 or max(counts) > _COUNT_MAX or not 0 <= message.counter_id <= _NUMBER_MAX:
        raise Unusable(f"counts that are not from 0 to {_COUNT_MAX:,}, or a counter_id beyond all")


def _step_of(message: _Pass, came_ns: int, before_ns: int | None) -> Step:
    scheduled, queued = message.scheduled_requests, message.queued_requests
    return Step(
        number=message.counter_id,
        recorded_ns=came_ns,
        interval_us=max((came_ns - before_ns) // 1000, 0) if before_ns is not None else None,
        running=scheduled.num_prefill_requests + scheduled.num_decode_requests,
        waiting=queued.num_prefill_requests + queued.num_decode_requests,
        prefill_requests=scheduled.num_prefill_requests,
        prefill_tokens=scheduled.sum_prefill_tokens,
        decode_requests=scheduled.num_decode_requests,
        decode_tokens=scheduled.num_decode_requests,
        elapsed_us=round(message.wall_time * 1e6),
    )
