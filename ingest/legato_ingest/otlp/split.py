"""From a body's bytes to its rows, cut so that neither memory nor a fault reaches further than a piece.

One idea: parsed protobuf can be a hundred times its bytes, and one text that is not UTF-8 makes a parser refuse all of it. So a large
body is cut at its items (spans, data points), along the levels that every OTLP request has, into small requests that are parsed one after
the other; a piece that cannot be parsed, or on which the code behind fails, is cut again, down to the one item that is to blame: that one
is rejected and its neighbours are stored. A body of usual size is parsed whole and never walked. It judges nothing inside an item.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from google.protobuf.message import DecodeError

from legato_ingest.errors import BadRequest, LegatoError, TooLarge
from legato_ingest.otlp.protobuf import Malformed, fields_of, message, varint
from legato_ingest.otlp.signals import SPANS, Signal
from legato_ingest.otlp.spans import Rejection
from legato_ingest.otlp.stream_rows import Batch, Limits, nothing, rejected_table

__all__ = ["ITEMS_MAX", "batch_of"]

_WHOLE_BYTES_MAX = 2 * 2**20
_PIECE_BYTES_MAX = 2 * 2**20
_PIECE_ITEMS_MAX = 16_384
_ITEM_BYTES_MAX = 8 * 2**20
# Resource and scope are repeated in every piece: real ones are a few hundred bytes.
_AROUND_BYTES_MAX = 256 * 1024
ITEMS_MAX = 262_144
# Resource and scope: what is wrong with their structure is the request's fault. Further down it is that of one metric.
_SHARED_LEVELS = 2


class _ItemTooLarge(ValueError):
    """An item that no piece has room for."""


@dataclass(frozen=True, slots=True)
class _Around:
    """What surrounds items on one level: its field's number, and its content without the fields that lead further down."""

    number: int
    content: bytes


@dataclass(frozen=True, slots=True)
class _Unit:
    """One item's field as bytes, and what is around it on every level above. ``fault`` is why it cannot be taken, where that is known.

    A metric that cannot be cut is one unit, too.
    """

    around: tuple[_Around, ...]
    item: bytes
    fault: DecodeError | _ItemTooLarge | None = None


def batch_of(
    content: bytes, *, tenant: str, received_at_ns: int, limits: Limits, on_fault: Callable[[Exception], None], signal: Signal = SPANS
) -> Batch:
    """The rows of a decompressed body. ``on_fault`` hears of what failed inside Legato on an item.

    Raises ``BadRequest`` (400) when it is no OTLP request, ``TooLarge`` (413) when it holds more than ``ITEMS_MAX`` items.
    """
    rows = _Rows(signal, tenant, received_at_ns, limits, on_fault)
    if len(content) <= _WHOLE_BYTES_MAX and all(content.count(mark) <= signal.marks_max for mark in signal.marks):
        try:
            return rows.of(content)
        except (MemoryError, OSError, LegatoError):
            raise
        except Exception:
            pass  # Somewhere in it: the pieces find out where.
    return Batch.joined(rows.of_units(units) for units in _pieces(content, signal))


@dataclass(slots=True)
class _Rows:
    """Turns pieces of one request to rows; what the request may still bring of each budget is counted down here."""

    signal: Signal
    tenant: str
    received_at_ns: int
    limits: Limits
    on_fault: Callable[[Exception], None]

    def of(self, content: bytes) -> Batch:
        """The rows of a small request."""
        request = self.signal.request.FromString(content)
        batch = self.signal.rows(request, tenant=self.tenant, received_at_ns=self.received_at_ns, limits=self.limits)
        self.limits = replace(
            self.limits,
            chunks_per_request_max=self.limits.chunks_per_request_max - batch.chunks,
            attribute_bytes_per_request_max=self.limits.attribute_bytes_per_request_max - batch.attribute_bytes,
        )
        return batch

    def of_units(self, units: Sequence[_Unit]) -> Batch:
        """The rows of some items; cut in two where it fails, until one item is to blame."""
        try:
            for unit in units:
                if unit.fault is not None:
                    raise unit.fault
            return self.of(_request(units))
        except (MemoryError, OSError, LegatoError):
            raise
        except Exception as error:
            if len(units) == 1:
                return self._rejected(units[0], error)
        half = len(units) // 2
        return Batch.joined(self.of_units(part) for part in (units[:half], units[half:]))

    def _rejected(self, unit: _Unit, error: Exception) -> Batch:
        if not isinstance(error, (DecodeError, _ItemTooLarge)):
            self.on_fault(error)
        rejected = rejected_table([_rejection(unit, self.signal, error)], self.tenant, self.received_at_ns)
        return replace(nothing(), rejected=rejected, points=int(bool(self.signal.name)), spans=int(not self.signal.name))


