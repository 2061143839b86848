"""How the plugins tell the agent: one datagram a step, and datagrams of finished requests and of what the scheduler did.

One idea: each datagram says its own length, its kind and which engine speaks, so that any one of them can be understood alone: no hello to
miss, no order to keep, and many may write into one pipe. What cannot be understood is a ``BadDatagram`` with its reason, whatever its
bytes, and costs no other. The standard library alone. It opens no pipe.

    ff "LGT", u8 version, u16 length of all of it, u8 kind, u64 epoch ns, u8 length of the engine's id, the id; then by kind
    1 step       u64 number, u64 recorded ns, u64 records dropped so far, 13 values of i64 in Step's order (-1: unknown)
    2 finished   entries: u64 step, 3 × u32 counts, 3 × u64 µs in FinishedRequest's order, u8 + u8 lengths, response id, reason
    3 scheduler  entries: u64 time ns, u64 step µs, u32 tokens, u8 kind, u8 length, response id

All numbers are little-endian, texts UTF-8, in which there is no byte ff. What stands before the kind is the same in every version.
"""

from __future__ import annotations

import contextlib
import select
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from legato_gpu_agent.plugin.model import EVENT_KINDS, Engine, FinishedRequest, SchedulerEvent, Step

__all__ = [
    "DATAGRAM_BYTES_MAX",
    "FINISHED",
    "SCHEDULER",
    "BadDatagram",
    "Datagram",
    "cut",
    "decode",
    "finished_entry",
    "join",
    "scheduler_entry",
    "step_packer",
    "understood",
]

MAGIC, VERSION = b"\xffLGT", 2
STEP, FINISHED, SCHEDULER = 1, 2, 3
DATAGRAM_BYTES_MAX = select.PIPE_BUF
"""No datagram is longer (on Linux 4,096), as what is longer may be torn by another's (pipe(7)): what is left over goes into another."""
_HEAD, _LENGTH = struct.Struct("<4sBHBQB"), struct.Struct("<H")
_LENGTH_AT = 5
_STEP = struct.Struct("<QQQ13q")
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


def step_packer(engine: Engine) -> Callable[..., bytes]:
    """What makes a step's datagram of its number, its time, what was dropped so far, and 13 values in Step's order (-1: unknown).

    It raises ``struct.error`` for what is no whole number or out of range.
    """
    head = _head(STEP, engine, _STEP.size)
    return partial(struct.Struct(f"<{len(head)}s{_STEP.format.removeprefix('<')}").pack, head)


def _head(kind: int, engine: Engine, body_bytes: int) -> bytes:
    name = _text(engine.id)
    return _HEAD.pack(MAGIC, VERSION, _HEAD.size + len(name) + body_bytes, kind, engine.epoch_ns, len(name)) + name


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


def join(kind: int, engine: Engine, entries: Iterable[bytes]) -> Iterator[bytes]:
    """Datagrams of these entries, none longer than ``DATAGRAM_BYTES_MAX``."""
    room = DATAGRAM_BYTES_MAX - len(_head(kind, engine, 0))
    body = b""
    for entry in entries:
        if len(body) + len(entry) > room:
            yield _head(kind, engine, len(body)) + body
            body = b""
        body += entry
    if body:
        yield _head(kind, engine, len(body)) + body


def cut(data: bytes) -> list[bytes]:
    """What a pipe held, in datagrams. What is none, up to where the next may begin, is one by itself, for ``decode`` to refuse."""
    out = []
    at, end = 0, len(data)
    while at < end:
        after = data.find(MAGIC, at)
        if after == at:
            after = _end_of(data, at)
        after = end if after < 0 else after
        out.append(data[at:after])
        at = after
    return out


def _end_of(data: bytes, at: int) -> int:
    """Where the datagram ends that begins here: where it says, unless another begins before that; -1 for the end of all."""
    if at + _HEAD.size <= len(data):
        after: int = at + _LENGTH.unpack_from(data, at + _LENGTH_AT)[0]
        if _HEAD.size <= after - at <= DATAGRAM_BYTES_MAX and after <= len(data):
            # Also where but the first bytes of another are within it.
            if after == len(data) or data.startswith(MAGIC, after) or data.find(MAGIC, at + 1, after + len(MAGIC) - 1) < 0:
                return after
    return data.find(MAGIC, at + 1)


def understood(data: bytes) -> Iterator[Datagram | BadDatagram]:
    """What one piece of a pipe says; where it is no datagram, that, and what those say that begin within it."""
    try:
        yield decode(data)
    except BadDatagram as error:
        yield error
        within = data.find(MAGIC, 1)
        for piece in cut(data[within:]) if within > 0 else ():
            with contextlib.suppress(BadDatagram):
                yield decode(piece)


def decode(data: bytes) -> Datagram:
    """What a datagram says. Raises ``BadDatagram``, and nothing else."""
    try:
        return _decode(data)
    except (struct.error, IndexError):
        raise BadDatagram("truncated") from None
    except UnicodeDecodeError:
        raise BadDatagram("text") from None


def _decode(data: bytes) -> Datagram:
    if not data.startswith(MAGIC):
        raise BadDatagram("noise")
    if data[len(MAGIC)] != VERSION:
        raise BadDatagram("version")
    _, _, whole, kind, epoch_ns, length = _HEAD.unpack_from(data)
    if len(data) != whole:
        raise BadDatagram("truncated")
    at = _HEAD.size + length
    engine = Engine(_cut(data, _HEAD.size, length), epoch_ns)
    if not engine.id or epoch_ns > _NS_MAX:
        raise BadDatagram("engine")
    if kind == STEP:
        return _step(engine, data[at:])
    if kind == FINISHED:
        return Datagram(engine, finished=tuple(_finished(data, at)))
    if kind == SCHEDULER:
        return Datagram(engine, events=tuple(_events(data, at)))
    raise BadDatagram("kind")


def _step(engine: Engine, body: bytes) -> Datagram:
    number, recorded_ns, dropped, *values = _STEP.unpack(body)
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
