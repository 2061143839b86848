"""Records one stream: when each chunk came, and how the stream ended.

One idea: recording is one clock reading and one append; whatever can wait (parsing, packing, attributes) is done by the worker, from
what was appended. A stream ends once, by whatever happens first, and a stream that nobody ends is ended at exit. It knows neither spans
nor HTTP: `_spans` and the instrumentations do.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from legato._clock import now_ns
from legato._socket import Look
from legato._sse import Facts, Scanner
from legato._timeline import CHUNKS_MAX, Kind

if TYPE_CHECKING:
    from opentelemetry.trace import Span

__all__ = ["Columns", "End", "Origin", "StreamRecorder", "outcome_of"]

_TEXT = int(Kind.TEXT)
_CANCELS = ("CancelledError", "GeneratorExit", "KeyboardInterrupt", "Cancelled")
_MARKS = frozenset(("complete", "client_cancel", "timeout", "upstream_error", "abandoned", "engine_abort"))


@dataclass(slots=True)
class Origin:
    """What is known of a stream when it begins, or learnt on its way."""

    vantage: str = "client"
    model: str = ""
    provider: str = ""
    transport: str = "iterator"
    route: str = ""
    engine_id: str = ""
    conversation_id: str = ""
    client_hash: str = ""
    client_address: str = ""
    client_port: int = 0
    server_address: str = ""
    server_port: int = 0


@dataclass(frozen=True, slots=True)
class End:
    """How and when (monotonic ns) a stream ended."""

    time_ns: int
    outcome: str
    error_type: str = ""


@dataclass(slots=True)
class Columns:
    """The chunks by column: times in ns of the monotonic clock; ``None`` is a column that nobody knows. ``dropped``: beyond the limit.

    ``looks``: what the kernel knew when a read came after a pause: the read's time, bytes in the queue before it, ms since the last came.
    """

    times: list[int]
    sizes: list[int]
    tokens: list[int] | None
    kinds: list[int]
    holds_ns: list[int] | None
    dropped: int
    looks: list[tuple[int, int, int]]


def outcome_of(error: BaseException) -> tuple[str, str]:
    """(outcome, error type) of a stream that this exception ended. Time-outs are known by their classes' names, of any library."""
    names = [kind.__name__ for kind in type(error).__mro__]
    if any(name in _CANCELS for name in names):
        return "client_cancel", ""
    qualified = f"{type(error).__module__}.{type(error).__qualname__}"
    if any("Timeout" in name for name in names):
        return "timeout", qualified
    return "upstream_error", qualified


