"""Buffers steps, finished requests and scheduler events of each engine until the next flush.

An engine is identified by its id and its epoch, so a restarted engine is another one. Within an engine each step number is accepted once;
steps that arrive after their flush are late and rejected. Finished requests and events are sent with steps. If no step follows, they are
sent with the last step, which is repeated. Everything is bounded. The module does no I/O; the caller passes the time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from legato_gpu_agent.plugin.model import Engine, FinishedRequest, SchedulerEvent, Step
from legato_gpu_agent.plugin.protocol import BadDatagram, Datagram

__all__ = ["Flush", "StepBuffer"]

ENGINES_MAX = 64
FLUSH_STEPS_MAX = 4_096
EXTRAS_MAX = 8_192
_FORGET_NS = 600 * 10**9
# Requests and events wait at most this long for a new step: an idle engine may make none for hours.
_WAIT_MAX_NS = 3 * 10**9
_CLOCK_DIFFERENCE_MAX_NS = 86_400 * 10**9
# A column holds the difference from the step before in 32 bits, for times in µs and for numbers.
_DIFFERENCE_MAX = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Flush:
    """The contents of one span. ``again``: its step was sent before and is repeated to carry the requests and events."""

    engine: Engine
    steps: Sequence[Step]
    finished: Sequence[FinishedRequest]
    events: Sequence[SchedulerEvent]
    again: bool = False


@dataclass(slots=True)
class _EngineState:
    """``since_ns``: arrival of the oldest of ``finished``. ``last``: the last step sent, with the time that its row has."""

    received_ns: int
    steps: dict[int, Step] = field(default_factory=dict)
    finished: deque[FinishedRequest] = field(default_factory=lambda: deque(maxlen=EXTRAS_MAX))
    since_ns: int = 0
    flushed: int = 0
    dropped: int = 0
    last: Step | None = None

    def pop_finished(self) -> list[FinishedRequest]:
        finished, self.finished = list(self.finished), deque(maxlen=EXTRAS_MAX)
        return finished


@dataclass(slots=True)
class _Events:
    since_ns: int
    kept: deque[SchedulerEvent] = field(default_factory=lambda: deque(maxlen=EXTRAS_MAX))


class StepBuffer:
    """Takes datagrams and returns flushes. By kind, ``overflowed`` counts records beyond the bounds, ``forgotten`` those without a step."""

    def __init__(self) -> None:
        self._states: dict[Engine, _EngineState] = {}
        # What the plugins of forgotten engines had lost: they report the total since their start.
        self._dropped: dict[Engine, int] = {}
        # By id alone: the scheduler is another process with a different epoch.
        self._events: dict[str, _Events] = {}
        self.overflowed = {"finished": 0, "scheduler": 0}
        self.forgotten = {"finished": 0, "scheduler": 0}

    @property
    def engines(self) -> int:
        """The number of engines in the buffer."""
        return len(self._states)

    @property
    def is_full(self) -> bool:
        """Whether some engine has as many steps as one flush holds."""
        return any(len(state.steps) >= FLUSH_STEPS_MAX for state in self._states.values())

    def add(self, datagram: Datagram, now_ns: int) -> int:
        """Buffer a datagram; return how many its sender lost since the last one. Raises ``BadDatagram``."""
        if datagram.events:
            self._add_events(datagram, now_ns)
            return 0
        step = datagram.step
        if step is not None and abs(step.recorded_ns - now_ns) > _CLOCK_DIFFERENCE_MAX_NS:
            raise BadDatagram("time")
        state = self._state_of(datagram.engine, now_ns)
        if step is not None:
            if step.number <= state.flushed:
                raise BadDatagram("late")
            if step.number in state.steps:
                raise BadDatagram("repeated")
            state.steps[step.number] = step
            lost, state.dropped = max(datagram.dropped - state.dropped, 0), max(datagram.dropped, state.dropped)
            return lost
        state.since_ns = state.since_ns if state.finished else now_ns
        self.overflowed["finished"] += max(len(state.finished) + len(datagram.finished) - EXTRAS_MAX, 0)
        state.finished.extend(datagram.finished)
        return 0

    def flushes(self, now_ns: int, closing: bool = False) -> Iterator[Flush]:
        """Yield everything of engines with new steps, and records that waited 3 s for a step; with ``closing`` all records.

        Engines without datagrams for ten minutes are removed, and so are events that have waited that long.
        """
        idle = [engine for engine, state in self._states.items() if not state.steps]
        yield from self._with_steps()
        yield from self._overdue(now_ns if closing else now_ns - _WAIT_MAX_NS)
        self._forget(idle, math.inf if closing else now_ns - _FORGET_NS)

    def _with_steps(self) -> Iterator[Flush]:
        newest = _newest(engine for engine, state in self._states.items() if state.steps)
        for engine, state in list(self._states.items()):
            if state.steps:
                yield from self._split(engine, state, self._pop_events(engine.id) if newest[engine.id] == engine else [])

    def _overdue(self, until_ns: int) -> Iterator[Flush]:
        """Yield records that have waited since ``until_ns`` or longer, with the engine's last step, which the receiver deduplicates."""
        newest = _newest(engine for engine, state in self._states.items() if state.last is not None)
        for engine, state in list(self._states.items()):
            if state.last is None:
                continue
            finished = state.pop_finished() if state.finished and state.since_ns <= until_ns else []
            waiting = self._events.get(engine.id) if newest[engine.id] == engine else None
            events = self._pop_events(engine.id) if waiting is not None and waiting.since_ns <= until_ns else []
            if finished or events:
                yield Flush(engine, [state.last], finished, events, again=True)

    def _forget(self, idle: Collection[Engine], before_ns: float) -> None:
        for engine in idle:
            if self._states[engine].received_ns < before_ns:
                state = self._states.pop(engine)
                self.forgotten["finished"] += len(state.finished)
                if state.dropped:
                    self._dropped[engine] = state.dropped
                if len(self._dropped) > ENGINES_MAX:
                    del self._dropped[next(iter(self._dropped))]
        for name, waiting in list(self._events.items()):
            if waiting.since_ns < before_ns:
                self.forgotten["scheduler"] += len(self._pop_events(name))

    def _split(self, engine: Engine, state: _EngineState, events: list[SchedulerEvent]) -> Iterator[Flush]:
        steps = [state.steps[number] for number in sorted(state.steps)]
        state.flushed = steps[-1].number
        state.steps = {}
        finished = state.pop_finished()
        parts = list(_parts(steps))
        state.last = _last_row(parts[-1])
        for part in parts[:-1]:
            yield Flush(engine, part, (), ())
        yield Flush(engine, parts[-1], finished, events)

    def _state_of(self, engine: Engine, now_ns: int) -> _EngineState:
        state = self._states.get(engine)
        if state is None:
            if len(self._states) >= ENGINES_MAX:
                raise BadDatagram("engines")
            state = self._states[engine] = _EngineState(now_ns, dropped=self._dropped.pop(engine, 0))
        state.received_ns = now_ns
        return state

    def _add_events(self, datagram: Datagram, now_ns: int) -> None:
        if datagram.engine.id not in self._events and len(self._events) >= ENGINES_MAX:
            raise BadDatagram("engines")
        kept = self._events.setdefault(datagram.engine.id, _Events(now_ns)).kept
        self.overflowed["scheduler"] += max(len(kept) + len(datagram.events) - EXTRAS_MAX, 0)
        kept.extend(datagram.events)

    def _pop_events(self, name: str) -> list[SchedulerEvent]:
        """Remove and return the events of this engine."""
        waiting = self._events.pop(name, None)
        return list(waiting.kept) if waiting is not None else []


def _newest(engines: Iterable[Engine]) -> dict[str, Engine]:
    """Return for each id the engine with the latest epoch."""
    return {engine.id: engine for engine in sorted(engines, key=lambda engine: engine.epoch_ns)}


def _last_row(part: Sequence[Step]) -> Step:
    """Return a span's last step with the time of its row, whole µs after the first step: repeated, it is the same row and stored once."""
    first_ns, last = part[0].recorded_ns, part[-1]
    return replace(last, recorded_ns=first_ns + 1000 * (last.recorded_ns // 1000 - first_ns // 1000))


def _parts(steps: Sequence[Step]) -> Iterator[Sequence[Step]]:
    """Yield runs of steps that fit into one span: times that do not decrease, differences within 32 bits, at most 4,096 steps."""
    first = 0
    for place in range(1, len(steps)):
        elapsed_ns = steps[place].recorded_ns - steps[place - 1].recorded_ns
        numbers = steps[place].number - steps[place - 1].number
        if elapsed_ns < 0 or elapsed_ns // 1000 > _DIFFERENCE_MAX or numbers > _DIFFERENCE_MAX or place - first >= FLUSH_STEPS_MAX:
            yield steps[first:place]
            first = place
    yield steps[first:]