def _rejection(unit: _Unit, signal: Signal, error: Exception) -> Rejection:
    """The record of an item that cannot be read, or that the code behind fails on: its ids or its metric where they can be found."""
    content = unit.item[varint(unit.item, 1, len(unit.item))[1] :]
    if isinstance(error, DecodeError):
        reason, detail = "protobuf", f"no valid protobuf, or a text in the {signal.item}, its resource or its scope is not UTF-8"
    elif isinstance(error, _ItemTooLarge):
        reason, detail = "size", f"{len(content)} bytes, more than are taken for one {signal.item} or for what is around it"
    else:
        reason, detail = "internal", f"{type(error).__name__} inside Legato: please report it with this {signal.item}'s emitter"
    third = unit.around[_SHARED_LEVELS].content if len(unit.around) > _SHARED_LEVELS else content
    found = _texts(third)
    if signal.name:
        detail = f"metric {found.get(signal.name, b'')[:256].decode(errors='replace')!r}: {detail}"
        found = {}
    return Rejection(
        reason=reason,
        detail=detail,
        trace_id=found.get(1, b""),
        span_id=found.get(2, b""),
        rev=0,
        start_ns=0,
        service_name="",
        emitter="",
        otlp_bytes=len(content),
        # A point has no ids, so what is around it tells it from the same point of another engine.
        span_sha256=hashlib.sha256(b"".join([*(each.content for each in unit.around if signal.name), content])).digest(),
    )


def _texts(content: bytes) -> dict[int, bytes]:
    """The first two fields of a message, where they can be read."""
    out: dict[int, bytes] = {}
    try:
        for number, start, end, _ in fields_of(content, 0, len(content)):
            if number in (1, 2):
                out[number] = content[start:end]
    except BadRequest:
        pass  # What came before the break is all there is to tell.
    return out


def _pieces(content: bytes, signal: Signal) -> Iterator[list[_Unit]]:
    """The body's items in groups that are small enough to parse; a larger item stands alone."""
    units: list[_Unit] = []
    size = 0
    for unit in _units(content, 0, len(content), (), signal.levels, _Budget(signal.item)):
        before = units[-1].around if units else ()
        own = len(unit.item)
        if unit.around is not before:
            own += _new_bytes(unit.around, before)
        if units and (size + own > _PIECE_BYTES_MAX or len(units) == _PIECE_ITEMS_MAX):
            yield units
            units, size = [], 0
            own = len(unit.item) + _new_bytes(unit.around, ())
        units.append(unit)
        size += own
    if units:
        yield units


def _new_bytes(around: tuple[_Around, ...], before: tuple[_Around, ...]) -> int:
    """What a piece grows by for what is around an item, after an item with ``before`` around it."""
    alike = 0
    while alike < min(len(around), len(before)) and around[alike] is before[alike]:
        alike += 1
    return sum(len(each.content) for each in around[alike:])


@dataclass(slots=True)
class _Budget:
    """Items, and messages around them, that a request may still hold."""

    item: str
    left: int = ITEMS_MAX

    def take(self) -> None:
        """One more."""
        self.left -= 1
        if self.left < 0:
            raise TooLarge(f"a request of more than {ITEMS_MAX} {self.item}s, scopes and resources: send fewer in one")


def _units(
    content: bytes, start: int, end: int, around: tuple[_Around, ...], levels: Sequence[frozenset[int]], budget: _Budget
) -> Iterator[_Unit]:
    """The items within one message, by the field numbers that lead further down."""
    for number, at, to, field_start in fields_of(content, start, end):
        if number not in levels[0]:
            continue
        budget.take()
        if len(levels) == 1:
            yield _Unit(around, content[field_start:to], None if to - field_start <= _ITEM_BYTES_MAX else _ItemTooLarge())
        elif len(around) < _SHARED_LEVELS:
            inner = (*around, _Around(number, _outside(content, at, to, levels[1])))
            if _new_bytes(inner, ()) > _AROUND_BYTES_MAX:
                raise TooLarge(f"a resource and scope of {_new_bytes(inner, ())} bytes, at most {_AROUND_BYTES_MAX} are taken")
            yield from _units(content, at, to, inner, levels[1:], budget)
        else:
            yield from _units_of_one(content, (field_start, at, to), number, around, levels, budget)


def _units_of_one(
    content: bytes, place: tuple[int, int, int], number: int, around: tuple[_Around, ...], levels: Sequence[frozenset[int]], budget: _Budget
) -> Iterator[_Unit]:
    """The points of one metric, or all of it as one unit where it cannot be cut: its neighbours can."""
    field_start, at, to = place
    try:
        inner = (*around, _Around(number, _outside(content, at, to, levels[1])))
        fault = _ItemTooLarge() if _new_bytes(inner, ()) > _AROUND_BYTES_MAX else None
        units = [] if fault else list(_units(content, at, to, inner, levels[1:], budget))
    except Malformed:
        fault = DecodeError()
    yield from [_Unit(around, content[field_start:to], fault)] if fault else units


def _outside(content: bytes, start: int, end: int, inside: frozenset[int]) -> bytes:
    """A message's fields but those that lead further down."""
    return b"".join(content[field_start:to] for found, _, to, field_start in fields_of(content, start, end) if found not in inside)


def _request(units: Iterable[_Unit], level: int = 0) -> bytes:
    """A request of these items, from one level down. Neighbours within one message stay together."""
    out = []
    for _, alike in groupby(units, lambda unit: id(unit.around[level]) if len(unit.around) > level else 0):
        group = list(alike)
        if len(group[0].around) > level:
            around = group[0].around[level]
            out.append(message(around.number, around.content + _request(group, level + 1)))
        else:
            out.extend(unit.item for unit in group)
    return b"".join(out)
