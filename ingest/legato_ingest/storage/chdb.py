"""The store: the only module that talks to ClickHouse's engine.

One idea: one interface over clickhouse-connect; rows go in as Arrow tables, whole batches at a time. Reads run on handles of their own
that have been told their limits, their tenant and ``readonly = 1`` for good, so nothing a query says can lift them. It knows no table but
by the names it is given.
"""

from __future__ import annotations

import pathlib
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import clickhouse_connect
import pyarrow as pa
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import StoreRefused, StoreUnavailable
from legato_ingest.storage.mending import KILL_ALL, attach, folders_of, mend
from legato_ingest.storage.parts import SOURCES_KEPT_S, check_room, parts_of
from legato_ingest.storage.sql import quoted
from legato_ingest.storage.watermark import now_ms

__all__ = ["ReadLimits", "Store", "backups_of", "filters_of", "translated"]

# Codes of ClickHouse that pass: memory, disk, parts, time-outs, locks, connections. What they refuse now they may take later.
_TRANSIENT = frozenset((33, 74, 75, 76, 159, 201, 202, 203, 209, 210, 225, 236, 241, 242, 243, 252, 319, 425, 473, 499, 999, 1000, 1001))
_CODE = re.compile(r"Code: (\d+)")
# What the driver puts around a server's answer: a reader need not know where the server is.
_AROUND = re.compile(r"^Received ClickHouse exception, code: \d+, server response: | \(for url [^)]*\)$")
# Settings that releases have changed under people, said on every insert.
_INSERT_SETTINGS: Mapping[str, Any] = {
    "async_insert": 0,
    "max_partitions_per_insert_block": 0,
    "max_insert_threads": 1,
    # On a cluster: the shards have the rows when the insert is done.
    "distributed_foreground_insert": 1,
}

# Idle handles of readers, over all tenants; one holds about a megabyte.
_IDLE_READERS_MAX = 16
_TENANT_COLUMNS = """
SELECT table, countIf(name = 'tenant') > 0 FROM system.columns
WHERE database = currentDatabase() AND table NOT IN (SELECT name FROM system.tables WHERE engine = 'View' AND database = currentDatabase())
GROUP BY table"""
_UNKNOWN_TABLE = 60
_FREES_ROOM = ("DROP", "KILL", "SYSTEM", "TRUNCATE")
_MERGED = """
SELECT name FROM system.tables
WHERE database = currentDatabase() AND engine LIKE '%MergeTree' AND create_table_query NOT LIKE '%old_parts_lifetime = {kept}%'"""
_TABLES_STATE = (
    "SELECT count(), max(metadata_modification_time), sum(cityHash64(name)) FROM system.tables WHERE database = currentDatabase()"
)
# What the system tells of sizes and dates is told of all tenants together.
_SYSTEM_TABLES = ("system.parts", "system.parts_columns")

ReadLimits = Mapping[str, int | str]


