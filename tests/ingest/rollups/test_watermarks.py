"""Rollups during inserts, clock changes and restarts: watermarks and recorded progress skip no row."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.builders.batches import received_spans
from helpers.builders.rollup_rows import (
    BATCH,
    HOUR_NS,
    NOW_NS,
    PATIENCE_S,
    SLOW,
    THEN_NS,
    Double,
    committing,
    judge,
    one,
    rollup_worker,
    send,
)
from helpers.builders.spans import SECOND_NS
from helpers.dashboards.minutes import differences, stored
from helpers.platform.examples import examples
from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Limits
from legato_ingest.rollups.followed import followed_until_ms, judgements_followed_until_ms
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.storage.watermark import now_ms


@contextmanager
def held(double: Double, table: str) -> Iterator[tuple[threading.Event, threading.Event, list[int]]]:
    """Block inserts into a table. Provide the event that one has begun, the event that releases it, and its rows' times (Unix ms)."""
    begun, go, times = threading.Event(), threading.Event(), list[int]()
    column = "judged_at" if table == "verdicts" else "received_at"

    def before(name: str, rows: pa.Table | None) -> None:
        if name == table and rows is not None and rows.num_rows:
            times.extend(rows[column].cast(pa.int64()).to_pylist())
            begun.set()
            assert go.wait(PATIENCE_S)

    double.before = before
    try:
        yield begun, go, times
    finally:
        go.set()


