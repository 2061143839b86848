"""What runs leave to do: hours that lack minutes are found again, and the lag counts from the first minute that waits."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.builders.rollup_rows import rollup_worker, scattered
from helpers.dashboards.minutes import differences
from legato_ingest.rollups import pending, worker
from legato_ingest.rollups.compute import Written
from legato_ingest.rollups.pending import Pending
from legato_ingest.rollups.pieces import Piece
from legato_ingest.storage import Store
from legato_ingest.storage.watermark import now_ms

HOUR_S = 3_600


def test_hours_that_wait_are_found_by_another_process(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run ends with hours left. Their minutes may be much older than the newest hour, and the next process computes them."""
    monkeypatch.setattr(worker, "_OLD_S_MAX", 0.0)
    monkeypatch.setattr(pending, "HOURS_MAX", 2)
    scattered(store)
    rolling = rollup_worker(store)
    while rolling.step().minutes:
        pass
    assert {each.split()[0] for each in differences(store)} == {"stream_hours", "stall_hours"}
    monkeypatch.setattr(worker, "_OLD_S_MAX", 60.0)
    assert rollup_worker(store).step().minutes == 0 and differences(store) == []


@pytest.mark.parametrize("name", ["stream", "stall", "but_for"])
def test_an_hour_that_lacks_some_keys_is_found(store: Store, name: str) -> None:
    """The process ended within an hour in pieces, long after newer hours were computed: one key is there with the newest version."""
    hour_s = now_ms() // 1000 // HOUR_S * HOUR_S - 50 * HOUR_S
    rolled = "(tenant, minute, model, rolled_at) SELECT 't', {start_s}, {model}, fromUnixTimestamp64Milli({at_ms}, 'UTC')"
    for at_s, models in ((hour_s, "ab"), (hour_s + HOUR_S, "a")):
        for model in models:
            of_minute = rolled.format(start_s=at_s + 60, model=f"'{model}'", at_ms=at_s * 1_000)
            store.command(f"INSERT INTO {name}_minutes {of_minute}")
        store.command(f"INSERT INTO {name}_hours {rolled.format(start_s=at_s, model=chr(39) + 'a' + chr(39), at_ms=at_s * 1_000)}")
    assert list(Pending.load(store, (1, 1)).hours_s) == [hour_s]


def test_recent_hours_come_first_and_others_in_their_turn() -> None:
    """An hour that changes again keeps its place."""
    hour_s, left = now_ms() // 1000 // HOUR_S * HOUR_S, Pending(0)
    old = hour_s - HOUR_S * np.arange(1_000, 1_200, dtype=np.int64)
    for each in (*old, hour_s, *old[::-1]):
        left.begin(np.array([each + 60], np.int64))
    for expected in ([hour_s, *old[:95]], old[95:191], old[191:]):
        assert left.hours_due(1_000.0) and left.next_hours().tolist() == sorted(int(each) for each in expected)
        left.hours_computed(left.next_hours())
    left.begin(old)
    assert left.hours_due(0.0) and not left.hours_due(1_000.0)


def test_the_lag_counts_from_the_first_minute_that_waits() -> None:
    """The recorded progress of a worker that found nothing for long is older than its last run, which left nothing."""
    left = Pending(0)
    assert left.complete_until_ms(5_000, 1_000) == 5_000
    left.steps.add(np.array([60], np.int64), (1_000, 1_000))
    assert left.complete_until_ms(6_000, 1_000) == 5_000
    assert left.complete_until_ms(8_000, 7_000) == 7_000
    left.steps.remove(np.array([60], np.int64))
    assert left.complete_until_ms(9_000, 7_000) == 9_000
    left.divided.add("stream_minutes", Piece(np.array([60], np.int64), tenants=("",)), (9_000, 9_000))
    assert left.complete_until_ms(10_000, 8_000) == 9_000


def test_a_minute_is_overdue_with_the_first_of_all_its_pieces() -> None:
    """Some tenants of a minute are computed apart; the minute's next computation forgets the times before."""
    left, minute = Pending(0), np.array([60], np.int64)
    left.begin(minute)
    for due_ms in (0, 7_000, 5_000, 0, 6_000):
        left.computed([Written(60, 1, due_ms)])
    assert left.due_ms == {60: 5_000} and left.overdue().tolist() == [60]
    left.begin(minute)
    assert left.overdue().tolist() == []
