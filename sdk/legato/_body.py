"""A response's body as it is on the wire: decompressed, and given to the scanner that its content type and its first bytes ask for.

Everything here runs in the worker. A body that cannot be decompressed is recorded as reads with bytes: when something arrived is still
known. The middlewares and transports ask `is_streamed` whether a content type is that of a stream at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from legato._decode import Decoder, decoder_of
from legato._formats import Format
from legato._lines import ArrayScanner, LineScanner, PartScanner, RawScanner
from legato._pace import breathe
from legato._scan import Scan
from legato._sse import Scanner

__all__ = ["OPENAI_PATHS", "PLAIN_TEXT", "Body", "is_streamed", "media_type"]

OPENAI_PATHS = ("/chat/completions", "/completions", "/responses")
"""Suffixes of the paths of OpenAI's API. A stream there is expected to have an end mark even if it has no event."""
EVENT_STREAM, PLAIN_TEXT = "text/event-stream", "text/plain"
_LINES = (
    *("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines", "application/jsonlines"),
    *("application/json-seq", "application/stream+json", "application/x-json-stream"),
)
_BINARY = ("application/vnd.amazon.eventstream",)
# A body of plain text may be a stream with a missing content type: one of these starts, or the first line of the AI SDK's data stream.
_SSE_START = re.compile(rb"\s*(?:data: ?[\[{]|event: ?\w)")
_SSE_LINE = re.compile(rb"\s*(?:(?:data|event|id|retry):|:)")
_PART_START = re.compile(rb'[0-9a-j]:["{\[]')
# Only where even the content type is unknown: an answer in plain text may be JSON, too.
_JSON_START = re.compile(rb'\s*(?:\[\s*\{|\{\s*")')
_DECIDED_BYTES, _START_BYTES = 24, 4096


def media_type(content_type: str) -> str:
    """Return the content type in lower case without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def is_streamed(content_type: str) -> bool:
    """Whether a body of this content type is a stream of events. Plain text may be one, too; its content type does not show it."""
    kind = media_type(content_type)
    return kind == EVENT_STREAM or kind in _LINES or kind in _BINARY


class Body:
    """The reads of one body. ``scan`` is the scanner that they go to, once that is known.

    ``content_type``: empty if unknown. ``expects_end``: a body that ends without any event was cut. ``is_array``: the body of Gemini's API
    without server-sent events. ``format``: that of server-sent events; ``None``: recognise it.
    """

    __slots__ = ("_decoder", "_is_unknown", "_waiting", "feed", "scan")

    def __init__(
        self,
        content_type: str = EVENT_STREAM,
        encoding: str = "",
        *,
        expects_end: bool = False,
        is_array: bool = False,
        format: Format | None = None,
    ) -> None:
        self.scan: Scan = _scanner_of(media_type(content_type), is_array, format)
        self.scan.response.expects_end = expects_end and media_type(content_type) == EVENT_STREAM
        self._is_unknown = not content_type
        self._waiting: list[tuple[int, bytes]] | None = [] if media_type(content_type) in ("", PLAIN_TEXT) else None
        self._decoder: Decoder | None = None
        self.feed: Callable[[int, bytes], None]
        """``feed(time_ns, data)`` adds the bytes of one read: to the scanner itself if nothing stands between."""
        self.compressed(encoding)

    def compressed(self, encoding: str) -> None:
        """The reads will be compressed with this content encoding, if it is one. To be called before the first read."""
        encoding = encoding.strip().lower()
        if encoding not in ("", "identity"):
            self._decoder = decoder_of(encoding)
            if self._decoder is None:
                self._give_up()
        self.feed = self.scan.feed if self._waiting is None and self._decoder is None else self._feed

    def _feed(self, time_ns: int, data: bytes) -> None:
        if self._decoder is None:
            self._scan(time_ns, data)
            return
        for piece in self._decoder.decode(data):
            self._scan(time_ns, piece)
            breathe()
        if self._decoder.is_broken:
            self._give_up()
            self._scan(time_ns, data)

    def _scan(self, time_ns: int, data: bytes) -> None:
        """Give decompressed bytes to the scanner, once it is known."""
        if not data:
            return
        if self._waiting is None:
            self.scan.feed(time_ns, data)
            return
        self._waiting.append((time_ns, data))
        if sum(len(each) for _, each in self._waiting) >= _DECIDED_BYTES:
            self._decide(self._waiting)

    def fold(self, time_ns: int, size: int) -> None:
        """Add a read of which only the size is known."""
        self.miss()
        self.scan.fold(time_ns, size)

    def miss(self) -> None:
        """Note that a read is missing. What is compressed cannot be read any further."""
        if self._waiting is not None:
            self._decide(self._waiting)
        if self._decoder is not None:
            self._give_up()
        self.scan.miss()

    def finish(self, time_ns: int) -> None:
        """Take the body as ended; ``time_ns`` is the time of its last read."""
        if self._waiting is not None:
            self._decide(self._waiting)
        self.scan.finish(time_ns)

    def _decide(self, reads: list[tuple[int, bytes]]) -> None:
        """Choose the scanner of plain text by its first bytes, and give it the reads that waited."""
        self._waiting = None
        start = b"".join(data[:_START_BYTES] for _, data in reads)
        if (_SSE_LINE if self._is_unknown else _SSE_START).match(start):
            self.scan = Scanner(None)
        elif _PART_START.match(start):
            self.scan = PartScanner()
        elif self._is_unknown and _JSON_START.match(start):
            self.scan = ArrayScanner() if start.lstrip().startswith(b"[") else LineScanner()
        for time_ns, data in reads:
            self.scan.feed(time_ns, data)

    def _give_up(self) -> None:
        """Go on with the bytes as they are. Chunks so far stay; a missing end mark means nothing now."""
        raw = RawScanner()
        for name in ("times", "sizes", "kinds", "kept_back", "gap_at", "dropped", "dropped_ns"):
            setattr(raw, name, getattr(self.scan, name))
        # What was recognised stays so: a stream that counts only as a model's response is still one.
        raw.format, raw._is_settled, raw.response = self.scan.format, self.scan._is_settled, self.scan.response
        raw.response.expects_end = False
        self.scan, self._decoder, self._waiting = raw, None, None


def _scanner_of(kind: str, is_array: bool, format: Format | None) -> Scan:
    if is_array:
        return ArrayScanner()
    if kind == EVENT_STREAM:
        return Scanner(format)
    return LineScanner() if kind in _LINES else RawScanner()
