"""Recorder of one stream: when each chunk arrived, and how the stream ended.

Recording a chunk is one clock reading and one append. The worker thread does the rest (parsing, packing, attributes) later. A stream
ends once: the first call of ``end`` counts, and a stream that is still open when the process exits is ended then. Span attributes are
built in `_spans`; HTTP is handled by the instrumentations.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from operator import gt
from types import TracebackType
from typing import TYPE_CHECKING, Any

from legato._arguments import corrected, is_plain
from legato._body import Body
from legato._clock import now_ns
from legato._endings import OVER_NS, end_of, is_over
from legato._holds import Holds
from legato._items import Items, size_of
from legato._pace import breathe
from legato._records import Columns, End, Origin, listed, outcome_of
from legato._response import ResponseInfo
from legato._route import Route
from legato._scan import Scan
from legato._socket import Probe
from legato._sse import Scanner
from legato._timeline import CHUNKS_MAX, PART, Kind
from legato._unparsed import READ_BYTES, Folded, Unparsed, adding, cost_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span

__all__ = ["CONTENT", "Columns", "End", "Origin", "StreamRecorder", "outcome_of"]

_TEXT = int(Kind.TEXT)
CONTENT = (_TEXT, int(Kind.REASONING), int(Kind.TOOL))
"""The kinds of chunks that carry content."""
# Parsing may pause after reads of so many bytes in all, with their overhead. They take some 0.1 ms.
_PAUSE_BYTES = 1 << 14
_OUTCOMES = frozenset(("complete", "client_cancel", "timeout", "upstream_error", "abandoned", "engine_abort"))


class StreamRecorder:
    """One stream at one vantage. ``legato.stream(...)`` returns one; use it as a (sync or async) context manager, or call ``end``.

    ``record`` and ``end`` may be called from any thread. Only the first ``end`` counts.
    """

    __slots__ = (
        "__weakref__", "asked", "awaits_headers", "held", "held_read", "is_discarded", "is_queued", "is_taken", "left_ns", "origin",
        "provisional", "read", "rev", "route", "silent_ns", "span", "span_id", "start_ns", "ttfb_ns", "unparsed", "wire_bytes",
        "_chunks", "_columns", "_content_ns", "_dropped_at_ns", "_ends", "_finish", "_finished", "_holds", "_last_read_ns", "_lock",
        "_lost_bytes", "_probes", "_source",
    )  # fmt: skip

    def __init__(
        self,
        origin: Origin,
        span: Span,
        start_ns: int,
        finish: Callable[[StreamRecorder], None],
        *,
        sse: bool = False,
        body: Body | Items | Scan | None = None,
    ) -> None:
        self.origin = origin
        self.span = span
        self.span_id = span.get_span_context().span_id
        self.start_ns = start_ns
        self.ttfb_ns: int | None = None
        self.wire_bytes: int | None = None
        self.rev = 0
        self.route = Route.APPLICATION
        """Where the span goes."""
        self.left_ns = 0
        """Monotonic time at which the application left its loop over the stream without closing it; 0 if it has not."""
        self.provisional = False
        """Whether the stream counts only once its events are known as those of a model's response."""
        self.asked = True  # A model's stream was asked for.
        self.awaits_headers = False
        """Whether the response has no headers yet. Until then the stream has no snapshot, because the response may be no stream."""
        self.silent_ns: int | None = None
        """Begin of the silence that was reported last and goes on, as far as it is known (monotonic)."""
        self.is_queued = self.is_taken = False
        """Whether the worker was given the ended stream, and whether it has finished it."""
        self._finished = self.is_discarded = False
        self._finish = finish
        self._lock = threading.Lock()
        self._chunks: deque[tuple[int, int, int | None, int]] = deque()
        self._source: Any = body or (Scanner() if sse else None)
        self._holds = Holds()
        self._probes: deque[tuple[int, int, int]] = deque(maxlen=CHUNKS_MAX)
        self.unparsed = Unparsed(size_of)
        """What the worker has not parsed yet."""
        self.read = adding(self.unparsed, cost_of if isinstance(body, Items) else len)
        """``read((now_ns(), data))`` records a read of a server-sent-event body. The worker later parses and discards the bytes."""
        self.held = self._holds.items.append
        """``held(ns)`` records a hold: the time from handing a chunk to the application to its request for the next. Call it once for each
        chunk handed over, in order.
        """
        self.held_read = self._holds.reads.append
        """``held_read((time_ns, ns))`` records a hold of a read as a whole, where the items in it are not handed over one by one."""
        self._columns = Columns([], [], [], [], None, 0, [])
        self._content_ns = start_ns
        self._dropped_at_ns = self._lost_bytes = self._last_read_ns = 0
        # The first element counts. Not a lock: gevent's runs other greenlets where it cannot be acquired at once. This is the last
        # attribute: what has none was not made completely.
        self._ends: list[End] = []

    def record(self, size_bytes: int, tokens: int | None = None, kind: int = _TEXT) -> None:
        """Record a chunk that arrived now: UTF-8 bytes of its content, its tokens (``None``: unknown) and its ``Kind``."""
        self._chunks.append((now_ns(), size_bytes, tokens, kind))

    def look(self, time_ns: int, probe: Probe | None, read_bytes: int) -> None:
        """Probe the socket after a read that followed a pause; the read was at ``time_ns`` and returned ``read_bytes`` bytes."""
        found = probe() if probe is not None else None
        if found is not None:
            # The probe runs after the read, so the bytes just read are added to the queue again.
            self._probes.append((time_ns, found[0] + read_bytes, found[1]))

    def late(self, time_ns: int, late_ns: int) -> None:
        """Record that the event loop was blocked for ``late_ns`` before the read at ``time_ns``. It counts as consumer time."""
        if late_ns:
            self._holds.lags.append((time_ns, late_ns))

    def leave(self) -> None:
        """Record that the application left its loop over the stream. Unless it resumes, the stream counts as cancelled now."""
        self.left_ns = now_ns()

    def end(self, outcome: str = "complete", error: BaseException | None = None, error_type: str = "", at_ns: int | None = None) -> None:
        """End the stream now, or as of ``at_ns`` (monotonic). Only the first call has an effect.

        The type of an ``error`` determines the outcome and overrides ``outcome`` and ``error_type``.
        """
        if self.is_queued:
            return
        if not self._ends:
            outcome, error_type = (outcome, error_type) if error is None else outcome_of(error)
            outcome = outcome if outcome in _OUTCOMES else "upstream_error"
            self._ends.append(End(now_ns() if at_ns is None else at_ns, outcome, error_type))
        # Also if a handler of a signal raised here in an earlier call: the stream would be lost.
        self._finish(self)
        self.is_queued = True

    def opened(self, body: Body) -> None:
        """The headers of the response have arrived, and with them what its body is. Nothing was read before."""
        self._source, self.awaits_headers = body, False

    def discard(self) -> None:
        """Forget the stream: another recorder has it."""
        self.is_discarded = True
        self.end()

    def disown(self) -> None:
        """Ignore the end of this stream: it is the copy that a forked child has of a stream of its parent."""
        self.is_queued = True

    @property
    def _end(self) -> End | None:
        return self._ends[0] if self._ends else None

    @property
    def ended(self) -> bool:
        """Whether ``end`` was called."""
        return bool(self._ends)

    @property
    def failed(self) -> bool:
        """Whether it ended otherwise than completely."""
        return self._end is not None and self._end.outcome != "complete"

    def __enter__(self) -> StreamRecorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end(error=error)

    async def __aenter__(self) -> StreamRecorder:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end(error=error)

    def __del__(self) -> None:
        # Garbage-collected without an end: the application stopped reading. An exception within `__init__` leaves no `_ends`.
        if hasattr(self, "_ends"):
            self.end("client_cancel")

    # The methods below are for the worker thread.

    def silent_since(self, now: int, silence_ns: int) -> int | None:
        """Return the monotonic time of the last content if that is at least ``silence_ns`` ago. Before any content it is the start.

        Recorded reads are parsed only if the content known so far is that old, so that a flowing stream is parsed every ``silence_ns``.
        """
        if now - self._content_ns < silence_ns:
            return None
        self.parse()
        self._content_ns = self._last_content_ns()
        return self._content_ns if now - self._content_ns >= silence_ns else None

    def _last_content_ns(self) -> int:
        return self.unkept_ns if self._dropped_ns else max(self.unkept_ns, self._last_known_ns())

    def _last_known_ns(self) -> int:
        seen = self._scanner or self._columns
        for end in range(len(seen.kinds), 0, -PART):
            breathe()
            part = seen.kinds[max(0, end - PART) : end]
            place = next((at for at in range(len(part) - 1, -1, -1) if part[at] in CONTENT), None)
            if place is not None:
                return seen.times[end - len(part) + place]
        return self.start_ns

    def content_after(self, time_ns: int) -> int:
        """Return the monotonic time of the first content after this time; 0 if there is none yet."""
        columns = self.digest()
        first = bisect_right(columns.times, time_ns)
        following = columns.kinds[first:]
        place = min((following.index(kind) for kind in CONTENT if kind in following), default=None)
        found = columns.times[first + place] if place is not None else 0
        return found or (self.unkept_ns if self.unkept_ns > time_ns else 0)

    @property
    def unkept_ns(self) -> int:
        """The monotonic time of the last content that is not in the columns, or may have been in lost reads; 0 if there is none."""
        return max(self._dropped_ns, self.unparsed.lost_ns)

    @property
    def _dropped_ns(self) -> int:
        """The monotonic time of the last chunk with content that the timeline has no room for; 0 if there is none."""
        return self._scanner.dropped_ns if self._scanner is not None else self._dropped_at_ns

    @property
    def undigested(self) -> int:
        """Number of reads and chunks that were recorded and not yet moved into columns."""
        return len(self.unparsed.reads) + len(self._chunks)

    def parse(self) -> None:
        """Parse what was recorded since the last call. Other threads may keep recording meanwhile."""
        with self._lock:
            self._parse()

    def digest(self) -> Columns:
        """Parse what was recorded and return all chunks as columns, which stay as they are. Other threads may keep recording meanwhile."""
        with self._lock:
            # Read before the parsing, after which nothing changes any more.
            is_ended = self._end is not None
            self._parse()
            seen = self._scanner or self._columns
            times, sizes, tokens, kinds = seen.times, seen.sizes, seen.tokens, seen.kinds
            if not is_ended:
                times, sizes, tokens, kinds = times[:], sizes[:], None if tokens is None else tokens[:], kinds[:]
            yielded = self._scanner.yielded if self._scanner is not None else range(len(times))
            holds = self._holds.of(times, yielded)
            return Columns(times, sizes, tokens, kinds, holds, seen.dropped + self.unparsed.lost, listed(self._probes))

    @property
    def _scanner(self) -> Scan | None:
        return self._source.scan if self._source is not None else None

    def _parse(self) -> None:
        """Move the recorded reads into the scanner, or the recorded chunks into the columns: work for what is new, not for the whole
        stream. Between slices other threads may run: many streams that end together must not delay those that go on."""
        self._holds.pack()
        if self._finished:
            return
        if self._source is None:
            self._take_chunks()
            return
        # Read before the reads: no read follows an end.
        is_ended = self._end is not None
        self._parse_reads()
        if is_ended and not self._finished:
            self._finished = True
            self._source.finish(self._last_read_ns or self.start_ns)
            self.unparsed.close()
        scanner = self._source.scan
        if scanner.format is not None and not self.origin.provider:
            self.origin.provider = scanner.format.provider

    def _parse_reads(self) -> None:
        """Parse the reads that are there now. A server that sends faster than they are parsed must not keep the worker here."""
        unparsed, source, time_ns = self.unparsed, self._source, self._last_read_ns
        following, feed, is_bytes = unparsed.reads.popleft, source.feed, not isinstance(source, Items)
        size_of, count = len if is_bytes else cost_of, len(unparsed.reads)
        cost = total = folded = 0
        for _ in range(count):
            time_ns, data = following()
            if type(data) is Folded:
                if data.follows_gap:
                    source.miss()
                source.fold(time_ns, int(data))
                folded += data
                cost += READ_BYTES
            else:
                feed(time_ns, data)
                cost += size_of(data) + READ_BYTES
            if cost >= _PAUSE_BYTES:
                unparsed.parsed(cost)
                total, cost = total + cost, 0
                self._holds.pack()
                breathe()
        unparsed.parsed(cost)
        lost = unparsed.lost_bytes - self._lost_bytes
        if lost:
            self._lost_bytes += lost
            time_ns = max(time_ns, unparsed.lost_ns)
            if unparsed.is_in_gap:
                source.miss()
        self._last_read_ns = time_ns
        if is_bytes and time_ns:
            self.wire_bytes = (self.wire_bytes or 0) + total + cost - count * READ_BYTES + folded + lost

    def _take_chunks(self) -> None:
        chunks, columns = self._chunks, self._columns
        counted = columns.tokens is not None
        while chunks:
            if len(columns.times) >= CHUNKS_MAX:
                self._dropped_at_ns = chunks[-1][0]
                columns.dropped += len(chunks)
                chunks.clear()
                break
            breathe()
            room = min(PART, CHUNKS_MAX - len(columns.times))
            if self._end is not None and len(chunks) <= room:
                batch = listed(chunks)
                chunks.clear()
            else:
                batch = [chunks.popleft() for _ in range(min(len(chunks), room))]
            times, sizes, tokens, kinds = zip(*batch, strict=True)
            last_ns = columns.times[-1] if columns.times else 0
            if not is_plain(sizes, tokens, kinds):
                times, sizes, tokens, kinds = zip(*map(corrected, batch), strict=True)
            # Two threads that record into one stream may append in another order than they read the clock.
            if times[0] < last_ns or any(map(gt, times, times[1:])):
                times = tuple(accumulate(times, max, initial=last_ns))[1:]
            columns.times += times
            columns.sizes += sizes
            columns.kinds += kinds
            counted = counted and None not in tokens
            if counted and columns.tokens is not None:
                columns.tokens += tokens
            else:
                columns.tokens = None

    @property
    def response(self) -> ResponseInfo | None:
        """What the events reported about the response; ``None`` if the stream was not recorded as server-sent events."""
        return self._scanner.response if self._scanner is not None else None

    def is_over(self, now: int) -> bool:
        """Whether nothing more will be read, although the stream was not ended."""
        try:
            last_ns = self.unparsed.reads[-1][0]
        except IndexError:
            last_ns = self._last_read_ns
        last_ns = max(last_ns, self.unparsed.lost_ns)
        if not last_ns or now - last_ns < OVER_NS:
            return False
        self.parse()
        return self.response is not None and is_over(self.response, self.origin, now - last_ns)

    @property
    def is_no_response(self) -> bool:
        """Whether it is known that this is no model's response, and only such a response counts."""
        scanner = self._scanner
        return scanner is not None and (scanner.is_foreign or (self.provisional and scanner.is_unknown))

    def forget(self) -> None:
        """Forget what was recorded after the end, once the worker has taken what was before it."""
        if self.is_taken:
            with self._lock:
                self.unparsed.close()
                self._holds.forget()
                self._chunks.clear()

    @property
    def is_unsure(self) -> bool:
        """Whether it is still unknown that this is a model's response. Such a stream is not reported while it runs."""
        scanner = self._scanner
        if scanner is None or not (self.provisional or scanner.is_foreign):
            return False
        if not scanner.is_recognised:
            self.parse()
            scanner = self._scanner or scanner
        return not scanner.is_recognised

    def final_end(self) -> End | None:
        """Return the end after parsing; ``None`` before ``end``, and for a stream that is not kept."""
        end, response = self._end, self.response
        if end is None or self.is_discarded or self.is_unsure:
            return None
        return end if response is None else end_of(response, end, self._last_read_ns or end.time_ns)
