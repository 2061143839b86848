"""TensorRT-LLM's finished requests over real HTTP: each is emitted once, with the steps of its engine; invalid ones are not."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.platform.engine_sources import NOW, SECOND, polled, rows_body
from helpers.platform.examples import examples
from helpers.platform.trtllm import ITERATION_ROWS, RESPONSES
from helpers.platform.trtllm import REQUEST_ROWS as SAMPLE
from helpers.platform.trtllm import RequestsEngine as World
from helpers.platform.trtllm import disaggregated_row as disaggregated
from helpers.platform.trtllm import request_counts as counts
from helpers.platform.trtllm import request_histograms as histograms
from helpers.platform.trtllm import request_row as row
from helpers.platform.trtllm import request_with_times as with_times
from legato_gpu_agent.agent.otlp_spans import steps_request
from legato_gpu_agent.agent.step_buffer import StepBuffer
from legato_gpu_agent.collectors.base import NotAvailable
from legato_gpu_agent.collectors.measurement import Measured
from legato_gpu_agent.collectors.trtllm_iterations import Iterations
from legato_gpu_agent.collectors.trtllm_requests import ROWS_MAX, BadPerfMetrics, PerfMetrics
from legato_gpu_agent.plugin.model import Engine, FinishedRequest, Step
from legato_gpu_agent.plugin.protocol import Datagram


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
        each.poll(row())
        yield each


def test_rows_are_finished_requests(world: World) -> None:
    """With the engine's number, which is not a client's id; the step in which they ended; and waiting, prefill and decode times."""
    found = world.poll_body((RESPONSES / "tensorrt_llm_perf_metrics.json").read_bytes())
    assert world.emitted == [
        Datagram(
            Engine("e", 77),
            finished=(
                FinishedRequest(20175, "2211", queued_us=4_100, prefill_us=61_000, decode_us=1_587_600),
                FinishedRequest(20172, "2213", queued_us=304_100, prefill_us=71_000, decode_us=648_000),
                FinishedRequest(20299, "2214", queued_us=604_100, prefill_us=81_000, decode_us=2_505_600),
                FinishedRequest(20224, "2217", queued_us=904_100, prefill_us=91_000, decode_us=0),
            ),
        )
    ]
    assert counts(found) == {"taken": 4} and set(world.paths) == {"/perf_metrics"}


def test_durations_are_histograms(world: World) -> None:
    """Of the requests since the last round, each value in the bucket with the next bound."""
    found = histograms(world.poll(*SAMPLE))
    assert set(found) == {"queue.time", "prefill.time", "decode.time", "ttft", "request.time"}
    queue = found["queue.time"]
    assert {bound: count for bound, count in zip((*queue.bounds, math.inf), queue.counts, strict=True) if count} == {
        0.005: 1,
        0.5: 1,
        1.0: 2,
    }
    assert queue.total == pytest.approx(0.0041 + 0.3041 + 0.6041 + 0.9041) and queue.start_ns == world.now_ns - SECOND
    assert found["ttft"].total == pytest.approx(sum((0.0651, 0.3751, 0.6851, 0.9951)))
    assert found["request.time"].total == pytest.approx(sum((1.6527, 1.0231, 3.1907, 0.9951)))
    assert not histograms(world.poll())
    at_a_bound = with_times(arrival_time=64.0, first_scheduled_time=64.5, first_token_time=1e5, last_token_time=2e5)
    found = histograms(world.poll(at_a_bound))
    assert found["queue.time"].counts == tuple(int(bound == 0.5) for bound in (*queue.bounds, math.inf))
    assert found["decode.time"].counts[-1] == 1


def test_a_read_list_is_empty(world: World) -> None:
    """Each request once."""
    world.poll(row(1), row(2))
    assert counts(world.poll()) == {"taken": 2} and len(world.emitted) == 1
    world.poll(row(3))
    assert world.ids == ["1", "2", "3"]


def test_accumulated_requests_are_not_emitted() -> None:
    """Their age is unknown, at the first poll and after a pause. Later ones are emitted."""
    with polled(World) as world:
        found = world.poll(row(1), row(2))
        assert counts(found) == {"late": 2} and not world.emitted and not histograms(found)
        world.poll(row(3))
        found = world.poll(row(4), after_s=3600)
        assert counts(found) == {"taken": 1, "late": 3} and not histograms(found)
        world.poll(row(5))
        assert world.ids == ["3", "5"]


def test_after_an_empty_list_nothing_is_old() -> None:
    """For a pause of any length; but not after a failed poll, because the server may be another one."""
    with polled(World) as world:
        world.poll()
        assert counts(world.poll(row(1), after_s=90)) == {"taken": 1}
        world.poll()
        with pytest.raises(BadPerfMetrics):
            world.poll_body(500)
        assert counts(world.poll(row(2), after_s=90)) == {"taken": 1, "late": 1} and world.ids == ["1"]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({}, (4_100, 61_000, 1_587_600)),
        ({"first_scheduled_time": 0.0}, (0, 0, 1_587_600)),
        ({"first_token_time": 0.0, "last_token_time": 0}, (4_100, 0, 0)),
        ({"first_token_time": None, "last_token_time": None}, (4_100, 0, 0)),
        ({"arrival_time": 0.0}, (0, 0, 0)),
        ({"arrival_time": ...}, (0, 0, 0)),
        ({"arrival_time": -5.0, "first_scheduled_time": -4.0}, (0, 0, 0)),
        ({"first_scheduled_time": 61204.117}, (0, 61_000 + 4_100, 1_587_600)),
        ({"first_scheduled_time": 61204.0}, (0, 0, 1_587_600)),
        ({"first_token_time": 61204.1201}, (4_100, 0, 1_649_600)),
        ({"last_token_time": 61204.15}, (4_100, 61_000, 0)),
        ({"last_token_time": 1e300}, (4_100, 61_000, 0)),
        ({"first_scheduled_time": 3e6}, (0, 0, 1_587_600)),
    ],
)
def test_an_implausible_time_is_unknown(world: World, times: dict[str, Any], expected: tuple[int, int, int]) -> None:
    """A phase that was not reached is null or 0; no time is before the arrival, goes back, or is a million seconds away."""
    found = world.poll(with_times(**times))
    (request,) = world.requests
    assert (request.queued_us, request.prefill_us, request.decode_us) == expected and counts(found) == {"taken": 1}
    assert all(0 <= (each.total or 0) < 2 for each in histograms(found).values())


def test_missing_values_are_unknown(world: World) -> None:
    """Parts that are null or missing, keys of later versions; an id that is a text."""
    metrics = SAMPLE[0]["perf_metrics"]
    found = world.poll(
        row(1, perf_metrics={}),
        row(2, perf_metrics={"last_iter": None, "timing_metrics": None, "new": [{"a": 1}]}),
        row("abc", perf_metrics={**metrics, "kv_cache_metrics": None}, status="complete", ctx_request_id=5),
        row(4, time_breakdown_metrics={"step_metrics": [{"forward_start_time": 1.0}] * 100}),
    )
    assert world.requests[:2] == [FinishedRequest(0, "1"), FinishedRequest(0, "2")]
    assert [(request.response_id, request.step) for request in world.requests[2:]] == [("abc", 20175), ("4", 20175)]
    assert counts(found) == {"taken": 4} and sum(histograms(found)["ttft"].counts) == 2


def test_a_long_id_is_shortened(world: World) -> None:
    """So that its record can be encoded."""
    world.poll(row("é" * 70_000), row(2**62))
    assert world.ids == ["é" * 255, str(2**62)]


BAD_ROWS: dict[str, object] = {
    "no object": 5,
    "another list": [1, 2],
    "no number": row(...),
    "an empty id": row(""),
    "no id": row(None),
    "half a number": row(8.5),
    "a number below 0": row(-8),
    "a number beyond all": row(2**64),
    "a truth": row(True),
    "no metrics": row(8, perf_metrics=...),
    "other metrics": row(8, perf_metrics=[1]),
    "half a step": row(8, perf_metrics={"last_iter": 1.5}),
    "a step below 0": row(8, perf_metrics={"last_iter": -1}),
    "a time as text": with_times(8, arrival_time="61204.1"),
    "a truth for a time": with_times(8, arrival_time=True),
}


@pytest.mark.parametrize("bad", BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_an_invalid_row_is_not_a_request(world: World, bad: object) -> None:
    """It counts as bad, and the others are emitted."""
    found = world.poll(row(7), bad, row(9))
    assert world.ids == ["7", "9"] and counts(found) == {"taken": 2, "bad": 1}


def test_only_invalid_rows_are_an_error(world: World) -> None:
    """It names their number, the reason and the expected rows, and quotes nothing; any good row makes the round successful."""
    bad = [5, with_times(8, arrival_time="the prompt of a customer")]
    with pytest.raises(BadPerfMetrics) as failed:
        world.poll(*bad)
    why = "Expected `float | null`, got `str` - at `$.perf_metrics.timing_metrics.arrival_time`; expected finished requests of TensorRT-LLM"
    assert str(failed.value) == f"{world.url}/perf_metrics: no rows could be decoded (2 received); the last: {why}"
    assert counts(world.poll()) == {"bad": 2}
    with pytest.raises(BadPerfMetrics, match=r"\(1 received\); the last: a row without request_id or perf_metrics; expected"):
        world.poll(row(None))
    assert counts(world.poll(*bad, row(9))) == {"taken": 1, "bad": 5} and world.ids == ["9"]
    assert counts(world.poll(disaggregated(), 5)) == {"taken": 1, "other": 1, "bad": 6}


def test_an_infinite_time_is_bad(world: World) -> None:
    """JSON can spell a number that exceeds the range of a float."""
    rows = rows_body(row(7), with_times(8, last_token_time=1e300), row(9)).replace(b"1e+300", b"1e999")
    assert counts(world.poll_body(rows)) == {"taken": 2, "bad": 1} and world.ids == ["7", "9"]


def test_rows_of_disaggregated_servers_are_skipped(world: World) -> None:
    """They belong to two engines, neither of which is this server; a row of one of the two is a request of its engine."""
    found = world.poll(disaggregated(1), row(2, ctx_request_id=9), disaggregated(3) | {"ctx_perf_metrics": None})
    assert world.ids == ["2"] and counts(found) == {"taken": 1, "other": 2}


def test_a_long_list_is_bounded(world: World) -> None:
    """The rest is dropped and counted; so is a list beyond the maximum length of a response."""
    brief = {"request_id": 1, "perf_metrics": {}}
    found = world.poll(*([brief] * (ROWS_MAX + 500)))
    assert counts(found) == {"taken": ROWS_MAX, "dropped": 500} and len(world.requests) == ROWS_MAX
    with pytest.raises(BadPerfMetrics, match=rf"\({ROWS_MAX:,} received\)"):
        world.poll_body(b"[" + b"0," * 1_000_000 + b"0]")
    assert counts(world.poll()) == {"taken": ROWS_MAX, "bad": ROWS_MAX, "dropped": 500 + 1_000_001 - ROWS_MAX}


def test_requests_wait_for_the_first_step(world: World) -> None:
    """Until the epoch of the engine is known a bounded number is kept; the oldest are dropped and counted."""
    world.epoch_ns = 0
    for first in (0, 5_000):
        found = world.poll(*({"request_id": first + number, "perf_metrics": {}} for number in range(5_000)))
    assert counts(found) == {"taken": 10_000, "dropped": 10_000 - 8_192} and not world.emitted
    world.epoch_ns = 78
    world.poll()
    assert [each.engine for each in world.emitted] == [Engine("e", 78)]
    assert (world.ids[0], world.ids[-1], len(world.ids)) == (str(10_000 - 8_192), "9999", 8_192)


def test_without_a_source_of_steps_the_epoch_is_the_first_round(world: World) -> None:
    """The requests are emitted all the same."""
    alone = PerfMetrics(world.url, "e", world.emitted.append)
    with contextlib.closing(alone):
        list(alone.collect(NOW))
        world.bodies.append(rows_body(row(7)))
        list(alone.collect(NOW + SECOND))
    assert [each.engine for each in world.emitted] == [Engine("e", NOW)] and world.ids == ["7"]


def test_requests_are_sent_with_the_steps_of_their_engine(world: World) -> None:
    """Both collectors read one server, each its own list, and one span has the data of both."""
    iterations = Iterations(world.url, "e", world.emitted.append)
    metrics = PerfMetrics(world.url, "e", world.emitted.append, epoch_ns=iterations.epoch_ns)
    ended = row(5, perf_metrics={**SAMPLE[0]["perf_metrics"], "last_iter": ITERATION_ROWS[1]["iter"]})
    with contextlib.closing(iterations), contextlib.closing(metrics):
        world.bodies += [b"[]", rows_body(ended), b"[]"]
        for at in range(3):
            # The requests first, because they wait for the step.
            list(metrics.collect(NOW + at * SECOND))
            list(iterations.collect(NOW + at * SECOND))
    assert {each.engine for each in world.emitted} == {Engine("e", iterations.epoch_ns())}
    step_buffer = StepBuffer()
    for each in world.emitted:
        step_buffer.add(each, NOW)
    (flush,) = step_buffer.flushes(NOW)
    assert [(request.response_id, request.step) for request in flush.finished] == [("5", flush.steps[1].number)]
    assert steps_request(flush.engine, flush.steps, flush.finished).SerializeToString()


def test_a_server_without_the_path_is_not_available(world: World) -> None:
    """Some versions lack the list; the steps come from another collector."""
    with pytest.raises(
        NotAvailable, match=r"^http://127.0.0.1:\d+/perf_metrics answers 404: this TensorRT-LLM does not serve .*; its steps are recorded"
    ):
        world.poll_body(404)
    assert counts(world.poll(row(7))) == {"taken": 1}


def test_a_server_that_never_returns_any_is_not_available() -> None:
    """Its list is empty, as that of an idle server: a minute after the engine's first step the reason names the options."""
    with polled(World) as world:
        world.epoch_ns = 0
        world.poll()
        world.poll(after_s=3600)
        world.epoch_ns = 79
        world.poll()
        world.poll(after_s=60)
        why = r"/perf_metrics returned no .* 60 s .*return_perf_metrics: true and perf_metrics_max_requests: 1000\? Its steps are recorded"
        with pytest.raises(NotAvailable, match=why):
            world.poll()
        assert counts(world.poll(row(7))) == {"taken": 1}
        assert counts(world.poll(after_s=3600)) == {"taken": 1}


