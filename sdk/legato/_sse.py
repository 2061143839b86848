"""Scanner that finds the chunks in the bytes of a server-sent-event stream.

An event belongs to the read that completed it. Its content is measured and not kept. There are three methods, fastest first: an event
of OpenAI's format that differs from the previous one only in content without escapes is measured by its length; the first event of that
form is found by a regular expression; all others are parsed as JSON. The three give equal results (a test compares them). Framing follows
the WHATWG specification of server-sent events, except that a complete event at the end of the body needs no empty line. No input makes
the scanner raise.
"""

from __future__ import annotations

import json
import re

from legato._formats import OPENAI, Format
from legato._long import LongEvent
from legato._pace import breathe
from legato._response import ResponseInfo
from legato._scan import PAUSE_EVENTS, Scan, blocks_of
from legato._timeline import CHUNKS_MAX, Kind

__all__ = ["ResponseInfo", "Scanner"]

# A chat chunk with one choice and text without escapes that is not the last: "delta" has only "content", and there is no usage.
_PLAIN_TEXT = re.compile(
    rb'"choices":\s?\[\{"index":\s?0,\s?"delta":\s?\{"content":\s?"([^"\\]+)"\},\s?"logprobs":\s?null,\s?"finish_reason":\s?null'
    rb'(?:,\s?"[a-z_]+":\s?null)*\}\]'
)
# Fields beside the choices with something that is to be read.
_BESIDE = re.compile(rb'"(?:usage":\s?\{|error":\s?(?!null))')
# Content without these bytes has neither the end of the string, nor an escape, nor the end of the event, so its length is its size.
_NOT_PLAIN = b'"\\\r\n'
_FIELD = re.compile(rb"(?:data|event|id|retry)?:")
# Lines of an event between pauses.
_PAUSE_MASK = 255
_TEXT, _HEARTBEAT = int(Kind.TEXT), int(Kind.HEARTBEAT)


class Scanner(Scan):
    """A scanner of server-sent events, by default of OpenAI's format; with ``format=None`` it recognises the format."""

    __slots__ = ("_content_at", "_content_end", "_ends_with_cr", "_prefix", "_suffix")
    _END = b"\n\n"

    def __init__(self, format: Format | None = OPENAI) -> None:
        super().__init__(format)
        # The bytes before and after the content of the last plain chunk. If the next event has the same ones, only its length is taken.
        self._prefix = self._suffix = b""
        self._content_at = self._content_end = 0
        # A line feed that follows is the second half of that line end.
        self._ends_with_cr = False

    def feed(self, time_ns: int, data: bytes) -> None:
        """Add the bytes of one read."""
        prefix = self._prefix
        if prefix and data.startswith(prefix) and data.endswith(self._suffix) and not self._pending:
            content = data[self._content_at : self._content_end]
            size = len(content)
            if content and len(content.translate(None, _NOT_PLAIN)) == size:
                times = self.times
                if len(times) >= CHUNKS_MAX:
                    self._drop(time_ns, _TEXT)
                    return
                times.append(time_ns)
                self.sizes.append(size)
                self.kinds.append(_TEXT)
                return
        for block in blocks_of(data):
            self._block(time_ns, block)

    def _block(self, time_ns: int, data: bytes) -> None:
        if not data:
            # Nothing follows a carriage return yet.
            return
        if self._ends_with_cr or b"\r" in data:
            data = self._with_line_feeds(data)
        if self._pending or self._long is not None:
            data = self._goes_on(time_ns, data)
        events = self._split(data)
        rest = events.pop()
        if len(events) < PAUSE_EVENTS:
            for event in events:
                self._event(time_ns, event)
        else:
            # Blank events are none, and a compressed body may have millions.
            for number, event in enumerate(filter(None, events)):
                if not number % PAUSE_EVENTS:
                    breathe()
                self._event(time_ns, event)
        if rest:
            self._keep(rest)

    def _with_line_feeds(self, data: bytes) -> bytes:
        """Return a block with one kind of line end. A carriage return at its end may be the first half of one."""
        if self._ends_with_cr and data.startswith(b"\n"):
            data = data[1:]
        self._ends_with_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def miss(self) -> None:
        """Note that a read is missing."""
        super().miss()
        self._prefix, self._ends_with_cr = b"", False

    def _note_unknown(self) -> None:
        super()._note_unknown()
        # What the next event says must be seen, not only its length.
        self._prefix = b""

    def _begins_event(self, data: bytes) -> bool:
        return _FIELD.match(data) is not None

    def _payload_in(self, event: bytes) -> bytes:
        return _data_of(event)

    def _long_event(self, time_ns: int, long: LongEvent) -> None:
        if long.is_readable and not _data_of(long.text):
            # A comment, or a field without a meaning here.
            self._keep_back()
            self._add(time_ns, 0, _HEARTBEAT, None)
        else:
            super()._long_event(time_ns, long)

    def finish(self, time_ns: int) -> None:
        """Take an event that lacks only its empty line. One that was cut is none, unless its format is unknown."""
        super().finish(time_ns)
        rest, self._pending = bytes(self._pending), b""
        payload = _data_of(rest).strip()
        if payload and (self.format is None or _is_whole(payload)):
            self._payload(time_ns, payload)

    def _event(self, time_ns: int, event: bytes) -> None:
        payload = event[6:] if event.startswith(b"data: ") and b"\n" not in event else _data_of(event)
        info = self.response
        is_plain = self.format is OPENAI and info.response_id and not (info.finished or info.done)
        found = _PLAIN_TEXT.search(payload) if is_plain else None
        if found is not None and not ((b'"usage"' in payload or b'"error"' in payload) and _BESIDE.search(payload)):
            info.is_incomplete = False
            self._add(time_ns, found.end(1) - found.start(1), _TEXT, None)
            self._remember_frame(event, payload, found)
        elif payload:
            self._payload(time_ns, payload)
            if info.finished or info.done:
                # Content after an end is parsed, because it starts another round.
                self._prefix = b""
        elif event.strip(b"\n"):
            self._keep_back()
            self._add(time_ns, 0, _HEARTBEAT, None)

    def _remember_frame(self, event: bytes, payload: bytes, found: re.Match[bytes]) -> None:
        """Keep the bytes around the content for the fast path, if the event ends with its payload."""
        if event.endswith(payload):
            shift = len(event) - len(payload)
            self._prefix, self._suffix = event[: shift + found.start(1)], event[shift + found.end(1) :] + b"\n\n"
            self._content_at, self._content_end = len(self._prefix), -len(self._suffix)


def _data_of(event: bytes) -> bytes:
    """Return the data of an event: its ``data`` lines joined, without a byte-order mark, comments and other fields."""
    lines = []
    for number, line in enumerate(event.lstrip(b"\n").removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not number & _PAUSE_MASK:
            breathe()
        if line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
    return b"\n".join(lines)


def _is_whole(payload: bytes) -> bool:
    try:
        return payload.startswith(b"[DONE]") or isinstance(json.loads(payload), dict)
    except (ValueError, RecursionError):
        return False
