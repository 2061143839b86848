"""The embedded store of `legato serve`: a ``Store`` that runs each call in the process of the store (``store_process``)."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import StoreUnavailable
from legato_ingest.storage.store import PartFault
from legato_ingest.storage.store_process import StoreProcess
from legato_ingest.storage.watermark import now_ms

__all__ = ["ProcessStore"]


class ProcessStore:
    """A store in a ``StoreProcess``; see ``store.Store`` for the methods. Stores of one process are made with ``clone``."""

    def __init__(self, process: StoreProcess, handles: itertools.count[int] | None = None) -> None:
        self._process = process
        self._handles = handles or itertools.count()
        self._handle = next(self._handles)
        self._reading = True

    def clone(self) -> ProcessStore:
        """Return another store on the same database, with separate connections and without read limits."""
        return ProcessStore(self._process, self._handles)

    def clock_ms(self) -> int:
        """Return this host's time in ms since the epoch."""
        return now_ms()

    def insert(self, table: str, rows: pa.Table) -> None:
        """Insert all rows or none (per partition); they are synced to disk when this returns."""
        if rows.num_rows:
            self._call("insert", table, _content_of(rows))

    def insert_native(self, table: str, block: bytes) -> None:
        """Insert rows in ClickHouse's format Native with all columns of the table."""
        self._call("insert_native", table, block)

    def command(self, sql: str) -> None:
        """Run a statement that changes the store."""
        self._call("command", sql)

    def select(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Sequence[Any]]:
        """Return the rows of one of Legato's own queries, which includes everything inserted before."""
        rows: list[Sequence[Any]] = self._call("select", sql, dict(parameters or {}))
        return rows

    def select_arrow(self, sql: str, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        """Return the result of one of Legato's own queries as an Arrow table."""
        return pa.ipc.open_file(self._call("select_arrow_bytes", sql, dict(parameters or {}))).read_all()

    def query_bytes(self, sql: str, params: Mapping[str, str] | None = None, fmt: str = "TabSeparated", tenant: str = ALL_TENANTS) -> bytes:
        """Return the result of a reader's query in a ClickHouse format, limited to the rows of ``tenant``."""
        if not self._reading:
            raise StoreUnavailable("the server is stopping")
        content: bytes = self._process.read(self._handle, tenant, "query_bytes", sql, dict(params or {}), fmt, tenant)
        return content

    def end_reads(self) -> None:
        """Refuse new queries of readers and cancel the running ones."""
        self._reading = False
        # If the process has ended, no query runs.
        with contextlib.suppress(StoreUnavailable):
            self._call("end_reads")

    def verify(self) -> None:
        """Check the parts that the engine made by merging. Raises ``StoreUnavailable`` if one is damaged, after its table was repaired."""
        self._call("verify")

    def scrub(self, seconds: float) -> None:
        """Compare the contents of parts with their hashes for so long, and detach those that are damaged."""
        self._call("scrub", seconds)

    def lost_parts(self) -> list[PartFault]:
        """Return the parts with rows that are not shown: they were set aside, or had gone when the store was opened."""
        faults: list[PartFault] = self._call("lost_parts")
        return faults

    def keep_merged_parts(self) -> None:
        """Set ``old_parts_lifetime`` of every table, so that parts replaced by a merge stay until ``verify`` has checked the merge."""
        self._call("keep_merged_parts")

    def make_tenant_views(self) -> None:
        """Make the views that readers of one tenant see, where they are missing or differ from Legato's tables."""
        self._call("make_tenant_views")

    def close(self) -> None:
        """Close this store; the first one also ends the process."""
        try:
            # If the process has ended, nothing of it is open.
            with contextlib.suppress(StoreUnavailable):
                self._call("close")
        finally:
            if self._handle == 0:
                self._process.close()

    def _call(self, method: str, *arguments: object) -> Any:
        return self._process.call(self._handle, method, *arguments)


def _content_of(rows: pa.Table) -> pa.Buffer:
    """The rows as an Arrow IPC stream: of a slice it holds the rows of the slice alone."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue()
