"""Judged streams are due again when evidence arrives that is about them, however late, and however long they ran."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from helpers.builders.batches import received_points, received_spans
from helpers.builders.judging import RECEIVED_NS as WORLD_RECEIVED_NS
from helpers.builders.judging import WORLD, put_all, verdicts, worker
from helpers.builders.points import gauge, metrics_request
from helpers.builders.spans import SECOND_NS, native_span, request, steady_timeline
from helpers.builders.world import MS, World
from helpers.builders.world_spans import ENGINE, put, steps, stream
from legato_ingest.attribution.load import due as due_module
from legato_ingest.attribution.load import due_again as module
from legato_ingest.attribution.load.due import Due, joined
from legato_ingest.attribution.load.due_again import due_by_evidence
from legato_ingest.attribution.load.learned_offsets import LearnedOffsets
from legato_ingest.otlp.batch import Limits
from legato_ingest.storage import Store

START_NS = 1_700_000_000 * SECOND_NS
RECEIVED_NS = START_NS + 3_600 * SECOND_NS


@pytest.mark.parametrize("spans_max", [0, 16_000])
def test_late_steps_are_found_by_a_list_and_by_a_condition(store: Store, monkeypatch: pytest.MonkeyPatch, spans_max: int) -> None:
    """The verdicts are the same either way."""
    monkeypatch.setattr(due_module, "_SPANS_MAX", spans_max)
    world = World(busy={n: 60 for n in range(50, 400, 25)})
    for vantage in ("client", "server"):
        put(store, stream(world, vantage), RECEIVED_NS)
    judge = worker(store)
    judge.step()
    assert {row[0] for row in verdicts(store)} == {"generation"}
    time.sleep(0.01)
    put(store, steps(world), time.time_ns())
    time.sleep(0.01)
    judge.step()
    assert {row[0] for row in verdicts(store)} == {"base"}


@pytest.mark.parametrize(("own", "other"), [("e", "e/1"), ("e/2", "e"), ("e/2", "e/10")])
def test_late_steps_of_another_rank_explain_a_stall(store: Store, own: str, other: str) -> None:
    """The ranks wait for each other, so its prompt was in the step. What another server's engine did in that moment means nothing."""
    prompts = dict.fromkeys(range(20, 180, 20), 300)
    world = World(prefill=prompts, slow={200: 600 * MS})
    beside = World(prefill={200: 3_000}, slow=dict.fromkeys(prompts, 60 * MS))
    put(store, steps(world, engine_id=own), RECEIVED_NS)
    put(store, steps(beside, 0, engine_id="f/1"), RECEIVED_NS)
    for vantage in ("client", "server"):
        put(store, stream(world, vantage), RECEIVED_NS)
    judge = worker(store)
    judge.step()
    assert verdicts(store) == [("host", "likely", [], 200)]
    time.sleep(0.01)
    put(store, steps(beside, 0, engine_id=other), time.time_ns())
    time.sleep(0.01)
    judge.step()
    assert verdicts(store) == [("scheduling", "strong", [], 200)]


@pytest.mark.parametrize("offset_s", [0, 1_800])
def test_the_offset_of_a_clock_is_searched_near_its_records_first(store: Store, offset_s: int) -> None:
    """Among the streams of some hours only for an engine without any near, once a minute; what was found is kept."""
    world = replace(World(), offset_ns=offset_s * SECOND_NS)
    put(store, stream(World(), "server"), RECEIVED_NS)
    put(store, steps(world), RECEIVED_NS)
    asked: list[str] = []

    class Counting:
        def select(self, sql: str) -> list[Sequence[Any]]:
            asked.append(sql)
            return store.select(sql)

    clocks, recorded_ns = LearnedOffsets(), world.records().recorded_ns
    low, high = int(recorded_ns[0]), int(recorded_ns[-1])
    for _ in range(3):
        clocks.learn(cast(Store, Counting()), "1", low, high)
    assert len(asked) == 3 + bool(offset_s)
    shifted_s = (low - clocks.stretch(("", ENGINE), low, high)[0]) / SECOND_NS
    assert shifted_s == pytest.approx(offset_s + 30 if offset_s else 0, abs=5)


