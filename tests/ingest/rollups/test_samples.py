"""The 5-minute rollup of node samples: equal to a loop over the samples, whatever arrives when, and what panels read of it."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from dashboards.sample_sql import growth, observed, seen, values
from helpers.builders.batches import received_points
from helpers.builders.points import gauge, histogram, metrics_request, point_requests, total
from helpers.builders.rollup_rows import MINUTE_NS, PATIENCE_S, committing, rollup_worker
from helpers.builders.spans import SECOND_NS
from helpers.dashboards.minutes import rows_in
from legato_ingest.dashboards.macros import Range, with_macros
from legato_ingest.errors import MEMORY_LIMIT_EXCEEDED, StoreRefused, StoreUnavailable
from legato_ingest.otlp.batch import Limits
from legato_ingest.rollups import pieces, samples, worker
from legato_ingest.rollups.pieces import Piece
from legato_ingest.rollups.samples import PERIOD_S, SampleRollup
from legato_ingest.storage import Store
from legato_ingest.write.committer import Committer

PERIOD_NS = PERIOD_S * SECOND_NS
# A period that ended long ago, and some time for the others after it.
THEN_NS = (time.time_ns() - 2 * 3_600 * SECOND_NS) // PERIOD_NS * PERIOD_NS
PERIODS = 5
COUNTED = ("samples", "positive", "observations")
KEY = ("tenant", "metric", "engine_id", "host", "series", "minute")
DELTA = 1


def drawn(rng: random.Random, count: int) -> ExportMetricsServiceRequest:
    """Points of gauges, of counters that restart, and of histograms with either temporality, from an engine or from a host."""
    body = metrics_request({"host.name": "node-1", "legato.engine.id": rng.choice(("e1", ""))})
    for _ in range(count):
        # Few times, so that some are equal; on both bounds of a period, too.
        at = THEN_NS + rng.randrange(PERIODS * 12) * PERIOD_NS // 12 - rng.choice((0, 0, 1))
        attributes = {"gpu": rng.choice("01")}
        match rng.randrange(4):
            case 0:
                gauge(body, "level", rng.choice((-1.5, 0.0, 2.0, 1e12)), at, attributes=attributes)
            case 1:
                total(body, "count", float(rng.randrange(5)), at, attributes=attributes)
            case _:
                histogram(body, "time", [1.0], [rng.randrange(3), 1], at, sum=rng.choice((0.25, 3.0)), attributes=attributes)
                metric = body.resource_metrics[0].scope_metrics[0].metrics[-1]
                metric.histogram.aggregation_temporality = rng.choice((DELTA, 2))
    return body


def send(committer: Committer, *bodies: ExportMetricsServiceRequest, tenant: str = "") -> None:
    """Store these requests, one after another."""
    for body in bodies:
        batch = received_points(body, tenant=tenant, now_ns=time.time_ns(), limits=Limits())
        assert committer.submit(batch).result(PATIENCE_S).rejected == 0


def expected(store: Store) -> list[dict[str, Any]]:
    """The rollup, from the samples in a loop."""
    groups = defaultdict(list)
    for row in rows_in(store, "SELECT * FROM node_samples FINAL ORDER BY recorded_at"):
        groups[(*(row[name] for name in KEY[:-1]), row["recorded_at"] // PERIOD_NS * PERIOD_S)].append(row)
    return [{**dict(zip(KEY, key, strict=True)), **_row(groups[key])} for key in sorted(groups)]


def _row(rows: list[dict[str, Any]]) -> dict[str, Any]:
    known = [row["value"] for row in rows if row["value"] is not None]
    deltas = [row for row in rows if row["temporality"] == "delta" and row["count"] and row["sum"] is not None]
    return {
        "attributes": rows[0]["attributes"],
        "samples": len(known),
        "positive": sum(value > 0 for value in known),
        "value_sum": sum(known),
        "value_max": max(known, default=0),
        "first_value": known[0] if known else 0,
        "last_value": known[-1] if known else 0,
        "grown": sum(now - before if now >= before else now for before, now in zip(known, known[1:], strict=False)),
        "observations": sum(row["count"] for row in deltas),
        "observed_sum": sum(row["sum"] for row in deltas),
    }


def rolled(store: Store) -> list[dict[str, Any]]:
    """The rollup in the store, in the order of its keys."""
    found = rows_in(store, "SELECT * EXCEPT (rolled_at) FROM node_samples_5min FINAL")
    return sorted(found, key=lambda row: tuple(row[name] for name in KEY))


def test_the_rollup_equals_a_loop_over_the_samples(store: Store) -> None:
    """Also with late samples, repeated requests, another order, and runs in between."""
    rng = random.Random(11)
    with committing(store) as committer:
        worker = rollup_worker(store, committer.watermark_ms)
        for tenant in ("", "acme", ""):
            body = drawn(rng, 300)
            send(committer, body, tenant=tenant)
            worker.step()
            assert rolled(store) == expected(store)
            send(committer, *rng.sample(point_requests(body), 20), tenant=tenant)
            worker.step()
            assert rolled(store) == expected(store)
    assert {row["samples"] == 0 for row in rolled(store)} == {True, False}
    assert {row["observations"] == 0 for row in rolled(store)} == {True, False}
    # A restart inside a period: more growth than from its first value to its last.
    assert any(row["grown"] > row["last_value"] - row["first_value"] for row in rolled(store) if row["metric"] == "count")


def test_the_past_is_computed_in_parts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part a run. The progress is stored after the last, so another process that takes over in between computes everything."""
    monkeypatch.setattr(samples, "_SAMPLES_MAX", 1)
    with committing(store) as committer:
        send(committer, drawn(random.Random(12), 100))
        first = rollup_worker(store, committer.watermark_ms)
        for count in (1, 2):
            first.step()
            assert len({row["minute"] for row in rolled(store)}) == count
        assert store.select("SELECT toUnixTimestamp64Milli(max(sampled_until)) FROM rollup_runs") == [(0,)]
        second = rollup_worker(store, committer.watermark_ms)
        while len({row["minute"] for row in rolled(store)}) < PERIODS:
            second.step()
        second.step()
    assert rolled(store) == expected(store)
    ((until_ms,),) = store.select("SELECT toUnixTimestamp64Milli(max(sampled_until)) FROM rollup_runs")
    assert until_ms > 0


