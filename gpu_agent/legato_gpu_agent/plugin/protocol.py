"""The datagram format between plugins and agent: one datagram per step, and datagrams of finished requests and of scheduler events.

Each datagram holds its length, its kind and its engine, so it can be decoded alone: there is no handshake and no required order, and many
processes may write into one pipe. Bytes that cannot be decoded raise ``BadDatagram`` with a reason and do not affect other datagrams. The
module uses the standard library only; it opens no pipe.

    ff "LGT", u8 version, u16 total length, u8 kind, u64 epoch ns, u8 length of the engine's id, the id; then by kind
    1 step       u64 number, u64 recorded ns, u64 records dropped so far, 13 values of i64 in Step's order (-1: unknown)
    2 finished   entries: u64 step, 3 × u32 counts, 3 × u64 µs in FinishedRequest's order, u8 + u8 lengths, response id, reason
    3 scheduler  entries: u64 time ns, u64 step µs, u32 tokens, u8 kind, u8 length, response id

All numbers are little-endian; texts are UTF-8, which has no byte ff. The fields before the kind are the same in every version.
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
    "decode",
    "decode_all",
    "finished_entry",
    "pack_entries",
    "scheduler_entry",
    "split_datagrams",
    "step_packer",
]

MAGIC, VERSION = b"\xffLGT", 2
STEP, FINISHED, SCHEDULER = 1, 2, 3
DATAGRAM_BYTES_MAX = select.PIPE_BUF
"""Maximum length of a datagram (4,096 on Linux): longer writes may interleave with those of other processes, see pipe(7)."""
_HEAD, _LENGTH = struct.Struct("<4sBHBQB"), struct.Struct("<H")
_LENGTH_AT = 5
_STEP = struct.Struct("<QQQ13q")
_FINISHED = struct.Struct("<QIIIQQQBB")
_EVENT = struct.Struct("<QQIBB")
_TEXT_BYTES_MAX = 255
_NS_MAX = 2**63 - 1


class BadDatagram(ValueError):
    """Bytes that are not a valid datagram; ``reason`` is a word that serves as a metric label."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Datagram:
    """A decoded datagram: its engine and its records. ``dropped``: records that the sender has lost since its start."""

    engine: Engine
    step: Step | None = None
    dropped: int = 0
    finished: tuple[FinishedRequest, ...] = ()
    events: tuple[SchedulerEvent, ...] = ()


def step_packer(engine: Engine) -> Callable[..., bytes]:
    """Return a function that packs a step's datagram from its number, its time, the records dropped so far, and 13 values in Step's order.

    -1 stands for an unknown value. The function raises ``struct.error`` for a value that is not an integer or is out of range.
    """
    head = _head(STEP, engine, _STEP.size)
    return partial(struct.Struct(f"<{len(head)}s{_STEP.format.removeprefix('<')}").pack, head)


def _head(kind: int, engine: Engine, body_bytes: int) -> bytes:
    name = _text(engine.id)
    return _HEAD.pack(MAGIC, VERSION, _HEAD.size + len(name) + body_bytes, kind, engine.epoch_ns, len(name)) + name


def finished_entry(request: FinishedRequest) -> bytes:
    """Encode one finished request. Raises ``struct.error`` for numbers out of range."""
    name, reason = _text(request.response_id), _text(request.reason)
    counts = (request.preemptions, request.prompt_tokens, request.output_tokens)
    times = (request.queued_us, request.prefill_us, request.decode_us)
    return _FINISHED.pack(request.step, *counts, *times, len(name), len(reason)) + name + reason


def scheduler_entry(event: SchedulerEvent) -> bytes:
    """Encode one scheduler event. Raises ``struct.error`` for numbers out of range, ``ValueError`` for an unknown kind."""
    name = _text(event.response_id)
    return _EVENT.pack(event.time_ns, event.step_us, event.tokens, EVENT_KINDS.index(event.kind), len(name)) + name


def pack_entries(kind: int, engine: Engine, entries: Iterable[bytes]) -> Iterator[bytes]:
    """Yield datagrams that hold these entries, each at most ``DATAGRAM_BYTES_MAX`` long."""
    room = DATAGRAM_BYTES_MAX - len(_head(kind, engine, 0))
    body = b""
    for entry in entries:
        if len(body) + len(entry) > room:
            yield _head(kind, engine, len(body)) + body
            body = b""
        body += entry
    if body:
        yield _head(kind, engine, len(body)) + body


def split_datagrams(data: bytes) -> list[bytes]:
    """Split the contents of a pipe into datagrams; bytes between two datagrams form a separate piece, which ``decode`` rejects."""
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
    """Return the end of the datagram at ``at``: by its length field, unless another one begins earlier; -1 for the end of the data."""
    if at + _HEAD.size <= len(data):
        after: int = at + _LENGTH.unpack_from(data, at + _LENGTH_AT)[0]
        if _HEAD.size <= after - at <= DATAGRAM_BYTES_MAX and after <= len(data):
            # The search includes a magic of which only the first bytes lie within this datagram.
            if after == len(data) or data.startswith(MAGIC, after) or data.find(MAGIC, at + 1, after + len(MAGIC) - 1) < 0:
                return after
    return data.find(MAGIC, at + 1)


def decode_all(data: bytes) -> Iterator[Datagram | BadDatagram]:
    """Yield the datagram of one piece; for an invalid piece its error, then the valid datagrams that begin within it."""
    try:
        yield decode(data)
    except BadDatagram as error:
        yield error
        within = data.find(MAGIC, 1)
        for piece in split_datagrams(data[within:]) if within > 0 else ():
            with contextlib.suppress(BadDatagram):
                yield decode(piece)


def decode(data: bytes) -> Datagram:
    """Decode one datagram. Raises ``BadDatagram`` and no other error."""
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
    _, _, length_bytes, kind, epoch_ns, length = _HEAD.unpack_from(data)
    if len(data) != length_bytes:
        raise BadDatagram("truncated")
    at = _HEAD.size + length
    engine = Engine(_text_at(data, _HEAD.size, length), epoch_ns)
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
        yield FinishedRequest(step, _text_at(data, at, name), _text_at(data, at + name, reason), *numbers)
        at += name + reason


def _events(data: bytes, at: int) -> Iterator[SchedulerEvent]:
    while at < len(data):
        time_ns, step_us, tokens, kind, name = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        if kind >= len(EVENT_KINDS) or max(time_ns, step_us) > _NS_MAX:
            raise BadDatagram("range")
        yield SchedulerEvent(time_ns, _text_at(data, at, name), EVENT_KINDS[kind], tokens, step_us)
        at += name


def _text_at(data: bytes, at: int, length: int) -> str:
    if len(data) < at + length:
        raise BadDatagram("truncated")
    return data[at : at + length].decode()


def _text(value: str) -> bytes:
    """Encode as UTF-8, shortened to at most 255 bytes at a character boundary."""
    return value.encode("utf-8", "replace")[:_TEXT_BYTES_MAX].decode("utf-8", "ignore").encode()
