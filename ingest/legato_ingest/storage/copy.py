"""Copy the rows of one store into another, and compare two stores by row checksums.

A copy works partition by partition and skips partitions that are the same on both sides, so an interrupted copy continues when it is
repeated. Rows are copied in ClickHouse's format Native, unchanged. A partition counts as copied if row count and row checksum agree
afterwards. The source is not changed, and no row of the target that the source lacks is removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow.compute as pc

from legato_ingest.quoting import literal
from legato_ingest.storage.store import Store

__all__ = ["CopiedPartition", "RowChecksum", "checksum_of", "copy_rows", "partitions_of", "tables_of"]

_ROWS_MAX, _HASHES_MAX = 50_000, 1_000_000
_HASH = "cityHash64(toString(tuple(*)))"
# Applied schema files and running instances: they describe the store itself, not its data.
_OWN = ("schema_migrations", "writers", "leases")


class RowChecksum(NamedTuple):
    """The number of rows, and the sum (modulo 2^64) of the hashes of the rows' texts.

    The sum does not depend on the order of rows nor on merges, and is the same in an embedded store and on a server.
    """

    rows: int
    checksum: int


@dataclass(frozen=True, slots=True)
class CopiedPartition:
    """One partition: the rows of the source, the rows of the target now, and whether rows had to be copied."""

    table: str
    partition: str
    source: RowChecksum
    target: RowChecksum
    copied: bool

    @property
    def same(self) -> bool:
        """Whether the target has the source's rows and no others."""
        return self.source == self.target


def tables_of(store: Store, database: str = "") -> dict[str, bool]:
    """Return the tables of data and, for each, whether a query must merge its rows (FINAL). The default is the current database."""
    where = literal(database) if database else "currentDatabase()"
    rows = store.select(f"SELECT name, engine FROM system.tables WHERE database = {where} AND engine LIKE '%MergeTree' ORDER BY name")
    return {str(name): "Replacing" in str(engine) for name, engine in rows if name not in _OWN}


def partitions_of(store: Store, table: str) -> list[str]:
    """Return the ids of a table's partitions."""
    return [str(row[0]) for row in store.select(f"SELECT DISTINCT _partition_id FROM {table} ORDER BY 1")]


def checksum_of(store: Store, table: str, merged: bool, partition: str = "") -> RowChecksum:
    """Return the row checksum of a table (``table`` or ``database.table``) or of one of its partitions."""
    where = f"WHERE _partition_id = {literal(partition)}" if partition else ""
    final = "FINAL" if merged else ""
    ((rows, checksum),) = store.select(f"SELECT count(), sum({_HASH}) FROM {table} {final} {where} SETTINGS max_threads = 0")
    return RowChecksum(int(rows), int(checksum or 0))


def copy_rows(source: Store, target: Store) -> Iterator[CopiedPartition]:
    """Copy the partitions that differ, one at a time. Both stores have the schema of this version. Raises ``StoreError``.

    A table in which ClickHouse merges no duplicates is left as it is in a partition in which the target has other rows.
    """
    for table, merged in tables_of(source).items():
        for partition in partitions_of(source, table):
            wanted = checksum_of(source, table, merged, partition)
            found = checksum_of(target, table, merged, partition)
            if wanted == found:
                yield CopiedPartition(table, partition, wanted, found, copied=False)
                continue
            if not merged and _has_others(source, target, table, partition, found.rows):
                yield CopiedPartition(table, partition, wanted, found, copied=False)
                continue
            if not merged and found.rows:
                # ClickHouse does not merge duplicates of this table, so rows of an interrupted copy would be stored twice.
                target.command(f"ALTER TABLE {table} DROP PARTITION ID {literal(partition)}")
            _copy(source, target, table, merged, partition, wanted.rows)
            yield CopiedPartition(table, partition, wanted, checksum_of(target, table, merged, partition), copied=True)


def _has_others(source: Store, target: Store, table: str, partition: str, rows: int) -> bool:
    """Return whether the target has rows in the partition that the source lacks. ``rows``: how many the target has."""
    slices = -(-rows // _HASHES_MAX)
    for number in range(slices):
        where = f"_partition_id = {literal(partition)} AND modulo({_HASH}, {slices}) = {number}"
        sql = f"SELECT DISTINCT {_HASH} AS hash FROM {table} WHERE {where}"
        here, there = (store.select_arrow(sql)["hash"] for store in (source, target))
        if not pc.all(pc.is_in(there, value_set=here), min_count=0).as_py():
            return True
    return False


def _copy(source: Store, target: Store, table: str, merged: bool, partition: str, rows: int) -> None:
    """Copy one partition in slices of at most about 50,000 rows."""
    slices, final = -(-rows // _ROWS_MAX), "FINAL" if merged else ""
    for number in range(slices):
        where = f"_partition_id = {literal(partition)} AND modulo({_HASH}, {slices}) = {number}"
        target.insert_native(table, source.query_bytes(f"SELECT * FROM {table} {final} WHERE {where}", fmt="Native"))
