"""Protobuf's wire format, as far as cutting a message at its fields takes it (https://protobuf.dev/programming-guides/encoding).

One idea: a message is a row of fields, each of which says how long it is, so it can be cut and put together again without being parsed. It
knows no message type.
"""

from __future__ import annotations

from collections.abc import Iterator

from legato_ingest.errors import BadRequest
from legato_ingest.varint import read_varint

__all__ = ["Malformed", "fields_of", "message", "varint"]


class Malformed(BadRequest):
    """Bytes that are no message."""

    def __init__(self, at: int) -> None:
        super().__init__(f"the body is no OTLP request in protobuf: it breaks at byte {at}")


def fields_of(content: bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message as (number, start of the value, end of the value, start of the field). Raises ``Malformed``.

    The number is -1 for a field that is no message, text or bytes.
    """
    at = start
    while at < end:
        tag, value = varint(content, at, end)
        kind = tag & 7
        if kind == 2:
            size, value = varint(content, value, end)
            after = value + size
        elif kind == 0:
            after = varint(content, value, end)[1]
        elif kind in (1, 5):
            after = value + (8 if kind == 1 else 4)
        else:
            raise Malformed(at)
        if after > end or tag < 8:
            raise Malformed(at)
        yield (tag >> 3 if kind == 2 else -1), value, after, at
        at = after


def varint(content: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a number of up to 64 bits and the position behind it. Raises ``Malformed``."""
    try:
        return read_varint(content, at, end)
    except ValueError:
        raise Malformed(at) from None


def message(number: int, content: bytes) -> bytes:
    """A field that holds a message; its number is at most 15."""
    size, head = len(content), bytearray([number << 3 | 2])
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    return bytes(head) + content
