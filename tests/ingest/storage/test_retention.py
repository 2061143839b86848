"""Retention: raw rows, timelines that are deleted before their streams, and rollups that are kept longer."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from helpers.servers.reading import stream, streams_in
from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.errors import SchemaError
from legato_ingest.metrics import Metrics
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.storage.retention import kept_since_s, set_retention

DAY_S = 86_400


@pytest.fixture(autouse=True)
def undone(store: Store) -> Iterator[None]:
    """Remove all rules after each test."""
    yield
    set_retention(store, 0)


def test_a_table_that_is_missing_is_named(store: Store) -> None:
    """As after its file was deleted from the store's folder."""
    store.command("RENAME TABLE node_samples TO node_samples_elsewhere")
    try:
        with pytest.raises(SchemaError, match="the table node_samples is missing"):
            set_retention(store, 7)
    finally:
        store.command("RENAME TABLE node_samples_elsewhere TO node_samples")


def test_retention_follows_the_setting(store: Store) -> None:
    """The rule is set, changed and removed, and not touched if it is right already."""

    def declared() -> str:
        return str(store.select("SELECT create_table_query FROM system.tables WHERE database = 'default' AND name = 'stream_revs'")[0][0])

    plain = declared()
    for days in (90, 90, 7):
        set_retention(store, days)
        assert f"TTL toDateTime(start_time) + toIntervalDay({days})" in declared()
    set_retention(store, 0)
    assert declared() == plain
    set_retention(store, 0)


def test_retention_covers_every_table_with_daily_partitions(store: Store) -> None:
    """A table without a rule would grow without limit."""
    set_retention(store, 7)
    rows = store.select(
        "SELECT name, create_table_query FROM system.tables WHERE partition_key LIKE 'toYYYYMMDD(%' AND database = 'default'"
    )
    set_retention(store, 0)
    assert len(rows) >= 6 and {str(name) for name, sql in rows if "toIntervalDay(7)" not in str(sql)} == set()


def test_retention_of_9_is_not_taken_for_90(store: Store) -> None:
    """The complete rule is compared, not its beginning."""
    try:
        set_retention(store, 90)
        set_retention(store, 9)
        assert "toIntervalDay(9)" in str(store.select("SELECT create_table_query FROM system.tables WHERE name = 'stream_revs'")[0][0])
    finally:
        set_retention(store, 0)


def test_timelines_and_rollups_have_separate_rules(store: Store) -> None:
    """Each is set, changed and removed without changing the others."""

    def declared(table: str) -> str:
        return str(store.select(f"SELECT create_table_query FROM system.tables WHERE database = 'default' AND name = '{table}'")[0][0])

    for raw, rollups, kept in ((90, 400, 400), (90, 30, 90), (0, 400, 0), (90, 0, 0)):
        set_retention(store, raw, 0, rollups)
        assert ("TTL" in declared("node_samples_5min"), f"toIntervalDay({kept})" in declared("node_samples_5min")) == (kept > 0, kept > 0)
    set_retention(store, 0)
    plain = declared("stream_revs"), declared("stream_minutes")
    for _ in range(2):
        set_retention(store, 90, 30, 400)
        revs, minutes = declared("stream_revs"), declared("stream_minutes")
        assert revs.count("toIntervalDay(30)") == 5 and revs.count("toIntervalDay(90)") == 1
        assert minutes.count("toIntervalDay(400)") == 1
    set_retention(store, 90, 3, 0)
    assert declared("stream_revs").count("toIntervalDay(3)") == 5 and declared("stream_minutes") == plain[1]
    set_retention(store, 0)
    assert (declared("stream_revs"), declared("stream_minutes")) == plain


def test_a_timeline_can_be_deleted_before_its_stream(store: Store) -> None:
    """Statistics, verdicts and rollups do not change, not even if everything is judged and rolled up again."""
    settings = load(retention_days=0, stall_ms=250)
    held = stream((20.0,) * 10 + (700.0,) + (20.0,) * 8, holds_ms=(0.0,) * 10 + (690.0,) + (0.0,) * 9, age_s=40 * DAY_S)
    streams_in(store, [held])
    streams_in(store, [stream(age_s=100.0)], seed=8)
    worker, roller = AttributionWorker(store, settings, Metrics()), RollupWorker(store, settings, Metrics())
    worker.again(0)
    roller.again(0)
    verdicts = "SELECT start_time, cause, gap_us FROM verdicts FINAL ORDER BY start_time"
    minutes = "SELECT * EXCEPT rolled_at FROM stream_minutes FINAL ORDER BY minute"
    statistics = "SELECT * EXCEPT (dt_us, chunk_bytes, chunk_tokens, chunk_kind, chunk_hold_64us) FROM streams ORDER BY start_time"
    before = [store.select(sql) for sql in (verdicts, minutes, statistics)]
    assert len(before[0]) == 1 and len(before[1]) == 2
    set_retention(store, 0, 30)
    store.command("ALTER TABLE stream_revs MATERIALIZE TTL SETTINGS mutations_sync = 1")
    assert store.select("SELECT notEmpty(dt_us), gap_max_us > 600000 FROM streams ORDER BY start_time") == [(0, 1), (1, 0)]
    worker.again(0)
    roller.again(0)
    assert [store.select(sql) for sql in (verdicts, minutes, statistics)] == before


def test_rollups_are_kept_longer_than_their_streams(store: Store) -> None:
    """Minutes with deleted streams are not computed again: the result would be too low."""
    streams_in(store, [stream(age_s=40 * DAY_S), stream(age_s=100.0)])
    RollupWorker(store, load(retention_days=0), Metrics()).again(0)
    counted = "SELECT sum(streams) FROM stream_minutes FINAL"
    assert store.select(counted) == [(2,)]
    store.command("ALTER TABLE stream_revs DELETE WHERE start_time < now() - INTERVAL 30 DAY SETTINGS mutations_sync = 1")
    kept = load(retention_days=30)
    assert time.time() - kept_since_s(kept) == pytest.approx(29 * DAY_S, abs=5)
    RollupWorker(store, kept, Metrics()).again(0)
    assert store.select(counted) == [(2,)]
