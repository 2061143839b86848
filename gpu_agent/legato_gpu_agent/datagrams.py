"""How the plugins tell the agent: one datagram a step, and datagrams of finished requests and of what the scheduler did.

One idea: each datagram begins with a version, its kind, and which engine speaks, so that any one of them can be understood alone: no hello
to miss, no order to keep. A datagram that cannot be understood is a ``BadDatagram`` with its reason, whatever its bytes. The standard
library alone. It opens no socket.

    u8 version, u8 kind, u64 epoch ns, u8 length of the engine's id, the id; then by kind
    1 step       u64 number, u64 recorded ns, u64 records dropped so far, 13 values of i64 in Step's order (-1: unknown)
    2 finished   entries: u64 step, 3 × u32 counts, 3 × u64 µs in FinishedRequest's order, u8 + u8 lengths, response id, reason
    3 scheduler  entries: u64 time ns, u64 step µs, u32 tokens, u8 kind, u8 length, response id

All numbers are little-endian, texts UTF-8.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from legato_gpu_agent.records import EVENT_KINDS, Engine, FinishedRequest, SchedulerEvent, Step

__all__ = [
    "DATAGRAM_BYTES_MAX",
    "FINISHED",
    "SCHEDULER",
    "STEP",
    "STEP_BODY",
    "BadDatagram",
    "Datagram",
    "decode",
    "finished_entry",
    "join",
    "prefix",
    "scheduler_entry",
]

VERSION = 1
STEP, FINISHED, SCHEDULER = 1, 2, 3
DATAGRAM_BYTES_MAX = 16_384
"""No datagram is longer: what is left over goes into another."""
STEP_BODY = struct.Struct("<QQQ13q")
_HEAD = struct.Struct("<BBQB")
_FINISHED = struct.Struct("<QIIIQQQBB")
_EVENT = struct.Struct("<QQIBB")
_TEXT_BYTES_MAX = 255
_NS_MAX = 2**63 - 1


class BadDatagram(ValueError):
    """Bytes that are no datagram of ours; ``reason`` is a word to count it by."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Datagram:
    """A datagram understood: whose it is, and what it brought. ``dropped``: records that its sender has lost since it began."""

    engine: Engine
    step: Step | None = None
    dropped: int = 0
    finished: tuple[FinishedRequest, ...] = ()
    events: tuple[SchedulerEvent, ...] = ()


def prefix(kind: int, engine: Engine) -> bytes:
    """What every datagram of this kind from this engine begins with."""
    name = _text(engine.id)
    return _HEAD.pack(VERSION, kind, engine.epoch_ns, len(name)) + name


def finished_entry(request: FinishedRequest) -> bytes:
    """One finished request. Raises ``struct.error`` for numbers out of range."""
    name, reason = _text(request.response_id), _text(request.reason)
    counts = (request.preemptions, request.prompt_tokens, request.output_tokens)
    times = (request.queued_us, request.prefill_us, request.decode_us)
    return _FINISHED.pack(request.step, *counts, *times, len(name), len(reason)) + name + reason


def scheduler_entry(event: SchedulerEvent) -> bytes:
    """One event of the scheduler. Raises ``struct.error`` for numbers out of range, ``ValueError`` for an unknown kind."""
    name = _text(event.response_id)
    return _EVENT.pack(event.time_ns, event.step_us, event.tokens, EVENT_KINDS.index(event.kind), len(name)) + name


def join(head: bytes, entries: Iterable[bytes]) -> Iterator[bytes]:
    """Datagrams of these entries, none longer than ``DATAGRAM_BYTES_MAX``."""
    datagram = head
    for entry in entries:
        if len(datagram) + len(entry) > DATAGRAM_BYTES_MAX:
            yield datagram
            datagram = head
        datagram += entry
    if len(datagram) > len(head):
        yield datagram


def decode(data: bytes) -> Datagram:
    """What a datagram says. Raises ``BadDatagram``, and nothing else."""
    try:
        return _decode(data)
    except (struct.error, IndexError):
        raise BadDatagram("truncated") from None
    except UnicodeDecodeError:
        raise BadDatagram("text") from None


def _decode(data: bytes) -> Datagram:
    if not data:
        raise BadDatagram("truncated")
    if data[0] != VERSION:
        raise BadDatagram("version")
    _, kind, epoch_ns, length = _HEAD.unpack_from(data)
    at = _HEAD.size + length
    engine = Engine(_cut(data, _HEAD.size, length), epoch_ns)
    if not engine.id or epoch_ns > _NS_MAX:
        raise BadDatagram("engine")
    if kind == STEP:
        return _step(engine, data, at)
    if kind == FINISHED:
        return Datagram(engine, finished=tuple(_finished(data, at)))
    if kind == SCHEDULER:
        return Datagram(engine, events=tuple(_events(data, at)))
    raise BadDatagram("kind")


def _step(engine: Engine, data: bytes, at: int) -> Datagram:
    if len(data) != at + STEP_BODY.size:
        raise BadDatagram("truncated")
    number, recorded_ns, dropped, *values = STEP_BODY.unpack_from(data, at)
    if not 0 < number <= _NS_MAX or not 0 < recorded_ns <= _NS_MAX:
        raise BadDatagram("range")
    return Datagram(engine, Step(number, recorded_ns, *(None if value < 0 else value for value in values)), dropped)


def _finished(data: bytes, at: int) -> Iterator[FinishedRequest]:
    while at < len(data):
        step, *numbers, name, reason = _FINISHED.unpack_from(data, at)
        at += _FINISHED.size
        if max(step, *numbers) > _NS_MAX:
            raise BadDatagram("range")
        yield FinishedRequest(step, _cut(data, at, name), _cut(data, at + name, reason), *numbers)
        at += name + reason


def _events(data: bytes, at: int) -> Iterator[SchedulerEvent]:
    while at < len(data):
        time_ns, step_us, tokens, kind, name = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        if kind >= len(EVENT_KINDS) or max(time_ns, step_us) > _NS_MAX:
            raise BadDatagram("range")
        yield SchedulerEvent(time_ns, _cut(data, at, name), EVENT_KINDS[kind], tokens, step_us)
        at += name


def _cut(data: bytes, at: int, length: int) -> str:
    if len(data) < at + length:
        raise BadDatagram("truncated")
    return data[at : at + length].decode()


def _text(value: str) -> bytes:
    """UTF-8 of at most 255 bytes, cut between characters."""
    return value.encode("utf-8", "replace")[:_TEXT_BYTES_MAX].decode("utf-8", "ignore").encode()
