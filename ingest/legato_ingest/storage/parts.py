"""Whether the parts of an embedded store are on the disk as the engine believes they are.

One idea: chDB 26.9 takes no notice of a write that failed: on a full disk an insert succeeds, a merge replaces whole parts by an empty one,
and both are found out when somebody reads. But each part ends with a list of its files and their sizes, and a file that is shorter, or a
list that is, was not written. So every new part is compared with its list before its rows are acknowledged, and long before the parts that
it replaces are removed. It asks no store and mends nothing. (The list: ClickHouse's MergeTreeDataPartChecksum.h, format 4.)
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache

import lz4.block
import zstandard

from legato_ingest.errors import StoreUnavailable

__all__ = ["SOURCES_KEPT_S", "PartFault", "Parts", "check_room", "fault_of", "parts_of"]

SOURCES_KEPT_S = 480
"""How long the parts that a merge replaced stay on the disk: a server's default (chDB's is 0). Merges are not synced, either."""
_LATELY_S = 60.0
_FREE_BYTES_MIN = 16 * 2**20
_PROBE = bytes(65_536)
# Partition (no underscore in it), first and last block, level and, where a mutation made it, version. What is being written, deleted or was
# set aside has another word before it.
_PART = re.compile(r"[0-9A-Za-z-]+_\d+_\d+_\d+(_\d+)?")
_LIST = "checksums.txt"
_HEAD = b"checksums format version: 4\n"
# Of a compressed block: the hash before it, its header (method, size with the header, size without compression), and the methods.
_HASH_BYTES, _HEADER_BYTES = 16, 9
_NONE, _LZ4, _ZSTD = 0x02, 0x82, 0x90
# Texts that the list leaves out, by how those end that are whole.
_ENDS = {"columns.txt": b"\n", "columns_substreams.txt": b"\n", "default_compression_codec.txt": b")"}

PartFault = tuple[str, str, str]
"""Table, part, and what is wrong with it."""


class Parts:
    """Which parts of one store were found whole, by the folder of their table. Safe for several threads.

    ``detached``: tables that were taken away to be read anew, and are not back yet; ``mending``: who holds it does that.
    """

    def __init__(self) -> None:
        self.mending = threading.RLock()
        self.detached: set[str] = set()
        self.mended_s = float("-inf")
        self._whole: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def faults(self, tables: Mapping[str, Sequence[str]]) -> list[PartFault]:
        """Of the parts in the folders of these tables, those that are not whole; one that is, is looked at once. Raises ``OSError``."""
        out = []
        for table, folders in tables.items():
            for folder in folders:
                names = {entry.name for entry in os.scandir(folder) if _PART.fullmatch(entry.name)}
                with self._lock:
                    known = self._whole.get(folder, set()) & names
                whole = set(known)
                for name in sorted(names - known):
                    fault = fault_of(pathlib.Path(folder) / name)
                    if fault is None:
                        whole.add(name)
                    elif os.path.isdir(os.path.join(folder, name)):
                        out.append((table, name, fault))
                with self._lock:
                    self._whole[folder] = whole
        return out

    def forget(self, folders: Iterable[str]) -> None:
        """Look at the parts in these folders again."""
        with self._lock:
            for folder in folders:
                self._whole.pop(folder, None)

    def accept(self, folder: str, name: str) -> None:
        """The engine took this part up again, whatever its list says: it is read as it is."""
        with self._lock:
            self._whole.setdefault(folder, set()).add(name)

    @property
    def is_mending(self) -> bool:
        """Whether a table may be missing now, or was lately."""
        return bool(self.detached) or time.monotonic() - self.mended_s < _LATELY_S


@cache
def parts_of(store: pathlib.Path) -> Parts:
    """What is known of the store at this path: one engine serves it, however many handles there are."""
    return Parts()


def fault_of(folder: pathlib.Path) -> str | None:
    """What is wrong with the part in this folder, by its own list and by how its texts end; ``None``: it is whole."""
    try:
        sizes = {entry.name: entry.stat().st_size for entry in os.scandir(folder)}
        listed = _listed((folder / _LIST).read_bytes())
        if listed is None:
            return f"{_LIST} is cut off"
        for name, size in listed.items():
            # What stands for several files, as of a projection, is a folder with a list of its own.
            if sizes.get(name, 0) < size and not name.endswith(".proj"):
                return f"{sizes.get(name, 0):,} bytes of {name} are there of {size:,}"
        for name in sizes:
            if name.endswith(".txt") and name not in listed and not _ends_well(folder / name):
                return f"{name} is cut off"
    except OSError as error:
        return f"{type(error).__name__}: {error.strerror}"
    return None


def _ends_well(path: pathlib.Path) -> bool:
    text = path.read_bytes()
    return bool(text) and text.endswith(_ENDS.get(path.name, b""))


def _listed(text: bytes) -> dict[str, int] | None:
    """Sizes by file, as the list has them; ``None`` where it is cut off. Of another format: none, as nothing can be said."""
    if not text.startswith(_HEAD):
        return None if len(text) < len(_HEAD) else {}
    try:
        return dict(_entries(b"".join(_blocks(text[len(_HEAD) :]))))
    except KeyError:
        return {}
    except (ValueError, IndexError, zstandard.ZstdError, lz4.block.LZ4BlockError):
        return None


def _blocks(text: bytes) -> Iterator[bytes]:
    """The list without compression. Raises ``ValueError`` where it is cut off or empty, ``KeyError`` for another compression."""
    if not text:
        raise ValueError("no block")
    while text:
        header = text[_HASH_BYTES : _HASH_BYTES + _HEADER_BYTES]
        size, whole = int.from_bytes(header[1:5], "little"), int.from_bytes(header[5:9], "little")
        body, text = text[_HASH_BYTES + _HEADER_BYTES : _HASH_BYTES + size], text[_HASH_BYTES + size :]
        if len(header) < _HEADER_BYTES or len(body) != size - _HEADER_BYTES:
            raise ValueError("a block is cut off")
        yield _UNPACK[header[0]](body, whole)


_UNPACK: Mapping[int, Callable[[bytes, int], bytes]] = {
    _NONE: lambda packed, size: packed,
    _LZ4: lambda packed, size: bytes(lz4.block.decompress(packed, uncompressed_size=size)),
    _ZSTD: lambda packed, size: zstandard.ZstdDecompressor().decompress(packed, max_output_size=size),
}


def _entries(data: bytes) -> Iterator[tuple[str, int]]:
    """Name and size of each file; hashes and sizes without compression are skipped."""
    count, at = _number(data, 0)
    for _ in range(count):
        length, at = _number(data, at)
        name, at = data[at : at + length].decode(), at + length
        size, at = _number(data, at)
        at += _HASH_BYTES
        compressed, at = data[at], at + 1
        if compressed:
            _, at = _number(data, at)
            at += _HASH_BYTES
        yield name, size
    if at != len(data):
        raise ValueError("the list is cut off")


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def check_room(store: pathlib.Path) -> None:
    """Raises ``StoreUnavailable`` where the disk of the store takes nothing more: what the engine would write then is lost unseen."""
    free = shutil.disk_usage(store).free
    if free < _FREE_BYTES_MIN:
        raise StoreUnavailable(f"the disk of {store} is full: {free >> 20} MiB are free, and it takes rows from {_FREE_BYTES_MIN >> 20} on")
    probe = store / f"probe-{threading.get_ident()}"
    try:
        probe.write_bytes(_PROBE)
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"the disk of {store} takes nothing: {error.strerror}") from None
