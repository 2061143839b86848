"""Rollup runs that are killed, stopped, or end with minutes left: the next runs complete them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa
import pytest

from helpers.builders.rollup_rows import MINUTE_NS, Double, committing, one, rolled_at, rollup_worker, scattered, send
from helpers.builders.spans import SECOND_NS
from helpers.dashboards.minutes import ALIVE, differences
from legato_ingest.rollups import worker
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.storage import Store


def test_hours_follow_their_minutes_also_in_the_next_process(store: Store) -> None:
    """A run soon after another leaves its hours to a later one. If the process ends before, the next process computes them first."""
    with committing(store) as committer:
        send(committer, [one("a", 1)])
        slow = rollup_worker(store, committer.watermark_ms, rollup_every_s=1_000.0)
        slow.step()
        assert differences(store) == []
        send(committer, [one("b", 2)])
        assert slow.step().minutes == 1
        assert {each.split()[0] for each in differences(store)} == {"stream_hours"}
        assert rollup_worker(store, committer.watermark_ms).step().minutes == 0
        assert differences(store) == []


def test_an_overdue_stream_is_found_by_another_process(store: Store) -> None:
    """A running stream is overdue after its minute was computed; no data arrives, and whichever process runs next finds it."""
    # A busy machine takes seconds for the first runs, and the stream must not be overdue before them.
    start_ns = time.time_ns() - 23 * SECOND_NS
    with committing(store) as committer:
        send(committer, [one("a", 1, due_s=1.0, start_ns=start_ns)])
        first, second = (rollup_worker(store, committer.watermark_ms) for _ in range(2))
        assert first.step().minutes == 1
        send(committer, [one("b", 2)])
        assert second.step().minutes >= 1
        time.sleep(max(0.0, 31.5 - (time.time_ns() - start_ns) / SECOND_NS))
        assert first.step().minutes == 1
        assert differences(store) == []
        assert first.step().minutes == second.step().minutes == 0


class Killed(Exception):
    """Stands for the end of the process."""


def inserts_of_a_run(store: Store, at: int | None, act: Callable[[RollupWorker], None]) -> tuple[RollupWorker, list[str]]:
    """Return a worker that calls ``act`` before its insert number ``at``, and the list of tables that it inserted into."""
    double, written = Double(store), list[str]()
    worker = rollup_worker(double)

    def before(table: str, rows: pa.Table | None) -> None:
        written.append(table)
        if len(written) == at:
            act(worker)

    double.before = before
    return worker, written


def kill(_: RollupWorker) -> None:
    """End the run, as SIGKILL would."""
    raise Killed


@pytest.mark.parametrize(("at", "same"), [(5, True), (8, False)])
def test_after_a_kill_the_next_run_completes_the_rollups(store: Store, at: int, same: bool) -> None:
    """After a kill between two tables, or before the run is recorded, the next run of any process computes everything again."""
    scattered(store)
    worker, _ = inserts_of_a_run(store, at, kill)
    with pytest.raises(Killed):
        worker.step()
    assert store.select("SELECT count() FROM rollup_runs") == [(0,)]
    other, written = inserts_of_a_run(store, None, kill)
    assert (worker if same else other).step().minutes == 72
    # Two passes over streams, one over steps, and not one more.
    minutes = [table for table in ALIVE if table.endswith("_minutes")]
    assert same or [written.count(each) for each in (*minutes, "rollup_runs")] == [2, 2, 2, 1, 1]
    assert differences(store) == [] and other.step().minutes == 0


@pytest.mark.parametrize(
    ("at", "minutes"), [pytest.param(1, 0, marks=pytest.mark.long), (4, 66), pytest.param(7, 72, marks=pytest.mark.long)]
)
def test_a_stop_between_tables_records_no_run(store: Store, at: int, minutes: int) -> None:
    """A stop completes the current table and records no run; the next run computes everything."""
    scattered(store)
    worker, written = inserts_of_a_run(store, at, lambda worker: worker._task.closing.set())
    assert worker.step().minutes == minutes and len(written) == at
    assert "rollup_runs" not in written
    assert rollup_worker(store).step().minutes == 72 and differences(store) == []


def recorded_ms(store: Store) -> int:
    """Return the recorded progress of the rollups (Unix ms)."""
    return int(store.select("SELECT toUnixTimestamp64Milli(max(until)) FROM rollup_runs")[0][0])


def test_the_present_waits_for_no_old_minutes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Minutes far apart take several runs, each of which computes the newest ones first; the progress stays before those that wait."""
    monkeypatch.setattr(worker, "_OLD_S_MAX", 0.0)
    received_ms = [1_000]
    rolling = rollup_worker(store, lambda: received_ms[0])
    rolling.step()
    with committing(store) as committer:
        scattered(store)
        for run, (model, minutes) in enumerate([("a", 1 + 64 + 2), ("b", 1 + 6)]):
            now_s = time.time_ns() // MINUTE_NS * 60
            send(committer, [one(model, 1 + run, span_id=model.encode() * 8, start_ns=now_s * SECOND_NS)])
            received_ms[0] = committer.watermark_ms()
            assert rolling.step().minutes == minutes
            rolled = rolled_at(store)
            # Another minute may have begun.
            assert sorted(rolled)[-1] == now_s and (run or rolled[now_s] == min(rolled.values()))
            assert (rolling.until_ms, recorded_ms(store)) == ((1_000, 1_000) if not run else (received_ms[0], received_ms[0]))
    assert differences(store) == [] and rolling.step().minutes == 0


def test_minutes_that_wait_are_found_by_another_process(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends with minutes left has not recorded them as computed, and a failed run forgets what it left."""
    monkeypatch.setattr(worker, "_OLD_S_MAX", 0.0)
    scattered(store)
    first = rollup_worker(store)
    assert first.step().minutes == 64 + 2 and recorded_ms(store) == 0 and first.until_ms > 0
    monkeypatch.setattr(worker, "_OLD_S_MAX", 60.0)
    other = rollup_worker(store)
    assert other.step().minutes == 72 and differences(store) == []
    # The other one recorded its progress.
    assert first.step().minutes == 0 == other.step().minutes