@pytest.mark.parametrize("apart_ns", [0, 3_600 * SECOND_NS])
def test_very_many_engines_of_a_tenant_are_few_queries(store: Store, monkeypatch: pytest.MonkeyPatch, apart_ns: int) -> None:
    """At one time, or each at another: their streams are due without a list of the engines."""
    monkeypatch.setattr(module, "_TIMES_MAX", 4)
    if not apart_ns:
        monkeypatch.setattr(module, "_ENGINES_MAX", 19)
    body = request()
    native_span(body, {"legato.stream.timeline": steady_timeline(3, 300_000)}, start_ns=START_NS, duration_ns=SECOND_NS)
    put(store, body, RECEIVED_NS)
    began_ns = START_NS - int(World(steps=2).ends[0])
    for number in range(20):
        put(store, steps(World(steps=2, offset_ns=began_ns - number * apart_ns), engine_id=f"engine-{number}"), RECEIVED_NS + SECOND_NS)
    asked: list[str] = []
    real = store.select

    def select(sql: str) -> Any:
        asked.append(sql)
        return real(sql)

    monkeypatch.setattr(store, "select", select)
    judged_ms, seen_ms = RECEIVED_NS // 10**6, (RECEIVED_NS + SECOND_NS) // 10**6
    due = due_by_evidence(store, LearnedOffsets(), judged_ms, judged_ms, seen_ms)
    assert [_vantages(store, each) for each in joined(due)] == [["client"]]
    assert len(asked) < 20 and not any(b"engine-".hex() in each.inside + each.which for each in due)


def _evidence(store: Store, name: str, received_ns: int) -> None:
    """Store one kind of evidence about the world's stall in step 200: its steps from 190 on, its requests, or a scrape."""
    limits = Limits(retention_days=0)
    batch = received_spans(steps(WORLD), tenant="", now_ns=received_ns, limits=limits)
    if name == "steps":
        store.insert("engine_steps", batch.steps.slice(190, 40))
    elif name == "request":
        store.insert("engine_requests", batch.requests)
    else:
        body = metrics_request({"legato.engine.id": ENGINE, "host.name": "node"})
        gauge(body, "legato.engine.up", 1.0, int(WORLD.ends[200]))
        store.insert("node_samples", received_points(body, tenant="", now_ns=received_ns, limits=limits).samples)


@pytest.mark.parametrize("name", ["steps", "request", "scrape"])
def test_late_evidence_finds_a_stream_however_long_it_ran(store: Store, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The stream began longer before its stall than most streams last."""
    monkeypatch.setattr(module, "STREAM_NS_MAX", SECOND_NS)
    monkeypatch.setattr(module, "SCRAPE_DISTANCE_NS_MAX", SECOND_NS)
    for vantage in ("client", "server"):
        put(store, stream(WORLD, vantage), WORLD_RECEIVED_NS)
    worker(store).step()
    assert [row[0] for row in verdicts(store)] == ["generation"]
    judged_ms = WORLD_RECEIVED_NS // 10**6
    _evidence(store, name, WORLD_RECEIVED_NS + 3_600 * SECOND_NS)
    due = joined(due_by_evidence(store, LearnedOffsets(), judged_ms, judged_ms, judged_ms + 3_600_000))
    assert "client" in [vantage for each in due for vantage in _vantages(store, each)]


def _vantages(store: Store, due: Due) -> list[str]:
    return [str(name) for (name,) in store.select(f"SELECT vantage FROM stream_revs WHERE {due.inside} AND {due.which}")]


def test_requests_that_come_with_their_steps_are_no_further_search(store: Store) -> None:
    """Only those are that end in steps which were there before."""
    put_all(store)
    new = "received_at > fromUnixTimestamp64Milli(0)"
    late = module._LATE_REQUESTS.format(new=new)
    assert store.select(late) == []
    store.command("TRUNCATE TABLE engine_steps")
    assert len(store.select(late)) == 1
    # Another process with this engine id has steps of the same numbers later: on a node that is set up alike, or after a restart.
    put(store, steps(World(offset_ns=120_000 * MS), 0, epoch_ns=6, ended=[]), WORLD_RECEIVED_NS)
    assert len(store.select(late)) == 1
