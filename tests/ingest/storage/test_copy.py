"""Row checksums: two stores with the same rows have the same checksums."""

from __future__ import annotations

from helpers.servers.reading import stream, streams_in
from legato_ingest.storage import Store
from legato_ingest.storage.copy import RowChecksum, checksum_of, partitions_of, tables_of


def test_checksums_depend_on_the_rows_alone(store: Store) -> None:
    """Not on their order, nor on the inserts and merges that stored them; each partition is a part of the sum."""
    streams_in(store, [stream(), stream((20.0, 700.0)), stream(age_s=86_400.0)])
    before = checksum_of(store, "stream_revs", merged=True)
    assert before.rows == 3
    store.command("OPTIMIZE TABLE stream_revs FINAL")
    assert checksum_of(store, "stream_revs", merged=True) == before
    parts = [checksum_of(store, "stream_revs", True, partition) for partition in partitions_of(store, "stream_revs")]
    assert len(parts) == 2
    assert RowChecksum(sum(part.rows for part in parts), sum(part.checksum for part in parts) % 2**64) == before
    assert checksum_of(store, "rejected", merged=True) == (0, 0)


def test_tables_of_data_are_compared(store: Store) -> None:
    """Not those that describe the store itself; tables that replace rows are read merged."""
    tables = tables_of(store)
    assert tables["stream_revs"] and not tables["rollup_runs"]
    assert {"schema_migrations", "writers", "leases", "streams"}.isdisjoint(tables)
