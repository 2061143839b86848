"""The records of the write-ahead log: how payloads are framed in a file, and what is found in a file that a crash or a bad disk left.

A head has a seal that only the owner of the log's key can make for this place of the file. So the records behind a damaged head are found
again by their own heads, and no payload can pass off a part of itself as a record. The module opens and cuts no file.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

__all__ = ["KEY_BYTES", "Payload", "Record", "Records", "bytes_of", "framed", "records_in"]

KEY_BYTES = 32
Payload = bytes | tuple[bytes, ...]
"""What is appended, in one piece or in several: to join a large one would copy it, and no other thread would run meanwhile."""

_MAGIC, _MAGIC_UNSEALED = b"LGW2", b"LGW1"
# Magic, CRC-32 of the payload, length of the payload; then the seal, except in the records of earlier versions.
_HEAD, _SEAL_BYTES = struct.Struct("<4sIQ"), 8
_SEALED = struct.Struct("<QIQ")
# A larger piece of a payload is written alone.
_COPIED_BYTES_MAX = 2**20
_SEARCHED_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Record:
    """The place of a record in its file and that of its payload, the length of the payload in bytes, its CRC-32, and the seal of its head.

    A record of an earlier version has an empty seal.
    """

    begin: int
    at: int
    size: int
    checksum: int
    seal: bytes

    @property
    def end(self) -> int:
        """The place behind the payload."""
        return self.at + self.size

    def is_right(self, key: bytes) -> bool:
        """Return whether the seal is the one that this key makes for this place and contents."""
        return self.seal == _seal(key, self.begin, self.checksum, self.size)


@dataclass(slots=True)
class Records:
    """What a file holds. ``end``: that of the last record. ``damaged``: begin and end of each part that cannot be read, in bytes."""

    found: list[Record] = field(default_factory=list)
    end: int = 0
    damaged: list[tuple[int, int]] = field(default_factory=list)


def bytes_of(payload: Payload) -> int:
    """Return the size of a payload."""
    return sum(map(len, _pieces(payload)))


def framed(payloads: Sequence[Payload], at: int, key: bytes) -> Iterator[bytes]:
    """Yield the records of payloads that are written at a place of a file, in parts. A large piece is a part, so that it is not copied."""
    parts = list[bytes]()
    for payload in payloads:
        checksum, size = 0, bytes_of(payload)
        for piece in _pieces(payload):
            checksum = zlib.crc32(piece, checksum)
        parts += [_HEAD.pack(_MAGIC, checksum, size), _seal(key, at, checksum, size)]
        at += _HEAD.size + _SEAL_BYTES + size
        for piece in _pieces(payload):
            if len(piece) > _COPIED_BYTES_MAX:
                yield b"".join(parts)
                parts = []
                yield piece
            else:
                parts.append(piece)
    yield b"".join(parts)


def records_in(file: BinaryIO, key: bytes) -> Records:
    """Return the records of a file. What is behind the last one is no damage: a crash cut it off, and its request was not acknowledged.

    The last one may be whole and have a wrong checksum: after a power failure, or because the disk damaged an acknowledged request.
    """
    records, size = Records(), os.fstat(file.fileno()).st_size
    while True:
        for record in _consecutive(file, records.end, size, key):
            records.found.append(record)
            records.end = record.end
        rest = _record_at(file, records.end)
        is_cut_off = rest is not None and rest.is_right(key)
        # Behind a record that the end of the file cuts off, there is nothing.
        following = None if is_cut_off else _next_sealed(file, records.end, size, key)
        if following is None:
            break
        records.damaged.append((records.end, following))
        records.end = following
    if rest is not None and not is_cut_off and rest.end <= size:
        records.damaged.append((records.end, rest.end))
    return records


def _is_intact(file: BinaryIO, record: Record) -> bool:
    """Return whether the payload of a record is the one that was written."""
    file.seek(record.at)
    return zlib.crc32(file.read(record.size)) == record.checksum


def _pieces(payload: Payload) -> tuple[bytes, ...]:
    return payload if isinstance(payload, tuple) else (payload,)


def _seal(key: bytes, at: int, checksum: int, size: int) -> bytes:
    return hashlib.blake2b(_SEALED.pack(at, checksum, size), key=key, digest_size=_SEAL_BYTES).digest()


def _record_of(head: bytes, at: int) -> Record | None:
    """Return the record of a head at a place; ``None`` if the bytes are no head. The file may end before the record does."""
    if len(head) < _HEAD.size:
        return None
    magic, checksum, size = _HEAD.unpack_from(head)
    if magic not in (_MAGIC, _MAGIC_UNSEALED):
        return None
    seal_bytes = _SEAL_BYTES if magic == _MAGIC else 0
    return Record(at, at + _HEAD.size + seal_bytes, size, checksum, head[_HEAD.size : _HEAD.size + seal_bytes])


def _record_at(file: BinaryIO, at: int) -> Record | None:
    file.seek(at)
    return _record_of(file.read(_HEAD.size + _SEAL_BYTES), at)


def _consecutive(file: BinaryIO, at: int, end: int, key: bytes) -> Iterator[Record]:
    """Yield the records from a place on, until one is damaged or cut off.

    Records without a seal, and those with a seal of another key, precede those with the right seal: they are older. Behind one with the
    right seal, a record without it is the remains of a refused write, unless the next one has the right seal: then its own is damaged.
    """
    is_current = False
    while (record := _record_at(file, at)) is not None and record.end <= end:
        if record.is_right(key):
            is_current = True
        elif is_current and not ((following := _record_at(file, record.end)) and following.is_right(key)):
            return
        # With the key of another time, the contents decide. Otherwise a damaged length would hide the records behind it.
        elif not _is_intact(file, record) and (record.seal or _next_sealed(file, record.at, record.end, key) is not None):
            return
        yield record
        at = record.end


def _next_sealed(file: BinaryIO, after: int, end: int, key: bytes) -> int | None:
    """Return the place of the next whole record with the right seal."""
    overlap = _HEAD.size + _SEAL_BYTES - 1
    for begin in range(after, end, _SEARCHED_BYTES):
        file.seek(begin)
        part = file.read(min(_SEARCHED_BYTES, end - begin) + overlap)
        place = part.find(_MAGIC)
        while 0 <= place < _SEARCHED_BYTES:
            record = _record_of(part[place : place + overlap + 1], begin + place)
            if record is not None and record.end <= end and record.is_right(key):
                return record.begin
            place = part.find(_MAGIC, place + 1)
    return None
