"""TensorRT-LLM's iterations over real HTTP: each is one step, emitted once; invalid ones are not."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.platform.engine_sources import NOW, SECOND, polled, rows_body
from helpers.platform.examples import examples
from helpers.platform.trtllm import ITERATION_ROWS as SAMPLE
from helpers.platform.trtllm import RESPONSES
from helpers.platform.trtllm import IterationsEngine as World
from helpers.platform.trtllm import iteration_counts as counts
from helpers.platform.trtllm import iteration_row as row
from helpers.platform.trtllm import iteration_signals as signals
from helpers.servers.http_server import serve_get
from legato_gpu_agent.agent.otlp_spans import steps_request
from legato_gpu_agent.agent.step_buffer import StepBuffer
from legato_gpu_agent.collectors import trtllm_iterations
from legato_gpu_agent.collectors.measurement import Measurement
from legato_gpu_agent.collectors.trtllm_iterations import BadIterations, Iterations
from legato_gpu_agent.collectors.trtllm_requests import PerfMetrics
from legato_gpu_agent.plugin.model import Step


@pytest.fixture
def world() -> Iterator[World]:
    """A world that was polled once, so that the list is empty."""
    with polled(World) as each:
        each.poll()
        yield each


@pytest.fixture(scope="module")
def lasting() -> Iterator[World]:
    """A world for many examples."""
    with polled(World) as each:
        each.poll()
        yield each


def test_iterations_are_steps(world: World) -> None:
    """Each once, all of a poll recorded at its end, with the engine's values in the units of a step."""
    world.poll_body((RESPONSES / "tensorrt_llm_iterations.json").read_bytes())
    assert [step.number for step in world.steps] == [20411, 20412, 20413, 20414, 20415, 20416] and set(world.paths) == {"/metrics"}
    assert world.steps[1] == Step(
        number=20412,
        recorded_ns=world.steps[0].recorded_ns,
        interval_us=27_907,
        running=20,
        waiting=3,
        prefill_requests=0,
        prefill_tokens=0,
        decode_requests=20,
        decode_tokens=54,
        draft_tokens=60,
        accepted_tokens=34,
        elapsed_us=26_217,
        kv_used_ppm=936_404,
    )
    assert (world.steps[0].prefill_requests, world.steps[0].prefill_tokens, world.steps[0].decode_tokens) == (1, 1024, 51)
    assert len({step.recorded_ns for step in world.steps}) == 1 and 0 <= world.steps[0].recorded_ns - world.now_ns < 20 * SECOND
    assert {(each.engine.id, each.engine.epoch_ns) for each in world.emitted} == {("e", world.collector.epoch_ns())}
    world.poll(row(20417))
    assert [step.number for step in world.steps[6:]] == [20417] and world.steps[6].interval_us == 31_674


def test_the_newest_iteration_is_measured(world: World) -> None:
    """With catalogue signals; drafted and accepted tokens add up."""
    found = world.poll(*SAMPLE)
    last, drafts = SAMPLE[-1], [each["specDecodingStats"] for each in SAMPLE]
    assert signals(found) == {
        "up": 1,
        "requests.running": last["numActiveRequests"],
        "requests.waiting": last["numQueuedRequests"],
        "kv_cache.utilization": last["kvCacheStats"]["usedNumBlocks"] / last["kvCacheStats"]["maxNumBlocks"],
        "prefix_cache.hit_rate": last["kvCacheStats"]["cacheHitRate"],
        "preempted": last["inflightBatchingStats"]["numPausedRequests"],
        "step.requests": last["inflightBatchingStats"]["numScheduledRequests"],
        "step.time": last["hostStepTimeMS"] / 1000,
        "speculation.accept_length": last["specDecodingStats"]["acceptanceLength"],
        "speculation.draft_tokens": sum(each["numDraftTokens"] for each in drafts),
        "speculation.accepted_tokens": sum(each["numAcceptedTokens"] for each in drafts),
    }
    assert {each.start_ns for each in found if each.start_ns} == {NOW + SECOND}
    found = world.poll(row(20417, specDecodingStats=None, kvCacheStats=None, inflightBatchingStats=None))
    assert set(signals(found)) == {
        *("up", "requests.running", "requests.waiting", "step.time", "speculation.draft_tokens", "speculation.accepted_tokens")
    }
    assert signals(found)["speculation.draft_tokens"] == sum(each["numDraftTokens"] for each in drafts)


