"""The protobuf wire format, as far as splitting a message at its fields needs it (https://protobuf.dev/programming-guides/encoding).

A message is a sequence of fields that each carry their length, so it can be split and reassembled without being parsed. A parsed message
takes up to 90 bytes, however short it was, so messages are counted before they are parsed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from google.protobuf.descriptor import Descriptor

from legato_ingest import varint
from legato_ingest.errors import BadRequest

__all__ = ["Malformed", "has_more_messages", "message", "messages_max", "read_fields", "read_varint"]

# Wire types (the low three bits of a tag).
_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5
# Its type is in the first byte of a tag, also of one that is written in more bytes than it needs.
_KIND_BITS = np.uint8(7)
_DEPTH_MAX = 100


class Malformed(BadRequest):
    """Bytes that are not a message."""

    def __init__(self, at: int) -> None:
        super().__init__(f"the body is not an OTLP request in protobuf: it is malformed at byte {at}")


def read_fields(content: bytes | memoryview, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of a message as (number, start of the value, end of the value, start of the field). Raises ``Malformed``.

    The number is -1 for a field that is neither a message nor text nor bytes.
    """
    at = start
    while at < end:
        tag, value = read_varint(content, at, end)
        kind = tag & 7
        if kind == _LEN:
            size, value = read_varint(content, value, end)
            after = value + size
        elif kind == _VARINT:
            after = read_varint(content, value, end)[1]
        elif kind in (_I64, _I32):
            after = value + (8 if kind == _I64 else 4)
        else:
            raise Malformed(at)
        if after > end or tag < 8:
            raise Malformed(at)
        yield (tag >> 3 if kind == _LEN else -1), value, after, at
        at = after


def read_varint(content: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """Return an integer of up to 64 bits and the position after it. Raises ``Malformed``."""
    try:
        return varint.read_varint(content, at, end)
    except ValueError:
        raise Malformed(at) from None


def message(number: int, content: bytes) -> bytes:
    """Return a field that holds a message. ``number`` is at most 15."""
    size, head = len(content), bytearray([number << 3 | _LEN])
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    return bytes(head) + content


def messages_max(content: bytes) -> int:
    """Return a number that the messages inside a request of OTLP never exceed: each begins with such a byte, and so do parts of texts."""
    return int(np.count_nonzero((np.frombuffer(content, np.uint8) & _KIND_BITS) == _LEN))


def has_more_messages(content: bytes, kind: Descriptor, most: int) -> bool:
    """Return whether a message of this kind contains more than this many messages, or is nested deeper than parsers accept.

    Raises ``Malformed``.
    """
    found, walks = 0, [(read_fields(content, 0, len(content)), kind)]
    while walks:
        fields, outer = walks[-1]
        for number, at, to, _ in fields:
            field = outer.fields_by_number.get(number)
            if field is not None and field.message_type is not None:
                found += 1
                if found > most or len(walks) > _DEPTH_MAX:
                    return True
                walks.append((read_fields(content, at, to), field.message_type))
                break
        else:
            walks.pop()
    return False