def test_it_is_computed_again_on_request(store: Store) -> None:
    """All of it, or the last seconds; a clock that was set back does not keep the old rows."""
    with committing(store) as committer:
        send(committer, drawn(random.Random(13), 100))
        worker = rollup_worker(store, committer.watermark_ms)
        worker.step()
    right = rolled(store)
    ahead = "7 AS samples, now64(3) + INTERVAL 1 HOUR AS rolled_at"
    store.command(f"INSERT INTO node_samples_5min SELECT * REPLACE ({ahead}) FROM node_samples_5min FINAL")
    assert rolled(store) != right
    other = rollup_worker(store)
    other.again(0)
    other.again(60, samples=True)
    assert rolled(store) != right
    other.again(0, samples=True)
    assert rolled(store) == right


def test_the_last_seconds_are_not_computed_before_the_past(store: Store) -> None:
    """Panels rely on all periods before the newest one of the rollup, so it begins with the first."""
    with committing(store) as committer:
        send(committer, drawn(random.Random(16), 100))
    rollup_worker(store).again(9_000, samples=True)
    assert rolled(store) == []


def test_a_late_sample_after_a_row_with_a_later_version_counts(store: Store) -> None:
    """Another process computed the row with a clock that was ahead."""
    with committing(store) as committer:
        send(committer, drawn(random.Random(17), 50))
        worker = rollup_worker(store, committer.watermark_ms)
        worker.step()
        ahead = "now64(3) + INTERVAL 1 HOUR AS rolled_at"
        store.command(f"INSERT INTO node_samples_5min SELECT * REPLACE ({ahead}) FROM node_samples_5min FINAL")
        send(committer, drawn(random.Random(18), 50))
        worker.step()
    assert rolled(store) == expected(store)


