"""From a body's bytes to its rows, cut so that neither memory nor a fault reaches further than a piece.

One idea: parsed protobuf can be a hundred times its bytes, and one text that is not UTF-8 makes a parser refuse all of it. So a large
body is cut at its spans, along the three levels that every OTLP request has, into small requests that are parsed one after the other; a
piece that cannot be parsed, or on which the code behind fails, is cut again, down to the one span that is to blame: that one is rejected
and its neighbours are stored. A body of usual size is parsed whole and never walked. It judges nothing inside a span.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from legato_ingest.adapt import Rejection
from legato_ingest.errors import BadRequest, LegatoError, TooLarge
from legato_ingest.rows import Batch, Limits, rejected_table, rows_of

__all__ = ["SPANS_MAX", "batch_of"]

_WHOLE_BYTES_MAX = 2 * 2**20
_WHOLE_SPANS_MAX = 65_536
_PIECE_BYTES_MAX = 2 * 2**20
_PIECE_SPANS_MAX = 16_384
_SPAN_BYTES_MAX = 8 * 2**20
# Resource and scope are repeated in every piece: real ones are a few hundred bytes.
_AROUND_BYTES_MAX = 256 * 1024
SPANS_MAX = 262_144
# The spans' way in: ExportTraceServiceRequest.resource_spans, ResourceSpans.scope_spans, ScopeSpans.spans (trace.proto of OTLP 1.x).
_RESOURCE_SPANS, _SCOPE_SPANS, _SPANS = 1, 2, 2
_SPAN_TAG = bytes([_SPANS << 3 | 2])
_TRACE_ID, _SPAN_ID = 1, 2


@dataclass(frozen=True, slots=True)
class _Unit:
    """One span's field, and the fields around it on both outer levels, as bytes."""

    resource: bytes
    scope: bytes
    span: bytes


class _SpanTooLarge(ValueError):
    """A span that no piece has room for."""


def batch_of(content: bytes, *, tenant: str, received_at_ns: int, limits: Limits, on_fault: Callable[[Exception], None]) -> Batch:
    """The rows of a decompressed body. ``on_fault`` hears of what failed inside Legato on a span.

    Raises ``BadRequest`` (400) when it is no OTLP request, ``TooLarge`` (413) when it holds more than ``SPANS_MAX`` spans.
    """
    rows = _Rows(tenant, received_at_ns, limits, on_fault)
    # Every span begins with its field's tag, so there are no more spans than such bytes.
    if len(content) <= _WHOLE_BYTES_MAX and content.count(_SPAN_TAG) <= _WHOLE_SPANS_MAX:
        try:
            return rows.of(content)
        except (MemoryError, OSError, LegatoError):
            raise
        except Exception:
            pass  # Somewhere in it: the pieces find out where.
    return rows.joined(rows.of_units(units) for units in _pieces(content))


@dataclass(slots=True)
class _Rows:
    """Turns pieces of one request to rows; the chunks that the request may still bring are counted down here."""

    tenant: str
    received_at_ns: int
    limits: Limits
    on_fault: Callable[[Exception], None]

    def of(self, content: bytes) -> Batch:
        """The rows of a small request."""
        request = ExportTraceServiceRequest.FromString(content)
        batch = rows_of(request, tenant=self.tenant, received_at_ns=self.received_at_ns, limits=self.limits)
        self.limits = replace(self.limits, chunks_per_request_max=self.limits.chunks_per_request_max - batch.chunks)
        return batch

    def of_units(self, units: Sequence[_Unit]) -> Batch:
        """The rows of some spans; cut in two where it fails, until one span is to blame."""
        try:
            if len(units[0].span) > _SPAN_BYTES_MAX:
                raise _SpanTooLarge
            return self.of(_request(units))
        except (MemoryError, OSError, LegatoError):
            raise
        except Exception as error:
            if len(units) == 1:
                return self._rejected(units[0], error)
        half = len(units) // 2
        return self.joined(self.of_units(part) for part in (units[:half], units[half:]))

    def joined(self, batches: Iterable[Batch]) -> Batch:
        """One batch of several."""
        parts = [self.of(b""), *batches]
        return Batch(
            *(pa.concat_tables([getattr(batch, name) for batch in parts]) for name in ("revs", "sockets", "steps", "requests", "rejected")),
            *(sum(getattr(batch, name) for batch in parts) for name in ("spans", "ignored", "chunks")),
        )

    def _rejected(self, unit: _Unit, error: Exception) -> Batch:
        if not isinstance(error, (DecodeError, _SpanTooLarge)):
            self.on_fault(error)
        rejected = rejected_table([_rejection(unit, error)], self.tenant, self.received_at_ns)
        return replace(self.of(b""), rejected=rejected, spans=1)


