"""Whether the parts of an embedded store are on the disk as the engine believes they are.

One idea: chDB 26.9 takes no notice of a write that failed: on a full disk an insert succeeds, a merge replaces whole parts by an empty one,
and both are found out when somebody reads. But it knows how many bytes it meant to write, and files that are shorter were not written. So
every new part is compared, size by size, before its rows are acknowledged and long before the parts that it replaces are removed. It asks
no store and mends nothing.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import threading
from collections.abc import Iterable

from legato_ingest.errors import StoreUnavailable

__all__ = ["SOURCES_KEPT_S", "PartFault", "Parts", "check_room", "fault_of"]

SOURCES_KEPT_S = 480
"""How long the parts that a merge replaced stay on the disk: a server's default (chDB's is 0). Merges are not synced, either."""
_FREE_BYTES_MIN = 16 * 2**20
_PROBE = bytes(65_536)
# A part's texts are not in its checksums, but for these; some, like those of a restored part, are there now and then.
_LISTED_TEXTS = ("count.txt", "ttl.txt")
# How those end that are whole.
_ENDS = {"columns.txt": b"\n", "columns_substreams.txt": b"\n", "default_compression_codec.txt": b")"}
_CHECKSUMS = b"checksums format version: 4\n"
# Of a compressed block: the checksum before it, and its header (method, size with the header, size without compression).
_HASH_BYTES, _HEADER_BYTES = 16, 9

PartFault = tuple[str, str, str]
"""Table, part, and what is wrong with it."""


class Parts:
    """Which parts were found whole. Safe for several threads."""

    def __init__(self) -> None:
        self._whole: set[str] = set()
        self._lock = threading.Lock()

    def faults(self, active: Iterable[tuple[str, str, int, str]]) -> list[PartFault]:
        """Of the engine's active parts (table, name, bytes, folder), those that are not whole; each is looked at once."""
        out = []
        for table, name, size, folder in active:
            if folder in self._whole:
                continue
            fault = fault_of(pathlib.Path(folder), size)
            if fault is None:
                with self._lock:
                    self._whole.add(folder)
            elif os.path.isdir(folder):
                out.append((table, name, fault))
        return out

    def forget(self, all_but: Iterable[str]) -> None:
        """Keep none but these folders in mind: a name may come again, with another part."""
        with self._lock:
            self._whole &= set(all_but)


def fault_of(folder: pathlib.Path, size: int) -> str | None:
    """What is wrong with the part in this folder, of which the engine wrote ``size`` bytes beside the few texts that it does not count."""
    try:
        sizes = {entry.name: entry.stat().st_size for entry in os.scandir(folder)}
        texts = [name for name in sizes if name.endswith(".txt") and name not in _LISTED_TEXTS]
        found = sum(sizes.values()) - sum(sizes[name] for name in texts)
        if found < size:
            return f"{found:,} bytes are there of {size:,}"
        for name in texts:
            if not _is_whole(folder / name):
                return f"{name} is cut off"
    except OSError as error:
        return f"{type(error).__name__}: {error.strerror}"
    return None


def _is_whole(path: pathlib.Path) -> bool:
    text = path.read_bytes()
    if path.name == "checksums.txt":
        return _are_whole_blocks(text)
    return bool(text) and text.endswith(_ENDS.get(path.name, b""))


def _are_whole_blocks(text: bytes) -> bool:
    """Whether the compressed blocks of a checksums file end where the file does; another version's are taken as they are."""
    if not text.startswith(_CHECKSUMS):
        return bool(text)
    at = len(_CHECKSUMS)
    while at < len(text):
        header = text[at + _HASH_BYTES : at + _HASH_BYTES + _HEADER_BYTES]
        if len(header) < _HEADER_BYTES:
            return False
        at += _HASH_BYTES + int.from_bytes(header[1:5], "little")
    return at == len(text) and at > len(_CHECKSUMS)


def check_room(store: pathlib.Path) -> None:
    """Raises ``StoreUnavailable`` where the disk of the store takes nothing more: what the engine would write then is lost unseen."""
    free = shutil.disk_usage(store).free
    if free < _FREE_BYTES_MIN:
        raise StoreUnavailable(f"the disk of {store} is full: {free >> 20} MiB are free, and it takes rows from {_FREE_BYTES_MIN >> 20} on")
    probe = store / "probe"
    try:
        probe.write_bytes(_PROBE)
        probe.unlink()
    except OSError as error:
        raise StoreUnavailable(f"the disk of {store} takes nothing: {error.strerror}") from None
