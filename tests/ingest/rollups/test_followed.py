"""When the rollup worker of the only writer has something to compute: it runs then, soon, and asks the store for nothing at other times."""

from __future__ import annotations

import pathlib
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from helpers.builders.batches import received_spans
from helpers.builders.rollup_rows import SLOW, Double, committing, one, send, streams_of
from helpers.builders.spans import SECOND_NS
from helpers.dashboards.minutes import differences, stored
from helpers.servers.committing import logging_to, point_rows, scrapes
from legato_ingest.attribution.worker import AttributionWorker
from legato_ingest.metrics import Metrics
from legato_ingest.otlp.batch import Limits
from legato_ingest.rollups.followed import Stamps
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import load
from legato_ingest.storage import Store
from legato_ingest.write.committer import Committer

EVERY_S = 5.0
OUTCOMES = "SELECT outcomes FROM stream_minutes FINAL"


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
def embedded(store: Store, log: pathlib.Path | None = None) -> Iterator[tuple[Committer, AttributionWorker, RollupWorker, Counted]]:
    """Yield the workers wired as in `legato serve` with an embedded store, after their first runs, and the store of the rollup worker.

    ``log``: the folder of the write-ahead log; without it, each request waits for its insert.
    """
    counted = Counted(store)
    with logging_to(log, store) if log else committing(store) as committer:
        judging = AttributionWorker(store, load(attribute_grace_s=0), Metrics(), committer.watermark_ms, stamp_after=committer.stamp_after)
        stamps = Stamps(committer.stamp_after, judging.judged_after, lambda: judging.until_ms, committer.insert_waiting)
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
    stamps = Stamps({1_000: received}.__getitem__, {500: judged}.__getitem__, lambda: streams_judged, lambda: None)
    assert stamps.news_in_s((1_000, 500), reached) == seconds


@pytest.mark.parametrize(
    ("inserts", "streams_judged", "reached", "seconds"),
    [
        pytest.param([50_000], 54_000, 54_000, 51.0, id="judged, and the next insert may follow soon"),
        pytest.param([50_000, 100_000], 54_000, 101_000, 4.0, id="which is not judged yet"),
        pytest.param([50_000, 100_000], 104_000, 104_500, 0.0, id="both are judged"),
        pytest.param([50_000], 99_000, 105_000, 0.0, id="none follows"),
        pytest.param([50_000, 51_000, 52_000], 51_500, 52_500, 0.0, id="many requests"),
        pytest.param([50_000], 40_000, 54_000, 51.0, id="attribution rests"),
        pytest.param([50_000], 0, 54_000, 0.0, id="attribution is behind"),
    ],
)
def test_without_readers_a_run_covers_two_inserts(inserts: list[int], streams_judged: int, reached: int, seconds: float) -> None:
    """Looked until 10,000. As soon as there is a reader, the first insert counts."""
    is_read = False

    def after(time_ms: int) -> int | None:
        return next((each for each in inserts if each > time_ms), None)

    stamps = Stamps(after, {500: None}.__getitem__, lambda: streams_judged, lambda: None, lambda: is_read)
    assert stamps.news_in_s((10_000, 500), reached) == seconds
    is_read = True
    assert stamps.news_in_s((10_000, 500), reached) == (max(0.0, (55_000 - reached) / 1000) if 10_000 <= streams_judged < 50_000 else 0.0)


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


def test_hours_and_samples_follow_at_their_interval(store: Store) -> None:
    """Without an insert in between."""
    with embedded(store) as (committer, judging, rolling, _):
        for rev in (1, 2):
            send(committer, [one("a", rev)])
            judging.step()
            rolling.step()
        # The first ones were due at once.
        assert rolling._pending.hours_s and rolling._delay_s() > 0
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


