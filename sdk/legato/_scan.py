"""The columns that every scanner fills, and the recognition of the format by the first events.

A scanner gets the bytes of each read and cuts them into events; `_sse` and `_lines` have one for each framing. Here an event becomes a
chunk: its content is measured and not kept. Recognising and measuring never raises.
"""

from __future__ import annotations

import json
import re
from typing import Any

from legato._formats import JSON_RPC, OPENAI, Format, measure_any, sniff
from legato._response import Measured, ResponseInfo
from legato._timeline import CHUNKS_MAX, Kind

__all__ = ["PENDING_BYTES_MAX", "Scan"]

PENDING_BYTES_MAX = 1 << 24
"""A longer event is skipped: one that never ends would grow without limit. Events with a picture have some MB."""
# An unfinished event of this length is neither copied nor searched again with each read.
_LONG_BYTES = 1 << 16
_START_BYTES = 256
_RESPONSE_END = re.compile(rb'"type":\s?"response\.completed"')
# Events of no format before the format is taken for unknown. Some servers send their own metadata before the response.
_UNSURE_MAX = 16
_TEXT, _HEARTBEAT, _DONE = int(Kind.TEXT), int(Kind.HEARTBEAT), int(Kind.DONE)
_CONTENT = (_TEXT, int(Kind.REASONING), int(Kind.TOOL))
_ROUND_STARTS = ("message_start", "response.created")


class Scan:
    """Chunks by column, filled by ``feed``: times in ns, sizes in bytes, tokens, kinds.

    ``tokens`` is known only if every chunk with content had a cumulative usage. ``yielded`` has the indexes of those events, in order,
    that a client library passes to the application. ``format``: the format of the events; ``None``: recognise it. The columns have at most
    ``CHUNKS_MAX`` chunks; ``dropped`` counts further ones, and ``dropped_ns`` is the time of the last of these with content, or 0.
    """

    __slots__ = (
        *("dropped", "dropped_ns", "format", "kinds", "response", "sizes", "times", "yielded"),
        *("_counted", "_is_settled", "_last_tokens", "_pending", "_skipped", "_skips_end", "_tokens", "_unsure"),
    )

    def __init__(self, format: Format | None = None) -> None:
        self.format = format
        self.times: list[int] = []
        self.sizes: list[int] = []
        self.kinds: list[int] = []
        self.yielded: list[int] = []
        self.dropped = self.dropped_ns = 0
        self.response = ResponseInfo(expects_end=format is OPENAI)
        self._tokens: list[int] = []
        self._counted = True
        self._last_tokens = 0
        # The bytes of an event that has not ended; of an event that is skipped, its last bytes, and the number of those before.
        self._pending: bytes | bytearray = b""
        self._skipped = 0
        self._skips_end = False
        self._unsure: list[tuple[int, Any]] = []
        self._is_settled = format is not None

    @property
    def scan(self) -> Scan:
        """The scanner itself; a ``Body`` has its scanner under the same name."""
        return self

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

    def finish(self, time_ns: int) -> None:
        """Take the body as ended; ``time_ns`` is the time of its last read. What is left may be an event without its line end."""
        if self._skipped:
            self._skipped_event(time_ns, self._skipped + len(self._pending))
            self._pending = b""

    def _keep(self, rest: bytes) -> None:
        """Keep the start of an event until its end is read."""
        self._pending = bytearray(rest) if len(rest) > _LONG_BYTES else rest
        if len(rest) > PENDING_BYTES_MAX:
            self._skip(rest)

    def _goes_on(self, time_ns: int, data: bytes, end: re.Pattern[bytes]) -> bytes | None:
        """Return what is to be scanned with a read; ``None`` if the read is only a further part of a long event. ``end``: of an event."""
        pending = self._pending
        if not isinstance(pending, bytearray):
            return pending + data
        last = bytes(pending[-3:])
        found = end.search(last + data)
        if found is None:
            pending += data
            if self._skipped or len(pending) > PENDING_BYTES_MAX:
                self._skip(pending)
            return None
        self._pending = b""
        if not self._skipped:
            return bytes(pending) + data
        self._skipped_event(time_ns, self._skipped + len(pending) - len(last) + found.start())
        return (last + data)[found.end() :]

    def _skip(self, event: bytes | bytearray) -> None:
        """Forget the bytes of an event that is too long, but the last, which may be the start of its end."""
        if not self._skipped:
            self.response.is_incomplete = True
            self._skips_end = _RESPONSE_END.search(event[:_START_BYTES]) is not None
        self._pending = bytearray(event[-3:])
        self._skipped += len(event) - len(self._pending)

    def _skipped_event(self, time_ns: int, event_bytes: int) -> None:
        """Add the chunk of a skipped event: its bytes, unless it is known as an end without content."""
        self._skipped = 0
        self._yield()
        if self._skips_end:
            self.response.done = self.response.finish("completed")
            self._add(time_ns, 0, _DONE, None)
        else:
            self._add(time_ns, event_bytes, _TEXT, None)

    def _payload(self, time_ns: int, payload: bytes) -> None:
        """Add an event: JSON, an end mark of OpenAI's kind, or anything else."""
        if payload.startswith(b"[DONE]"):
            self.response.done = True
            self._add(time_ns, 0, _DONE, None)
            return
        try:
            content = json.loads(payload)
        except (ValueError, RecursionError):
            content = None
        if isinstance(content, str) and not payload.startswith(b'"'):
            # A text in quotation marks after a space is a text, not a JSON string.
            content = None
        self._content(time_ns, content, len(payload))

    def _content(self, time_ns: int, content: Any, payload_bytes: int) -> None:
        self._yield()
        if not self._is_settled:
            self._recognise(content)
        size, kind, total = self._measure_next(content, payload_bytes)
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

    def _recognise(self, content: Any) -> None:
        """Determine the format by this event. What earlier events were taken for is corrected."""
        self.format = sniff(content, is_first=not self._unsure) if isinstance(content, dict) else None
        if self.format is None and len(self._unsure) < _UNSURE_MAX:
            self._unsure.append((len(self.times), content))
            return
        self._is_settled = True
        if self.format is not None and self._unsure:
            for index, earlier in self._unsure:
                size, kind, _ = self._measure(earlier, 0)
                if index < len(self.times):
                    self.sizes[index], self.kinds[index] = size, kind
            self._counted, self._tokens = True, [0] * len(self.times)
        self._unsure.clear()

    def _yield(self) -> None:
        """Note that the next chunk is one that a library passes on."""
        if len(self.times) < CHUNKS_MAX:
            self.yielded.append(len(self.times))

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
