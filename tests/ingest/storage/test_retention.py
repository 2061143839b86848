"""Retention: raw rows, timelines that are deleted before their streams, and rollups that are kept longer."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.builders.batches import received_points, received_spans
from helpers.builders.points import gauge, metrics_request
from helpers.builders.rollup_rows import one, rollup_worker
from helpers.builders.spans import SECOND_NS
from helpers.servers.reading import stream, streams_in
from helpers.servers.waiting import until
from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.errors import SchemaError, SettingsError
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Limits
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.storage.retention import kept_since_s, set_retention
from legato_ingest.storage.watermark import now_ms

DAY_S = 86_400
PERIOD_NS = 300 * SECOND_NS
COUNTED = ("stream_revs", "engine_requests", "stream_minutes")


@pytest.fixture(autouse=True)
def undone(store: Store) -> Iterator[None]:
    """Remove all rules after each test."""
    yield
    store.command("SYSTEM START TTL MERGES")
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
    merge(store, "stream_revs")
    assert store.select("SELECT notEmpty(dt_us), gap_max_us > 600000 FROM streams ORDER BY start_time") == [(0, 1), (1, 0)]
    worker.again(0)
    roller.again(0)
    assert [store.select(sql) for sql in (verdicts, minutes, statistics)] == before


@pytest.mark.parametrize(("old", "new"), [(90, 30), (30, 90), (0, 30), (30, 0)])
def test_a_changed_limit_applies_to_what_is_stored(store: Store, old: int, new: int) -> None:
    """A shorter one deletes, a longer one keeps: rows, rollups and timelines of 40 days ago, that were stored under the old limit."""
    # Until the limit is changed, nothing expires.
    store.command("SYSTEM STOP TTL MERGES")
    set_retention(store, old, 0, old)
    store_old_rows(store)
    set_retention(store, new, 0, new)
    computed(store)
    expiry = (
        "SELECT DISTINCT delete_ttl_info_max - max_time FROM system.parts WHERE active AND rows > 0 AND table IN {tables:Array(String)}"
    )
    assert not new or store.select(expiry, {"tables": [*COUNTED]}) == [(new * DAY_S,)]
    merge(store, *COUNTED)
    kept = 0 if new == 30 else 1
    assert [store.select(f"SELECT count() FROM {table}") for table in COUNTED] == [[(kept,)]] * len(COUNTED)
    begun = mutations(store)
    set_retention(store, new, 0, new)
    assert mutations(store) == begun


@pytest.mark.parametrize(("old", "new"), [(90, 30), (30, 90), (0, 30), (30, 0)])
def test_a_changed_limit_applies_to_stored_timelines(store: Store, old: int, new: int) -> None:
    """As above, while the streams are kept."""
    store.command("SYSTEM STOP TTL MERGES")
    set_retention(store, 400, old)
    store_old_rows(store)
    set_retention(store, 400, new)
    merge(store, "stream_revs")
    assert store.select("SELECT count(), countIf(notEmpty(dt_us)) FROM stream_revs") == [(1, 0 if new == 30 else 1)]
    begun = mutations(store)
    set_retention(store, 400, new)
    assert mutations(store) == begun


def test_an_interrupted_change_is_completed(store: Store) -> None:
    """The process was killed when the rules were changed, and the stored parts not yet. The same holds of parts that come by a copy."""
    store.command("SYSTEM STOP TTL MERGES")
    set_retention(store, 90, 60, 90)
    store_old_rows(store)
    for what, days in (("COLUMN dt_us TTL", 30), ("TTL", 60)):
        rule = f"{what} toDateTime(start_time) + toIntervalDay({days})"
        store.command(f"ALTER TABLE stream_revs MODIFY {rule} SETTINGS materialize_ttl_after_modify = 0")
    begun = mutations(store)
    set_retention(store, 60, 30, 90)
    merge(store, "stream_revs")
    assert store.select("SELECT count(), countIf(notEmpty(dt_us)) FROM stream_revs") == [(1, 0)]
    ((kept_s,),) = store.select("SELECT delete_ttl_info_max - max_time FROM system.parts WHERE active AND table = 'stream_revs'")
    assert kept_s == 60 * DAY_S and mutations(store) > begun


def store_old_rows(store: Store) -> None:
    """Store a stream of 40 days ago, its minute, and a request of an engine."""
    streams_in(store, [stream(age_s=40 * DAY_S)])
    RollupWorker(store, load(retention_days=0), Metrics()).again(0)
    store.command("INSERT INTO engine_requests (tenant, recorded_at) SELECT '', now64(9) - INTERVAL 40 DAY")


def merge(store: Store, *tables: str) -> None:
    """Let expired rows be deleted now, by the expiry that is stored with the parts."""
    computed(store)
    store.command("SYSTEM START TTL MERGES")
    for table in tables:
        store.command(f"OPTIMIZE TABLE {table} FINAL")


def computed(store: Store) -> None:
    """Wait until each part has its expiry."""
    until(lambda: store.select("SELECT count() FROM system.mutations WHERE NOT is_done") == [(0,)])


def mutations(store: Store) -> int:
    """How many mutations the store has begun."""
    ((count,),) = store.select("SELECT count() FROM system.mutations")
    return int(count)


def test_rollups_are_kept_longer_than_their_streams(store: Store) -> None:
    """Minutes with deleted streams are not computed again: the result would be too low."""
    streams_in(store, [stream(age_s=40 * DAY_S), stream(age_s=100.0)])
    RollupWorker(store, load(retention_days=0), Metrics()).again(0)
    counted = "SELECT sum(streams) FROM stream_minutes FINAL"
    assert store.select(counted) == [(2,)]
    store.command("ALTER TABLE stream_revs DELETE WHERE start_time < now() - INTERVAL 30 DAY SETTINGS mutations_sync = 1")
    kept = load(retention_days=30)
    assert time.time() - kept_since_s(kept) == pytest.approx(30 * DAY_S - 3_600, abs=5)
    RollupWorker(store, kept, Metrics()).again(0)
    assert store.select(counted) == [(2,)]


def test_the_longest_retention_deletes_nothing_now(store: Store) -> None:
    """The end of a row's time is a number of 32 bits, which ends in 2106. A longer retention is refused."""
    names = ("retention_days", "retention_timelines_days", "retention_rollups_days")
    longest = load(**dict.fromkeys(names, 20_000))
    for name in names:
        with pytest.raises(SettingsError, match=f"LEGATO_{name.upper()} has value 20001: .* less than or equal to 20000"):
            load(**{name: 20_001})
    set_retention(store, longest.retention_days, longest.retention_timelines_days, longest.retention_rollups_days)
    streams_in(store, [stream(age_s=100.0), stream(age_s=-0.9 * DAY_S)])
    RollupWorker(store, longest, Metrics()).again(0)
    for table in ("stream_revs", "stream_minutes"):
        store.command(f"OPTIMIZE TABLE {table} FINAL")
    assert store.select("SELECT count(), countIf(notEmpty(dt_us)) FROM streams") == [(2, 2)]
    assert store.select("SELECT sum(streams) FROM stream_minutes FINAL") == [(2,)]
    ((left_s,),) = store.select("SELECT min(delete_ttl_info_min - now()) FROM system.parts WHERE active AND delete_ttl_info_min > 1")
    assert left_s > 19_990 * DAY_S