def test_samples_around_the_ends_of_many_months_are_rolled_up(store: Store) -> None:
    """Each in another partition of the rollup, two for each stretch of periods."""
    ends = [int(datetime(1980 + month // 12, month % 12 + 1, 1, tzinfo=UTC).timestamp()) for month in range(64)]
    body = metrics_request()
    for end_s in ends:
        for second in (end_s - 10, end_s + 10):
            gauge(body, "level", 1.0, second * SECOND_NS)
    with committing(store) as committer:
        batch = received_points(body, tenant="", now_ns=time.time_ns(), limits=Limits(retention_days=0, days_max=1_000))
        assert committer.submit(batch).result(PATIENCE_S).rejected == 0
        rollup_worker(store, committer.watermark_ms, retention_days=0).step()
    assert rolled(store) == expected(store) and len(rolled(store)) == 128


def test_a_part_that_fails_is_tried_again_and_delays_no_streams(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One period first, then more; the progress of the streams is stored before."""
    with committing(store) as committer:
        send(committer, drawn(random.Random(19), 100))
        worker = rollup_worker(store, committer.watermark_ms)
        with monkeypatch.context() as broken:
            broken.setattr(samples, "_DELTA", "no_such_column")
            for _ in range(2):
                with pytest.raises(StoreRefused, match="no_such_column"):
                    worker.step()
        ((runs, sampled_ms),) = store.select("SELECT count(), toUnixTimestamp64Milli(max(sampled_until)) FROM rollup_runs")
        assert runs > 0 and sampled_ms == 0
        counts = list[int]()
        while not counts or counts[-1] < PERIODS:
            worker.step()
            counts.append(len({row["minute"] for row in rolled(store)}))
        assert counts[0] == 1 and len(counts) < PERIODS
    assert rolled(store) == expected(store)


def test_a_tenant_that_takes_much_memory_delays_itself_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its later periods wait for the one that is refused, those of others do not, and no run fails. The progress stays before it."""
    monkeypatch.setattr(worker, "_DIVIDED_S", 0.0)
    monkeypatch.setattr(pieces, "_SHARES_MAX", 2)
    real, heavy_s, lacks_memory = SampleRollup._compute_piece, THEN_NS // SECOND_NS + PERIOD_S, True

    def refuse(self: SampleRollup, piece: Piece, rolled_ms: int) -> None:
        heavy = ("heavy", heavy_s) not in piece.apart and heavy_s in piece.starts_s and (piece.tenants is None or "heavy" in piece.tenants)
        if lacks_memory and heavy:
            raise StoreUnavailable("Code: 241", MEMORY_LIMIT_EXCEEDED)
        real(self, piece, rolled_ms)

    monkeypatch.setattr(SampleRollup, "_compute_piece", refuse)
    rng, since = random.Random(21), "SELECT toUnixTimestamp64Milli(max(sampled_until)) FROM rollup_runs"
    with committing(store) as committer:
        rolling = rollup_worker(store, committer.watermark_ms)
        for _ in range(2):
            for tenant in ("before", "heavy", "later"):
                send(committer, drawn(rng, 100), tenant=tenant)
            for _ in range(8):
                rolling.step()
            others = [row for row in expected(store) if row["tenant"] != "heavy"]
            assert [row for row in rolled(store) if row["tenant"] != "heavy"] == others
            # The first samples are up to 1 ns before the first period.
            assert all(row["minute"] < heavy_s for row in rolled(store) if row["tenant"] == "heavy")
            assert store.select(since) == [(0,)]
        assert rolling._metrics.errors.labels("rollup", "StoreUnavailable")._value.get() > 0
        lacks_memory = False
        while rolling._samples._divided:
            rolling.step()
        assert rolled(store) == expected(store) and int(store.select(since)[0][0]) > 0
        lacks_memory = True
        store.command("TRUNCATE TABLE node_samples_5min")
        with pytest.raises(StoreUnavailable):
            rolling.again(0, samples=True)
        assert [row for row in rolled(store) if row["tenant"] != "heavy"] == others
        lacks_memory = False
        rolling.again(0, samples=True)
        assert rolled(store) == expected(store)


def test_a_store_without_memory_delays_all_for_one_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tenant is divided, and the next run computes all of them with one statement."""
    count = [0]
    real = SampleRollup._compute_piece

    def counted(self: SampleRollup, piece: Piece, rolled_ms: int) -> None:
        count[0] += 1
        real(self, piece, rolled_ms)

    def refuse(*_: object) -> None:
        raise StoreUnavailable("Code: 241", MEMORY_LIMIT_EXCEEDED)

    body = metrics_request()
    gauge(body, "level", 1.0, THEN_NS)
    with committing(store) as committer:
        for number in range(20):
            send(committer, body, tenant=f"tenant {number}")
        rolling = rollup_worker(store, committer.watermark_ms)
        with monkeypatch.context() as short:
            short.setattr(SampleRollup, "_compute_piece", refuse)
            with pytest.raises(StoreUnavailable):
                rolling.step()
        assert not rolling._samples._divided
        monkeypatch.setattr(SampleRollup, "_compute_piece", counted)
        rolling.step()
    assert count == [1] and rolled(store) == expected(store) and len(rolled(store)) == 20


def test_a_tenant_waits_for_no_period_without_its_samples(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it has pieces that wait, periods of others come."""
    real, start_s = SampleRollup._compute_piece, THEN_NS // SECOND_NS

    def refuse(self: SampleRollup, piece: Piece, rolled_ms: int) -> None:
        if ("heavy", start_s) not in piece.apart and start_s in piece.starts_s and "heavy" in (piece.tenants or ("heavy",)):
            raise StoreUnavailable("Code: 241", MEMORY_LIMIT_EXCEEDED)
        real(self, piece, rolled_ms)

    monkeypatch.setattr(SampleRollup, "_compute_piece", refuse)
    with committing(store) as committer:
        rolling = rollup_worker(store, committer.watermark_ms)
        for period in range(4):
            for tenant in ("heavy", "other") if period in {0, 2} else ("other",):
                body = metrics_request()
                gauge(body, "level", 1.0, THEN_NS + period * PERIOD_NS)
                send(committer, body, tenant=tenant)
            rolling.step()
    works = rolling._samples._divided._works
    waiting = {(tenant, (int(start) - start_s) // PERIOD_S) for tenant in works for work in works[tenant] for start in work.next.starts_s}
    assert waiting == {("heavy", 0), ("heavy", 2)}
    assert [row["minute"] for row in rolled(store)] == [start_s + period * PERIOD_S for period in range(4)]


def test_nothing_is_stored_for_nothing(store: Store) -> None:
    """An idle store gets one row with the progress, of the first run."""
    worker = rollup_worker(store)
    for _ in range(3):
        worker.step()
    assert store.select("SELECT count() FROM rollup_runs") == [(1,)]


def test_many_samples_of_a_period_with_one_late_one_count(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Late samples make all periods dirty; each has too many samples for a part with two of them."""
    with committing(store) as committer:
        send(committer, drawn(random.Random(20), 200))
        worker = rollup_worker(store, committer.watermark_ms)
        worker.step()
        body = metrics_request()
        for period in range(PERIODS):
            gauge(body, "late", 1.0, THEN_NS + period * PERIOD_NS)
        send(committer, body)
        monkeypatch.setattr(samples, "_SAMPLES_MAX", 2 * PERIODS)
        steps = 0
        while rolled(store) != expected(store):
            worker.step()
            steps += 1
    assert steps == PERIODS


def test_times_without_a_minute_are_left_out(store: Store) -> None:
    """A DateTime ends in 2106; samples can be later."""
    with committing(store) as committer:
        body = drawn(random.Random(14), 50)
        send(committer, body)
        committed = expected(store)
        late = "toDateTime64('2262-04-11 00:00:00', 9, 'UTC') AS recorded_at"
        store.command(f"INSERT INTO node_samples SELECT * REPLACE ({late}) FROM node_samples LIMIT 1")
        rollup_worker(store, committer.watermark_ms).step()
    assert rolled(store) == committed


# What panels read.


def _range(from_ns: int, to_ns: int, interval_s: int) -> Range:
    return Range(from_ns // 10**6, to_ns // 10**6, interval_s * 1000)


def _read(store: Store, sql: str, span: Range) -> list[dict[str, Any]]:
    return rows_in(store, with_macros(sql, span))


SUMS = f"""
SELECT $__timeInterval(at) AS time, metric, sum(samples) AS n, sum(value_sum) AS total, max(value_max) AS highest
FROM {values("'level', 'count'")} GROUP BY time, metric ORDER BY time, metric"""
GROWTH = f"""
SELECT $__timeInterval(at) AS time, engine, sum(grown) AS more
FROM ({growth("'count'", "engine_id AS engine")}) GROUP BY time, engine ORDER BY time, engine"""
OBSERVED = f"""
SELECT $__timeInterval(at) AS time, sum(observations) AS n, sum(observed_sum) AS total
FROM {observed("'time'")} GROUP BY time ORDER BY time"""
SEEN = f"""SELECT DISTINCT engine_id, host FROM {seen("engine_id, host", "'level'")} ORDER BY engine_id"""
SOURCE = f"""SELECT count() AS n FROM {values("'level', 'count'")}"""


def test_panels_read_the_same_from_both(store: Store) -> None:
    """For ranges with any bounds: as if there were no rollup. Most rows come from the rollup if a point covers its periods."""
    rng = random.Random(15)
    with committing(store) as committer:
        send(committer, *(drawn(rng, 400) for _ in range(3)))
        rollup_worker(store, committer.watermark_ms).step()
    bounds = [THEN_NS + rng.randrange(-2 * MINUTE_NS, PERIODS * PERIOD_NS + 2 * MINUTE_NS) for _ in range(12)]
    bounds += [THEN_NS, THEN_NS + PERIODS * PERIOD_NS, THEN_NS + PERIOD_NS - 1, THEN_NS + PERIOD_NS + 500_000_000]
    pairs = [sorted(rng.sample(bounds, 2)) for _ in range(25)]
    spans = [_range(low, high, rng.choice((300, 600, 60))) for low, high in pairs]
    whole = _range(THEN_NS - PERIOD_NS, THEN_NS + PERIODS * PERIOD_NS, 300)
    asked = [(sql, span) for sql in (SUMS, GROWTH, OBSERVED, SEEN) for span in (*spans, whole)]
    found = [_read(store, sql, span) for sql, span in asked]
    few, many = (_read(store, SOURCE, _range(whole.from_ms * 10**6, whole.to_ms * 10**6, each))[0]["n"] for each in (300, 60))
    assert 0 < few < many / 3
    store.command("TRUNCATE TABLE node_samples_5min")
    assert found == [_read(store, sql, span) for sql, span in asked]
    assert sum(map(len, found)) > 200


def test_the_newest_period_is_read_from_the_samples(store: Store) -> None:
    """The rollup of a period that is not over lacks its latest samples until the next run."""
    now_ns = time.time_ns()
    span = _range(now_ns - 3_600 * SECOND_NS, now_ns + 60 * SECOND_NS, 300)
    body, later = metrics_request(), metrics_request()
    for second in range(1_500):
        gauge(body, "level", 1.0, now_ns - (1_510 - second) * SECOND_NS)
    for second in range(5):
        gauge(later, "level", 1.0, now_ns - second * SECOND_NS)
    with committing(store) as committer:
        send(committer, body)
        rollup_worker(store, committer.watermark_ms).step()
        send(committer, later)
    assert sum(row["n"] for row in _read(store, SUMS, span)) == 1_505
    assert _read(store, SOURCE, span)[0]["n"] < 1_000
