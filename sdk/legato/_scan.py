"""The columns that every scanner fills, and the recognition of the format by the first events.

A scanner gets the bytes of each read and cuts them into events; `_sse` and `_lines` have one for each framing. Here an event becomes a
chunk: its content is measured and not kept. Recognising and measuring never raises.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import filterfalse
from typing import Any

from legato._formats import JSON_RPC, OPENAI, Format, measure_any, sniff
from legato._long import LONG_BYTES, LongEvent
from legato._pace import breathe
from legato._response import Measured, ResponseInfo
from legato._timeline import CHUNKS_MAX, Kind, parts_of

__all__ = ["BLOCK_BYTES", "PAUSE_EVENTS", "Scan", "blocks_of"]

BLOCK_BYTES = 1 << 16
"""A larger read is scanned in blocks of this size."""
# A longer start of an event is not copied with each further read.
_COPIED_BYTES_MAX = 1 << 12
# Events of no format before the format is taken for unknown. Some servers send their own metadata before the response.
_UNSURE_MAX = 16
# Of these a longer one is not kept for a second look: 16 of any length would have megabytes as Python's objects.
_UNSURE_BYTES_MAX = 1 << 12
# Once the timeline is full, only so many events at the end of a block are looked at: an end mark is the last.
_TAIL_EVENTS = 64
PAUSE_EVENTS = 16
"""So many events are scanned without a pause, which takes some 0.1 ms."""
# An event above so many bytes with so many objects and arrays, or values, is read as a long one. It would take more than a millisecond.
_DENSE_BYTES, _OBJECTS_MAX, _VALUES_MAX = 1 << 13, 1 << 12, 1 << 13
_TEXT, _HEARTBEAT, _DONE = int(Kind.TEXT), int(Kind.HEARTBEAT), int(Kind.DONE)
_CONTENT = (_TEXT, int(Kind.REASONING), int(Kind.TOOL))
_ROUND_STARTS = ("message_start", "response.created")


def blocks_of(data: bytes) -> Iterable[bytes]:
    """Return a read, or the blocks that it is scanned in, with pauses between them."""
    return (data,) if len(data) <= BLOCK_BYTES else _blocks(data)


def _blocks(data: bytes) -> Iterable[bytes]:
    for at in range(0, len(data), BLOCK_BYTES):
        yield data[at : at + BLOCK_BYTES]
        breathe()


def _is_dense(payload: bytes) -> bool:
    """Whether parsing takes long. Code in a text has brackets, too, so these count outside strings only, where they are many."""
    if not _has_many(payload):
        return False
    return _has_many(b"".join(payload.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]))


def _has_many(payload: bytes) -> bool:
    return payload.count(b"{") + payload.count(b"[") > _OBJECTS_MAX or payload.count(b",") > _VALUES_MAX


class Scan:
    """Chunks by column, filled by ``feed``: times in ns, sizes in bytes, tokens, kinds.

    ``tokens`` is known only if every chunk with content had a cumulative usage. ``format``: the format of the events; ``None``: recognise
    it. The columns have at most ``CHUNKS_MAX`` chunks; ``dropped`` counts further ones, and ``dropped_ns`` is the time of the last of these
    with content, or 0. ``kept_back``: the chunks that are no items of a library; ``gap_at``: the first chunk after a missing read.
    """

    __slots__ = (
        *("dropped", "dropped_ns", "format", "gap_at", "kept_back", "kinds", "response", "sizes", "times"),
        *("_counted", "_is_settled", "_last_tokens", "_long", "_pending", "_tokens", "_unsure"),
    )
    # Ends an event, in scanners of framings with such a mark: one byte, or the same byte twice.
    _END = b"\n"

    def __init__(self, format: Format | None = None) -> None:
        self.format = format
        self.times: list[int] = []
        self.sizes: list[int] = []
        self.kinds: list[int] = []
        self.kept_back: list[int] = []
        self.gap_at: int | None = None
        self.dropped = self.dropped_ns = 0
        self.response = ResponseInfo(expects_end=format is OPENAI)
        self._tokens: list[int] = []
        self._counted = True
        self._last_tokens = 0
        # The bytes of an event that has not ended; of one that is too long to be kept, the last byte alone.
        self._pending: bytes | bytearray = b""
        self._long: LongEvent | None = None
        self._unsure: list[tuple[int, Any]] = []
        self._is_settled = format is not None

    @property
    def scan(self) -> Scan:
        """The scanner itself; a ``Body`` has its scanner under the same name."""
        return self

    @property
    def yielded(self) -> Sequence[int]:
        """The indexes of those events, in order, that a client library passes to the application."""
        end = len(self.times) if self.gap_at is None else self.gap_at
        if not self.kept_back:
            return range(end)
        found: list[int] = []
        for first, part in parts_of(range(end)):
            # They are in order.
            here = self.kept_back[bisect_left(self.kept_back, first) : bisect_left(self.kept_back, first + len(part))]
            found += filterfalse({*here}.__contains__, part)
        return found

    @property
    def tokens(self) -> list[int] | None:
        """Tokens of each chunk; ``None`` if those of any chunk with content are unknown."""
        return self._tokens if self._counted and self._last_tokens else None

    @property
    def is_recognised(self) -> bool:
        """Whether the events are those of a model's response in a known format."""
        return self.format is not None and self.format is not JSON_RPC

    @property
    def is_unknown(self) -> bool:
        """Whether the first events showed no format of a model's response, so that later ones will not be looked at for one."""
        return self._is_settled and not self.is_recognised

    @property
    def is_foreign(self) -> bool:
        """Whether the events are known to be no response of a model."""
        return self.format is JSON_RPC

    def feed(self, time_ns: int, data: bytes) -> None:
        """Add the bytes of one read."""
        raise NotImplementedError

    def fold(self, time_ns: int, size: int) -> None:
        """Add a read of which only the size is known."""
        self.miss()
        self._add(time_ns, size, _TEXT, None)

    def miss(self) -> None:
        """Note that a read is missing: an end mark may have been in it, where the next event begins is unknown, and the items of a library
        can no longer be matched with chunks."""
        self.response.is_incomplete = True
        self.gap_at = len(self.times) if self.gap_at is None else self.gap_at
        self._pending, self._long = b"", LongEvent(is_readable=False)

    def finish(self, time_ns: int) -> None:
        """Take the body as ended; ``time_ns`` is the time of its last read. What is left may be an event without its line end."""
        long = self._long
        if long is None:
            return
        self._pending = b""
        if self.format is not None and not long.is_ended(self._payload_in(long.text)):
            # It was cut, and counts no more than a short one that was.
            self._long = None
        self._end_long(time_ns)

    def _split(self, data: bytes) -> list[bytes]:
        """Cut a block into its events and the start of another. Those that a full timeline has no room for are only counted."""
        if len(self.times) < CHUNKS_MAX:
            return data.split(self._END)
        events = data.rsplit(self._END, _TAIL_EVENTS)
        if len(events) > _TAIL_EVENTS and (more := events[0].count(self._END)):
            self.dropped += more
            events[0] = events[0].rpartition(self._END)[2]
        return events

    def _keep(self, rest: bytes) -> None:
        """Keep the start of an event until its end is read."""
        self._pending = rest
        if len(rest) > LONG_BYTES:
            self._lengthen(b"")

    def _lengthen(self, data: bytes) -> None:
        """Add bytes to the event that has not ended. What is too long is not kept."""
        pending = self._pending
        if self._long is None and len(pending) + len(data) <= LONG_BYTES:
            self._pending = pending if isinstance(pending, bytearray) else bytearray(pending)
            self._pending += data
            return
        if self._long is None:
            self._long = LongEvent()
            self._long.feed(pending)
        self._long.feed(data)
        self._pending = bytes((pending[-1:] + data[-1:])[-1:])

    def _goes_on(self, time_ns: int, data: bytes) -> bytes:
        """Return what is to be scanned with a block: the start of an event before it, and what follows a long event that ends in it."""
        pending, long = self._pending, self._long
        if long is not None and not long.length and self._begins_event(data):
            # Nothing of the event was missing.
            self._long = long = None
        if long is None and len(pending) <= _COPIED_BYTES_MAX:
            self._pending = b""
            return bytes(pending) + data if pending else data
        # The mark may have begun in the block before.
        begun = pending[-1:] == data[:1] == self._END[:1] and len(self._END) > 1
        at, after = (0, 1) if begun else (data.find(self._END), len(self._END))
        if at < 0:
            self._lengthen(data)
            return b""
        if long is None and len(pending) + at <= LONG_BYTES:
            self._pending = b""
            return bytes(pending) + data
        self._lengthen(data[:at])
        self._pending = b""
        self._end_long(time_ns)
        return data[at + after :]

    def _begins_event(self, data: bytes) -> bool:
        """Whether this looks like the beginning of an event."""
        return False

    def _end_long(self, time_ns: int) -> None:
        """Take the long event as ended."""
        long, self._long = self._long, None
        if long is not None and long.length:
            self._long_event(time_ns, long)

    def _long_event(self, time_ns: int, long: LongEvent) -> None:
        """Add a long event: as any other if what it says is known, else its bytes."""
        content = long.content_of(self._payload_in(long.text))
        if content is not None:
            self._content(time_ns, content, long.length)
            return
        self._note_unknown()
        self._add(time_ns, long.length, _TEXT, None)

    def _note_unknown(self) -> None:
        """Note that an event was not read. An end mark may have been in it."""
        self.response.is_incomplete = True

    def _payload_in(self, event: bytes) -> bytes:
        """Return the payload of an event without its framing."""
        return event

    def _payload(self, time_ns: int, payload: bytes) -> None:
        """Add an event: JSON, an end mark of OpenAI's kind, or anything else."""
        if payload.startswith(b"[DONE]"):
            self.response.done = True
            self._keep_back()
            self._add(time_ns, 0, _DONE, None)
            return
        content: Any = None
        if len(payload) > _DENSE_BYTES and _is_dense(payload):
            content = self._dense(payload)
        else:
            try:
                content = json.loads(payload)
            except (ValueError, RecursionError):
                pass
        if isinstance(content, str) and not payload.startswith(b'"'):
            # A text in quotation marks after a space is a text, not a JSON string.
            content = None
        self._content(time_ns, content, len(payload))

    def _dense(self, payload: bytes) -> Any:
        """Return what a dense event says without its lists of numbers; ``None`` if it is too long without them. Parsing is one step, in
        which no other thread runs, so what is made to cost time is not read."""
        long = LongEvent()
        long.feed(payload)
        content = long.content_of(long.text)
        if content is None:
            self._note_unknown()
        return content

    def _content(self, time_ns: int, content: Any, payload_bytes: int) -> None:
        if not self._is_settled:
            self._recognise(content, payload_bytes)
        size, kind, total = self._measure_next(content, payload_bytes)
        if size and kind in _CONTENT:
            # An end mark is the last event, so none was in what is missing.
            self.response.is_incomplete = False
        self._add(time_ns, size, kind, total)

    def _measure_next(self, content: Any, payload_bytes: int) -> Measured:
        """Measure an event. Content after an end starts another round of the response, as between the calls of an agent's tools."""
        info = self.response
        if not (info.finished or info.done):
            return self._measure(content, payload_bytes)
        finished, done = info.finished, info.done
        info.finished = info.done = False
        measured = self._measure(content, payload_bytes)
        is_start = isinstance(content, dict) and content.get("type") in _ROUND_STARTS
        if not (is_start or (measured[0] and measured[1] in _CONTENT)):
            info.finished, info.done = info.finished or finished, info.done or done
        return measured

    def _measure(self, content: Any, payload_bytes: int) -> Measured:
        if self.format is None:
            return measure_any(content, payload_bytes, self.response)
        if not isinstance(content, dict):
            # No content can be identified in it.
            return 0, _HEARTBEAT, None
        try:
            return self.format.measure(content, self.response)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
            return 0, _HEARTBEAT, None

    def _recognise(self, content: Any, payload_bytes: int) -> None:
        """Determine the format by this event. What earlier events were taken for is corrected."""
        self.format = sniff(content, is_first=not self._unsure) if isinstance(content, dict) else None
        if self.format is None and len(self._unsure) < _UNSURE_MAX:
            self._unsure.append((len(self.times), content if payload_bytes <= _UNSURE_BYTES_MAX else None))
            return
        self._is_settled = True
        if self.format is not None and self._unsure:
            for index, earlier in self._unsure:
                size, kind, _ = self._measure(earlier, 0)
                if index < len(self.times):
                    self.sizes[index], self.kinds[index] = size, kind
            self._counted, self._tokens = True, [0] * len(self.times)
        self._unsure.clear()

    def _keep_back(self) -> None:
        """Note that the next chunk is none that a library passes on."""
        if len(self.times) < CHUNKS_MAX:
            self.kept_back.append(len(self.times))

    def _add(self, time_ns: int, size: int, kind: int, total: int | None) -> None:
        """Add a chunk, or count it if the timeline is full. ``total``: the output tokens so far; ``None``: unknown."""
        if len(self.times) >= CHUNKS_MAX:
            self._drop(time_ns, kind)
            return
        self.times.append(time_ns)
        self.sizes.append(size)
        self.kinds.append(kind)
        if total is None and size:
            self._counted = False
        if self._counted:
            self._tokens.append(max(0, (total or 0) - self._last_tokens))
        if total is not None:
            self._last_tokens = max(total, self._last_tokens)

    def _drop(self, time_ns: int, kind: int) -> None:
        self.dropped += 1
        if kind in _CONTENT:
            self.dropped_ns = time_ns
