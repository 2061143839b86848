"""Checks of one record: its ids, its times against the receiver's clock, the head of its timeline, and its budget.

Everything here is known before a timeline is decoded. The module knows no span and no attribute.
"""

from __future__ import annotations

from legato_ingest.columns import NS_MAX
from legato_ingest.otlp.batch import DAY_NS, Limits
from legato_ingest.otlp.budget import Budget, Place
from legato_ingest.otlp.emitters.engine import COLUMNS as STEP_COLUMNS
from legato_ingest.otlp.model import EngineFlush, SilenceRecord, StreamRecord
from legato_ingest.otlp.row_sizes import flush_bytes, silence_bytes, stream_bytes
from legato_ingest.timeline.codec import DT, KNOWN, TimelineError, TimelineHead, column_sum, read_head

__all__ = ["AnyRecord", "Invalid", "check"]

AnyRecord = StreamRecord | SilenceRecord | EngineFlush
# A start this far ahead of the receiver's clock is a wrong clock, not the jitter of a right one.
_FUTURE_NS = 60_000_000_000
_NO_HEAD = TimelineHead(0, {})


class Invalid(ValueError):
    """A record that has to be rejected for ``reason``."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def check(record: AnyRecord, span_bytes: int, now_ns: int, limits: Limits, budget: Budget) -> TimelineHead:
    """Check a record, take what its rows need from the budget, and return the head of its timeline (no rows where it has none).

    ``span_bytes``: the size of its span. Raises ``Invalid`` and ``OverBudget``; then nothing was taken.
    """
    _check_identity(record)
    _check_times(record, now_ns, limits)
    if isinstance(record, StreamRecord):
        head, places = _head_of(record.timeline, KNOWN), (("stream_revs", record.start_ns, record.start_ns),)
        budget.take(places, rows=1, row_bytes=stream_bytes(record, head), item_bytes=span_bytes, chunks=head.chunks)
        return head
    if isinstance(record, EngineFlush):
        return _check_flush(record, span_bytes, now_ns, limits, budget)
    _check_end(record.end_ns, now_ns, limits)
    budget.take((("stream_silences", record.end_ns, record.end_ns),), rows=1, row_bytes=silence_bytes(record), item_bytes=span_bytes)
    return _NO_HEAD


def _check_flush(record: EngineFlush, span_bytes: int, now_ns: int, limits: Limits, budget: Budget) -> TimelineHead:
    head, finished, places = _head_of(record.timeline, STEP_COLUMNS), len(record.finished["response_id"]), list[Place]()
    if head.chunks:
        last_ns = _last_step_ns(record, head)
        _check_end(last_ns, now_ns, limits)
        places.append(("engine_steps", record.start_ns, last_ns))
    if finished:
        _check_end(record.end_ns, now_ns, limits)
        places.append(("engine_requests", record.end_ns, record.end_ns))
    rows, size = head.chunks + finished, flush_bytes(record, head)
    budget.take(places, rows=rows, row_bytes=size, item_bytes=span_bytes, chunks=head.chunks)
    return head


def _last_step_ns(record: EngineFlush, head: TimelineHead) -> int:
    """Return the time of the last step. The steps of a flush from a real engine are within some seconds."""
    column = head.columns[DT]
    most_us = (head.chunks - 1) * (column.base + (1 << column.width) - 1) + (column.exceptions << 32)
    last_ns = record.start_ns + 1_000 * most_us
    if last_ns // DAY_NS != record.start_ns // DAY_NS:
        last_ns = record.start_ns + 1_000 * column_sum(record.timeline or b"", head, DT)
    return last_ns


def _check_identity(record: AnyRecord) -> None:
    if len(record.trace_id) != 16 or not any(record.trace_id):
        raise Invalid("identity", f"trace id of {len(record.trace_id)} bytes, expected 16 and not all zero")
    if len(record.span_id) != 8 or not any(record.span_id):
        raise Invalid("identity", f"span id of {len(record.span_id)} bytes, expected 8 and not all zero")
    if len(record.parent_span_id) not in (0, 8):
        raise Invalid("identity", f"parent span id of {len(record.parent_span_id)} bytes, expected 0 or 8")


def _check_times(record: AnyRecord, now_ns: int, limits: Limits) -> None:
    if not 0 < record.start_ns <= NS_MAX or not 0 < record.end_ns <= NS_MAX:
        raise Invalid("time", "start or end is zero or beyond the year 2262")
    if record.end_ns < record.start_ns:
        raise Invalid("time", "the span ends before it starts")
    ahead = record.start_ns - now_ns
    if ahead > _FUTURE_NS:
        record.flags.append("future")
    if not limits.retention_days:
        return
    if ahead > limits.future_max_s * 1_000_000_000:
        raise Invalid("retention", f"starts more than {limits.future_max_s} s in the future")
    if -ahead > limits.retention_days * DAY_NS:
        raise Invalid("retention", f"starts before the {limits.retention_days} days that are kept")


def _check_end(end_ns: int, now_ns: int, limits: Limits) -> None:
    """Check the time of a row that is later than the start of its span."""
    if end_ns > NS_MAX:
        raise Invalid("time", "a row beyond the year 2262")
    if limits.retention_days and end_ns - now_ns > limits.future_max_s * 1_000_000_000:
        raise Invalid("retention", f"ends more than {limits.future_max_s} s in the future")


def _head_of(timeline: bytes | None, known: frozenset[int]) -> TimelineHead:
    if timeline is None:
        return _NO_HEAD
    try:
        return read_head(timeline, known)
    except TimelineError as error:
        raise Invalid("timeline", str(error)) from None