def _rejection(unit: _Unit, error: Exception) -> Rejection:
    """The record of a span that cannot be read, or that the code behind fails on: its ids where they can be found."""
    content = unit.span[_varint(unit.span, 1, len(unit.span))[1] :]
    if isinstance(error, DecodeError):
        reason, detail = "protobuf", "no valid protobuf, or a text in the span, its resource or its scope is not UTF-8"
    elif isinstance(error, _SpanTooLarge):
        reason, detail = "size", f"{len(content)} bytes, at most {_SPAN_BYTES_MAX} are taken for one span"
    else:
        reason, detail = "internal", f"{type(error).__name__} inside Legato: please report it with this span's emitter"
    ids = {_TRACE_ID: b"", _SPAN_ID: b""}
    try:
        for number, start, end, _ in _fields(content, 0, len(content)):
            if number in ids:
                ids[number] = content[start:end]
    except BadRequest:
        pass  # What came before the break is all there is to tell.
    return Rejection(
        reason=reason,
        detail=detail,
        trace_id=ids[_TRACE_ID],
        span_id=ids[_SPAN_ID],
        rev=0,
        start_ns=0,
        service_name="",
        emitter="",
        otlp_bytes=len(content),
        span_sha256=hashlib.sha256(content).digest(),
    )


def _pieces(content: bytes) -> Iterator[list[_Unit]]:
    """The body's spans in groups that are small enough to parse; a larger span stands alone."""
    units: list[_Unit] = []
    size = 0
    for unit in _units(content):
        alike = bool(units) and units[-1].resource is unit.resource and units[-1].scope is unit.scope
        own = len(unit.span) + (0 if alike else len(unit.resource) + len(unit.scope))
        if units and (size + own > _PIECE_BYTES_MAX or len(units) == _PIECE_SPANS_MAX):
            yield units
            units, size = [], 0
            own = len(unit.span) + len(unit.resource) + len(unit.scope)
        units.append(unit)
        size += own
    if units:
        yield units


def _units(content: bytes) -> Iterator[_Unit]:
    budget = _Budget()
    for resource_start, resource_end in _messages(content, 0, len(content), _RESOURCE_SPANS, budget):
        resource = _around(content, resource_start, resource_end, _SCOPE_SPANS)
        for scope_start, scope_end in _messages(content, resource_start, resource_end, _SCOPE_SPANS, budget):
            scope = _around(content, scope_start, scope_end, _SPANS)
            if len(resource) + len(scope) > _AROUND_BYTES_MAX:
                raise TooLarge(f"a resource and scope of {len(resource) + len(scope)} bytes, at most {_AROUND_BYTES_MAX} are taken")
            for number, _, end, field_start in _fields(content, scope_start, scope_end):
                if number == _SPANS:
                    budget.take()
                    yield _Unit(resource, scope, content[field_start:end])


@dataclass(slots=True)
class _Budget:
    """Spans, scopes and resources that a request may still hold."""

    left: int = SPANS_MAX

    def take(self) -> None:
        """One more."""
        self.left -= 1
        if self.left < 0:
            raise TooLarge(f"a request of more than {SPANS_MAX} spans, scopes and resources: send fewer in one")


def _messages(content: bytes, start: int, end: int, number: int, budget: _Budget) -> Iterator[tuple[int, int]]:
    for found, at, to, _ in _fields(content, start, end):
        if found == number:
            budget.take()
            yield at, to


def _around(content: bytes, start: int, end: int, number: int) -> bytes:
    return b"".join(content[field_start:to] for found, _, to, field_start in _fields(content, start, end) if found != number)


def _fields(content: bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message as (number, start of the value, end of the value, start of the field). Raises ``BadRequest``.

    The number is -1 for a field that is no message, text or bytes (https://protobuf.dev/programming-guides/encoding).
    """
    at = start
    while at < end:
        tag, value = _varint(content, at, end)
        kind = tag & 7
        if kind == 2:
            size, value = _varint(content, value, end)
            after = value + size
        elif kind == 0:
            after = _varint(content, value, end)[1]
        elif kind in (1, 5):
            after = value + (8 if kind == 1 else 4)
        else:
            raise _malformed(at)
        if after > end or tag < 8:
            raise _malformed(at)
        yield (tag >> 3 if kind == 2 else -1), value, after, at
        at = after


def _varint(content: bytes, at: int, end: int) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(content[at : min(end, at + 10)]):
        value |= (byte & 127) << (7 * i)
        if byte < 128:
            return value, at + i + 1
    raise _malformed(at)


def _malformed(at: int) -> BadRequest:
    return BadRequest(f"the body is no ExportTraceServiceRequest in protobuf: it breaks at byte {at}")


def _request(units: Sequence[_Unit]) -> bytes:
    """A request of these spans. Neighbours of one resource and scope stay together."""
    out, at = [], 0
    while at < len(units):
        first, start = units[at], at
        while at < len(units) and units[at].resource is first.resource and units[at].scope is first.scope:
            at += 1
        scope = first.scope + b"".join(unit.span for unit in units[start:at])
        out.append(_message(_RESOURCE_SPANS, first.resource + _message(_SCOPE_SPANS, scope)))
    return b"".join(out)


def _message(number: int, content: bytes) -> bytes:
    size, head = len(content), bytearray([number << 3 | 2])
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    return bytes(head) + content
