"""The embedded store: ClickHouse's engine in this process (chDB), with its data in a folder.

chDB does not report failed writes, so every change is followed by a check of the files that it wrote, and a damaged table is repaired
(``chdb_integrity``). One process may use a folder at a time (``lock``).
"""

from __future__ import annotations

import contextlib
import pathlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import clickhouse_connect
from clickhouse_connect.driver.client import Client

from legato_ingest.errors import LegatoError, SettingsError, StoreError, StoreRefused, StoreUnavailable
from legato_ingest.storage.chdb_integrity import MERGED_PARTS_KEPT_S, PartIntegrity, check_room, folders_of
from legato_ingest.storage.client_errors import translated
from legato_ingest.storage.clients import ClientStore
from legato_ingest.storage.part_list import PartList
from legato_ingest.storage.part_scrub import DAMAGED, PartScrub, set_aside_by_engine
from legato_ingest.storage.store import PartFault, ReadLimits
from legato_ingest.storage.watermark import now_ms

__all__ = ["EmbeddedStore", "backups_of", "unfinished_restore"]

_DATABASE, _UNKNOWN_TABLE = "default", 60
# These codes of ClickHouse may also be about damaged data, if they name a part: CANNOT_READ_ALL_DATA and INCORRECT_DATA.
_PERHAPS_DAMAGED, _IN_PART = frozenset((33, 117)), "while reading from part"
# The engine looks at the memory of the process so often: its 50 ms take a twentieth of the processor time at rest.
_MEMORY_WORKER_MS = "250"
# The default is a pool of threads for reading. A statement of Legato's own reads some kilobytes from several parts, which are mostly in the
# page cache, and to hand each read to a thread takes an eighth of the processor time of all statements at rest.
_READ_METHOD = "pread"
# The engine checks each table for background work: after an insert or a merge at once, then after pauses that grow from 0.1 s on by a
# factor. With the default of 1.1 these checks wake a pool of threads 12 times a second at rest. The first pause must stay short: a mutation
# of many parts waits for it after every four parts.
_LOOK_FACTOR, _LOOK_S_MAX = "1.5", "60"
# Statements that need no free space; some of them free space.
_FREES_ROOM = ("DROP", "KILL", "SYSTEM", "TRUNCATE")
# The clones of this store may be running statements of Legato's own: only the clients of readers are read-only.
_KILL_READS = "KILL QUERY WHERE Settings['readonly'] = '1' ASYNC"
_INSERTED = re.compile(r"\s*INSERT INTO (\w+)")
_WITHOUT_LIFETIME = """
SELECT name FROM system.tables
WHERE database = currentDatabase() AND engine LIKE '%MergeTree' AND create_table_query NOT LIKE '%old_parts_lifetime = {kept}%'"""


