"""What both kinds of store have in common: one writing client, and a pool of read-only clients per tenant, over clickhouse-connect.

A reading client gets its limits, its tenant's row filter and ``readonly`` when it is opened, so a query cannot lift them. The module
knows no table of Legato; subclasses define how clients are opened.
"""

from __future__ import annotations

import math
import re
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import StoreRefused, StoreUnavailable
from legato_ingest.quoting import literal
from legato_ingest.storage import tenant_views
from legato_ingest.storage.sql import quoted
from legato_ingest.storage.store import ReadLimits

__all__ = ["ClientStore", "code_of", "translated"]

# ClickHouse's error codes for conditions that can pass: memory, disk, too many parts, time-outs, locks, connections.
_TRANSIENT = frozenset((33, 74, 75, 76, 159, 201, 202, 203, 209, 210, 225, 236, 241, 242, 243, 252, 319, 425, 473, 499, 999, 1000, 1001))
_CODE, _NAME = re.compile(r"Code: (\d+)"), re.compile(r"\((\w+)\)\s*$")
# Error codes of a statement that fails whatever the rows are: syntax, names, types, settings, limits. Other messages may hold values.
_OF_STATEMENTS = frozenset(
    (*range(42, 49), 50, 53, 60, 62, 63, 73, 81, 115, 141, 158, 159, 160, 164, 167, 168, 179, 181, 184, 207, 215, 258, 307, 309, 352)
) | {386, 396, 403, 456, 457, 497, 721}
# The driver wraps a server's error in a text with the server's address. Readers must not see the address.
_WRAPPING = re.compile(r"^Received ClickHouse exception, code: \d+, server response: | \(for url [^)]*\)$")
# Set on every insert, because their defaults differ between releases and profiles.
_INSERT_SETTINGS: Mapping[str, Any] = {
    "async_insert": 0,
    "max_partitions_per_insert_block": 0,
    "max_insert_threads": 1,
    # On a cluster, the shards have the rows when the insert returns.
    "distributed_foreground_insert": 1,
}
# Set once for each writing client: `query_arrow` sets the first two for each query, which costs an embedded engine five more queries. The
# next two allow lists of thousands of ids in Legato's own statements. They run on one thread: several cost more processor time, and the
# other cores are for acknowledgements and readers.
_OWN_SETTINGS: Mapping[str, Any] = {
    "output_format_arrow_string_as_string": 0,
    "output_format_arrow_compression_method": "none",
    "max_query_size": 1_000_000_000,
    "max_ast_elements": 10_000_000,
    "max_threads": 1,
}
# Of the readers of one tenant. ClickHouse evaluates a condition that it moves to PREWHERE before ``additional_table_filters``, on rows of
# all tenants, and a function that fails puts their values into its error. The guard refuses PREWHERE for the same reason. A condition that
# it merges with the filter, also below a join, may be evaluated on rows that the filter leaves out. The number of rows read shows which
# granules an index skips; they hold rows of all tenants.
_TENANT_SETTINGS: Mapping[str, int] = {
    "optimize_move_to_prewhere": 0,
    "query_plan_merge_filters": 0,
    "enable_join_runtime_filters": 0,
    "output_format_write_statistics": 0,
    # What is skipped by values of all tenants: a condition that fails on the tenant's own row fails unless the row's granule is skipped.
    # The primary key begins with the tenant, so it skips by the tenant's own values.
    "use_skip_indexes": 0,
    "use_partition_pruning": 0,
    "use_partition_minmax_for_primary_key_pruning": 0,
    "use_statistics_for_part_pruning": 0,
    "use_query_condition_cache": 0,
}
# Where a granule has rows of two tenants, the primary key evaluates a condition on a value of the other one, which may fail.
_AGAIN_SETTINGS: Mapping[str, int] = {"use_primary_key": 0}
_TIME_LIMIT, _AGAIN_S_MIN = "max_execution_time", 1
_KNOWN_SETTINGS = "SELECT name FROM system.settings WHERE name IN ({names})"
# Idle reading clients over all tenants. Each takes about 1 MB.
_IDLE_READERS_MAX = 16
_TENANT_COLUMNS = "SELECT table, max(name = 'tenant') FROM system.columns WHERE database IN ({databases}) GROUP BY table"
_VIEWS = "SELECT name FROM system.tables WHERE database = {own} AND engine = 'View'"
_TABLES_STATE = (
    "SELECT count(), max(metadata_modification_time), sum(cityHash64(database, name)) FROM system.tables WHERE database IN ({databases})"
)
# These show dates over the rows of all tenants, and the disk that the tenants share.
_SYSTEM_TABLES = ("system.disks", "system.parts", "system.parts_columns")
_OBJECTIVES = "objectives"
_CLOSED = "the store is closed"
_UNKNOWN_DATABASE = 81


