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
from legato._response import ResponseInfo
from legato._scan import Scan
from legato._timeline import CHUNKS_MAX, Kind

__all__ = ["ResponseInfo", "Scanner"]

# A chat chunk with one choice and text without escapes that is not the last: "delta" has only "content", and there is no usage.
_PLAIN_TEXT = re.compile(
    rb'"choices":\s?\[\{"index":\s?0,\s?"delta":\s?\{"content":\s?"([^"\\]+)"\},\s?"logprobs":\s?null,\s?"finish_reason":\s?null'
    rb'(?:,\s?"[a-z_]+":\s?null)*\}\]'
)
# Content without these bytes has neither the end of the string, nor an escape, nor the end of the event, so its length is its size.
_NOT_PLAIN = b'"\\\r\n'
_LINE_END = re.compile(rb"\r\n|\n|\r")
# The group is atomic: otherwise backtracking could match one CR LF as two line ends.
_EVENT_END = re.compile(rb"(?>\r\n|\n|\r){2}")
_TEXT, _HEARTBEAT = int(Kind.TEXT), int(Kind.HEARTBEAT)


class Scanner(Scan):
    """A scanner of server-sent events, by default of OpenAI's format; with ``format=None`` it recognises the format."""

    __slots__ = ("_prefix", "_suffix")

    def __init__(self, format: Format | None = OPENAI) -> None:
        super().__init__(format)
        # The bytes before and after the content of the last plain chunk. If the next event has the same ones, only its length is taken.
        self._prefix = self._suffix = b""

    def feed(self, time_ns: int, data: bytes) -> None:
        """Add the bytes of one read."""
        if self._prefix and not self._pending and data.startswith(self._prefix) and data.endswith(self._suffix):
            content = data[len(self._prefix) : -len(self._suffix)]
            if content and len(content.translate(None, _NOT_PLAIN)) == len(content):
                if len(self.times) >= CHUNKS_MAX:
                    self._drop(time_ns, _TEXT)
                    return
                self.yielded.append(len(self.times))
                self.times.append(time_ns)
                self.sizes.append(len(content))
                self.kinds.append(_TEXT)
                return
        if self._pending:
            whole = self._goes_on(time_ns, data, _EVENT_END)
            if whole is None:
                return
            self._pending, data = b"", whole
        if b"\r" in data:
            self._feed_any(time_ns, data)
            return
        events = data.split(b"\n\n")
        rest = events.pop()
        for event in events:
            self._event(time_ns, event)
        if rest:
            self._keep(rest)

    def _feed_any(self, time_ns: int, data: bytes) -> None:
        """Split data with carriage returns into events.

        A CR at the end of a read may be the first half of a CR LF. It ends the line. The LF that may start the next read is then an
        empty line without an event, which adds no chunk.
        """
        at = 0
        for end in _EVENT_END.finditer(data):
            self._event(time_ns, b"\n".join(_LINE_END.split(data[at : end.start()])))
            at = end.end()
        if at < len(data):
            self._keep(data[at:])

    def finish(self, time_ns: int) -> None:
        """Take an event that lacks only its empty line. One that was cut is none, unless its format is unknown."""
        super().finish(time_ns)
        rest, self._pending = b"\n".join(_LINE_END.split(self._pending)), b""
        payload = _data_of(rest).strip()
        if payload and (self.format is None or _is_whole(payload)):
            self._payload(time_ns, payload)

    def _event(self, time_ns: int, event: bytes) -> None:
        payload = event[6:] if event.startswith(b"data: ") and b"\n" not in event else _data_of(event)
        info = self.response
        is_plain = self.format is OPENAI and info.response_id and not (info.finished or info.done)
        found = _PLAIN_TEXT.search(payload) if is_plain else None
        if found is not None and b'"usage":{' not in payload and b'"usage": {' not in payload:
            self._yield()
            self._add(time_ns, found.end(1) - found.start(1), _TEXT, None)
            self._remember_frame(event, payload, found)
        elif payload:
            self._payload(time_ns, payload)
            if info.finished or info.done:
                # Content after an end is parsed, because it starts another round.
                self._prefix = b""
        elif event.strip(b"\n"):
            self._add(time_ns, 0, _HEARTBEAT, None)

    def _remember_frame(self, event: bytes, payload: bytes, found: re.Match[bytes]) -> None:
        """Keep the bytes around the content for the fast path, if the event ends with its payload."""
        if event.endswith(payload):
            shift = len(event) - len(payload)
            self._prefix, self._suffix = event[: shift + found.start(1)], event[shift + found.end(1) :] + b"\n\n"


def _data_of(event: bytes) -> bytes:
    """Return the data of an event: its ``data`` lines joined, without a byte-order mark, comments and other fields."""
    lines = []
    for line in event.lstrip(b"\n").removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
    return b"\n".join(lines)


def _is_whole(payload: bytes) -> bool:
    try:
        return payload.startswith(b"[DONE]") or isinstance(json.loads(payload), dict)
    except (ValueError, RecursionError):
        return False