def test_an_idle_engine_is_up() -> None:
    """Without further values: an unknown value is absent, never 0."""
    with polled(World) as world:
        assert signals(world.poll()) == {"up": 1} and world.collector.epoch_ns() == 0


def test_steps_name_the_boot_of_their_clock(world: World) -> None:
    """So that they can be joined to the streams of a server on that host, because a step names no request."""
    collector = Iterations(world.url, "e", world.emitted.append, boot_id="boot-1")
    try:
        (up,) = (each for each in collector.collect(NOW) if isinstance(each, Measurement) and each.metric == "legato.engine.up")
    finally:
        collector.close()
    assert dict(up.attributes)["legato.boot.id"] == "boot-1"


def test_accumulated_iterations_are_not_emitted() -> None:
    """Their age is unknown, at the first poll and after a pause. They count as measurements, and later iterations are emitted."""
    with polled(World) as world:
        found = world.poll(row(5), row(6))
        assert not world.emitted and signals(found)["requests.running"] == 20 and "speculation.draft_tokens" not in signals(found)
        world.poll(row(7))
        found = world.poll(row(8), after_s=3600)
        assert [step.number for step in world.steps] == [7] and counts(found) == {"taken": 1, "late": 3}
        world.poll(row(9))
        assert [step.number for step in world.steps] == [7, 9] and len({each.engine for each in world.emitted}) == 1


def test_a_server_that_waits_for_rows_is_waited_for() -> None:
    """An idle server waits 2 s for a row before it responds, and may answer no other request meanwhile."""
    never = threading.Event()

    def answer(path: str) -> bytes:
        never.wait(2.1)
        return rows_body(row(7)) if path == "/metrics" else b"[]"

    with serve_get(answer) as url, ThreadPoolExecutor(2) as pool:
        steps, requests = Iterations(url, "e", lambda _: None), PerfMetrics(url, "e", lambda _: None)
        with contextlib.closing(steps), contextlib.closing(requests):
            rounds = [pool.submit(lambda each: list(each.collect(NOW)), each) for each in (steps, requests)]
            assert all(each.result() for each in rounds)


