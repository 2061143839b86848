"""Find and repair damaged parts of an embedded store.

chDB 26.9 does not report failed writes: on a full disk an insert succeeds, and a merge replaces complete parts by an empty one; both
are noticed only by a later query. So every new part is checked against its own list of files (``part_checksums``) before its rows are
acknowledged, and long before the parts that it replaced are deleted.

Repair is DETACH and ATTACH of the table: when the engine loads a table it sets incomplete parts aside and uses the parts that they had
replaced, which stay on disk for ``MERGED_PARTS_KEPT_S``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from legato_ingest.errors import StoreUnavailable
from legato_ingest.storage.part_checksums import fault_of
from legato_ingest.storage.store import PartFault

__all__ = ["MERGED_PARTS_KEPT_S", "PartIntegrity", "check_room", "folders_of"]

_log = logging.getLogger("legato")
MERGED_PARTS_KEPT_S = 120
"""How long the parts that a merge replaced stay on disk (the default of a server is 480, that of chDB 0). Merges are not synced, and Linux
writes what is older than 30 s. Each kept part takes 30 to 50 KB of memory."""
# Also statements of Legato's own, which may use the table, too: they fail as unavailable and are repeated.
_KILL_ALL = "KILL QUERY WHERE query NOT LIKE 'KILL QUERY%' ASYNC"
_FOLDERS = "SELECT name, data_paths FROM system.tables WHERE database = currentDatabase() AND engine LIKE '%MergeTree'"
# A part's name: partition (without underscore), first and last block, level, and the version after a mutation. Parts that are being
# written or deleted, or were set aside, have a prefix.
_PART = re.compile(r"[0-9A-Za-z-]+_\d+_\d+_\d+(_\d+)?")
_FREE_BYTES_MIN = 16 * 2**20
_PROBE = bytes(65_536)
# A query that read a table before its repair may still fail this long after it.
_RECENTLY_S = 60.0
# How long an ATTACH waits for the queries that still use the table, after which share of that time they are cancelled, and how often it is
# tried.
_ATTACH_S, _CANCEL_AFTER, _RETRY_S = 20.0, 0.25, 0.1


class PartIntegrity:
    """Which parts of one embedded store are known to be complete, and which tables are being repaired. Safe for several threads."""

    def __init__(self) -> None:
        self._repairing = threading.RLock()
        self._detached: set[str] = set()
        self._repaired_s = float("-inf")
        # How many repairs of each table have begun and ended.
        self._repairs = Counter[str]()
        # By folder of a table: the names of its complete parts.
        self._complete: dict[str, set[str]] = {}
        # Those that the engine has loaded although a check found a fault.
        self._accepted: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    @property
    def detached(self) -> bool:
        """Whether a table is detached: a repair could not attach it again yet."""
        return bool(self._detached)

    @property
    def is_repairing(self) -> bool:
        """Whether a table may be missing now, or was missing recently."""
        return self.detached or time.monotonic() - self._repaired_s < _RECENTLY_S

    def repairs(self, table: str) -> int:
        """Return how many repairs of a table have begun and ended: the number is odd while one runs."""
        with self._lock:
            return self._repairs[table]

    def faults(self, tables: Mapping[str, Sequence[str]]) -> list[PartFault]:
        """Return the damaged parts in the folders of these tables. A complete part is read once. Raises ``OSError``."""
        return [(table, name, fault) for table, folders in tables.items() for folder in folders for name, fault in self._folder(folder)]

    def complete(self) -> dict[str, set[str]]:
        """Return the names of the complete parts by the folder of their table, as of the last check."""
        with self._lock:
            return {folder: set(names) for folder, names in self._complete.items()}

    def forget(self, folders: Iterable[str]) -> None:
        """Check the parts in these folders again next time."""
        with self._lock:
            for folder in folders:
                self._complete.pop(folder, None)
            for folder, names in self._accepted.items():
                self._complete.setdefault(folder, set()).update(names)

    def repair(self, writer: Client, folders: Mapping[str, Sequence[str]], faults: Sequence[PartFault]) -> None:
        """Detach and attach the tables of these faults. Raises ``StoreUnavailable`` if one cannot be attached yet.

        A part that the engine then uses again, although its fault remains, is accepted if it is an old one: of a new one the rows are not
        acknowledged, or in the parts that it replaced. After the repair a merge may at once write another part of the same name.
        """
        tables = {table for table, _, _ in faults}
        with self._repairing, self._counted(tables):
            before = _old_parts(folders, faults)
            for table in sorted(tables - self._detached):
                self._detached.add(table)
                try:
                    writer.command(f"DETACH TABLE {table} SYNC")
                except ClickHouseError as error:
                    # It is detached already, or it cannot be detached: then `attach` finds it in place.
                    _log.warning("%s could not be detached: %s", table, error)
            loaded = self.attach(writer)
            # Before any folder is removed: its number may be used again.
            after = _old_parts(folders, faults)
            self.forget(folder for table in tables for folder in folders[table])
            for table, name, fault in faults:
                if table not in loaded:
                    continue
                _log.warning("part %s of table %s was damaged (%s) and is set aside", name, table, fault)
                for folder in folders[table]:
                    _remove_if_new(os.path.join(folder, "detached", f"broken-on-start_{name}"))
                    part = os.path.join(folder, name)
                    if part in after and after[part] == before.get(part) and fault_of(pathlib.Path(part)) == fault:
                        # The engine loaded the part without complaint: its list is wrong, not its data.
                        self._accept(folder, name)

    @contextlib.contextmanager
    def _counted(self, tables: set[str]) -> Iterator[None]:
        """Count the beginning and the end of a repair."""
        with self._lock:
            self._repairs.update(tables)
        try:
            yield
        finally:
            with self._lock:
                self._repairs.update(tables)

    def attach(self, writer: Client) -> set[str]:
        """Attach the detached tables, and return those that the engine has loaded by that.

        Raises ``StoreUnavailable`` if a query still uses one after 20 s.
        """
        loaded = set[str]()
        with self._repairing:
            until_s, is_cancelled = time.monotonic() + _ATTACH_S, False
            for table in sorted(self._detached):
                while (error := _attach_error(writer, table, loaded)) is not None:
                    left_s = until_s - time.monotonic()
                    if left_s <= 0:
                        raise StoreUnavailable(f"table {table} is being repaired and not available yet: {error}")
                    if not is_cancelled and left_s < (1 - _CANCEL_AFTER) * _ATTACH_S:
                        is_cancelled = True
                        writer.command(_KILL_ALL)
                    time.sleep(_RETRY_S)
                self._detached.discard(table)
                self._repaired_s = time.monotonic()
        return loaded

    def _folder(self, folder: str) -> list[tuple[str, str]]:
        """Check the parts in one folder. A part that disappears meanwhile is not damaged: it was replaced."""
        names = {entry.name for entry in os.scandir(folder) if _PART.fullmatch(entry.name)}
        with self._lock:
            # A name may be used again after the part of this name is gone.
            accepted = self._accepted.get(folder, set())
            accepted &= names
            known = (self._complete.get(folder, set()) | accepted) & names
        complete, found = set(known), []
        for name in sorted(names - known):
            fault = fault_of(pathlib.Path(folder) / name)
            if fault is None:
                complete.add(name)
            elif os.path.isdir(os.path.join(folder, name)):
                found.append((name, fault))
        with self._lock:
            self._complete[folder] = complete
        return found

    def _accept(self, folder: str, name: str) -> None:
        with self._lock:
            for names in (self._accepted, self._complete):
                names.setdefault(folder, set()).add(name)


def _old_parts(folders: Mapping[str, Sequence[str]], faults: Sequence[PartFault]) -> dict[str, int]:
    """Return the inodes of those of these parts, by path, that were written before merged parts that are still kept."""
    inodes, now_s = dict[str, int](), time.time()
    for part in (os.path.join(folder, name) for table, name, _ in faults for folder in folders[table]):
        with contextlib.suppress(OSError):
            found = os.stat(part)
            if now_s - found.st_mtime >= MERGED_PARTS_KEPT_S:
                inodes[part] = found.st_ino
    return inodes


def _remove_if_new(part: str) -> None:
    """Remove a part that was set aside if it was being written just now: its rows were not acknowledged, or are in the parts before it."""
    with contextlib.suppress(OSError):
        if 0 <= time.time() - os.stat(part).st_mtime < MERGED_PARTS_KEPT_S:
            shutil.rmtree(part)


def folders_of(writer: Client) -> dict[str, list[str]]:
    """Return the folders of each table that has parts."""
    return {str(name): list(paths) for name, paths in writer.query(_FOLDERS).result_rows}


def check_room(store: pathlib.Path) -> None:
    """Raise ``StoreUnavailable`` if the store's disk has less than 16 MiB free or rejects a write: the engine would lose rows silently."""
    free = shutil.disk_usage(store).free
    if free < _FREE_BYTES_MIN:
        raise StoreUnavailable(
            f"the disk of {store} is full: {free >> 20} MiB are free, {_FREE_BYTES_MIN >> 20} MiB are needed: free some space"
        )
    probe = store / f"probe-{threading.get_ident()}"
    try:
        probe.write_bytes(_PROBE)
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"the disk of {store} rejects writes: {error.strerror}") from None


def _attach_error(writer: Client, table: str, loaded: set[str]) -> str | None:
    """Attach one table, and add it to ``loaded``, unless it is in place; return the engine's error, or ``None``."""
    try:
        if table not in folders_of(writer):
            writer.command(f"ATTACH TABLE {table}")
            loaded.add(table)
    except ClickHouseError as error:
        return str(error)
    return None