class EmbeddedStore(ClientStore):
    """The store in the folder ``path``; opening takes a second and 200 MB. Raises ``StoreUnavailable``, ``SettingsError`` without the
    package chdb, and ``LegatoError`` for a store without all rows of its backup.

    ``backups`` is the only folder that the engine may write backups to or restore from; the default is next to the store. Further stores on
    the same folder in this process must be made with ``clone``: they share the state of the part checks.
    """

    def __init__(
        self,
        path: pathlib.Path,
        read_limits: ReadLimits | None = None,
        backups: pathlib.Path | None = None,
        *,
        parent: EmbeddedStore | None = None,
    ) -> None:
        if parent is None and unfinished_restore(path).exists():
            raise LegatoError(
                f"the store {path} lacks rows: a `legato restore` into it did not end, or found other rows than in its backup; run `legato "
                "restore` again, which empties this store first"
            )
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path, self._backups = path, backups or backups_of(path)
        self._integrity: PartIntegrity = parent._integrity if parent is not None else PartIntegrity()
        self._scrub: PartScrub = parent._scrub if parent is not None else PartScrub()
        self._parts: PartList = parent._parts if parent is not None else PartList(path)
        self._is_root = parent is None
        if self._is_root:
            self._parts.compare()
        # The folders of each table, as of the last change to the whole store.
        self._folders = dict[str, list[str]]()
        super().__init__(read_limits, _DATABASE)

    def clone(self, read_limits: ReadLimits | None = None) -> EmbeddedStore:
        """Return another store on the same folder, without read limits unless they are given."""
        return EmbeddedStore(self._path, read_limits, backups=self._backups, parent=self)

    def clock_ms(self) -> int:
        """Return this host's time in ms since the epoch."""
        return now_ms()

    def end_reads(self) -> None:
        """Refuse new queries of readers and cancel the running ones."""
        super().end_reads()
        with self._write() as writer:
            writer.command(_KILL_READS)

    def keep_merged_parts(self) -> None:
        """Set ``old_parts_lifetime`` of every table, so that parts replaced by a merge stay until ``verify`` has checked the merge."""
        for (table,) in self.select(_WITHOUT_LIFETIME.format(kept=MERGED_PARTS_KEPT_S)):
            self.command(f"ALTER TABLE {table} MODIFY SETTING old_parts_lifetime = {MERGED_PARTS_KEPT_S}")

    def verify(self) -> None:
        """Check the parts that the engine made by merging. Raises ``StoreUnavailable`` if one is damaged, after its table was repaired."""
        with self._write() as writer:
            self._folders = folders_of(writer)
        # Without the writing client, because there may be many parts.
        try:
            is_damaged = bool(self._integrity.faults(self._folders))
        except FileNotFoundError:
            is_damaged = True
        if is_damaged:
            with self._write() as writer:
                self._check(writer)
        self._parts.update(self._folders, self._integrity.complete())

    def scrub(self, seconds: float) -> None:
        """Compare the contents of parts with their hashes for so long, and detach those that are damaged."""
        with self._write() as writer:
            # What an insert has just written is checked by the insert, which then fails; to detach it would hide that.
            self._check(writer)
            if faults := self._scrub.run(writer, seconds):
                self._parts.add_lost(self._folders, faults)

    def give_back_memory(self) -> None:
        """Give memory that the engine does not use back to the system."""
        # Without a look at tables that a repair left detached: that may take long, and other calls wait.
        with super()._write() as writer:
            writer.command("SYSTEM JEMALLOC PURGE")

    def lost_parts(self) -> list[PartFault]:
        """Return the parts with rows that are not shown: they were set aside, or had gone when the store was opened."""
        with self._write() as writer:
            # Of the scrub before: to ask for them takes 5 ms.
            folders = self._folders = self._folders or folders_of(writer)
            self._parts.add_lost(folders, set_aside_by_engine(writer, self._parts.lost(folders)))
            return self._parts.lost(folders)

    def close(self) -> None:
        """Close all connections. The list of parts is written once more."""
        if self._is_root:
            # The store's folder may be gone.
            with contextlib.suppress(StoreError, OSError):
                self.verify()
        super().close()

    def _connect(self) -> Client:
        options = {
            "backups.allowed_path": str(self._backups),
            "memory_worker_period_ms": _MEMORY_WORKER_MS,
            "local_filesystem_read_method": _READ_METHOD,
            "background_processing_pool_task_sleep_seconds_when_no_work_multiplier": _LOOK_FACTOR,
            "background_processing_pool_task_sleep_seconds_when_no_work_max": _LOOK_S_MAX,
        }
        try:
            return clickhouse_connect.get_client(interface="chdb", path=str(self._path), chdb_options=options)
        except ImportError as error:
            hint = "in a checkout of Legato, pip install './ingest[chdb]', or name a ClickHouse server in LEGATO_STORE"
            raise SettingsError(f"an embedded store needs the package chdb, which is missing: {hint}") from error

    def _connect_reader(self, settings: Mapping[str, int | str], filters: str) -> Client:
        reader = self._connect()
        try:
            for name, value in settings.items():
                reader.command(f"SET {name} = {value!r}")
            if filters:
                reader.command(f"SET additional_table_filters = {filters}")
                reader.command(f"USE {self._tenant_database}")
            reader.command("SET readonly = 1")
        except BaseException:
            reader.close()
            raise
        return reader

    @contextmanager
    def _errors(self, *, of_reader: bool = False) -> Iterator[None]:
        """Translate errors. A table that is missing while it is repaired is unavailable, not unknown."""
        try:
            with translated():
                yield
        except StoreError as error:
            is_damage = error.code in DAMAGED or (error.code in _PERHAPS_DAMAGED and _IN_PART in str(error))
            if is_damage and of_reader:
                is_damage = self._scrub.suspect_of_reader(str(error))
            elif is_damage:
                self._scrub.suspect(str(error))
            # Until the table is in place again, and until the damaged part is detached.
            is_passing = is_damage or (error.code == _UNKNOWN_TABLE and self._integrity.is_repairing)
            if is_passing and isinstance(error, StoreRefused):
                raise StoreUnavailable(str(error), error.code) from error
            raise

    @contextmanager
    def _write(self) -> Iterator[Client]:
        """The writing client, after tables that a repair left detached were attached again."""
        with super()._write() as writer:
            if self._integrity.detached:
                self._integrity.attach(writer)
            yield writer

    @contextmanager
    def _change(self, sql: str = "", table: str = "") -> Iterator[Client]:
        """The writing client for a change: there must be free space before it, and its files are checked after it.

        An insert from a query is one into a table, too: rows that were set aside meanwhile must not count as written.
        """
        if inserted := _INSERTED.match(sql):
            table = inserted[1]
        with super()._change() as writer:
            if not sql.lstrip().upper().startswith(_FREES_ROOM):
                check_room(self._path)
            repairs = self._integrity.repairs(table)
            yield writer
            self._check(writer, table)
            if table and (self._integrity.repairs(table) != repairs or repairs % 2):
                # Another change has perhaps found what this insert wrote, and set it aside.
                raise StoreUnavailable(f"damaged parts of table {table} were set aside during this insert: send the rows again")

    def _check(self, writer: Client, table: str = "") -> None:
        """Check the parts of one table, or of all. Raises ``StoreUnavailable`` if one is damaged, after its table was repaired."""
        if not table or table not in self._folders:
            self._folders = folders_of(writer)
        tables = [table] if table in self._folders else list(self._folders)
        try:
            faults = self._integrity.faults({name: self._folders[name] for name in tables})
        except FileNotFoundError:
            # A table was dropped meanwhile, or created again: then it has another folder.
            self._folders = folders_of(writer)
            faults = self._integrity.faults({name: self._folders[name] for name in tables if name in self._folders})
        if faults:
            self._integrity.repair(writer, self._folders, faults)
            name, part, fault = faults[0]
            raise StoreUnavailable(
                f"a write to the disk failed: part {part} of table {name} is damaged ({fault}), one of {len(faults)}: check the disk and "
                "its free space, then send the rows again"
            )


def backups_of(path: pathlib.Path) -> pathlib.Path:
    """Return the folder for the backups of the store at ``path``."""
    return path.with_name(path.name + ".backups")


def unfinished_restore(path: pathlib.Path) -> pathlib.Path:
    """Return the file that the store at ``path`` has until its restore has ended."""
    return path / "legato_restoring"