def rows() -> st.SearchStrategy[list[object]]:
    """Rows with valid, invalid and absurd values under the right names."""
    values = st.one_of(st.none(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.text(max_size=3))
    times = st.dictionaries(
        st.sampled_from(list(SAMPLE[0]["perf_metrics"]["timing_metrics"])), st.one_of(st.floats(0, 1e5), values), max_size=6
    )
    whole = st.builds(
        lambda number, last, times, more: {**more, "request_id": number, "perf_metrics": {"last_iter": last, "timing_metrics": times}},
        st.one_of(st.integers(0, 2**64), values),
        st.one_of(st.integers(0, 2**63), values),
        st.one_of(times, values),
        st.dictionaries(st.sampled_from(["gen_server", "ctx_server", "gen_perf_metrics", "status"]), values, max_size=2),
    )
    return st.lists(st.one_of(values, whole), max_size=5)


@examples(50)
@given(some=rows())
def test_any_response_is_harmless(lasting: World, some: list[object]) -> None:
    """For any response each row is counted once, and each request can be encoded."""
    lasting.emitted.clear()
    before, found = counts(lasting.poll()), list[Measured]()
    with contextlib.suppress(BadPerfMetrics):
        found = lasting.poll(*some)
    after = counts(lasting.poll())
    assert sum(after.values()) == sum(before.values()) + len(some)
    assert len(lasting.requests) == after.get("taken", 0) - before.get("taken", 0)
    assert all(math.isfinite(each.total or 0) for each in histograms(found).values())
    if lasting.requests:
        assert steps_request(Engine("e", NOW), [Step(1, NOW)], lasting.requests).SerializeToString()