def test_without_readers_hours_are_seldom_computed_until_there_is_one(store: Store) -> None:
    """They are complete a run after the first look."""
    is_read = False
    with embedded(store) as (committer, judging, rolling, _):
        assert rolling._stamps is not None
        rolling._stamps = replace(rolling._stamps, is_read=lambda: is_read)
        for rev in (1, 2):
            send(committer, [one("a", rev)])
            judging.step()
            rolling.step()
        rolling._pending.hours_at_s -= 59 * EVERY_S
        assert rolling._pending.hours_s and rolling._delay_s() > 0
        is_read = True
        assert rolling._delay_s() == 0
        rolling.step()
        assert not rolling._pending.hours_s
    assert differences(store) == []


def running(due_ns: int) -> ExportTraceServiceRequest:
    """Return a snapshot of a stream that is abandoned at a time (ns), unless there is news of it."""
    return one("a", 1, due_s=5.0, start_ns=due_ns - 35 * SECOND_NS)


def wait_until(time_ns: int) -> None:
    """Wait until a time (ns since the epoch) is over."""
    while time.time_ns() <= time_ns + 1_000_000:
        time.sleep(0.005)


def test_the_run_after_an_insert_finds_which_streams_are_abandoned(store: Store) -> None:
    """The time alone does not show it, because an end may wait for its insert: self-monitoring inserts something each minute."""
    with embedded(store) as (committer, judging, rolling, _):
        due_ns = time.time_ns() + 2 * SECOND_NS
        send(committer, [running(due_ns)])
        judging.step()
        assert rolling.step().minutes == 1 and store.select(OUTCOMES) == [({"running": 1},)]
        wait_until(due_ns)
        assert rolling._delay_s() > 0
        committer.submit(point_rows(scrapes(1))).result()
        judging.step()
        assert rolling._delay_s() == 0 and rolling.step().minutes == 1
        assert store.select(OUTCOMES) == [({"abandoned": 1},)] and rolling._delay_s() > 0


def test_a_stream_with_its_end_in_the_log_is_not_abandoned(store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Healthy streams of half a minute were bad, and paged, at the first look after minutes without readers."""
    monkeypatch.setattr("legato_ingest.write.pacing._UNREAD_APART_S", 3_600.0)
    with embedded(store, tmp_path) as (committer, judging, rolling, _):
        due_ns = time.time_ns() + 2 * SECOND_NS
        committer.submit(received_spans(running(due_ns), tenant="", now_ns=time.time_ns(), limits=Limits()))
        committer.insert_waiting()
        judging.step()
        assert rolling.step().minutes == 1 and store.select(OUTCOMES) == [({"running": 1},)]
        ended = one("a", 2, start_ns=due_ns - 35 * SECOND_NS)
        coming = committer.submit(received_spans(ended, tenant="", now_ns=time.time_ns(), limits=Limits()))
        wait_until(due_ns)
        assert rolling._delay_s() > 0 and not coming.done()
        monkeypatch.setattr("legato_ingest.rollups.followed._FRESH_MS", 0)
        assert rolling.step().minutes == 1 and coming.done()
        assert store.select(OUTCOMES) == [({"complete": 1},)]


def test_minutes_of_a_failed_run_do_not_hide_behind_a_command(store: Store) -> None:
    """`legato rollup` comes before the run is repeated, and computes other minutes."""
    with embedded(store) as (committer, judging, rolling, counted):
        send(committer, [one("a", 1)])
        judging.step()
        counted.before = refuse
        with pytest.raises(RuntimeError):
            rolling.step()
        counted.before = lambda table, rows: None
        rolling.again(60)
        assert rolling._delay_s() == 0 and rolling.step().minutes == 1
    assert differences(store) == []


def refuse(table: str, rows: object) -> None:
    """Fail, as a store that is away."""
    raise RuntimeError("refused")


def test_what_waits_and_what_failed_is_tried_at_the_interval(store: Store) -> None:
    """Minutes that the store refused show in the lag; a run that ended with an error is repeated."""
    with embedded(store) as (committer, judging, rolling, counted):
        refused_ms = rolling.until_ms
        send(committer, [streams_of(random.Random(1), 5)])
        judging.step()
        counted.before = refuse
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
