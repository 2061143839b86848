"""When the rollup worker of the only writer has something to compute: it runs then, soon, and asks the store for nothing at other times."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from helpers.builders.rollup_rows import SLOW, Double, committing, one, send, streams_of
from helpers.builders.spans import SECOND_NS
from helpers.dashboards.minutes import differences, stored
from helpers.servers.committing import point_rows, scrapes
from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.metrics import Metrics
from legato_ingest.rollups.followed import Stamps
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.write.committer import Committer

EVERY_S = 5.0


class Counted(Double):
    """A store that counts the statements of any kind."""

    statements = 0

    def insert(self, table: str, rows: Any) -> None:
        """Count, then insert."""
        self.statements += 1
        super().insert(table, rows)

    def __getattr__(self, name: str) -> Any:
        self.statements += 1
        return super().__getattr__(name)


@contextmanager
def embedded(store: Store) -> Iterator[tuple[Committer, AttributionWorker, RollupWorker, Counted]]:
    """Yield the workers wired as in `legato serve` with an embedded store, after their first runs, and the store of the rollup worker."""
    counted = Counted(store)
    with committing(store) as committer:
        judging = AttributionWorker(store, load(attribute_grace_s=0), Metrics(), committer.watermark_ms, stamp_after=committer.stamp_after)
        stamps = Stamps(committer.stamp_after, judging.judged_after, lambda: judging.until_ms)
        settings, metrics = load(rollup_every_s=EVERY_S), Metrics()
        rolling = RollupWorker(cast(Store, counted), settings, metrics, committer.watermark_ms, judging.judged_ms, stamps=stamps)
        assert rolling._delay_s() == 0
        judging.step()
        rolling.step()
        # As its thread does each second: nothing has been inserted until now.
        judging._delay_s()
        yield committer, judging, rolling, counted


@pytest.mark.parametrize(
    ("received", "judged", "streams_judged", "reached", "seconds"),
    [
        pytest.param(None, None, 900, 2_000, None, id="nothing"),
        pytest.param(None, 600, 900, 2_000, 0.0, id="verdicts"),
        pytest.param(1_100, None, 1_050, 1_100, 5.0, id="streams that will be judged"),
        pytest.param(1_100, 600, 1_050, 4_100, 2.0, id="for some seconds in all"),
        pytest.param(1_100, None, 1_050, 60_000, 0.0, id="and no longer"),
        pytest.param(1_100, 600, 1_200, 1_300, 0.0, id="they are judged"),
        pytest.param(1_100, None, 900, 1_100, 0.0, id="attribution is behind"),
    ],
)
def test_rows_wait_for_their_verdicts_where_attribution_keeps_up(
    received: int | None, judged: int | None, streams_judged: int, reached: int, seconds: float | None
) -> None:
    """Looked until 1,000 and 500: rows that were received after it are rolled up once, with their verdicts."""
    stamps = Stamps({1_000: received}.__getitem__, {500: judged}.__getitem__, lambda: streams_judged)
    assert stamps.news_in_s((1_000, 500), reached) == seconds


def test_a_worker_without_news_asks_the_store_for_nothing(store: Store) -> None:
    """And shows no lag. New rows, and verdicts on them, are computed in one run."""
    with embedded(store) as (committer, judging, rolling, counted):
        before = counted.statements
        time.sleep(0.05)
        assert 0 < rolling._delay_s() <= EVERY_S and counted.statements == before
        assert committer.watermark_ms() - rolling.until_ms < 50
        send(committer, [one("a", 1, attributes=SLOW, duration_ns=9 * SECOND_NS)])
        assert 0 < rolling._delay_s() <= 1
        assert judging.step().verdicts == 1 and rolling._delay_s() == 0
        assert rolling.step().minutes == 1 and stored(store, "stall_minutes")
        assert rolling._delay_s() > 0
        judging.again(0)
        assert rolling._delay_s() == 0 and rolling.step().minutes == 1 and rolling._delay_s() > 0
        assert differences(store) == []


def test_streams_that_no_one_judges_are_rolled_up_within_seconds(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attribution fails, say."""
    with embedded(store) as (committer, _, rolling, _):
        send(committer, [one("a", 1)])
        assert 0 < rolling._delay_s() <= 1
        monkeypatch.setattr("legato_ingest.rollups.followed._JUDGED_MS", 0)
        assert rolling._delay_s() == 0 and rolling.step().minutes == 1


def test_what_time_alone_makes_due_is_computed(store: Store) -> None:
    """A stream without its sender is overdue; hours and node samples follow after their interval."""
    with embedded(store) as (committer, judging, rolling, _):
        due_ns = time.time_ns() + SECOND_NS
        send(committer, [one("a", 1, due_s=5.0, start_ns=due_ns - 35 * SECOND_NS)])
        judging.step()
        rolling.step()
        while (delay_s := rolling._delay_s()) > 0:
            assert delay_s <= 1.0
            time.sleep(0.01)
        assert time.time_ns() > due_ns and rolling.step().minutes == 1 and rolling._delay_s() > 0
        assert rolling._pending.hours_s
        rolling._pending.hours_at_s -= 4 * EVERY_S
        assert rolling._delay_s() == 0
        rolling.step()
        assert not rolling._pending.hours_s and rolling._delay_s() > 0
        committer.submit(point_rows(scrapes(3))).result()
        judging.step()
        rolling.step()
        assert rolling._delay_s() > 0 and store.select("SELECT count() FROM node_samples_5min") == [(0,)]
        rolling._samples._found_at_s -= 4 * EVERY_S
        assert rolling._delay_s() == 0
        rolling.step()
        assert rolling._delay_s() > 0 and store.select("SELECT count() > 0 FROM node_samples_5min") == [(1,)]
    assert differences(store) == []


def test_what_waits_and_what_failed_is_tried_at_the_interval(store: Store) -> None:
    """Minutes that the store refused show in the lag; a run that ended with an error is repeated."""
    with embedded(store) as (committer, judging, rolling, counted):
        refused_ms = rolling.until_ms
        send(committer, [streams_of(random.Random(1), 5)])
        judging.step()
        counted.before = lambda table, rows: (_ for _ in ()).throw(RuntimeError("refused"))
        with pytest.raises(RuntimeError):
            rolling.step()
        assert rolling._delay_s() == 0 and rolling.until_ms == refused_ms
        counted.before = lambda table, rows: None
        assert rolling.step().minutes and rolling._delay_s() > 0
    assert differences(store) == []


def test_a_run_in_progress_is_not_waited_for(store: Store) -> None:
    """The thread asks for the delay while the admin socket computes all minutes: the step itself waits for it."""
    with embedded(store) as (_, _, rolling, _), rolling.exclusive:
        assert rolling._delay_s() == 0


def test_without_the_stamps_of_all_writers_each_run_looks(store: Store) -> None:
    """Other instances of a server's store insert, too."""
    rolling = RollupWorker(store, load(rollup_every_s=EVERY_S), Metrics())
    for _ in range(2):
        rolling.step()
        assert rolling._delay_s() == 0
    with committing(store) as other:
        send(other, [one("b", 1)])
        assert rolling._delay_s() == 0 and rolling.step().minutes == 1
