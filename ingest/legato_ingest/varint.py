"""Variable-length integers of 7 bits a byte, low bits first, as in protobuf and in ClickHouse's own formats."""

from __future__ import annotations

__all__ = ["read_varint"]

_BYTES_MAX = 10


def read_varint(content: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """Return the number at ``at`` and the position behind it. Raises ``ValueError`` if it does not end before ``end`` or in 10 bytes."""
    value = 0
    for i, byte in enumerate(content[at : min(end, at + _BYTES_MAX)]):
        value |= (byte & 127) << (7 * i)
        if byte < 128:
            return value, at + i + 1
    raise ValueError(f"the number at byte {at} does not end")