class StreamRecorder:
    """One stream at one vantage. Get one from ``legato.stream(...)``; use it as a (sync or async) context manager, or call ``end``.

    ``record`` may be called from any thread; so may ``end``, and only the first ``end`` counts.
    """

    __slots__ = (
        *("__weakref__", "held", "left_ns", "origin", "read", "rev", "span", "span_id", "start_ns", "ttfb_ns", "wire_bytes"),
        *("_chunks", "_columns", "_end", "_ending", "_finish", "_holds", "_lates", "_lock", "_looks", "_reads", "_scanner"),
    )

    def __init__(self, origin: Origin, span: Span, start_ns: int, finish: Callable[[StreamRecorder], None], *, sse: bool = False) -> None:
        self.origin = origin
        self.span = span
        self.span_id = span.get_span_context().span_id
        self.start_ns = start_ns
        self.ttfb_ns: int | None = None
        self.wire_bytes: int | None = None
        self.rev = 0
        self.left_ns = 0
        """When the application left its loop over the stream without closing it; 0 while it has not."""
        self._finish = finish
        self._lock = threading.Lock()
        self._ending = threading.Lock()
        self._end: End | None = None
        self._chunks: deque[tuple[int, int, int | None, int]] = deque()
        self._reads: deque[tuple[int, bytes]] = deque()
        self._holds: deque[int] = deque()
        self._lates: deque[tuple[int, int]] = deque(maxlen=CHUNKS_MAX)
        self._looks: deque[tuple[int, int, int]] = deque(maxlen=CHUNKS_MAX)
        self.read = self._reads.append
        """``read((now_ns(), data))``: a read of a server-sent-event body. The bytes are parsed later, counted, and dropped."""
        self.held = self._holds.append
        """``held(ns)``: how long the application held the next of the chunks handed to it, in order, before it asked for another."""
        self._scanner = Scanner() if sse else None
        self._columns = Columns([], [], [], [], None, 0, [])

    def record(self, size_bytes: int, tokens: int | None = None, kind: int = _TEXT) -> None:
        """A chunk has come now: UTF-8 bytes of its content, its tokens if they are known, its kind."""
        self._chunks.append((now_ns(), size_bytes, tokens, kind))

    def look(self, time_ns: int, look: Look | None, read_bytes: int) -> None:
        """A read came after a pause, at this time and with so many bytes: note what the kernel knows of it."""
        known = look() if look is not None else None
        if known is not None:
            self._looks.append((time_ns, known[0] + read_bytes, known[1]))

    def late(self, time_ns: int, late_ns: int) -> None:
        """The read at this time came after its event loop had been late: that is the application's time, as a hold is."""
        if late_ns:
            self._lates.append((time_ns, late_ns))

    def leave(self) -> None:
        """The application left its loop over the stream. It may take it up again; else the stream was cancelled now."""
        self.left_ns = now_ns()

    def end(self, outcome: str = "complete", error: BaseException | None = None, error_type: str = "", at_ns: int | None = None) -> None:
        """The stream is over now (or was, ``at_ns``). Any call but the first does nothing. An ``error`` decides the outcome by its type."""
        if not self._ending.acquire(blocking=False):
            return
        if error is not None:
            outcome, error_type = outcome_of(error)
        self._end = End(now_ns() if at_ns is None else at_ns, outcome if outcome in _MARKS else "upstream_error", error_type)
        self._finish(self)

    @property
    def ended(self) -> bool:
        """Whether ``end`` was called."""
        return self._end is not None

    def __enter__(self) -> StreamRecorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end(error=error)

    async def __aenter__(self) -> StreamRecorder:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end(error=error)

    def __del__(self) -> None:
        # Dropped without an end: whoever read it has stopped reading.
        if self._end is None:
            self.end("client_cancel")

    # What follows is the worker's side.

    @property
    def waiting(self) -> int:
        """Reads and chunks that were appended and not yet digested."""
        return len(self._reads) + len(self._chunks)

    def digest(self) -> Columns:
        """Move what was appended into columns and return them all. Safe against appends from other threads meanwhile."""
        with self._lock:
            if self._scanner is not None:
                self._digest_reads(self._scanner)
            else:
                self._digest_chunks()
            return self._columns

    def _digest_reads(self, scanner: Scanner) -> None:
        reads, columns = self._reads, self._columns
        while reads:
            time_ns, data = reads.popleft()
            self.wire_bytes = (self.wire_bytes or 0) + len(data)
            scanner.feed(time_ns, data)
        columns.dropped = max(0, len(scanner.times) - CHUNKS_MAX)
        columns.times, columns.sizes, columns.kinds = scanner.times[:CHUNKS_MAX], scanner.sizes[:CHUNKS_MAX], scanner.kinds[:CHUNKS_MAX]
        tokens = scanner.tokens
        columns.tokens = None if tokens is None else tokens[:CHUNKS_MAX]
        if self._holds:
            columns.holds_ns = [0] * len(columns.times)
            for at, hold in zip(scanner.yielded, self._holds, strict=False):
                if at < CHUNKS_MAX:
                    columns.holds_ns[at] = hold
            for time_ns, late_ns in self._lates:
                before = bisect_left(columns.times, time_ns) - 1
                if before >= 0:
                    columns.holds_ns[before] += late_ns
        columns.looks = list(self._looks)

    def _digest_chunks(self) -> None:
        chunks, columns = self._chunks, self._columns
        counted = columns.tokens is not None
        while chunks:
            if len(columns.times) >= CHUNKS_MAX:
                columns.dropped += len(chunks)
                chunks.clear()
                break
            room = CHUNKS_MAX - len(columns.times)
            if self._end is not None and len(chunks) <= room:
                batch = list(chunks)
                chunks.clear()
            else:
                batch = [chunks.popleft() for _ in range(min(len(chunks), room))]
            times, sizes, tokens, kinds = zip(*batch, strict=True)
            columns.times += times
            columns.sizes += sizes
            columns.kinds += kinds
            counted = counted and None not in tokens
            if counted and columns.tokens is not None:
                columns.tokens += tokens
            else:
                columns.tokens = None
        if self._holds:
            holds = list(self._holds)[: len(columns.times)]
            columns.holds_ns = holds + [0] * (len(columns.times) - len(holds))

    @property
    def facts(self) -> Facts | None:
        """What the events said of the response; ``None`` where nothing was parsed."""
        return self._scanner.facts if self._scanner is not None else None

    def verdict(self) -> End | None:
        """The end as it stands after parsing: what the response itself said of its end outweighs how the reading of it ended."""
        end, facts = self._end, self.facts
        if end is None or facts is None:
            return end
        if facts.error:
            return End(end.time_ns, "upstream_error", facts.error)
        if "abort" in facts.finish_reasons:
            return End(end.time_ns, "engine_abort", end.error_type)
        if facts.done or facts.finish_reasons:
            return End(end.time_ns, "complete")
        if end.outcome == "complete":
            # The bytes ended in good order, the response did not: somebody between closed it.
            return End(end.time_ns, "upstream_error", "stream_truncated")
        return end