@pytest.mark.parametrize("days", [30, 0])
def test_one_late_row_takes_no_figures_of_deleted_rows(store: Store, monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    """A running stream is overdue, and a sample arrives, when the rows of another tenant in these minutes are deleted.

    Any tenant can send such rows. Where rows are kept for ever, the minutes are computed.
    """
    start_ns = (time.time_ns() - 40 * DAY_S * SECOND_NS) // PERIOD_NS * PERIOD_NS
    put(store, "honest", one("m", 1, start_ns=start_ns))
    # A snapshot is overdue 30 s after the next one is due.
    overdue_s = time.time() + 600
    put(store, "other", one("m", 1, span_id=b"running.", due_s=overdue_s - 30 - start_ns / SECOND_NS, start_ns=start_ns))
    for tenant, second in (("honest", 1), ("honest", 200)):
        sample(store, tenant, start_ns + second * SECOND_NS)
    rollup_worker(store, retention_days=0).step()
    read = (("sum(streams)", "stream_minutes"), ("sum(samples)", "node_samples_5min"))
    wanted = [f"SELECT {figure} FROM {table} FINAL WHERE tenant = 'honest'" for figure, table in read]
    assert [store.select(sql) for sql in wanted] == [[(1,)], [(2,)]]
    for table, column in (("stream_revs", "start_time"), ("node_samples", "recorded_at")):
        expired = f"tenant = 'honest' AND {column} < fromUnixTimestamp64Nano({start_ns + 100 * SECOND_NS}, 'UTC')"
        store.command(f"ALTER TABLE {table} DELETE WHERE {expired} SETTINGS mutations_sync = 1")
    sample(store, "other", start_ns)
    # The worker's clock, by which it finds overdue streams, moves on.
    monkeypatch.setattr("legato_ingest.rollups.pending.now_ms", lambda: now_ms() + 600_000)
    rollup_worker(store, retention_days=days).step()
    assert [store.select(sql) for sql in wanted] == ([[(1,)], [(2,)]] if days else [[(0,)], [(1,)]])


@pytest.mark.parametrize("days", [90, 0])
def test_a_longer_retention_does_not_bring_deleted_rows_back(store: Store, days: int) -> None:
    """Minutes that expired before keep their figures, also when all is computed again, and after rows of earlier runs have expired."""
    start_ns = time.time_ns() - 40 * DAY_S * SECOND_NS
    put(store, "honest", one("m", 1, start_ns=start_ns))
    rollup_worker(store, retention_days=0).step()
    set_retention(store, 30)
    for table in ("stream_revs", "rollup_runs"):
        store.command(f"ALTER TABLE {table} DELETE WHERE 1 SETTINGS mutations_sync = 1")
    set_retention(store, days)
    set_retention(store, days)
    put(store, "other", one("m", 1, start_ns=start_ns))
    put(store, "other", one("m", 1, start_ns=start_ns + 12 * DAY_S * SECOND_NS, span_id=b"another."))
    wanted = "SELECT tenant, sum(streams) FROM stream_minutes FINAL GROUP BY tenant ORDER BY tenant"
    for _ in range(2):
        rolling = rollup_worker(store, retention_days=days)
        rolling.step()
        assert store.select(wanted) == [("honest", 1), ("other", 1)]
        rolling.again(0)
        assert store.select(wanted) == [("honest", 1), ("other", 1)]
        store.command("ALTER TABLE rollup_runs DELETE WHERE rows = 0 SETTINGS mutations_sync = 1")
    ((count, since_s),) = store.select("SELECT count(), toUnixTimestamp(max(kept_since)) FROM rollup_runs")
    assert count > 0 and time.time() - since_s == pytest.approx(30 * DAY_S - 3_600, abs=60)


def test_a_time_ahead_does_not_stop_the_rollups(store: Store) -> None:
    """The clock was wrong when a longer retention was set."""
    store.command("INSERT INTO rollup_runs (ran_at, kept_since) SELECT now64(3), now64(3) + INTERVAL 1 YEAR")
    put(store, "honest", one("m", 1, start_ns=time.time_ns() - 60 * SECOND_NS))
    rollup_worker(store).step()
    assert store.select("SELECT sum(streams) FROM stream_minutes FINAL") == [(1,)]


def put(store: Store, tenant: str, body: ExportTraceServiceRequest) -> None:
    """Store the streams of a request."""
    store.insert("stream_revs", received_spans(body, tenant=tenant, now_ns=time.time_ns(), limits=Limits(retention_days=0)).revs)


def sample(store: Store, tenant: str, at_ns: int) -> None:
    """Store a sample of a gauge."""
    body = metrics_request()
    gauge(body, "level", 1.0, at_ns)
    store.insert("node_samples", received_points(body, tenant=tenant, now_ns=time.time_ns(), limits=Limits(retention_days=0)).samples)
