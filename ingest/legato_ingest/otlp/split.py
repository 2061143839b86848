"""The request splitter: converts the body of an OTLP request so that neither memory use nor a fault spreads beyond a small part of it.

Parsed protobuf can take a hundred times the memory of its bytes, and one text that is not UTF-8 makes a parser reject the complete message.
A large body is therefore split at its items (spans, data points or log records), along the levels that every OTLP request has, into small
requests that are parsed one after the other. A small request that cannot be parsed, or that makes the converter fail, is halved until one
item is left: that item is rejected and all others are stored. A body of usual size is parsed as it is, without a walk over its bytes. The
splitter does not look inside items.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from google.protobuf.message import DecodeError

from legato_ingest.errors import BadRequest, LegatoError, TooLarge
from legato_ingest.otlp.batch import Batch, Limits, Rejection, rejected_table
from legato_ingest.otlp.protobuf import Malformed, message, read_fields, read_varint
from legato_ingest.otlp.signals import SPANS, Signal

__all__ = ["ITEMS_MAX", "convert_body"]

# A body up to this size is parsed without being split.
_UNSPLIT_BYTES_MAX = 2 * 2**20
# Limits of one small request.
_GROUP_BYTES_MAX = 2 * 2**20
_GROUP_ITEMS_MAX = 16_384
_ITEM_BYTES_MAX = 8 * 2**20
# Resource and scope are repeated in every small request; real ones take a few hundred bytes.
_ENVELOPES_BYTES_MAX = 256 * 1024
ITEMS_MAX = 262_144
# The levels of resource and scope. A fault in their structure rejects the request; a fault on a deeper level rejects one metric.
_SHARED_LEVELS = 2


class _ItemTooLarge(ValueError):
    """An item that is too large for any small request."""


@dataclass(frozen=True, slots=True)
class _Envelope:
    """A message around items on one level: its field number, and its content without the fields that lead to items."""

    number: int
    content: bytes


@dataclass(frozen=True, slots=True)
class _Item:
    """The field of one item as bytes, with the envelopes around it, outermost first. A metric that cannot be split is one item, too.

    ``fault`` is the reason why it cannot be converted, if that is known before it is parsed.
    """

    envelopes: tuple[_Envelope, ...]
    field: bytes
    fault: DecodeError | _ItemTooLarge | None = None


def convert_body(
    content: bytes, *, tenant: str, now_ns: int, limits: Limits, on_fault: Callable[[Exception], None], signal: Signal = SPANS
) -> Batch:
    """Convert the decompressed body of a request. ``on_fault`` receives each exception of Legato's own code on an item.

    Raises ``BadRequest`` (400) when the body is not an OTLP request, ``TooLarge`` (413) when it holds more than ``ITEMS_MAX`` items.
    """
    converter = _Converter(signal, tenant, now_ns, limits, on_fault)
    if len(content) <= _UNSPLIT_BYTES_MAX and all(content.count(tag) <= signal.tags_max for tag in signal.tags):
        try:
            return converter.convert(content)
        except (MemoryError, OSError, LegatoError):
            raise
        except Exception:
            pass  # Some item is bad. Splitting the body finds it.
    return Batch.joined(converter.convert_items(items) for items in _groups(content, signal))


@dataclass(slots=True)
class _Converter:
    """Converts the small requests of one request. ``limits`` is reduced by what each of them uses."""

    signal: Signal
    tenant: str
    now_ns: int
    limits: Limits
    on_fault: Callable[[Exception], None]

    def convert(self, content: bytes) -> Batch:
        """Parse and convert a small request."""
        request = self.signal.request.FromString(content)
        batch = self.signal.convert(request, tenant=self.tenant, now_ns=self.now_ns, limits=self.limits)
        self.limits = replace(
            self.limits,
            chunks_per_request_max=self.limits.chunks_per_request_max - batch.chunks,
            attribute_bytes_per_request_max=self.limits.attribute_bytes_per_request_max - batch.attribute_bytes,
        )
        return batch

    def convert_items(self, items: Sequence[_Item]) -> Batch:
        """Convert some items; on a failure halve them, until the single item that fails is rejected."""
        try:
            for item in items:
                if item.fault is not None:
                    raise item.fault
            return self.convert(_request(items))
        except (MemoryError, OSError, LegatoError):
            raise
        except Exception as error:
            if len(items) == 1:
                return self._reject(items[0], error)
        half = len(items) // 2
        return Batch.joined(self.convert_items(part) for part in (items[:half], items[half:]))

    def _reject(self, item: _Item, error: Exception) -> Batch:
        if not isinstance(error, (DecodeError, _ItemTooLarge)):
            self.on_fault(error)
        rejected = rejected_table([_rejection(item, self.signal, error)], self.tenant)
        return Batch(rejected=rejected, **self.signal.count(1))


def _rejection(item: _Item, signal: Signal, error: Exception) -> Rejection:
    """Return the rejection of an item that failed, with its ids or the name of its metric where they can be read."""
    content = item.field[read_varint(item.field, 1, len(item.field))[1] :]
    if isinstance(error, DecodeError):
        reason, detail = "protobuf", f"not valid protobuf, or a text in the {signal.item}, its resource or its scope is not UTF-8"
    elif isinstance(error, _ItemTooLarge):
        reason, detail = "size", f"{len(content)} bytes; this {signal.item}, or the messages around it, exceed the limit"
    else:
        reason, detail = "internal", f"{type(error).__name__} inside Legato: please report it with this {signal.item}'s emitter"
    third_level = item.envelopes[_SHARED_LEVELS].content if len(item.envelopes) > _SHARED_LEVELS else content
    found = _first_fields(third_level)
    if signal.name_field:
        detail = f"metric {found.get(signal.name_field, b'')[:256].decode(errors='replace')!r}: {detail}"
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
        # A point has no ids, so the envelopes distinguish it from the same point of another engine.
        span_sha256=hashlib.sha256(b"".join([*(each.content for each in item.envelopes if signal.name_field), content])).digest(),
    )


def _first_fields(content: bytes) -> dict[int, bytes]:
    """Return the values of the fields 1 and 2 of a message, as far as they can be read."""
    out: dict[int, bytes] = {}
    try:
        for number, start, end, _ in read_fields(content, 0, len(content)):
            if number in (1, 2):
                out[number] = content[start:end]
    except BadRequest:
        pass  # The fields before the malformed byte are kept.
    return out


def _groups(content: bytes, signal: Signal) -> Iterator[list[_Item]]:
    """Yield the items of a body in groups that are small enough to parse; a larger item forms its own group."""
    items: list[_Item] = []
    size = 0
    for item in _items(content, 0, len(content), (), signal.levels, _Budget(signal.item)):
        before = items[-1].envelopes if items else ()
        added = len(item.field)
        if item.envelopes is not before:
            added += _added_bytes(item.envelopes, before)
        if items and (size + added > _GROUP_BYTES_MAX or len(items) == _GROUP_ITEMS_MAX):
            yield items
            items, size = [], 0
            added = len(item.field) + _added_bytes(item.envelopes, ())
        items.append(item)
        size += added
    if items:
        yield items


def _added_bytes(envelopes: tuple[_Envelope, ...], before: tuple[_Envelope, ...]) -> int:
    """Return the bytes that envelopes add to a small request after an item with the envelopes ``before``: those not shared with it."""
    shared = 0
    while shared < min(len(envelopes), len(before)) and envelopes[shared] is before[shared]:
        shared += 1
    return sum(len(each.content) for each in envelopes[shared:])


@dataclass(slots=True)
class _Budget:
    """The number of items and envelopes that a request may still hold."""

    item: str
    left: int = ITEMS_MAX

    def count(self) -> None:
        """Count one more. Raises ``TooLarge``."""
        self.left -= 1
        if self.left < 0:
            raise TooLarge(f"a request of more than {ITEMS_MAX} {self.item}s, scopes and resources: send fewer in one request")


def _items(
    content: bytes, start: int, end: int, envelopes: tuple[_Envelope, ...], levels: Sequence[frozenset[int]], budget: _Budget
) -> Iterator[_Item]:
    """Yield the items within one message. ``levels`` holds the numbers of the fields to follow, from this message on."""
    for number, at, to, field_start in read_fields(content, start, end):
        if number not in levels[0]:
            continue
        budget.count()
        if len(levels) == 1:
            yield _Item(envelopes, content[field_start:to], None if to - field_start <= _ITEM_BYTES_MAX else _ItemTooLarge())
        elif len(envelopes) < _SHARED_LEVELS:
            inner = (*envelopes, _Envelope(number, _without(content, at, to, levels[1])))
            if _added_bytes(inner, ()) > _ENVELOPES_BYTES_MAX:
                raise TooLarge(f"a resource and scope of {_added_bytes(inner, ())} bytes, at most {_ENVELOPES_BYTES_MAX} are accepted")
            yield from _items(content, at, to, inner, levels[1:], budget)
        else:
            yield from _items_of_metric(content, (field_start, at, to), number, envelopes, levels, budget)


def _items_of_metric(
    content: bytes,
    place: tuple[int, int, int],
    number: int,
    envelopes: tuple[_Envelope, ...],
    levels: Sequence[frozenset[int]],
    budget: _Budget,
) -> Iterator[_Item]:
    """Yield the points of one metric, or the metric as one item when it cannot be split, so that the other metrics still can."""
    field_start, at, to = place
    try:
        inner = (*envelopes, _Envelope(number, _without(content, at, to, levels[1])))
        fault = _ItemTooLarge() if _added_bytes(inner, ()) > _ENVELOPES_BYTES_MAX else None
        items = [] if fault else list(_items(content, at, to, inner, levels[1:], budget))
    except Malformed:
        fault = DecodeError()
    yield from [_Item(envelopes, content[field_start:to], fault)] if fault else items


def _without(content: bytes, start: int, end: int, numbers: frozenset[int]) -> bytes:
    """Return the fields of a message except those with these numbers."""
    return b"".join(content[field_start:to] for found, _, to, field_start in read_fields(content, start, end) if found not in numbers)


def _request(items: Iterable[_Item], level: int = 0) -> bytes:
    """Return a request of these items, from this level down. Adjacent items with the same envelope share one message."""
    out = []
    for _, alike in groupby(items, lambda item: id(item.envelopes[level]) if len(item.envelopes) > level else 0):
        group = list(alike)
        if len(group[0].envelopes) > level:
            envelope = group[0].envelopes[level]
            out.append(message(envelope.number, envelope.content + _request(group, level + 1)))
        else:
            out.extend(item.field for item in group)
    return b"".join(out)
