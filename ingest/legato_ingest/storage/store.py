"""The interface of a store, whichever kind it is. Implementations: ``chdb`` (embedded), ``server`` (a ClickHouse server)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from legato_ingest.definitions import ALL_TENANTS

__all__ = ["PartFault", "ReadLimits", "Store"]

PartFault = tuple[str, str, str]
"""Table, part, and what is damaged."""

ReadLimits = Mapping[str, int | str]
"""ClickHouse settings that every query of a reader runs under."""


class Store(Protocol):
    """A database with Legato's tables. All methods can be called from any thread and raise ``StoreUnavailable`` or ``StoreRefused``.

    ``insert``, ``command`` and ``select`` are for Legato's own statements and run one at a time. ``query_bytes`` is for the statements of
    readers, which run at the same time as these, read-only and under the read limits.
    """

    def clone(self) -> Store:
        """Return another store on the same database, with separate connections and without read limits."""
        ...

    def clock_ms(self) -> int:
        """Return the time in ms since the epoch, by the clock that stamps the rows of this store."""
        ...

    def insert(self, table: str, rows: pa.Table) -> None:
        """Insert all rows or none (per partition); they are synced to disk when this returns."""
        ...

    def insert_native(self, table: str, block: bytes) -> None:
        """Insert rows in ClickHouse's format Native with all columns of the table, as ``query_bytes`` returns them."""
        ...

    def command(self, sql: str) -> None:
        """Run a statement that changes the store."""
        ...

    def select(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Sequence[Any]]:
        """Return the rows of one of Legato's own queries, which includes everything inserted before."""
        ...

    def select_arrow(self, sql: str, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        """Return the result of one of Legato's own queries as an Arrow table; strings are binary."""
        ...

    def query_bytes(self, sql: str, params: Mapping[str, str] | None = None, fmt: str = "TabSeparated", tenant: str = ALL_TENANTS) -> bytes:
        """Return the result of a reader's query in a ClickHouse format, limited to the rows of ``tenant``.

        ``sql`` has no FORMAT clause and was accepted by the SQL guard: the tenant's filter applies to the tables that the guard allows.
        """
        ...

    def end_reads(self) -> None:
        """Refuse new queries of readers and cancel the running ones where they are this process's: the server is stopping."""
        ...

    def verify(self) -> None:
        """Check the files that the engine wrote without being asked to (merges). Raises ``StoreUnavailable`` if one was damaged."""
        ...

    def scrub(self, seconds: float) -> None:
        """Compare what is stored with its hashes, for so long, and set aside what is damaged (``lost_parts``)."""
        ...

    def lost_parts(self) -> list[PartFault]:
        """Return the parts with rows that are not shown, because the parts are damaged or missing."""
        ...

    def keep_merged_parts(self) -> None:
        """Configure every table so that the parts replaced by a merge stay long enough for ``verify`` to check the merge."""
        ...

    def make_tenant_views(self) -> None:
        """Make the views that readers of one tenant see (``tenant_views``), where they are missing or differ from Legato's tables."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...
