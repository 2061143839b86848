"""`legato move`: an embedded store's rows into a ClickHouse server.

One idea: partition by partition, and one that is the same on both sides is left alone, so a move that was cut off goes on where it was.
Rows go in ClickHouse's own format, as they are. What counts is the comparison afterwards: a partition has moved when counts and checksums
agree. It changes nothing in the source.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from legato_ingest.storage.chdb import Store
from legato_ingest.storage.tallies import Tally, partitions_of, tables_of, tally_of

__all__ = ["Moved", "move"]

_ROWS_MAX = 50_000


@dataclass(frozen=True, slots=True)
class Moved:
    """One partition: what the source holds, what the target holds now, and whether rows had to be copied."""

    table: str
    partition: str
    source: Tally
    target: Tally
    copied: bool

    @property
    def same(self) -> bool:
        """Whether the target holds the source's rows and no others."""
        return self.source == self.target


def move(source: Store, target: Store) -> Iterator[Moved]:
    """Copy what the target lacks, a partition at a time. Both have the schema of this version. Raises ``StoreError``."""
    for table, merged in tables_of(source).items():
        for partition in partitions_of(source, table):
            wanted = tally_of(source, table, merged, partition)
            found = tally_of(target, table, merged, partition)
            if wanted == found:
                yield Moved(table, partition, wanted, found, copied=False)
                continue
            if not merged and found.rows:
                # Nothing merges these, so what a cut-off move left would be there twice.
                target.command(f"ALTER TABLE {table} DROP PARTITION ID '{partition}'")
            _copy(source, target, table, merged, partition, wanted.rows)
            yield Moved(table, partition, wanted, tally_of(target, table, merged, partition), copied=True)


def _copy(source: Store, target: Store, table: str, merged: bool, partition: str, rows: int) -> None:
    parts = -(-rows // _ROWS_MAX)
    for part in range(parts):
        which = f"_partition_id = '{partition}' AND modulo(cityHash64(toString(tuple(*))), {parts}) = {part}"
        target.insert_native(table, source.query_bytes(f"SELECT * FROM {table} {'FINAL' if merged else ''} WHERE {which}", fmt="Native"))
