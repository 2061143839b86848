"""The request splitter: converts a request in protobuf so that neither memory use nor a fault spreads beyond a small part of it.

Parsed protobuf can take a hundred times the memory of its bytes, and one text that is not UTF-8 makes a parser reject the complete message.
A large body is therefore split at its items (spans, data points or log records), along the levels that every OTLP request has, into small
requests that are parsed one after the other. A small request that cannot be parsed, or that makes the converter fail, is halved until one
item is left: that item is rejected and all others are stored. A body of usual size is parsed as it is, without a walk over its bytes. The
splitter looks inside items only to count the messages of one that may have too many. All small requests of a body share its budget.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

from google.protobuf.message import DecodeError

from legato_ingest.errors import BadRequest, LegatoError
from legato_ingest.otlp.batch import Batch, Limits, Rejection, rejected_table
from legato_ingest.otlp.budget import ITEMS_MAX as _GROUP_ITEMS_MAX
from legato_ingest.otlp.budget import Budget, TooMany
from legato_ingest.otlp.protobuf import Malformed, has_more_messages, message, messages_max, read_fields, read_varint
from legato_ingest.otlp.signals import Signal
from legato_ingest.otlp.structure import ENVELOPES_BYTES_MAX, SHARED_LEVELS

__all__ = ["GROUP_BYTES_MAX", "PART_BYTES_MAX", "Converter", "in_parts"]

GROUP_BYTES_MAX = 2**19
"""Bytes of one small request. Its objects take up to ten times as much, and each of its messages 90 bytes."""
MESSAGES_MAX = 196_608
PART_BYTES_MAX = 32 * 2**20
"""Bytes of rows after which the rows of a large body are a batch."""
# So many batches are joined at once, so that a body of many small ones never has all of them in memory.
_JOINED_MAX = 256
_NAME_BYTES_MAX = 256
# The ids of a rejected item are looked for in so many of its fields.
_FIRST_FIELDS = 1_000


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

    ``fault`` is the error because of which it cannot be converted, if that is known before it is parsed; a type, because an error that was
    raised holds the frames with the whole body. Then ``field`` is a view, because it may be large.
    """

    envelopes: tuple[_Envelope, ...]
    field: bytes | memoryview
    fault: type[DecodeError | _ItemTooLarge] | None = None