class ClientStore(ABC):
    """The common half of ``EmbeddedStore`` and ``ServerStore``; see ``store.Store`` for the methods."""

    def __init__(self, read_limits: ReadLimits | None, database: str) -> None:
        self._database, self._tenant_database = database, tenant_views.database_of(database)
        self._databases = f"{literal(self._database)}, {literal(self._tenant_database)}"
        self._state_sql = _TABLES_STATE.format(databases=self._databases)
        self._read_limits = dict(read_limits or {})
        self._readers: OrderedDict[str, list[Client]] = OrderedDict()
        self._reading_lock = threading.Lock()
        # By id of a reading client: the state of the tables when the client's row filters were made.
        self._filtered: dict[int, tuple[Any, ...]] = {}
        # The tables to filter and whether they have a tenant, and the state that they had then.
        self._filtered_tables: tuple[tuple[Any, ...], dict[str, bool]] = ((), {})
        self._known_settings: frozenset[str] = frozenset()
        self._reading = True
        self._clients: list[Client] = []
        self._clients_lock, self._is_closed = threading.Lock(), False
        self._writing = threading.Lock()
        self._writer: Client | None = self._open()

    @abstractmethod
    def _connect(self) -> Client:
        """Open a client for Legato's own statements."""

    @abstractmethod
    def _connect_reader(self, settings: Mapping[str, int | str], filters: str) -> Client:
        """Open a read-only client with these settings, and with the views and row filters of a tenant if there are ``filters``."""

    def insert(self, table: str, rows: pa.Table) -> None:
        """Insert all rows or none (per partition); they are synced to disk when this returns."""
        if rows.num_rows:
            with self._change(table=table) as writer:
                writer.insert_arrow(table, rows, settings=dict(_INSERT_SETTINGS))

    def insert_native(self, table: str, block: bytes) -> None:
        """Insert rows in ClickHouse's format Native with all columns of the table."""
        with self._change(table=table) as writer:
            writer.raw_insert(table, insert_block=block, settings=dict(_INSERT_SETTINGS), fmt="Native")

    def command(self, sql: str) -> None:
        """Run a statement that changes the store."""
        with self._change(sql) as writer:
            writer.command(sql)

    def select(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Sequence[Any]]:
        """Return the rows of one of Legato's own queries. It runs on the writing client, so it sees everything inserted before."""
        with self._write() as writer:
            return list(writer.query(sql, parameters=dict(parameters or {})).result_rows)

    def select_arrow(self, sql: str, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        """Return the result of one of Legato's own queries as an Arrow table."""
        return pa.ipc.open_file(self.select_arrow_bytes(sql, parameters)).read_all()

    def select_arrow_bytes(self, sql: str, parameters: Mapping[str, Any] | None = None) -> bytes:
        """Return the result of one of Legato's own queries as an Arrow IPC file."""
        with self._write() as writer:
            return bytes(writer.raw_query(sql, parameters=dict(parameters or {}), fmt="Arrow"))

    def query_bytes(self, sql: str, params: Mapping[str, str] | None = None, fmt: str = "TabSeparated", tenant: str = ALL_TENANTS) -> bytes:
        """Return the result of a reader's query in a ClickHouse format, limited to the rows of ``tenant``."""
        began_s = time.monotonic()
        try:
            with self._reader(tenant) as reader:
                return self._result(reader, sql, params, fmt, tenant)
        except StoreRefused as error:
            if tenant == ALL_TENANTS or error.code in _OF_STATEMENTS:
                raise
            first = error
        # Perhaps it failed on a value of another tenant, which the primary key has. Both runs together have the time of one.
        try:
            with self._reader_again(tenant, time.monotonic() - began_s) as reader:
                return self._result(reader, sql, params, fmt, tenant)
        except StoreUnavailable:
            raise first from None

    def _result(self, reader: Client, sql: str, params: Mapping[str, str] | None, fmt: str, tenant: str) -> bytes:
        with _without_values(tenant), self._errors():
            return bytes(reader.raw_query(sql, parameters=dict(params or {}), fmt=fmt))

    def make_tenant_views(self) -> None:
        """Make the views that readers of one tenant see, where they are missing or differ from Legato's tables."""
        own, tenants = literal(self._database), literal(self._tenant_database)
        columns = [tenant_views.Column(*map(str, row)) for row in self.select(tenant_views.COLUMNS.format(own=own))]
        made = {str(table): str(comment) for table, comment in self.select(tenant_views.MADE.format(database=tenants))}
        for statement in tenant_views.statements(self._database, columns, made):
            self.command(statement)

    def end_reads(self) -> None:
        """Refuse new queries of readers."""
        self._reading = False

    def close(self) -> None:
        """Close all clients; a running statement ends before. No client is opened from then on."""
        self._reading = False
        with self._clients_lock:
            self._is_closed, clients = True, list(self._clients)
        for client in clients:
            client.close()

    def _errors(self) -> AbstractContextManager[None]:
        """Translate the driver's errors."""
        return translated()

    @contextmanager
    def _change(self, sql: str = "", table: str = "") -> Iterator[Client]:
        """The writing client for a statement that changes the store: ``sql``, or an insert into ``table``."""
        with self._write() as writer:
            yield writer

    @contextmanager
    def _write(self) -> Iterator[Client]:
        """The writing client for one statement.

        After a failure the next statement gets a new client: the engine keeps output that a failed query had already produced, and would
        put it before the next result of the same client.
        """
        with self._writing, self._errors():
            writer = self._writer or self._open()
            self._writer = writer
            try:
                yield writer
            except BaseException:
                # Opened again when it is needed next, because a server may be unreachable now.
                self._writer = None
                self._drop(writer)
                raise

    @contextmanager
    def _reader(self, tenant: str) -> Iterator[Client]:
        """A reading client of this tenant, from the pool or new."""
        if not self._reading:
            raise StoreUnavailable("the server is stopping")
        with self._reading_lock:
            idle = self._readers.get(tenant)
            reader = idle.pop() if idle else None
        if reader is not None and tenant != ALL_TENANTS and not self._is_filtered(reader):
            self._drop(reader)
            reader = None
        if reader is None:
            reader = self._open_reader(tenant, self._reader_settings(tenant))
        try:
            yield reader
        except BaseException:
            # For the same reason as in `_write`.
            self._drop(reader)
            raise
        for unwanted in self._keep(tenant, reader):
            self._drop(unwanted)

    @contextmanager
    def _reader_again(self, tenant: str, taken_s: float) -> Iterator[Client]:
        """A new reading client of this tenant that uses no primary key, with the time that a first run has left."""
        settings = self._reader_settings(tenant, _AGAIN_SETTINGS)
        if _TIME_LIMIT in settings:
            settings[_TIME_LIMIT] = max(_AGAIN_S_MIN, int(settings[_TIME_LIMIT]) - math.ceil(taken_s))
        reader = self._open_reader(tenant, settings)
        try:
            yield reader
        finally:
            self._drop(reader)

    def _keep(self, tenant: str, reader: Client) -> list[Client]:
        """Put a client into the pool. Return the clients that are too many now, of the tenants that queried least recently."""
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

    def _is_filtered(self, reader: Client) -> bool:
        """Return whether the tables are those that the client's filters were made for; another process may have created one since."""
        with translated():
            return tuple(reader.query(self._state_sql).result_rows[0]) == self._filtered.get(id(reader))

    def _reader_settings(self, tenant: str, more: Mapping[str, int] = MappingProxyType({})) -> dict[str, int | str]:
        """Return the settings of a tenant's reader, without its row filters."""
        if tenant == ALL_TENANTS:
            return dict(self._read_limits)
        if not self._known_settings:
            names = ", ".join(map(literal, (*_TENANT_SETTINGS, *_AGAIN_SETTINGS)))
            self._known_settings = frozenset(str(name) for (name,) in self.select(_KNOWN_SETTINGS.format(names=names)))
        wanted = {**_TENANT_SETTINGS, **more}
        # A version of ClickHouse without a setting has nothing that the setting turns off.
        return {**self._read_limits, **{name: value for name, value in wanted.items() if name in self._known_settings}}

    def _tables_to_filter(self, state: tuple[Any, ...]) -> dict[str, bool]:
        """Return Legato's tables in this state, and whether each has a tenant.

        A table that is detached for its repair is not listed, and comes back: its view is listed.
        """
        if self._filtered_tables[0] != state:
            views = {str(name) for (name,) in self.select(_VIEWS.format(own=literal(self._database)))}
            columns = self.select(_TENANT_COLUMNS.format(databases=self._databases))
            tables = {str(table): bool(has) for table, has in columns if not str(table).endswith(tenant_views.FINAL_VIEW)}
            self._filtered_tables = state, {table: has for table, has in tables.items() if table not in views}
        return self._filtered_tables[1]

    def _filters(self, tenant: str, tables: Mapping[str, bool]) -> str:
        """Return the value of ``additional_table_filters``: a tenant sees its own rows, and none of a table without tenants."""
        own = f"tenant = {quoted(tenant)}"
        rules = {f"{self._database}.{table}": own if has_tenant else "0" for table, has_tenant in tables.items()}
        rules.update(dict.fromkeys(_SYSTEM_TABLES, "0"))
        # A tenant also sees the objectives of all tenants: they apply to its streams.
        rules[f"{self._database}.{_OBJECTIVES}"] = f"tenant IN ({quoted(tenant)}, {quoted(ALL_TENANTS)})"
        return "{" + ", ".join(f"{literal(table)}: {literal(rule)}" for table, rule in rules.items()) + "}"

    def _open(self) -> Client:
        self._expect_open()
        with translated():
            client = self._connect()
            for name, value in _OWN_SETTINGS.items():
                client.set_client_setting(name, value)
        return self._added(client)

    def _state(self) -> tuple[Any, ...]:
        return tuple(self.select(self._state_sql)[0])

    def _open_reader(self, tenant: str, settings: Mapping[str, int | str]) -> Client:
        """Open a reading client. Its filters may lack a table that was made meanwhile, so it is used while the tables stay the same."""
        self._expect_open()
        state = self._state() if tenant != ALL_TENANTS else ()
        filters = self._filters(tenant, self._tables_to_filter(state)) if tenant != ALL_TENANTS else ""
        try:
            with translated():
                client = self._connect_reader(settings, filters)
        except StoreRefused as error:
            if error.code != _UNKNOWN_DATABASE:
                raise
            raise StoreUnavailable(
                f"the database {self._tenant_database} with the views for readers of one tenant is missing: start `legato serve` or run "
                "`legato schema apply` as a user that may create this database",
                error.code,
            ) from error
        if tenant != ALL_TENANTS and self._state() != state:
            self._filtered_tables = (), {}
            client.close()
            raise StoreUnavailable("the tables of the store have changed meanwhile: send the query again")
        self._filtered[id(client)] = state
        return self._added(client)

    def _added(self, client: Client) -> Client:
        """Add a client to those that ``close`` closes. After ``close``, close the client and raise ``StoreUnavailable``."""
        with self._clients_lock:
            if not self._is_closed:
                self._clients.append(client)
                return client
        # A thread that still ran a query when the store was closed: a client of an embedded store would keep the engine open.
        client.close()
        raise StoreUnavailable(_CLOSED)

    def _expect_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable(_CLOSED)

    def _drop(self, client: Client) -> None:
        self._filtered.pop(id(client), None)
        with self._clients_lock:
            if client in self._clients:
                self._clients.remove(client)
        client.close()


def code_of(message: str) -> int:
    """Return ClickHouse's error code in one of its messages; 0 without one."""
    found = _CODE.search(message)
    return int(found.group(1)) if found else 0


@contextmanager
def _without_values(tenant: str) -> Iterator[None]:
    """Hide values in the errors of a tenant's statement: ClickHouse may have read rows of other tenants, too (``_TENANT_SETTINGS``)."""
    try:
        yield
    except StoreRefused as error:
        if tenant == ALL_TENANTS or error.code in _OF_STATEMENTS:
            raise
        name = _NAME.search(str(error))
        reason = "a function failed on a constant, or on the value of a row, which is not shown to readers of one tenant"
        raise StoreRefused(f"Code: {error.code}. DB::Exception: {reason}.{f' ({name[1]})' if name else ''}", error.code) from None


@contextmanager
def translated() -> Iterator[None]:
    """Raise the driver's errors as ``StoreUnavailable`` (can pass) or ``StoreRefused`` (fails again)."""
    try:
        yield
    except ClickHouseError as error:
        message = _WRAPPING.sub("", str(error))
        code = code_of(message)
        if code in _TRANSIENT or not code:
            raise StoreUnavailable(message, code) from error
        raise StoreRefused(message, code) from error
    except OSError as error:
        raise StoreUnavailable(f"{type(error).__name__}: {error.strerror}") from error
