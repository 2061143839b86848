"""SDK → Collector → ingest → store as real processes: under kills and network faults, every acknowledged stream is stored once."""

from __future__ import annotations

import pathlib

import pytest

from bench.crash_pipelines.collector import RETRYABLE, TRIALS, Load, pipeline
from bench.crash_pipelines.serve import Found, judge
from helpers.servers import collector

BRIEF = Load(rate=50, kills=2, away_s=12)


@pytest.mark.parametrize("load", [BRIEF, pytest.param(Load(), marks=pytest.mark.long)], ids=["brief", "long"])
def test_nothing_acknowledged_is_lost_or_doubled_along_the_pipeline(tmp_path: pathlib.Path, load: Load) -> None:
    """Many streams per second while one fault after another is injected. Every rejection has a status on which the application retries."""
    if why := collector.missing():
        pytest.skip(why)
    with pipeline(tmp_path, load, seed=5) as running:
        trials = {name: running.attempt(name) for name in TRIALS}
        running.kill_application()
        running.drain()
        revs, statuses = running.acknowledged(), running.statuses()
        found = judge(running.serve, revs)
        # `judge` itself works: it reports an acknowledged stream that is not in the store.
        assert judge(running.serve, {*revs, ("ab" * 16, "cd" * 8, 1)}).lost == 1
    assert found == Found(0, 0, found.strangers)
    # Each trial took effect: streams were acknowledged meanwhile, processes were killed, requests to the ingest were retried.
    assert all(trial.acknowledged > 0 for trial in trials.values()), trials
    assert sum(trial.kills for trial in trials.values()) > 3 * load.kills
    for name in ("the ingest refuses (503)", "requests are cut off", "replies are cut off", "the ingest is away"):
        assert trials[name].retries > 0, trials[name]
    assert statuses[503] > 0 and set(statuses) - {200} <= RETRYABLE, statuses
