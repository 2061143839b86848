"""Check one data part of ClickHouse against its own list of files.

Each part (a folder) has a list ``checksums.txt`` with the name and size of its files, written last. A file that is shorter than listed,
or a list that is cut off, was not written completely. Format: MergeTreeDataPartChecksum.h in ClickHouse's source, version 4. The
content of files is not compared with the listed hashes.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterator, Mapping

import lz4.block
import zstandard

from legato_ingest.varint import read_varint

__all__ = ["fault_of", "listed_sizes"]

_LIST = "checksums.txt"
_HEAD = b"checksums format version: 4\n"
# A compressed block is a hash, a header (1 byte method, 4 bytes size with the header, 4 bytes uncompressed size), and the data.
_HASH_BYTES, _HEADER_BYTES = 16, 9
_NONE, _LZ4, _ZSTD = 0x02, 0x82, 0x90
# Text files that are not in the list, with the end of a complete one.
_ENDS = {"columns.txt": b"\n", "columns_substreams.txt": b"\n", "default_compression_codec.txt": b")"}


def fault_of(part: pathlib.Path) -> str | None:
    """Return what is damaged in the part in this folder, or ``None`` if it is complete."""
    try:
        sizes = {entry.name: entry.stat().st_size for entry in os.scandir(part)}
        listed = listed_sizes((part / _LIST).read_bytes())
        if listed is None:
            return f"{_LIST} is cut off"
        for name, size in listed.items():
            # A projection is one entry of the list and a folder with its own list.
            if sizes.get(name, 0) < size and not name.endswith(".proj"):
                return f"{name} has {sizes.get(name, 0):,} of {size:,} bytes"
        for name in sizes:
            if name.endswith(".txt") and name not in listed and not _is_complete_text(part / name):
                return f"{name} is cut off"
    except OSError as error:
        return f"{type(error).__name__}: {error.strerror}"
    return None


def listed_sizes(text: bytes) -> dict[str, int] | None:
    """Return the size of each file in a list; ``None`` if the list is cut off; nothing if its version or compression is unknown."""
    if not text.startswith(_HEAD):
        return None if len(text) < len(_HEAD) else {}
    try:
        return dict(_entries(b"".join(_blocks(text[len(_HEAD) :]))))
    except KeyError:
        return {}
    except (ValueError, IndexError, zstandard.ZstdError, lz4.block.LZ4BlockError):
        return None


def _is_complete_text(path: pathlib.Path) -> bool:
    text = path.read_bytes()
    return bool(text) and text.endswith(_ENDS.get(path.name, b""))


def _blocks(text: bytes) -> Iterator[bytes]:
    """Yield the uncompressed blocks. Raises ``ValueError`` if one is cut off or there is none, ``KeyError`` for another compression."""
    if not text:
        raise ValueError("no block")
    while text:
        header = text[_HASH_BYTES : _HASH_BYTES + _HEADER_BYTES]
        size, uncompressed = int.from_bytes(header[1:5], "little"), int.from_bytes(header[5:9], "little")
        data, text = text[_HASH_BYTES + _HEADER_BYTES : _HASH_BYTES + size], text[_HASH_BYTES + size :]
        if len(header) < _HEADER_BYTES or len(data) != size - _HEADER_BYTES:
            raise ValueError("a block is cut off")
        yield _DECOMPRESS[header[0]](data, uncompressed)


_DECOMPRESS: Mapping[int, Callable[[bytes, int], bytes]] = {
    _NONE: lambda data, size: data,
    _LZ4: lambda data, size: bytes(lz4.block.decompress(data, uncompressed_size=size)),
    _ZSTD: lambda data, size: zstandard.ZstdDecompressor().decompress(data, max_output_size=size),
}


def _entries(data: bytes) -> Iterator[tuple[str, int]]:
    """Yield name and size of each file; hashes and uncompressed sizes are skipped. Raises ``ValueError`` or ``IndexError`` if cut off."""
    end = len(data)
    count, at = read_varint(data, 0, end)
    for _ in range(count):
        length, at = read_varint(data, at, end)
        name, at = data[at : at + length].decode(), at + length
        size, at = read_varint(data, at, end)
        at += _HASH_BYTES
        is_compressed, at = data[at], at + 1
        if is_compressed:
            _, at = read_varint(data, at, end)
            at += _HASH_BYTES
        yield name, size
    if at != end:
        raise ValueError("the list is cut off")