@pytest.mark.parametrize("after_ms", [0, NOW_NS // 10**6 + 3_600_000], ids=["now", "the clock was set back"])
def test_a_row_being_inserted_is_processed_by_the_next_run(store: Store, after_ms: int) -> None:
    """Runs that end and record their progress during an insert do not skip its rows."""
    double = Double(store)
    with committing(double, after_ms=after_ms) as committer, held(double, "stream_revs") as (begun, go, times):
        store.insert("stream_revs", received_spans(one("a", 1), tenant="", now_ns=NOW_NS, limits=Limits()).revs)
        worker = rollup_worker(store, committer.watermark_ms)
        worker.step()
        body = one("b", 1, span_id=b"another.", start_ns=THEN_NS + HOUR_NS)
        coming = committer.submit(received_spans(body, tenant="", now_ns=NOW_NS, limits=Limits()))
        assert begun.wait(PATIENCE_S)
        for _ in range(2):
            judge(store, now_ms(), {"cause": "host"})
            assert worker.step().minutes == 1
            assert committer.watermark_ms() < times[0]
        go.set()
        assert coming.result(PATIENCE_S).rejected == 0
        assert worker.step().minutes == 1
    assert differences(store) == [] and len(stored(store, "stream_minutes")) == 2


def test_a_verdict_being_inserted_is_processed_by_the_next_run(store: Store) -> None:
    """A run that ends during an insert of verdicts does not record them as processed."""
    double = Double(store)
    with committing(store) as committer, held(double, "verdicts") as (begun, go, times):
        send(committer, [one("a", 1, attributes=SLOW, duration_ns=9 * SECOND_NS)])
        judging = AttributionWorker(cast(Store, double), load(attribute_grace_s=0), Metrics(), committer.watermark_ms)
        worker = rollup_worker(store, committer.watermark_ms, judging.judged_ms)
        worker.step()
        with ThreadPoolExecutor(1) as thread:
            sweep = thread.submit(judging.step)
            assert begun.wait(PATIENCE_S)
            for each in range(2):
                send(committer, [one("b", 1, span_id=bytes([each + 1]) * 8, start_ns=THEN_NS + HOUR_NS)])
                assert worker.step().minutes == 1
                assert judging.judged_ms() < times[0]
            go.set()
            assert sweep.result(PATIENCE_S).verdicts == 1
        assert worker.step().minutes == 1
    assert differences(store) == [] and len(stored(store, "stall_minutes")) == 1


class Void:
    """A store that keeps only the receive time of inserted rows."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.stamp_ms = 0
        self.clock_ms = now_ms

    def insert(self, table: str, rows: pa.Table) -> None:
        """Block until ``go`` is set."""
        if table == "stream_revs":
            (self.stamp_ms,) = rows["received_at"].cast(pa.int64()).to_pylist()
            self.begun.set()
            assert self.go.wait(PATIENCE_S)

    def select(self, sql: str, *_: Any) -> list[Any]:
        """Return no rows, or 0 for the latest time of all rows."""
        return [(0,)] if "max(" in sql and "GROUP BY" not in sql else []

    def select_arrow(self, *_: Any) -> pa.Table:
        """Return no rows."""
        return pa.table({name: pa.array([], pa.string()) for name in ("tenant", "trace_id", "span_id", "rev")})


FUTURE_MS = NOW_NS // 10**6 + 3_600_000


@given(st.lists(st.booleans(), max_size=12), st.sampled_from((0, NOW_NS // 10**6, FUTURE_MS)))
@examples(40)
def test_no_row_is_received_before_the_watermark(asked: list[bool], after_ms: int) -> None:
    """The watermark never reaches a later row, whether read before, during or after inserts, and for any clock."""
    store = Void()
    with committing(cast(Store, store), after_ms=after_ms) as committer:
        reached = after_ms
        for during in asked:
            store.begun.clear()
            store.go.clear()
            done = committer.submit(BATCH)
            assert store.begun.wait(PATIENCE_S) and store.stamp_ms > reached
            if during:
                watermark = committer.watermark_ms()
                assert reached <= watermark < store.stamp_ms
                reached = watermark
            store.go.set()
            done.result(PATIENCE_S)
            if not during:
                watermark = committer.watermark_ms()
                assert watermark >= reached
                reached = watermark


@given(st.lists(st.booleans(), max_size=12), st.sampled_from((0, NOW_NS // 10**6, FUTURE_MS)))
@examples(40)
def test_no_verdict_is_judged_before_the_watermark(asked: list[bool], after_ms: int) -> None:
    """The time of a judgement is later than every watermark read before it or while it is written."""
    judging = AttributionWorker(cast(Store, Void()), load(), Metrics(), after_ms=after_ms)
    watermarks = [after_ms]

    def ask() -> int:
        watermarks.append(judging.judged_ms())
        assert watermarks[-1] >= watermarks[-2]
        return watermarks[-1]

    for during in asked:
        with judging._watermark.stamp() as at_ms:
            assert at_ms > watermarks[-1]
            assert not during or ask() < at_ms
        ask()


def test_concurrent_reads_of_the_watermark() -> None:
    """With continuous reads from another thread, no later insert has a time below the watermark."""
    store, watermarks, done = Void(), list[tuple[int, int]](), list[int]()
    store.go.set()
    with committing(cast(Store, store)) as committer, ThreadPoolExecutor(1) as thread:
        stop = threading.Event()

        def ask() -> None:
            while not stop.wait(0.0002):
                watermark = committer.watermark_ms()
                watermarks.append((watermark, len(done)))

        asking = thread.submit(ask)
        try:
            for _ in range(100):
                committer.submit(BATCH).result(PATIENCE_S)
                done.append(store.stamp_ms)
        finally:
            # Otherwise a failed insert would leave the thread, and this test, running for ever.
            stop.set()
        asking.result(PATIENCE_S)
    # A row may be in the store before its future was read.
    assert all(watermark < done[seen + 1] for watermark, seen in watermarks if seen + 1 < len(done))
    assert done == sorted(done)


def test_rows_after_the_clock_was_set_back_are_processed_at_once(store: Store) -> None:
    """Their times are later than the recorded progress, so they are processed without waiting for the clock."""
    with committing(store, after_ms=FUTURE_MS) as committer:
        worker = rollup_worker(store, committer.watermark_ms)
        worker.step()
        send(committer, [one("a", 1)])
        assert worker.step().minutes == 1


def test_verdicts_after_the_clock_was_set_back_are_processed_at_once(store: Store) -> None:
    """Their times are later than the recorded progress."""
    with committing(store) as committer:
        send(committer, [one("a", 1, attributes=SLOW, duration_ns=9 * SECOND_NS)])
        judging = AttributionWorker(store, load(attribute_grace_s=0), Metrics(), committer.watermark_ms, FUTURE_MS)
        worker = rollup_worker(store, committer.watermark_ms, judging.judged_ms)
        worker.step()
        assert judging.step().verdicts == 1
        assert worker.step().minutes == 1


def test_verdicts_of_a_restarted_worker_are_later_than_the_progress(store: Store) -> None:
    """Also if the clock was set back in between, so that none is skipped."""
    with committing(store) as committer:
        send(committer, [one("a", 1, attributes=SLOW, duration_ns=9 * SECOND_NS)])
        rollup_worker(store, committer.watermark_ms, lambda: FUTURE_MS).step()
        after_ms = judgements_followed_until_ms(store)
        assert AttributionWorker(store, load(attribute_grace_s=0), Metrics(), committer.watermark_ms, after_ms).step().verdicts == 1
    ((judged_ms,),) = store.select("SELECT toUnixTimestamp64Milli(max(judged_at)) FROM verdicts")
    assert judged_ms > FUTURE_MS


def test_progress_is_the_same_in_every_time_zone(tmp_path: pathlib.Path) -> None:
    """A new process continues from there in any time zone."""
    script = (
        "import pathlib, sys, time; from legato_ingest.storage import migrate; from legato_ingest.rollups import followed, worker\n"
        "from legato_ingest.metrics import Metrics\n"
        "from legato_ingest.settings import load; from legato_ingest.storage import EmbeddedStore\n"
        "settings, store = load(), EmbeddedStore(pathlib.Path(sys.argv[1]))\n"
        "migrate.apply(store, migrate.load(settings.schema_dir)); worker.RollupWorker(store, settings, Metrics()).step()\n"
        "print(followed.followed_until_ms(store) - time.time_ns() // 10**6); store.close()"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "store")]
    result = subprocess.run(command, env={**os.environ, "TZ": "America/New_York"}, check=True, capture_output=True, text=True)
    assert -60_000 < int(result.stdout) <= 1


def test_progress_is_the_later_of_both_workers(store: Store) -> None:
    """The later progress of attribution and rollups; 0 for a new store."""
    assert followed_until_ms(store) <= 1
    rollup_worker(store, lambda: 10**12).step()
    assert followed_until_ms(store) == 10**12
    # With the current time as its run: a row of 1970 is past the retention, so a merge may drop it at once.
    store.command("INSERT INTO attribution_runs (until, ran_at) VALUES (fromUnixTimestamp64Milli(1000000000777), now64(3))")
    assert followed_until_ms(store) == 10**12 + 777


def test_progress_includes_what_the_writers_reached(store: Store) -> None:
    """The rollups follow all writers, and may be ahead of the progress that they recorded."""
    store.command(
        "INSERT INTO writers (writer, settled_at, judged_until, seen_at)"
        " VALUES ('a', fromUnixTimestamp64Milli(1000000000777), fromUnixTimestamp64Milli(1000000000999), now64(3))"
    )
    assert (followed_until_ms(store), judgements_followed_until_ms(store)) == (10**12 + 777, 10**12 + 999)
