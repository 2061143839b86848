"""Scanners of the framings other than server-sent events: a JSON value per line, the AI SDK's data stream, one JSON array, plain bytes.

Ollama and many gateways send a line per event; Gemini sends one array that grows, unless the client asks for server-sent events.
"""

from __future__ import annotations

import json
import re
from typing import Any

from legato._formats import Format
from legato._formats_ui import measure_part
from legato._long import LONG_BYTES, LongEvent
from legato._pace import breathe
from legato._response import Measured
from legato._scan import PAUSE_EVENTS, Scan, blocks_of
from legato._timeline import CHUNKS_MAX, Kind

__all__ = ["ArrayScanner", "LineScanner", "MessageScanner", "PartScanner", "RawScanner"]

_TEXT, _HEARTBEAT = int(Kind.TEXT), int(Kind.HEARTBEAT)
_PARTS = Format("ai-sdk-data", "", lambda event, info: (0, _HEARTBEAT, None))
_PART_START = re.compile(rb"[0-9a-z]:")
_BLANKS = b" \t\r\x1e"
# A whole string, the start of one, or a brace. The quantifiers are possessive: a string is scanned once.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["{}]', re.DOTALL)
_REST_OF_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
# Strings and braces of one array: so many, and one for so many bytes. A body made of little else, to cost time, is read no further.
_TOKENS_FREE, _BYTES_A_TOKEN = 1 << 18, 4


class LineScanner(Scan):
    """An event per line: NDJSON, JSON Lines, JSON text sequences. An empty line is none."""

    __slots__ = ()

    def feed(self, time_ns: int, data: bytes) -> None:
        """Add the bytes of one read."""
        for block in blocks_of(data):
            lines = self._split(self._goes_on(time_ns, block) if self._pending or self._long is not None else block)
            rest = lines.pop()
            for number, line in enumerate(filter(None, lines), 1):
                if not number % PAUSE_EVENTS:
                    breathe()
                self._line(time_ns, line.strip(_BLANKS))
            if rest:
                self._keep(rest)

    def finish(self, time_ns: int) -> None:
        """Take the last line, which may lack its line end."""
        super().finish(time_ns)
        rest, self._pending = bytes(self._pending).strip(_BLANKS), b""
        if self.format is None or _is_json(rest):
            self._line(time_ns, rest)

    def _line(self, time_ns: int, line: bytes) -> None:
        if line:
            self._payload(time_ns, line)

    def _begins_event(self, data: bytes) -> bool:
        return data.lstrip(_BLANKS).startswith(b"{")

    def _payload_in(self, event: bytes) -> bytes:
        return event.strip(_BLANKS)


class PartScanner(LineScanner):
    """The AI SDK's data stream: lines of a code, a colon and a JSON value."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_PARTS)

    def _line(self, time_ns: int, line: bytes) -> None:
        code, _, payload = line.partition(b":")
        try:
            size, kind, total = self._measured(code, json.loads(payload))
        except (ValueError, RecursionError):
            size, kind, total = 0, _HEARTBEAT, None
        self._add(time_ns, size, kind, total)

    def _measured(self, code: bytes, content: Any) -> Measured:
        try:
            return measure_part(code.decode("ascii"), content, self.response)
        except (AttributeError, TypeError, ValueError, RecursionError):
            return 0, _HEARTBEAT, None

    def _long_event(self, time_ns: int, long: LongEvent) -> None:
        code, _, payload = long.text.partition(b":")
        content = long.content_of(payload)
        if content is None:
            super()._long_event(time_ns, long)
            return
        self._add(time_ns, *self._measured(code.strip(), content))

    def finish(self, time_ns: int) -> None:
        """Take the last line if it is whole."""
        Scan.finish(self, time_ns)
        if _is_json(bytes(self._pending).partition(b":")[2]):
            self._line(time_ns, bytes(self._pending).strip())
        self._pending = b""

    def _begins_event(self, data: bytes) -> bool:
        return _PART_START.match(data) is not None

    def _payload_in(self, event: bytes) -> bytes:
        return event.partition(b":")[2]


class MessageScanner(Scan):
    """An event per read: the messages of a WebSocket, where a client's next message may end a response without an end mark."""

    __slots__ = ()

    def feed(self, time_ns: int, data: bytes) -> None:
        """Add one message."""
        if not data:
            return
        if len(data) <= LONG_BYTES:
            self._payload(time_ns, data)
        else:
            long = LongEvent()
            for block in blocks_of(data):
                long.feed(block)
            self._long_event(time_ns, long)
        self.response.expects_end = False


