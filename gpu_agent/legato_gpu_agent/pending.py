"""What the agent holds of each engine until the next flush: steps, requests that ended, what the scheduler did.

One idea: an engine is its id and its epoch, so one that restarts is another one; within it a step's number is taken once, and those that
come after their flush are late. Everything is bounded. It is pure: time is given to it, and it sends nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from legato_gpu_agent.datagrams import BadDatagram, Datagram
from legato_gpu_agent.records import Engine, FinishedRequest, SchedulerEvent, Step

__all__ = ["Flush", "Pending"]

ENGINES_MAX = 64
FLUSH_STEPS_MAX = 4_096
EXTRAS_MAX = 8_192
_FORGET_NS = 600 * 10**9
_CLOCKS_APART_NS = 86_400 * 10**9
# One column holds the difference to the step before: 32 bits of µs, and of numbers.
_APART_MAX = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Flush:
    """What one span holds."""

    engine: Engine
    steps: Sequence[Step]
    finished: Sequence[FinishedRequest]
    events: Sequence[SchedulerEvent]


@dataclass(slots=True)
class _Held:
    heard_ns: int
    steps: dict[int, Step] = field(default_factory=dict)
    finished: deque[FinishedRequest] = field(default_factory=lambda: deque(maxlen=EXTRAS_MAX))
    flushed: int = 0
    dropped: int = 0


class Pending:
    """Takes datagrams, gives flushes. ``overflowed`` counts what did not fit, by kind."""

    def __init__(self) -> None:
        self._held: dict[Engine, _Held] = {}
        # By id alone: the scheduler is another process, with an epoch of its own.
        self._events: dict[str, deque[SchedulerEvent]] = {}
        self._events_heard_ns: dict[str, int] = {}
        self.overflowed = {"finished": 0, "scheduler": 0}

    @property
    def engines(self) -> int:
        """How many engines are known."""
        return len(self._held)

    @property
    def is_full(self) -> bool:
        """Whether some engine has a flush's worth of steps."""
        return any(len(held.steps) >= FLUSH_STEPS_MAX for held in self._held.values())

    def take(self, datagram: Datagram, now_ns: int) -> int:
        """Keep what a datagram brought; how many datagrams its sender lost since the last. Raises ``BadDatagram``."""
        if datagram.events:
            self._take_events(datagram, now_ns)
            return 0
        step = datagram.step
        if step is not None and abs(step.recorded_ns - now_ns) > _CLOCKS_APART_NS:
            raise BadDatagram("time")
        held = self._of(datagram.engine, now_ns)
        if step is not None:
            if step.number <= held.flushed:
                raise BadDatagram("late")
            if step.number in held.steps:
                raise BadDatagram("repeated")
            held.steps[step.number] = step
            lost, held.dropped = max(datagram.dropped - held.dropped, 0), max(datagram.dropped, held.dropped)
            return lost
        self.overflowed["finished"] += max(len(held.finished) + len(datagram.finished) - EXTRAS_MAX, 0)
        held.finished.extend(datagram.finished)
        return 0

    def flushes(self, now_ns: int) -> Iterator[Flush]:
        """All that is held of engines with steps; engines that have been silent for ten minutes are forgotten."""
        newest = {engine.id: engine for engine in sorted(self._held, key=lambda engine: engine.epoch_ns) if self._held[engine].steps}
        for engine, held in list(self._held.items()):
            if held.steps:
                events = self._events.pop(engine.id, ()) if newest[engine.id] == engine else ()
                yield from self._cut(engine, held, list(events))
            elif now_ns - held.heard_ns > _FORGET_NS:
                del self._held[engine]
        for name, heard_ns in list(self._events_heard_ns.items()):
            if now_ns - heard_ns > _FORGET_NS:
                del self._events_heard_ns[name]
                self._events.pop(name, None)

    def _cut(self, engine: Engine, held: _Held, events: list[SchedulerEvent]) -> Iterator[Flush]:
        steps = [held.steps[number] for number in sorted(held.steps)]
        held.flushed = steps[-1].number
        held.steps = {}
        finished, held.finished = list(held.finished), deque(maxlen=EXTRAS_MAX)
        parts = list(_parts(steps))
        for part in parts[:-1]:
            yield Flush(engine, part, (), ())
        yield Flush(engine, parts[-1], finished, events)

    def _of(self, engine: Engine, now_ns: int) -> _Held:
        held = self._held.get(engine)
        if held is None:
            if len(self._held) >= ENGINES_MAX:
                raise BadDatagram("engines")
            held = self._held[engine] = _Held(now_ns)
        held.heard_ns = now_ns
        return held

    def _take_events(self, datagram: Datagram, now_ns: int) -> None:
        if datagram.engine.id not in self._events and len(self._events) >= ENGINES_MAX:
            raise BadDatagram("engines")
        self._events_heard_ns[datagram.engine.id] = now_ns
        kept = self._events.setdefault(datagram.engine.id, deque(maxlen=EXTRAS_MAX))
        self.overflowed["scheduler"] += max(len(kept) + len(datagram.events) - EXTRAS_MAX, 0)
        kept.extend(datagram.events)


def _parts(steps: Sequence[Step]) -> Iterator[Sequence[Step]]:
    """Runs that one span can hold: times that never go back, differences that fit, not too many."""
    first = 0
    for place in range(1, len(steps)):
        apart_ns = steps[place].recorded_ns - steps[place - 1].recorded_ns
        numbers = steps[place].number - steps[place - 1].number
        if apart_ns < 0 or apart_ns // 1000 > _APART_MAX or numbers > _APART_MAX or place - first >= FLUSH_STEPS_MAX:
            yield steps[first:place]
            first = place
    yield steps[first:]
