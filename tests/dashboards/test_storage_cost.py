"""Bytes at rest on the dashboard `cost`, compared with ClickHouse's lists of parts after streams with snapshots were stored."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from dashboards.storage_sql import AT_REST, BY_COLUMN, LEVERS, TIMELINE
from helpers.servers.reading import stream, streams_in
from legato_ingest.metrics import Metrics
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.storage.retention import set_retention

DAY_S = 86_400.0
CHUNKS = 200
PARTS = "FROM system.parts WHERE active AND database = 'default'"


@pytest.fixture(scope="module")
def stored(unfilled: Store) -> Iterator[Store]:
    """Streams of today, of 10 days ago (half as many) and of 40 days ago; those of today had a snapshot."""
    store = unfilled
    store.command("ALTER TABLE stream_revs MODIFY SETTING min_bytes_for_wide_part = 0")
    store.command("SYSTEM STOP MERGES")
    now_ns = time.time_ns()
    for age_s, count in ((60.0, 40), (10 * DAY_S, 20), (40 * DAY_S, 40)):
        streams_in(store, [_stream(number, now_ns - round(age_s * 1e9)) for number in range(count)])
    streams_in(store, [_stream(number, now_ns - 60 * 10**9, {"legato.stream.rev": 2}) for number in range(40)])
    RollupWorker(store, load(retention_days=0), Metrics()).again(0)
    yield store
    store.command("SYSTEM START MERGES")


def _stream(number: int, start_ns: int, more: dict[str, object] | None = None) -> dict[str, object]:
    rng = random.Random(number)
    gaps, holds = [rng.uniform(10.0, 40.0) for _ in range(CHUNKS - 1)], [rng.uniform(0.0, 3.0) for _ in range(CHUNKS)]
    own = bytes([number + 1])
    return stream(gaps, attributes=more, holds_ms=holds, start_ns=start_ns, trace_id=own * 16, span_id=own * 8)


def _levers(store: Store) -> dict[str, float | None]:
    """What each lever would save, by the name of its setting or by the lever."""
    return {str(setting if str(setting).startswith("LEGATO") else what): saves for what, setting, saves, _, _ in store.select(LEVERS)}


def _on_disk(store: Store, condition: str = "true") -> int:
    ((size,),) = store.select(f"SELECT sum(bytes_on_disk) {PARTS} AND {condition}")
    return int(size)


def test_every_table_and_every_rev_counts(stored: Store) -> None:
    """The bytes of all tables, with superseded snapshots and rollups, divided by the chunks of each stream's newest rev."""
    ((revs, streams),) = stored.select("SELECT (SELECT count() FROM stream_revs), (SELECT count() FROM streams)")
    assert (revs, streams) == (140, 100) and _on_disk(stored, "table = 'stream_hours'") > 0
    ((at_rest,),) = stored.select(f"SELECT {AT_REST}")
    assert at_rest == pytest.approx(_on_disk(stored) / (100 * CHUNKS), rel=1e-12)


def test_rows_by_column_add_up_to_the_store(stored: Store) -> None:
    """The columns are those of `system.parts_columns`, and what is not divided is one row per table."""
    rows = stored.select(BY_COLUMN)
    assert sum(size for _, _, size, _, _ in rows) == _on_disk(stored) and sum(row[4] for row in rows) == pytest.approx(1)
    columns = stored.select(
        "SELECT table, column, sum(column_data_compressed_bytes + column_marks_bytes) AS size FROM system.parts_columns"
        " WHERE active AND database = 'default' AND part_type = 'Wide' GROUP BY table, column HAVING size > 0"
    )
    assert {("stream_revs", name) for name in ("dt_us", "chunk_hold_64us", "trace_id")} <= {(table, column) for table, column, _ in columns}
    assert {(table, column, size) for table, column, size, _, _ in rows if not str(column).startswith("(")} == set(map(tuple, columns))


def test_levers_save_what_their_columns_and_parts_take(stored: Store) -> None:
    """Timelines by their age, within the error of dividing them by rows; holds, snapshots and old rows by what is stored."""
    ((timelines, holds, old, older),) = stored.select(
        f"SELECT sumIf(size, column IN {TIMELINE}), sumIf(size, column = 'chunk_hold_64us'),"
        f" sumIf(size, column IN {TIMELINE} AND days >= 7), sumIf(size, column IN {TIMELINE} AND days >= 30)"
        " FROM (SELECT column, column_data_compressed_bytes AS size, dateDiff('day', min_time, now()) AS days FROM system.parts_columns"
        " WHERE active AND database = 'default' AND table = 'stream_revs')"
    )
    saves = _levers(stored)
    assert saves["hold column of the timelines"] == pytest.approx(holds, rel=0.01) and 0 < holds < timelines
    assert saves["LEGATO_RETENTION_TIMELINES_DAYS=7"] == pytest.approx(old, rel=0.1)
    assert saves["LEGATO_RETENTION_TIMELINES_DAYS=30"] == pytest.approx(older, rel=0.1)
    assert saves["LEGATO_SNAPSHOT_INTERVAL_MS"] == pytest.approx(_on_disk(stored, "table = 'stream_revs'") * 40 / 140)
    assert saves["LEGATO_RETENTION_DAYS=30"] == _on_disk(stored, "table = 'stream_revs' AND max_time < now() - INTERVAL 30 DAY") > 0
    assert saves["LEGATO_RETENTION_ROLLUPS_DAYS=90"] == 0


def test_timelines_that_are_deleted_already_save_nothing(stored: Store) -> None:
    """With a retention of timelines of 7 days, those of older streams are gone."""
    set_retention(stored, 0, 7)
    try:
        saves = _levers(stored)
    finally:
        set_retention(stored, 0)
    assert saves["LEGATO_RETENTION_TIMELINES_DAYS=7"] == saves["LEGATO_RETENTION_TIMELINES_DAYS=30"] == 0


def test_chunks_of_deleted_streams_do_not_count(stored: Store) -> None:
    """Rollups are kept for longer than streams, so their older hours are left out."""
    ((oldest,),) = stored.select(f"SELECT min(partition_id) {PARTS} AND table = 'stream_revs'")
    stored.command(f"ALTER TABLE stream_revs DROP PARTITION ID '{oldest}'")
    ((at_rest,),) = stored.select(f"SELECT {AT_REST}")
    assert at_rest == pytest.approx(_on_disk(stored) / (60 * CHUNKS), rel=1e-12)


def test_an_unknown_size_is_not_0(stored: Store, store: Store) -> None:
    """Small parts are not divided by column, and without a rollup no snapshot is known to be replaced; a tenant's reader sees no size."""
    stored.command("ALTER TABLE stream_revs RESET SETTING min_bytes_for_wide_part")
    streams_in(store, [_stream(1, time.time_ns() - 60 * 10**9)])
    saves = _levers(store)
    assert saves["hold column of the timelines"] is None and saves["LEGATO_SNAPSHOT_INTERVAL_MS"] is None
    for sql, answer in ((f"SELECT {AT_REST}", b"\\N\n"), (LEVERS, b""), (BY_COLUMN, b"")):
        assert store.query_bytes(sql, tenant="shop") == answer