class RawScanner(Scan):
    """Bytes without a known framing: each read is content."""

    __slots__ = ()

    def feed(self, time_ns: int, data: bytes) -> None:
        """Add the bytes of one read."""
        self._add(time_ns, len(data), _TEXT, None)


class ArrayScanner(Scan):
    """One JSON array of events. Objects are found by counting braces outside strings."""

    __slots__ = ("_at", "_bytes", "_depth", "_in_string", "_is_lost", "_start", "_tokens_left")

    def __init__(self, format: Format | None = None) -> None:
        super().__init__(format)
        # Where scanning goes on in `_bytes`, the braces open there, whether that is inside a string, and where the object began.
        self._at = self._depth = self._start = 0
        self._tokens_left = _TOKENS_FREE
        self._in_string = self._is_lost = False
        self._bytes = bytearray()

    def feed(self, time_ns: int, data: bytes) -> None:
        """Add the bytes of one read."""
        for block in blocks_of(data):
            self._tokens_left += len(block) // _BYTES_A_TOKEN
            if self._tokens_left < 0 or len(self.times) >= CHUNKS_MAX:
                self.miss()
            if self._is_lost:
                self._add(time_ns, len(block), _TEXT, None)
            else:
                self._block(time_ns, block)

    def _block(self, time_ns: int, data: bytes) -> None:
        self._bytes += data
        while self._step(time_ns):
            self._tokens_left -= 1
            if not self._tokens_left % PAUSE_EVENTS:
                breathe()
        if not self._depth:
            self._cut(self._at)
        elif self._long is not None or len(self._bytes) - self._start > LONG_BYTES:
            self._lengthen_object()
            self._cut(self._at)
        else:
            self._cut(self._start)

    def miss(self) -> None:
        """Note that a read is missing. The braces that are open after it are unknown, so those that follow are not looked at."""
        super().miss()
        self._is_lost = True
        self._bytes.clear()

    def _lengthen_object(self) -> None:
        """Take the bytes of the object, which is too long to be kept, out of those that are scanned."""
        self._long = self._long or LongEvent()
        self._long.feed(self._bytes[self._start : self._at])

    def _cut(self, start: int) -> None:
        del self._bytes[:start]
        self._at -= start
        self._start = max(0, self._start - start)

    def _step(self, time_ns: int) -> bool:
        """Scan to the next brace or string; return whether there was one."""
        if self._in_string:
            found = _REST_OF_STRING.match(self._bytes, self._at)
            self._at = found.end() if found else self._at
            if self._bytes[self._at : self._at + 1] != b'"':
                return False
            self._at, self._in_string = self._at + 1, False
        token = _TOKEN.search(self._bytes, self._at)
        if token is None:
            self._at = len(self._bytes)
            return False
        self._at = token.end()
        if token.group() == b"{":
            self._start = self._start if self._depth else token.start()
            self._depth += 1
        elif token.group() == b"}" and self._depth:
            self._depth -= 1
            if not self._depth:
                self._end_object(time_ns)
        self._in_string = token.group() == b'"'
        return True

    def _end_object(self, time_ns: int) -> None:
        if self._long is None and self._at - self._start <= LONG_BYTES:
            self._payload(time_ns, bytes(self._bytes[self._start : self._at]))
            return
        self._lengthen_object()
        self._end_long(time_ns)


def _is_json(line: bytes) -> bool:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return value is not None