class Store:
    """An embedded store (chDB) in the folder ``path``. Opening takes a second and 200 MB. Use from any thread.

    ``backups`` is the only folder that the engine may write backups to, or restore from (default: beside the store).

    ``read_limits`` are ClickHouse settings that every read handle is given before it is made read-only.
    Raises ``StoreUnavailable`` and ``StoreRefused``.
    """

    def __init__(self, path: pathlib.Path, read_limits: ReadLimits | None = None, backups: pathlib.Path | None = None) -> None:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path, self._backups = path, backups or backups_of(path)
        self._parts, self._folders = parts_of(path.resolve()), dict[str, list[str]]()
        self._set_up(read_limits)

    def _set_up(self, read_limits: ReadLimits | None) -> None:
        self._read_limits = dict(read_limits or {})
        self._readers: OrderedDict[str, list[Client]] = OrderedDict()
        self._reading_lock = threading.Lock()
        # Of each reader's handle: which tables there were when its filters were made.
        self._filtered: dict[int, tuple[Any, ...]] = {}
        self._reading = True
        self._clients: list[Client] = []
        self._writing = threading.Lock()
        self._writer: Client | None = self._open()

    def _open(self) -> Client:
        with translated():
            client = clickhouse_connect.get_client(
                interface="chdb", path=str(self._path), chdb_options={"backups.allowed_path": str(self._backups)}
            )
        self._clients.append(client)
        return client

    def clock_ms(self) -> int:
        """The clock of whoever stamps rows of this store, in ms since the epoch."""
        return now_ms()

    def insert(self, table: str, rows: pa.Table) -> None:
        """Insert whole or not at all (per partition), synced to disk when this returns."""
        if rows.num_rows:
            with self._write() as writer:
                self._before()
                writer.insert_arrow(table, rows, settings=dict(_INSERT_SETTINGS))
                self._after(writer, table)

    def insert_native(self, table: str, block: bytes) -> None:
        """Insert rows that are in ClickHouse's Native format with all columns, as ``query_bytes`` gives them."""
        with self._write() as writer:
            self._before()
            writer.raw_insert(table, insert_block=block, settings=dict(_INSERT_SETTINGS), fmt="Native")
            self._after(writer, table)

    def command(self, sql: str) -> None:
        """Run a statement that changes the store."""
        with self._write() as writer:
            self._before(sql)
            writer.command(sql)
            self._after(writer)

    def keep_sources(self) -> None:
        """Let the parts that a merge replaced stay for a while, in every table: until then the merged one is found whole, or is not."""
        for (table,) in self.select(_MERGED.format(kept=SOURCES_KEPT_S)):
            self.command(f"ALTER TABLE {table} MODIFY SETTING old_parts_lifetime = {SOURCES_KEPT_S}")

    def verify(self) -> None:
        """Look at the parts that the engine made by itself. Raises ``StoreUnavailable`` where one was not whole: it is undone."""
        with self._write() as writer:
            self._folders = folders_of(writer)
        # Not under the lock of those who write: there may be many.
        try:
            is_whole = not self._parts.faults(self._folders)
        except FileNotFoundError:
            is_whole = False
        if not is_whole:
            with self._write() as writer:
                self._after(writer)

    def _before(self, sql: str = "") -> None:
        """The engine takes no notice of a full disk. What frees room needs none."""
        if not sql.lstrip().upper().startswith(_FREES_ROOM):
            check_room(self._path)

    def _after(self, writer: Client, table: str = "") -> None:
        """Whether all that was written is there, of one table or of all. Raises ``StoreUnavailable``."""
        if not table or table not in self._folders:
            self._folders = folders_of(writer)
        tables = [table] if table in self._folders else list(self._folders)
        try:
            faults = self._parts.faults({name: self._folders[name] for name in tables})
        except FileNotFoundError:
            # A table went meanwhile, or came again under its name: it has another folder now, and is looked at there.
            self._folders = folders_of(writer)
            faults = self._parts.faults({name: self._folders[name] for name in tables if name in self._folders})
        if faults:
            mend(writer, self._parts, self._folders, faults)
            name, part, fault = faults[0]
            raise StoreUnavailable(
                f"the disk did not take what was written: of {name}'s part {part}, {fault}; {len(faults)} were set aside"
            )

    def _ready(self, writer: Client) -> None:
        """Bring back what another handle took away, if it could not."""
        if self._parts.detached:
            attach(writer, self._parts)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """As ``translated``; a table that is missing while it is read anew passes."""
        try:
            with translated():
                yield
        except StoreRefused as error:
            if error.code == _UNKNOWN_TABLE and self._parts.is_mending:
                raise StoreUnavailable(str(error), error.code) from error
            raise

    def select(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Sequence[Any]]:
        """The rows of one of Legato's own queries, on the writer's handle: it sees all that was inserted."""
        with self._write() as writer:
            return list(writer.query(sql, parameters=dict(parameters or {})).result_rows)

    def select_arrow(self, sql: str, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        """The result of one of Legato's own queries as an Arrow table."""
        with self._write() as writer:
            return writer.query_arrow(sql, parameters=dict(parameters or {}), use_strings=False)

    def query_bytes(self, sql: str, params: Mapping[str, str] | None = None, fmt: str = "TabSeparated", tenant: str = ALL_TENANTS) -> bytes:
        """The result of somebody's query, in a ClickHouse format, on a read-only handle that sees this tenant's rows alone.

        ``sql`` has no FORMAT of its own, and has been judged: the filter is by table, and holds for those that `sql_guard` lets through.
        """
        with self._reader(tenant) as reader, self._translated():
            result = reader.raw_query(sql, parameters=dict(params or {}), fmt=fmt)
        return bytes(result)

    def end_reads(self) -> None:
        """Cancel the queries of readers that run, and refuse new ones: the server is stopping."""
        self._reading = False
        with self._write() as writer:
            # Nothing of the writer's own can be running: this holds its lock.
            writer.command(KILL_ALL)

    @contextmanager
    def _reader(self, tenant: str) -> Iterator[Client]:
        if not self._reading:
            raise StoreUnavailable("the server is stopping")
        with self._reading_lock:
            idle = self._readers.get(tenant)
            reader = idle.pop() if idle else None
        if reader is not None and tenant != ALL_TENANTS and not self._is_filtered(reader):
            self._drop(reader)
            reader = None
        if reader is None:
            # Before the filters are made: a table that comes in between is one that they may lack.
            state = self.select(_TABLES_STATE)[0] if tenant != ALL_TENANTS else ()
            reader = self._open_reader(tenant)
            self._filtered[id(reader)] = tuple(state)
        try:
            yield reader
        except BaseException:
            # The engine keeps what a failed query had written already, and puts it before the next answer of the same handle.
            self._drop(reader)
            raise
        for unwanted in self._keep(tenant, reader):
            self._drop(unwanted)

    def _keep(self, tenant: str, reader: Client) -> list[Client]:
        """Keep a handle for the tenant's next query; those that are too many now, of whoever asked least lately."""
        with self._reading_lock:
            self._readers.setdefault(tenant, []).append(reader)
            self._readers.move_to_end(tenant)
            unwanted = []
            while sum(map(len, self._readers.values())) > _IDLE_READERS_MAX:
                oldest = next(iter(self._readers))
                unwanted.append(self._readers[oldest].pop(0))
                if not self._readers[oldest]:
                    del self._readers[oldest]
            return unwanted

    @contextmanager
    def _write(self) -> Iterator[Client]:
        """The writer's handle, for one statement; a new one after a failure, for the same reason."""
        with self._writing, self._translated():
            writer = self._writer or self._open()
            self._writer = writer
            try:
                self._ready(writer)
                yield writer
            except BaseException:
                # Opened again when it is needed next: now the store may be what is not there.
                self._writer = None
                self._drop(writer)
                raise

    def _is_filtered(self, reader: Client) -> bool:
        """Whether the store has the tables that it had when this handle's filters were made: another process may have made one since."""
        with translated():
            return tuple(reader.query(_TABLES_STATE).result_rows[0]) == self._filtered.get(id(reader))

    def _drop(self, client: Client) -> None:
        self._filtered.pop(id(client), None)
        if client in self._clients:
            self._clients.remove(client)
        client.close()

    def _open_reader(self, tenant: str) -> Client:
        reader = self._open()
        with translated():
            for name, value in self._read_limits.items():
                reader.command(f"SET {name} = {value!r}")
            if tenant != ALL_TENANTS:
                reader.command(f"SET additional_table_filters = {filters_of(self, tenant)}")
            reader.command("SET readonly = 1")
        return reader

    def close(self) -> None:
        """Close all handles; the engine flushes and stops."""
        for client in self._clients:
            client.close()


def backups_of(path: pathlib.Path) -> pathlib.Path:
    """Where the backups of the store at ``path`` lie."""
    return path.with_name(path.name + ".backups")


def filters_of(store: Store, tenant: str) -> str:
    """The rows of each table that this tenant may see, as ClickHouse's setting: its own, and of a table without tenants none."""
    own = f"tenant = {quoted(tenant)}"
    rules = {str(table): own if has_tenant else "0" for table, has_tenant in store.select(_TENANT_COLUMNS)}
    rules.update(dict.fromkeys(_SYSTEM_TABLES, "0"))
    return "{" + ", ".join(f"{_text(table)}: {_text(rule)}" for table, rule in rules.items()) + "}"


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


@contextmanager
def translated() -> Iterator[None]:
    """Turn the driver's errors into ours: what may pass, and what never will."""
    try:
        yield
    except ClickHouseError as error:
        message = _AROUND.sub("", str(error))
        found = _CODE.search(message)
        code = int(found.group(1)) if found else 0
        if code in _TRANSIENT or not code:
            raise StoreUnavailable(message, code) from error
        raise StoreRefused(message, code) from error
    except OSError as error:
        raise StoreUnavailable(f"{type(error).__name__}: {error.strerror}") from error
