"""The list of all parts of an embedded store, in a file of the store's folder, for what the engine does not notice when it loads a table.

A part that was deleted is missing without a trace. And a few small files of a part have no hash: with one flipped bit in its list of
columns, a column has another name, and its values are those of a default. So before the engine opens the store, the parts are compared with
the list of the last run. A part that differs is moved to its table's folder `detached`, where the engine leaves it. The list also names the
lost parts, until their loss is accepted. The module reads no contents.
"""

from __future__ import annotations

import json
import logging
import os
import pathlib
import threading
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from legato_ingest.storage.blocks import is_covered
from legato_ingest.storage.store import PartFault

__all__ = ["PartList"]

_log = logging.getLogger("legato")
# The files of a part without a hash, and those that the engine believes before it compares a hash: it removes a part without rows.
_BELIEVED = (
    "checksums.txt", "columns.txt", "columns_substreams.txt", "default_compression_codec.txt", "metadata_version.txt",
    "count.txt", "partition.dat",
)  # fmt: skip
_MISSING = "missing"

_Checksums = dict[str, int]
"""The CRC-32 of these files of a part, as far as it has them."""


@dataclass(slots=True)
class _Table:
    """What is listed of the table in one folder: its name, its parts, and what is known of its lost parts by name."""

    name: str
    parts: dict[str, _Checksums] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)


class PartList:
    """The list of the store in this folder. Safe for several threads."""

    def __init__(self, store: pathlib.Path) -> None:
        # The engine names its folders without links.
        self._store = store.resolve()
        self._path = self._store / "legato_parts.json"
        self._lock = threading.Lock()
        self._tables = _read(self._path)
        self._is_written = True

    def compare(self) -> None:
        """Compare the list with the folders, and move parts that differ. The engine must not have the store open."""
        for folder, table in self._tables.items():
            there = _names(self._store / folder)
            # Without its folder a table was dropped, or is elsewhere.
            if there is not None:
                self._compare(self._store / folder, table, there)

    def _compare(self, folder: pathlib.Path, table: _Table, there: set[str]) -> None:
        for name in list(table.parts):
            if name in there and _differs(table.parts[name], _checksums(folder / name)) and _set_aside(folder, name):
                _log.error("part %s of table %s was changed outside the engine, and is set aside", name, table.name)
                there.discard(name)
                # A merged part may be incomplete after a power cut; then the engine uses those that it had replaced.
                if not is_covered(name, there):
                    table.lost[name] = "its files were changed"
                # Its name may be that of a later part.
                del table.parts[name]
                self._is_written = False
        # What was merged is in another part.
        for name in [name for name in table.parts if name not in there and not is_covered(name, there)]:
            table.lost[name], self._is_written = _MISSING, False
            del table.parts[name]

    def update(self, folders: Mapping[str, Collection[str]], parts: Mapping[str, Collection[str]]) -> None:
        """Write the list. ``folders``: of each table; ``parts``: the names of the complete parts in each folder."""
        with self._lock:
            tables = {self._relative(each): self._table(name, each, parts.get(each, ())) for name, own in folders.items() for each in own}
            if (tables != self._tables or not self._is_written) and _write(self._path, tables):
                self._tables, self._is_written = tables, True

    def _table(self, name: str, folder: str, parts: Collection[str]) -> _Table:
        known, path = self._tables.get(self._relative(folder), _Table(name)), pathlib.Path(folder)
        listed = {part: known.parts.get(part) or _checksums(path / part) for part in sorted(parts)}
        return _Table(name, listed, _still_lost(path, known.lost))

    def add_lost(self, folders: Mapping[str, Collection[str]], faults: Iterable[PartFault]) -> None:
        """Take note that parts were set aside. The next ``update`` writes it."""
        with self._lock:
            for table, name, fault in faults:
                for folder in folders.get(table, ()):
                    own = self._tables.setdefault(self._relative(folder), _Table(table))
                    own.lost[name] = fault
                    # Without the prefix of its folder, its name may be that of a later part.
                    for listed in [each for each in own.parts if name.endswith(each)]:
                        del own.parts[listed]
                    self._is_written = False

    def lost(self, folders: Mapping[str, Collection[str]]) -> list[PartFault]:
        """Return the lost parts. ``folders``: of each table; a table without was dropped."""
        with self._lock:
            own = ((folder, self._tables.get(self._relative(folder))) for found in folders.values() for folder in found)
            return sorted(
                (table.name, name, fault)
                for folder, table in own
                if table is not None
                for name, fault in _still_lost(pathlib.Path(folder), table.lost).items()
            )

    def _relative(self, folder: str) -> str:
        return os.path.relpath(folder, self._store)


def _still_lost(folder: pathlib.Path, lost: Mapping[str, str]) -> dict[str, str]:
    """Return the lost parts without those that were set aside and are no longer there: their loss is accepted."""
    aside = (_names(folder / "detached") or set()) if lost else set()
    return {name: fault for name, fault in lost.items() if fault == _MISSING or any(each.endswith(name) for each in aside)}


def _set_aside(folder: pathlib.Path, name: str) -> bool:
    """Move a part to the folder of detached parts, and return whether that succeeded."""
    aside = folder / "detached"
    try:
        aside.mkdir(exist_ok=True)
        there = _names(aside) or set()
        number = next(number for number in range(len(there) + 1) if _aside_name(name, number) not in there)
        (folder / name).rename(aside / _aside_name(name, number))
    except OSError as error:
        _log.error("part %s in %s differs from the list, and cannot be set aside: %s", name, folder, error)
        return False
    return True


def _aside_name(name: str, number: int) -> str:
    return f"broken_{name}" if not number else f"broken-{number}_{name}"


def _read(path: pathlib.Path) -> dict[str, _Table]:
    """Return a list; an empty one if there is none, or none that can be believed."""
    try:
        content: Any = json.loads(path.read_bytes())
        if zlib.crc32(json.dumps(content["tables"]).encode()) != content["checksum"]:
            raise ValueError("the checksum does not match")
        return {folder: _Table(name, dict(parts), dict(lost)) for folder, (name, parts, lost) in content["tables"].items()}
    except FileNotFoundError:
        return {}
    except Exception as error:
        _log.warning("%s cannot be read, so parts that are missing or were changed are not noticed: %s", path, type(error).__name__)
        return {}


def _write(path: pathlib.Path, tables: Mapping[str, _Table]) -> bool:
    """Write a list; a list that cannot be written, on a full disk, only misses what is damaged meanwhile."""
    content = {folder: [table.name, table.parts, table.lost] for folder, table in tables.items()}
    new = path.with_suffix(".new")
    try:
        new.write_text(json.dumps({"tables": content, "checksum": zlib.crc32(json.dumps(content).encode())}), encoding="utf-8")
        new.replace(path)
    except OSError:
        return False
    return True


def _names(folder: pathlib.Path) -> set[str] | None:
    """Return the names in a folder; ``None`` if it cannot be read."""
    try:
        return set(os.listdir(folder))
    except OSError:
        return None


def _checksums(part: pathlib.Path) -> _Checksums:
    """Return the checksums of a part; none of one that was merged away meanwhile."""
    checksums: _Checksums = {}
    for name in _BELIEVED:
        try:
            checksums[name] = zlib.crc32((part / name).read_bytes())
        except OSError:
            continue
    return checksums


def _differs(before: _Checksums, now: _Checksums) -> bool:
    """Return whether a file differs. The engine writes one that is missing, and another version of the engine may write more."""
    return any(now[name] != checksum for name, checksum in before.items() if name in now)
