"""What the agent holds of each engine until the next flush: steps, requests that ended, what the scheduler did.

One idea: an engine is its id and its epoch, so one that restarts is another one; within it a step's number is taken once, and those that
come after their flush are late. What else is told goes with steps; where none comes, with the last one, sent once more. Everything is
bounded. It is pure: time is given to it, and it sends nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from legato_gpu_agent.plugin.model import Engine, FinishedRequest, SchedulerEvent, Step
from legato_gpu_agent.plugin.protocol import BadDatagram, Datagram

__all__ = ["Flush", "Pending"]

ENGINES_MAX = 64
FLUSH_STEPS_MAX = 4_096
EXTRAS_MAX = 8_192
_FORGET_NS = 600 * 10**9
# What is told without a step waits no longer than this for one: an engine that goes quiet may take none for hours.
_LATE_NS = 3 * 10**9
_CLOCKS_APART_NS = 86_400 * 10**9
# One column holds the difference to the step before: 32 bits of µs, and of numbers.
_APART_MAX = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Flush:
    """What one span holds. ``again``: its step was sent before, and goes along for the sake of the rest."""

    engine: Engine
    steps: Sequence[Step]
    finished: Sequence[FinishedRequest]
    events: Sequence[SchedulerEvent]
    again: bool = False


@dataclass(slots=True)
class _Held:
    """``since_ns``: since when the first of ``finished`` waits. ``last``: the last step that went, as its row has it."""

    heard_ns: int
    steps: dict[int, Step] = field(default_factory=dict)
    finished: deque[FinishedRequest] = field(default_factory=lambda: deque(maxlen=EXTRAS_MAX))
    since_ns: int = 0
    flushed: int = 0
    dropped: int = 0
    last: Step | None = None

    def take_finished(self) -> list[FinishedRequest]:
        finished, self.finished = list(self.finished), deque(maxlen=EXTRAS_MAX)
        return finished


@dataclass(slots=True)
class _Events:
    since_ns: int
    kept: deque[SchedulerEvent] = field(default_factory=lambda: deque(maxlen=EXTRAS_MAX))


class Pending:
    """Takes datagrams, gives flushes. By kind, ``overflowed`` counts what did not fit, and ``forgotten`` what no step ever came for."""

    def __init__(self) -> None:
        self._held: dict[Engine, _Held] = {}
        # By id alone: the scheduler is another process, with an epoch of its own.
        self._events: dict[str, _Events] = {}
        self.overflowed = {"finished": 0, "scheduler": 0}
        self.forgotten = {"finished": 0, "scheduler": 0}

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
        held.since_ns = held.since_ns if held.finished else now_ns
        self.overflowed["finished"] += max(len(held.finished) + len(datagram.finished) - EXTRAS_MAX, 0)
        held.finished.extend(datagram.finished)
        return 0

    def flushes(self, now_ns: int, closing: bool = False) -> Iterator[Flush]:
        """All that is held of engines with steps, and what has waited long enough for one, or, at the end, at all.

        Engines that have been silent for ten minutes are forgotten, and so are events that have waited as long.
        """
        idle = [engine for engine, held in self._held.items() if not held.steps]
        yield from self._with_steps()
        yield from self._late(now_ns if closing else now_ns - _LATE_NS)
        self._forget(idle, math.inf if closing else now_ns - _FORGET_NS)

    def _with_steps(self) -> Iterator[Flush]:
        newest = _newest(engine for engine, held in self._held.items() if held.steps)
        for engine, held in list(self._held.items()):
            if held.steps:
                yield from self._cut(engine, held, self._take_kept(engine.id) if newest[engine.id] == engine else [])

    def _late(self, until_ns: int) -> Iterator[Flush]:
        """What has waited since ``until_ns`` or longer, with its engine's last step: the receiver knows that row, and takes the rest."""
        newest = _newest(engine for engine, held in self._held.items() if held.last is not None)
        for engine, held in list(self._held.items()):
            if held.last is None:
                continue
            finished = held.take_finished() if held.finished and held.since_ns <= until_ns else []
            waiting = self._events.get(engine.id) if newest[engine.id] == engine else None
            events = self._take_kept(engine.id) if waiting is not None and waiting.since_ns <= until_ns else []
            if finished or events:
                yield Flush(engine, [held.last], finished, events, again=True)

    def _forget(self, idle: Collection[Engine], before_ns: float) -> None:
        for engine in idle:
            if self._held[engine].heard_ns < before_ns:
                self.forgotten["finished"] += len(self._held.pop(engine).finished)
        for name, waiting in list(self._events.items()):
            if waiting.since_ns < before_ns:
                self.forgotten["scheduler"] += len(self._take_kept(name))

    def _cut(self, engine: Engine, held: _Held, events: list[SchedulerEvent]) -> Iterator[Flush]:
        steps = [held.steps[number] for number in sorted(held.steps)]
        held.flushed = steps[-1].number
        held.steps = {}
        finished = held.take_finished()
        parts = list(_parts(steps))
        held.last = _last_row(parts[-1])
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
        kept = self._events.setdefault(datagram.engine.id, _Events(now_ns)).kept
        self.overflowed["scheduler"] += max(len(kept) + len(datagram.events) - EXTRAS_MAX, 0)
        kept.extend(datagram.events)

    def _take_kept(self, name: str) -> list[SchedulerEvent]:
        """The events that wait for this engine, which wait no more."""
        waiting = self._events.pop(name, None)
        return list(waiting.kept) if waiting is not None else []


def _newest(engines: Iterable[Engine]) -> dict[str, Engine]:
    """Of each id the last epoch."""
    return {engine.id: engine for engine in sorted(engines, key=lambda engine: engine.epoch_ns)}


def _last_row(part: Sequence[Step]) -> Step:
    """A span's last step with the time that its row has, whole µs after the first: sent once more it is the same row, and is kept once."""
    first_ns, last = part[0].recorded_ns, part[-1]
    return replace(last, recorded_ns=first_ns + 1000 * (last.recorded_ns // 1000 - first_ns // 1000))


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
