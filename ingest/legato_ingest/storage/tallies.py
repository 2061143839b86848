"""Counts and checksums of tables: whether two stores hold the same rows.

One idea: a table's tally is how many rows a reader sees, and the sum of a hash of each row's text, so it does not depend on their order,
nor on what has been merged, and is the same in an embedded store and on a server. Rows that only this instance needs are left out.
"""

from __future__ import annotations

from typing import NamedTuple

from legato_ingest.storage.chdb import Store

__all__ = ["Tally", "partitions_of", "tables_of", "tally_of"]

# Which files were applied, and who is at work: each store's own matter.
_OWN = ("schema_migrations", "writers", "leases")


class Tally(NamedTuple):
    """Rows, and the sum (modulo 2^64) of the hashes of their texts."""

    rows: int
    checksum: int


def tables_of(store: Store, database: str = "") -> dict[str, bool]:
    """The tables that hold rows, and of each whether a reader must merge them (FINAL)."""
    where = f"'{database}'" if database else "currentDatabase()"
    rows = store.select(f"SELECT name, engine FROM system.tables WHERE database = {where} AND engine LIKE '%MergeTree' ORDER BY name")
    return {str(name): "Replacing" in str(engine) for name, engine in rows if name not in _OWN}


def partitions_of(store: Store, table: str) -> list[str]:
    """The ids of a table's partitions."""
    return [str(row[0]) for row in store.select(f"SELECT DISTINCT _partition_id FROM {table} ORDER BY 1")]


def tally_of(store: Store, table: str, merged: bool, partition: str = "") -> Tally:
    """The tally of a table (``database.table`` too) or of one of its partitions."""
    where = f"WHERE _partition_id = '{partition}'" if partition else ""
    final = "FINAL" if merged else ""
    ((rows, checksum),) = store.select(f"SELECT count(), sum(cityHash64(toString(tuple(*)))) FROM {table} {final} {where}")
    return Tally(int(rows), int(checksum or 0))
