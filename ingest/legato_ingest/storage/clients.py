"""What both kinds of store have in common: one writing client, and a pool of read-only clients per tenant, over clickhouse-connect.

A reading client gets its limits, its tenant's row filter and ``readonly`` when it is opened, so a query cannot lift them. The module
knows no table of Legato; subclasses define how clients are opened.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pyarrow as pa
from clickhouse_connect.driver.client import Client

from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import StoreRefused, StoreUnavailable
from legato_ingest.quoting import literal
from legato_ingest.storage import tenant_views
from legato_ingest.storage.client_errors import translated, without_values
from legato_ingest.storage.sql import quoted, quoted_all
from legato_ingest.storage.store import ReadLimits

__all__ = ["ClientStore"]

# Set on every insert, because their defaults differ between releases and profiles.
_INSERT_SETTINGS: Mapping[str, Any] = {
    "async_insert": 0,
    "max_partitions_per_insert_block": 0,
    "max_insert_threads": 1,
    # On a cluster, the shards have the rows when the insert returns.
    "distributed_foreground_insert": 1,
}
# Of all clients. Nothing is kept by condition or expression: a statement has the times of its run or of its range, so no entry is found
# again. The conditions would take up to 310 MB, and the engine never forgets an expression that it has counted. To compile the expressions
# of a panel takes up to 0.4 s, at its fourth run, and makes no panel faster.
_NOT_KEPT: Mapping[str, int] = {
    "use_query_condition_cache": 0,
    **{f"compile_{what}": 0 for what in ("expressions", "aggregate_expressions", "sort_description")},
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
    **_NOT_KEPT,
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
    # What is skipped by values of all tenants shows them: a condition that fails on the own rows does not fail then. For the primary key
    # see ``tenant_views``.
    "use_skip_indexes": 0,
    "use_partition_pruning": 0,
    "use_partition_minmax_for_primary_key_pruning": 0,
    "use_statistics_for_part_pruning": 0,
    "use_query_condition_cache": 0,
    # Statistics are of the rows of all tenants.
    "use_statistics": 0,
    "use_statistics_for_min_max_aggregation": 0,
    "use_hash_table_stats_for_join_reordering": 0,
}
_KNOWN_SETTINGS = "SELECT name FROM system.settings WHERE name IN ({names})"
# Idle reading clients over all tenants. Each takes about 1 MB.
_IDLE_READERS_MAX = 16
_TENANT_COLUMNS = "SELECT table, max(name = 'tenant') FROM system.columns WHERE database IN ({databases}) GROUP BY table"
_VIEWS = "SELECT name FROM system.tables WHERE database = {own} AND engine = 'View'"
# A reader sees no views with the key.
_IS_SHOWN = f"NOT endsWith({{name}}, '{tenant_views.KEYED_VIEW}')"
_VIEWS_STATE = (
    "SELECT count(), max(metadata_modification_time), sum(cityHash64(name)) FROM system.tables WHERE database = {tenants} AND "
    + _IS_SHOWN.format(name="name")
)
# These show dates over the rows of all tenants, and the disk that the tenants share.
_SYSTEM_TABLES = ("system.disks", "system.parts", "system.parts_columns")
# These show numbers of rows and sizes, also of single columns with names of all tenants in their dictionaries.
_SIZED_TABLES = {"system.columns": "table", "system.data_skipping_indices": "table", "system.tables": "name"}
# A tenant's reader sees the tables of these databases, and of that with its views. Others may hold copies of Legato's tables.
_SYSTEM_DATABASES = ("system", "INFORMATION_SCHEMA", "information_schema")
_OBJECTIVES = "objectives"
_ENDS = (tenant_views.FINAL_VIEW, tenant_views.KEYED_VIEW)
_CLOSED = "the store is closed"
_CHANGED = "the tables of the store have changed meanwhile: send the query again"
# With a client from the pool, and with a new one after the tables changed.
_TRIES = 2
_UNKNOWN_DATABASE = 81


class ClientStore(ABC):
    """The common half of ``EmbeddedStore`` and ``ServerStore``; see ``store.Store`` for the methods."""

    def __init__(self, read_limits: ReadLimits | None, database: str) -> None:
        self._database, self._tenant_database = database, tenant_views.database_of(database)
        self._databases = f"{literal(self._database)}, {literal(self._tenant_database)}"
        self._state_sql = _VIEWS_STATE.format(tenants=literal(self._tenant_database))
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
        for _ in range(_TRIES):
            with self._reader(tenant) as reader:
                content = self._result(reader, sql, params, fmt, tenant)
                is_filtered = tenant == ALL_TENANTS or self._is_filtered(reader)
            if is_filtered:
                return content
            # The statement may have read a table that was made meanwhile, for which the client has no filter.
            self._drop_idle()
        raise StoreUnavailable(_CHANGED)

    def _result(self, reader: Client, sql: str, params: Mapping[str, str] | None, fmt: str, tenant: str) -> bytes:
        with without_values(tenant), self._errors(of_reader=True):
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

    def _errors(self, *, of_reader: bool = False) -> AbstractContextManager[None]:
        """Translate the driver's errors. ``of_reader``: of a reader's statement, so their text may be the reader's."""
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
            idle = self._readers.pop(tenant, [])
            reader = idle.pop() if idle else None
            self._readers |= {tenant: idle} if idle else {}
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

    def _drop_idle(self) -> None:
        """Close the reading clients that no statement uses."""
        with self._reading_lock:
            idle = [reader for readers in self._readers.values() for reader in readers]
            self._readers.clear()
        for reader in idle:
            self._drop(reader)

    def _is_filtered(self, reader: Client) -> bool:
        """Return whether the views are those that the client's filters were made for; another process may have made one since."""
        with translated():
            return tuple(reader.query(self._state_sql).result_rows[0]) == self._filtered.get(id(reader))

    def _reader_settings(self, tenant: str) -> dict[str, int | str]:
        """Return the settings of a tenant's reader, without its row filters."""
        of_all = {**_NOT_KEPT, **self._read_limits}
        if tenant == ALL_TENANTS:
            return of_all
        if not self._known_settings:
            names = ", ".join(map(literal, _TENANT_SETTINGS))
            self._known_settings = frozenset(str(name) for (name,) in self.select(_KNOWN_SETTINGS.format(names=names)))
        # A version of ClickHouse without a setting has nothing that the setting turns off.
        return {**of_all, **{name: value for name, value in _TENANT_SETTINGS.items() if name in self._known_settings}}

    def _tables_to_filter(self, state: tuple[Any, ...]) -> dict[str, bool]:
        """Return Legato's tables in this state, and whether each has a tenant.

        A table that is detached for its repair is not listed, and comes back: its view is listed.
        """
        known_state, known = self._filtered_tables
        if known_state == state:
            return known
        views = {str(name) for (name,) in self.select(_VIEWS.format(own=literal(self._database)))}
        columns = self.select(_TENANT_COLUMNS.format(databases=self._databases))
        tables = {str(table): bool(has) for table, has in columns if not str(table).endswith(_ENDS)}
        found = {table: has for table, has in tables.items() if table not in views}
        self._filtered_tables = state, found
        return found

    def _filters(self, tenant: str, tables: Mapping[str, bool]) -> str:
        """Return the value of ``additional_table_filters``: a tenant sees its own rows, and none of a table without tenants."""
        own = f"tenant = {quoted(tenant)}"
        # A rule applies to aliases, too, and the first one counts.
        shown = quoted_all((self._tenant_database, *_SYSTEM_DATABASES))
        rules = dict.fromkeys(_SYSTEM_TABLES, "0") | {
            table: f"database IN ({shown}) AND {_IS_SHOWN.format(name=name)}" for table, name in _SIZED_TABLES.items()
        }
        rules |= {f"{self._database}.{table}": own if has_tenant else "0" for table, has_tenant in tables.items()}
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
            raise StoreUnavailable(_CHANGED)
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