def in_parts(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Join successive batches up to ``PART_BYTES_MAX`` of rows. Yields at least one batch."""
    joined, parts, size, is_first = list[Batch](), list[Batch](), 0, True
    for batch in batches:
        parts.append(batch)
        size += batch.nbytes
        if size >= PART_BYTES_MAX:
            yield Batch.joined([*joined, *parts])
            joined, parts, size, is_first = [], [], 0, False
        elif len(parts) == _JOINED_MAX:
            joined.append(Batch.joined(parts))
            parts = []
    if joined or parts or is_first:
        yield Batch.joined([*joined, *parts])


@dataclass(slots=True)
class Converter:
    """Converts the small requests of one request, which share ``budget``."""

    signal: Signal
    tenant: str
    now_ns: int
    limits: Limits
    on_fault: Callable[[Exception], None]
    budget: Budget

    def convert_whole(self, content: bytes) -> Batch | None:
        """Convert a body without splitting it; ``None`` if some item is bad, or there are many: splitting the body finds it."""
        try:
            return self.convert(content)
        except (MemoryError, OSError, LegatoError):
            raise
        except Exception:
            return None

    def convert_split(self, content: bytes) -> Iterator[Batch]:
        """Split a body that ``check`` has passed, and yield the rows of each small request."""
        return (Batch.joined(self.convert_items(items)) for items in _groups(content, self.signal))

    def convert(self, content: bytes, *, is_one: bool = False) -> Batch:
        """Parse and convert a small request. If it fails, it has used nothing. ``is_one``: it holds one item."""
        # A long text has the bytes with which messages begin, too.
        if messages_max(content) > MESSAGES_MAX and not (is_one and self._is_text(content)):
            raise TooMany
        request = self.signal.request.FromString(content)
        budget = self.budget.copy()
        batch = self.signal.convert(request, tenant=self.tenant, now_ns=self.now_ns, limits=self.limits, budget=budget)
        self.budget = budget
        return batch

    def _is_text(self, content: bytes) -> bool:
        try:
            return not has_more_messages(content, self.signal.request.DESCRIPTOR, MESSAGES_MAX)
        except Malformed:
            raise DecodeError from None

    def convert_items(self, items: Sequence[_Item]) -> Iterator[Batch]:
        """Yield the rows of some items. Items that fail are divided, until a single item that fails is rejected."""
        left = [items]
        while left:
            part = left.pop()
            try:
                batch = self._rows_of(part)
            except (MemoryError, OSError, LegatoError):
                raise
            except Exception as error:
                if len(part) > 1:
                    left += self._divided(part, error)
                    continue
                batch = self._reject(part[0], error)
            yield batch

    def _rows_of(self, items: Sequence[_Item]) -> Batch:
        """Return the rows of some items. Raises what one of them raises."""
        for item in items:
            if item.fault is not None:
                raise item.fault()
        return self.convert(_request(items), is_one=len(items) == 1)

    def _divided(self, items: Sequence[_Item], error: Exception) -> list[Sequence[_Item]]:
        """Return items that failed in parts: those that can be parsed and each other one alone, or else two halves.

        To halve them until each bad item is alone would convert the good ones between them one by one.
        """
        if isinstance(error, (DecodeError, _ItemTooLarge)):
            good = [item for item in items if self._can_be_parsed(item)]
            if len(good) < len(items):
                kept = set(map(id, good))
                return [each for each in (good, *([item] for item in items if id(item) not in kept)) if each]
        half = len(items) // 2
        return [items[half:], items[:half]]

    def _can_be_parsed(self, item: _Item) -> bool:
        if item.fault is not None:
            return False
        try:
            self.signal.request.FromString(_request([item]))
        except DecodeError:
            return False
        return True

    def _reject(self, item: _Item, error: Exception) -> Batch:
        if not isinstance(error, (DecodeError, _ItemTooLarge, TooMany)):
            self.on_fault(error)
        rejection = _rejection(item, self.signal, error)
        if not self.budget.lists():
            return Batch(unlisted=Counter((rejection.reason,)), **self.signal.count(1))
        return Batch(rejected=rejected_table([rejection], self.tenant), **self.signal.count(1))


def _rejection(item: _Item, signal: Signal, error: Exception) -> Rejection:
    """Return the rejection of an item that failed, with its ids or the name of its metric where they can be read."""
    content = item.field[read_varint(item.field, 1, len(item.field))[1] :]
    if isinstance(error, DecodeError):
        reason, detail = "protobuf", f"not valid protobuf, or a text in the {signal.item}, its resource or its scope is not UTF-8"
    elif isinstance(error, (_ItemTooLarge, TooMany)):
        reason, detail = "size", f"{len(content)} bytes; this {signal.item}, or the messages around it, exceed the limit"
    else:
        reason, detail = "internal", f"{type(error).__name__} inside Legato: please report it with this {signal.item}'s emitter"
    third_level = item.envelopes[SHARED_LEVELS].content if len(item.envelopes) > SHARED_LEVELS else content
    # A point has no ids, so the envelopes distinguish it from the same point of another engine.
    sha256 = hashlib.sha256(b"".join(each.content for each in item.envelopes if signal.name_field))
    sha256.update(content)
    found = _first_fields(third_level)
    if signal.name_field:
        detail = f"metric {found.get(signal.name_field, b'').decode(errors='replace')!r}: {detail}"
        found = {}
    return Rejection(
        reason=reason,
        detail=detail,
        trace_id=found.get(1, b""),
        span_id=found.get(2, b""),
        otlp_bytes=len(content),
        span_sha256=sha256.digest(),
    )


def _first_fields(content: bytes | memoryview) -> dict[int, bytes]:
    """Return the first bytes of the values of the fields 1 and 2 of a message, as far as they can be read."""
    out: dict[int, bytes] = {}
    try:
        # Ids and names come first; a hostile item may have millions of fields.
        for number, start, end, _ in islice(read_fields(content, 0, len(content)), _FIRST_FIELDS):
            if number in (1, 2):
                out[number] = bytes(content[start : min(end, start + _NAME_BYTES_MAX)])
    except BadRequest:
        pass  # The fields before the malformed byte are kept.
    return out


def _groups(content: bytes, signal: Signal) -> Iterator[list[_Item]]:
    """Yield the items of a body in groups that are small enough to parse; a larger item forms its own group."""
    items: list[_Item] = []
    size = 0
    for item in _items(content, 0, len(content), (), signal.levels, signal):
        before = items[-1].envelopes if items else ()
        added = len(item.field)
        if item.envelopes is not before:
            added += _added_bytes(item.envelopes, before)
        if items and (size + added > GROUP_BYTES_MAX or len(items) == _GROUP_ITEMS_MAX):
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


def _items(
    content: bytes, start: int, end: int, envelopes: tuple[_Envelope, ...], levels: Sequence[frozenset[int]], signal: Signal
) -> Iterator[_Item]:
    """Yield the items within one message. ``levels`` holds the numbers of the fields to follow, from this message on."""
    for number, at, to, field_start in read_fields(content, start, end):
        if number not in levels[0]:
            continue
        if len(levels) == 1:
            if to - field_start <= signal.item_bytes_max:
                yield _Item(envelopes, content[field_start:to])
            else:
                yield _Item(envelopes, memoryview(content)[field_start:to], _ItemTooLarge)
        elif len(envelopes) < SHARED_LEVELS:
            inner = (*envelopes, _Envelope(number, _without(content, at, to, levels[1])))
            yield from _items(content, at, to, inner, levels[1:], signal)
        else:
            yield from _items_of_metric(content, (field_start, at, to), number, envelopes, levels, signal)


def _items_of_metric(
    content: bytes,
    place: tuple[int, int, int],
    number: int,
    envelopes: tuple[_Envelope, ...],
    levels: Sequence[frozenset[int]],
    signal: Signal,
) -> Iterator[_Item]:
    """Yield the points of one metric, or the metric as one item when it cannot be split, so that the other metrics still can."""
    field_start, at, to = place
    fault: type[DecodeError | _ItemTooLarge]
    try:
        _check_fields(content, at, to, levels[1:])
        inner, fault = (*envelopes, _Envelope(number, _without(content, at, to, levels[1]))), _ItemTooLarge
    except Malformed:
        inner, fault = (), DecodeError
    except _ItemTooLarge:
        inner, fault = (), _ItemTooLarge
    if inner and _added_bytes(inner, ()) <= ENVELOPES_BYTES_MAX:
        yield from _items(content, at, to, inner, levels[1:], signal)
    else:
        yield _Item(envelopes, memoryview(content)[field_start:to], fault)


def _check_fields(content: bytes, start: int, end: int, levels: Sequence[frozenset[int]]) -> None:
    """Walk over the fields on these levels. Raises ``Malformed`` before an item of the message is returned."""
    for number, at, to, _ in read_fields(content, start, end):
        if len(levels) > 1 and number in levels[0]:
            _check_fields(content, at, to, levels[1:])


def _without(content: bytes, start: int, end: int, numbers: frozenset[int]) -> bytes:
    """Return the fields of a message except those with these numbers. Adjacent fields are copied as one.

    Raises ``_ItemTooLarge`` if they are too large for an envelope.
    """
    kept, began, view = list[memoryview](), -1, memoryview(content)
    for found, _, _, field_start in read_fields(content, start, end):
        if found in numbers and began >= 0:
            kept.append(view[began:field_start])
            began = -1
        elif found not in numbers and began < 0:
            began = field_start
    if began >= 0:
        kept.append(view[began:end])
    if sum(map(len, kept)) > ENVELOPES_BYTES_MAX:
        raise _ItemTooLarge
    return b"".join(kept)


def _request(items: Iterable[_Item], level: int = 0) -> bytes:
    """Return a request of these items, from this level down. Adjacent items with the same envelope share one message."""
    out = list[bytes | memoryview]()
    for _, alike in groupby(items, lambda item: id(item.envelopes[level]) if len(item.envelopes) > level else 0):
        group = list(alike)
        if len(group[0].envelopes) > level:
            envelope = group[0].envelopes[level]
            out.append(message(envelope.number, envelope.content + _request(group, level + 1)))
        else:
            out.extend(item.field for item in group)
    return b"".join(out)