def test_rows_of_a_long_poll_are_not_late(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The 4 s that an idle server holds a poll, and the pause after it, do not make a row late."""
    elapsed = itertools.count(0, 4 * SECOND)
    monkeypatch.setattr(trtllm_iterations, "time", SimpleNamespace(monotonic_ns=lambda: next(elapsed)))
    world.poll()
    found = world.poll(row(7), after_s=4.1)
    assert counts(found) == {"taken": 1} and world.steps[0].recorded_ns == world.now_ns + 4 * SECOND


def test_iterations_read_by_another_client_are_missing(world: World) -> None:
    """Between two known ones, within a response and across two."""
    found = world.poll(row(7), row(8))
    assert counts(found) == {"taken": 2}
    world.poll(row(12), row(13), row(15))
    world.poll()
    found = world.poll(row(20))
    assert counts(found) == {"taken": 6, "missing": 3 + 1 + 4} and len(world.emitted) == 6


def test_iterations_of_unknown_number_are_not_missing() -> None:
    """Before the first, after a restart, during a pause, undecodable ones, and implausibly many."""
    with polled(World) as world:
        assert counts(world.poll(row(5), row(8))) == {"late": 2}
        world.poll(row(9))
        world.poll(row(3), row(4))
        assert counts(world.poll(row(900), after_s=3600)) == {"taken": 3, "late": 3}
        found = world.poll(row(901), 5, row(903), "x")
        assert counts(found) == {"taken": 5, "late": 3, "bad": 2}
        found = world.poll(row(906))
        assert counts(found) == {"taken": 6, "late": 3, "bad": 2, "missing": 1}
        found = world.poll(row(2**61))
        assert counts(found) == {"taken": 7, "late": 3, "bad": 2, "missing": 1}


@pytest.mark.parametrize(
    ("changed", "interval_us"),
    [
        ({}, 31_674),
        ({"hostStepTimeMS": ...}, None),
        ({"hostStepTimeMS": None, "schedulerMode": "overlap"}, None),
        ({"hostStepTimeMS": ..., "schedulerMode": "non_overlap"}, 31_884),
        ({"hostStepTimeMS": ..., "schedulerMode": ...}, 31_884),
        ({"hostStepTimeMS": ..., "schedulerMode": ..., "iterLatencyMS": ...}, None),
        ({"hostStepTimeMS": 0}, 0),
    ],
)
def test_the_duration_of_a_step_is_that_of_the_loop(world: World, changed: dict[str, Any], interval_us: int | None) -> None:
    """An iteration's latency is the duration of a step only where the scheduler does not overlap two of them."""
    found = world.poll(row(7), row(8, **changed))
    assert world.steps[1].interval_us == interval_us
    assert signals(found).get("step.time") == (None if interval_us is None else interval_us / 1e6)


def test_a_step_after_a_pause_has_no_interval(world: World) -> None:
    """The engine was idle: no request waited for that step since the last one."""
    world.poll(row(7), row(8))
    world.poll()
    world.poll(row(9), row(10))
    assert [(step.number, step.interval_us is not None) for step in world.steps] == [(7, False), (8, True), (9, False), (10, True)]


def test_a_restarted_engine_is_another_one(world: World) -> None:
    """Its iterations start again; the record before its first one is not a step."""
    world.poll(row(900), row(901))
    found = world.poll(row(0), row(1), row(2))
    before, after = world.emitted[:2], world.emitted[2:]
    assert [step.number for step in world.steps] == [900, 901, 1, 2] and counts(found) == {"taken": 4, "other": 1}
    assert len({each.engine for each in before}) == len({each.engine for each in after}) == 1
    assert after[0].engine.epoch_ns == world.collector.epoch_ns() > before[0].engine.epoch_ns
    assert [step.interval_us is not None for step in world.steps] == [False, True, False, True]
    step_buffer = StepBuffer()
    for each in world.emitted:
        step_buffer.add(each, world.now_ns)
    assert [[step.number for step in flush.steps] for flush in step_buffer.flushes(world.now_ns)] == [[900, 901], [1, 2]]


def test_a_response_starts_at_most_one_engine(world: World) -> None:
    """Numbers that go up and down are bad."""
    world.poll(row(50))
    found = world.poll(*(row(number) for number in (9, 8, 7, 10, 6, 11)))
    assert len({each.engine for each in world.emitted}) == 2 and counts(found) == {"taken": 4, "bad": 3}
    assert [step.number for step in world.steps] == [50, 9, 10, 11]


def test_each_rank_returns_the_same_iteration(world: World) -> None:
    """With attention DP the row of the first rank is the step: the others have no queue."""
    ranks = [row(number, attentionDpRank=rank, numQueuedRequests=0 if rank else 3) for number in (7, 8) for rank in (0, 1, 2, 3)]
    found = world.poll(*ranks)
    assert [(step.number, step.waiting) for step in world.steps] == [(7, 3), (8, 3)] and counts(found) == {"taken": 2, "other": 6}
    found = world.poll(*(row(9, attentionDpRank=..., numQueuedRequests=waiting) for waiting in (3, 0, 0)))
    assert [(step.number, step.waiting) for step in world.steps[2:]] == [(9, 3)] and counts(found) == {"taken": 3, "other": 8}
    world.poll(row(8, attentionDpRank=2))
    assert len(world.emitted) == 3


def test_missing_values_are_unknown(world: World) -> None:
    """Parts that are null or missing, keys of later versions; 0 decoded tokens per request are unknown."""
    world.poll(
        {"iter": 7},
        {"iter": 8, "kvCacheStats": None, "inflightBatchingStats": None, "specDecodingStats": None, "new": [{"a": 1}]},
        row(9, kvCacheStats={"maxNumBlocks": 0, "usedNumBlocks": 0}, inflightBatchingStats={"numGenRequests": 3}),
        row(10, inflightBatchingStats={"numGenRequests": 3, "avgNumDecodedTokensPerIter": 0.0}),
    )
    at = world.steps[0].recorded_ns
    assert world.steps[:2] == [Step(7, at), Step(8, at)]
    assert [(step.decode_requests, step.decode_tokens) for step in world.steps[2:]] == [(3, None), (3, None)]
    assert world.steps[2].kv_used_ppm is None


BAD_ROWS: dict[str, object] = {
    "no object": 5,
    "no number": row(8, iter=...),
    "half a number": row(8, iter=8.5),
    "a number below 0": row(8, iter=-8),
    "a number beyond all": row(8, iter=2**63),
    "a number as text": row(8, iter="8"),
    "a time below 0": row(8, hostStepTimeMS=-1),
    "a day": row(8, iterLatencyMS=86_400_000.0),
    "fewer than none": row(8, numActiveRequests=-1),
    "more than can be": row(8, numQueuedRequests=2**40),
    "a truth": row(8, numActiveRequests=True),
    "more blocks than there are": row(8, kvCacheStats={"maxNumBlocks": 10, "usedNumBlocks": 11}),
    "blocks below 0": row(8, kvCacheStats={"maxNumBlocks": -10, "usedNumBlocks": 1}),
    "a rate beyond 1": row(8, kvCacheStats={"cacheHitRate": 1.5}),
    "another batch": row(8, inflightBatchingStats=[1, 2]),
    "too many tokens": row(8, inflightBatchingStats={"numGenRequests": 3, "avgNumDecodedTokensPerIter": 1e9}),
    "drafts below 0": row(8, specDecodingStats={"numDraftTokens": -1}),
}


@pytest.mark.parametrize("bad", BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_an_invalid_row_is_not_a_step(world: World, bad: object) -> None:
    """It counts as bad, and the others are steps."""
    found = world.poll(row(7), bad, row(9))
    assert [step.number for step in world.steps] == [7, 9] and counts(found) == {"taken": 2, "bad": 1}


def test_only_invalid_rows_are_an_error(world: World) -> None:
    """It names their number, the reason and the expected rows, and quotes nothing; any good row makes the round successful."""
    secret = row(8, schedulerMode={"the prompt": "of a customer"})
    with pytest.raises(BadIterations) as failed:
        world.poll(5, secret)
    why = "the last: Expected `str | null`, got `object` - at `$.schedulerMode`; expected iterations of TensorRT-LLM"
    assert str(failed.value) == f"{world.url}/metrics: no rows could be decoded (2 received); {why}"
    assert counts(world.poll()) == {"bad": 2}
    assert counts(world.poll(5, row(9))) == {"taken": 1, "bad": 3}
    assert counts(world.poll(row(9), row(9, attentionDpRank=1), 5)) == {"taken": 1, "bad": 4, "other": 2}
    assert counts(world.poll(row(9))) == {"taken": 1, "bad": 4, "other": 3}


def rows() -> st.SearchStrategy[list[object]]:
    """Rows with valid, invalid and absurd values under the right names."""
    values = st.one_of(st.none(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.text(max_size=3))
    numbers = st.one_of(st.integers(0, 2**31), values)
    batch = st.dictionaries(st.sampled_from(list(SAMPLE[0]["inflightBatchingStats"])), numbers, max_size=5)
    cache = st.dictionaries(st.sampled_from(list(SAMPLE[0]["kvCacheStats"])), numbers, max_size=5)
    named = st.dictionaries(st.sampled_from(list(SAMPLE[0])), numbers, max_size=6)
    whole = st.builds(
        lambda number, more, batch, cache: {**more, "iter": number, "inflightBatchingStats": batch, "kvCacheStats": cache},
        st.one_of(st.integers(0, 2**63), values),
        named,
        st.one_of(st.none(), batch),
        st.one_of(st.none(), cache),
    )
    return st.lists(st.one_of(values, whole), max_size=5)


@examples(50)
@given(some=rows())
def test_any_response_is_harmless(lasting: World, some: list[object]) -> None:
    """For any response each row is counted once, and each step can be encoded."""
    lasting.emitted.clear()
    before = counts(lasting.poll())
    with contextlib.suppress(BadIterations):
        lasting.poll(*some)
    after = counts(lasting.poll())
    missing = after.pop("missing", 0) - before.pop("missing", 0)
    assert sum(after.values()) == sum(before.values()) + len(some) and missing >= 0
    for each in lasting.emitted:
        assert each.step is not None and steps_request(each.engine, [each.step]).SerializeToString()
