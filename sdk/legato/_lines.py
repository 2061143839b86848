"""Scanners of the framings other than server-sent events: a JSON value per line, the AI SDK's data stream, one JSON array, plain bytes.

Ollama and many gateways send a line per event; Gemini sends one array that grows, unless the client asks for server-sent events.
"""

from __future__ import annotations

import json
import re
from typing import Any

from legato._formats import Format
from legato._formats_ui import measure_part
from legato._scan import PENDING_BYTES_MAX, Scan
from legato._timeline import Kind

__all__ = ["ArrayScanner", "LineScanner", "MessageScanner", "PartScanner", "RawScanner"]

_LINE_END = re.compile(rb"\n")
_TEXT, _HEARTBEAT = int(Kind.TEXT), int(Kind.HEARTBEAT)
_PARTS = Format("ai-sdk-data", "", lambda event, info: (0, _HEARTBEAT, None))
# A whole string, the start of one, or a brace. The quantifiers are possessive: a string is scanned once.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["{}]', re.DOTALL)
_REST_OF_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)


class LineScanner(Scan):
    """An event per line: NDJSON, JSON Lines, JSON text sequences. An empty line is none."""

    __slots__ = ()

    def feed(self, time_ns: int, data: bytes) -> None:
        """Add the bytes of one read."""
        whole = self._goes_on(time_ns, data, _LINE_END)
        if whole is None:
            return
        lines = whole.split(b"\n")
        self._keep(lines.pop())
        for line in lines:
            self._line(time_ns, line.strip(b" \t\r\x1e"))

    def finish(self, time_ns: int) -> None:
        """Take the last line, which may lack its line end."""
        super().finish(time_ns)
        rest, self._pending = bytes(self._pending).strip(b" \t\r\x1e"), b""
        if self.format is None or _is_json(rest):
            self._line(time_ns, rest)

    def _line(self, time_ns: int, line: bytes) -> None:
        if line:
            self._payload(time_ns, line)


class PartScanner(LineScanner):
    """The AI SDK's data stream: lines of a code, a colon and a JSON value."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_PARTS)

    def _line(self, time_ns: int, line: bytes) -> None:
        code, _, payload = line.partition(b":")
        size, kind, total = 0, _HEARTBEAT, None
        self._yield()
        try:
            size, kind, total = measure_part(code.decode("ascii"), json.loads(payload), self.response)
        except (AttributeError, TypeError, ValueError, RecursionError):
            pass
        self._add(time_ns, size, kind, total)

    def finish(self, time_ns: int) -> None:
        """Take the last line if it is whole."""
        Scan.finish(self, time_ns)
        if _is_json(bytes(self._pending).partition(b":")[2]):
            self._line(time_ns, bytes(self._pending).strip())
        self._pending = b""


class MessageScanner(Scan):
    """An event per read: the messages of a WebSocket, where a client's next message may end a response without an end mark."""

    __slots__ = ()

    def feed(self, time_ns: int, data: bytes) -> None:
        """Add one message."""
        if data:
            self._payload(time_ns, data)
            self.response.expects_end = False


class RawScanner(Scan):
    """Bytes without a known framing: each read is content."""

    __slots__ = ()

    def feed(self, time_ns: int, data: bytes) -> None:
        """Add the bytes of one read."""
        self._yield()
        self._add(time_ns, len(data), _TEXT, None)


class ArrayScanner(Scan):
    """One JSON array of events. Objects are found by counting braces outside strings."""

    __slots__ = ("_at", "_bytes", "_depth", "_in_string", "_start")

    def __init__(self, format: Format | None = None) -> None:
        super().__init__(format)
        # Where scanning goes on in `_bytes`, the braces open there, whether that is inside a string, and where the object began.
        self._at = self._depth = self._start = 0
        self._in_string = False
        self._bytes = bytearray()

    def feed(self, time_ns: int, data: bytes) -> None:
        """Add the bytes of one read."""
        self._bytes += data
        while self._step(time_ns):
            pass
        if not self._depth:
            self._cut(self._at)
        elif self._skipped or len(self._bytes) - self._start > PENDING_BYTES_MAX:
            # The braces of the object are counted to its end, without its bytes.
            self.response.is_incomplete = True
            self._skipped += self._at - self._start
            self._cut(self._at)
        else:
            self._cut(self._start)

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
            if not self._depth and self._skipped:
                self._skipped_event(time_ns, self._skipped + self._at)
            elif not self._depth:
                self._payload(time_ns, bytes(self._bytes[self._start : self._at]))
        self._in_string = token.group() == b'"'
        return True


def _is_json(line: bytes) -> bool:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return value is not None
