"""Every cause on a few steps and gaps, with the expected parts written out. Parts always add up to the gap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.builders.attribution import charged_steps, client_gap, gap, parts_ms
from legato_ingest.attribution.model.charge import charge
from legato_ingest.attribution.model.gaps import Gaps
from legato_ingest.attribution.model.steps import ChargedSteps
from legato_ingest.causes import CORE, STEP_PARTS, index_of

BASE = {"base": 10}


def charged(gaps: Gaps, steps: ChargedSteps | None) -> tuple[str, dict[str, float]]:
    """Return the cause of one gap and its parts in ms."""
    verdicts = charge(gaps, steps)
    assert (verdicts.parts.sum(axis=1) == gaps.length_ns).all()
    assert (verdicts.excess_ns == gaps.length_ns - verdicts.parts[:, index_of("base")]).all()
    return verdicts.names()[0], parts_ms(verdicts)


def around_third(**third: float) -> tuple[Gaps, ChargedSteps]:
    """Return a gap between the outputs of the second and the third step, which has these parts in addition to its base.

    The server sends 1 ms after each step, the client receives 2 ms after the server.
    """
    steps = charged_steps(BASE, BASE, {"base": 10, **third}, BASE, BASE)
    end = 30 + sum(third.values())
    return gap(23, end + 3, 21, end + 1), steps


@pytest.mark.parametrize("cause", CORE)
def test_a_long_step_is_charged_to_its_own_parts(cause: str) -> None:
    """The gap begins 1 ms after the end of the second step, so 1 ms of the third step is not in the gap, and its part is 299 ms."""
    gaps, steps = around_third(**{cause: 300})
    assert charged(gaps, steps) == (cause, {"base": 10, cause: 299, "front_end": 1})


def test_a_step_with_prefill_and_host_is_both() -> None:
    """The larger part names the stall."""
    gaps, steps = around_third(scheduling=100, host=200)
    assert charged(gaps, steps) == ("host", {"base": 10, "scheduling": 100, "host": 199, "front_end": 1})


def test_three_equal_parts_are_mixed() -> None:
    """No cause has half of the excess."""
    gaps, steps = around_third(scheduling=101, gpu_clock=101, host=101)
    name, parts = charged(gaps, steps)
    assert name == "mixed" and parts == {"base": 10, "scheduling": 101, "gpu_clock": 101, "host": 100, "front_end": 1}


def test_a_healthy_gap_is_its_base() -> None:
    """The gap is the rest of one usual step, and the send."""
    gaps, steps = around_third()
    assert charged(gaps, steps) == ("front_end", {"base": 9, "front_end": 1})
    full = charged_steps(BASE, BASE, {"base": 400}, BASE)
    assert charged(gap(20, 420, 20, 420), full) == ("mixed", {"base": 400})


def test_a_preempted_stream_is_charged_whole_steps() -> None:
    """Steps 2 to 4 produced nothing for it, the front end recorded them on time, and step 2 preempted a request."""
    steps = charged_steps(BASE, BASE, *[{"base": 100}] * 3, {"base": 10, "kv_pressure": 50}, BASE, preempted=[2])
    verdicts = charge(gap(21, 382, 21, 382), steps)
    assert parts_ms(verdicts) == {"kv_pressure": 359, "front_end": 2} and verdicts.names() == ["kv_pressure"]
    assert (verdicts.step_first[0], verdicts.step_last[0], verdicts.preempted[0]) == (2, 5, 2)


def test_a_frozen_front_end_is_not_a_preemption() -> None:
    """The same steps with records that were written after the gap: step 2 produced the chunk, and the server paused."""
    late = [0, 0, 260, 160, 60, 0, 0]
    steps = charged_steps(BASE, BASE, *[{"base": 100}] * 3, {"base": 10, "kv_pressure": 50}, BASE, preempted=[2], late_ms=late)
    assert charged(gap(21, 382, 21, 382), steps) == ("front_end", {"base": 99, "front_end": 262})


def test_several_steps_without_a_preemption_keep_their_parts() -> None:
    """The stream got no token from two steps, and none of the steps had a preemption."""
    steps = charged_steps(BASE, BASE, {"base": 10, "host": 90}, {"base": 10, "scheduling": 190}, BASE, BASE)
    verdicts = charge(gap(20, 321, 20, 321), steps)
    assert parts_ms(verdicts) == {"base": 20, "scheduling": 190, "host": 90, "front_end": 1}
    assert (verdicts.step_first[0], verdicts.step_last[0], verdicts.preempted[0]) == (2, 3, -1)


@pytest.mark.parametrize(("usual_ms", "base", "idle"), [(0, 20, 180), (30, 40, 160), (250, 200, 0)])
def test_steps_without_a_token_are_no_healthy_time(usual_ms: float, base: float, idle: float) -> None:
    """Twenty steps gave the stream nothing, and no request was preempted. A stream with a chunk each 25 steps has such gaps always."""
    steps = charged_steps(*[BASE] * 30)
    expected = {"base": base, "generation": idle, "front_end": 1}
    assert parts_ms(charge(gap(20, 221, 20, 221, usual_ns=usual_ms), steps)) == {name: ms for name, ms in expected.items() if ms}


def test_a_request_that_was_never_preempted_is_charged_by_steps() -> None:
    """Another request was preempted during the silence."""
    steps = charged_steps(*[BASE] * 30, preempted=[5])
    assert charged(gap(20, 221, 20, 221), steps) == ("kv_pressure", {"kv_pressure": 200, "front_end": 1})
    assert charged(gap(20, 221, 20, 221, never_preempted=True), steps) == ("generation", {"base": 20, "generation": 180, "front_end": 1})


@pytest.mark.parametrize(
    ("resumed", "is_open", "cause"), [([], False, "generation"), ([], True, "kv_pressure"), ([21], False, "kv_pressure")]
)
def test_an_aborted_request_is_no_preemption(resumed: list[int], is_open: bool, cause: str) -> None:
    """A request left, another one came. The engine reports a preemption in the step that resumes the request, which an open gap lacks."""
    steps = charged_steps(*[BASE] * 30, preempted=[5], resumed=resumed)
    verdicts = charge(gap(20, 221, 20, 221, is_open=is_open), steps)
    assert verdicts.names() == [cause] and (verdicts.preempted[0] >= 0) == (cause == "kv_pressure")


@pytest.mark.parametrize("error_ms", [0.0, 0.5])
def test_an_offset_that_is_wrong_by_less_than_its_error_changes_nothing(error_ms: float) -> None:
    """Sends that seem to precede the ends of their steps by half a millisecond are moved to these ends."""
    gaps, steps = around_third(host=300)
    assert charged(gaps, steps)[1] == {"base": 10, "host": 299, "front_end": 1}
    early = gap(23, 333, 19.5, 329.5, clock_offset_error_ns=error_ms)
    expected = {"base": 10, "host": 300} if error_ms else {"base": 0.5, "front_end": 309.5}
    assert charged(early, steps)[1] == expected


def test_missing_records_are_no_evidence() -> None:
    """Without the record before the long step the server's part is generation beyond the usual gap."""
    steps = charged_steps(BASE, BASE, {"base": 10, "host": 300}, BASE, missing=[2])
    verdicts = charge(gap(23, 333, 21, 331, usual_ns=10), steps)
    assert parts_ms(verdicts) == {"base": 10, "generation": 300} and not verdicts.aligned[0]


def test_without_an_engine_the_servers_part_is_generation() -> None:
    """Except for the stream's usual gap, which is healthy."""
    assert charged(gap(0, 310, 0, 310, usual_ns=10), None) == ("generation", {"base": 10, "generation": 300})


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({}, "connection"),
        ({"buffered": True}, "coalescing"),
        ({"unread": True, "socket_known": True}, "slow_reader"),
        ({"unread": True, "socket_known": True, "buffered": True}, "slow_reader"),
        ({"socket_known": True}, "connection"),
    ],
)
def test_time_beyond_the_server_is_charged_to_path_or_client(fields: dict[str, Any], cause: str) -> None:
    """The server's gap was 25 ms, its usual gap is 10 ms, and the client's gap was 325 ms."""
    assert charged(gap(0, 325, 0, 25, usual_ns=10, **fields), None) == (cause, {"base": 10, "generation": 15, cause: 300})


def test_a_chunk_that_caught_up_gives_time_back() -> None:
    """The server's gap was longer than the client's: time that an earlier delay charged to the connection is given back."""
    assert charged(gap(0, 300, 0, 350, usual_ns=10), None) == ("generation", {"base": 10, "generation": 340, "connection": -50})


@pytest.mark.parametrize("hold_ms", [200, 400])
def test_the_applications_hold_comes_before_the_path(hold_ms: float) -> None:
    """The hold counts at most for the time that the client waited beyond the server."""
    held = min(hold_ms, 300)
    rest = {"connection": 300 - held} if held < 300 else {}
    parts = {"base": 10, "generation": 15, "consumer": held, **rest}
    assert charged(gap(0, 325, 0, 25, usual_ns=10, hold_ns=hold_ms, hold_known=True), None) == ("consumer", parts)


@pytest.mark.parametrize(
    ("caught_up", "cause"),
    [(0.0, "generation"), (0.25, "generation"), (0.26, "unknown"), (0.49, "unknown"), (0.5, "delivery"), (1.2, "delivery")],
)
def test_the_client_alone_names_a_side(caught_up: float, cause: str) -> None:
    """By the share of the missing chunks that arrived right behind; the usual time of a chunk is healthy."""
    assert charged(client_gap(320, caught_up, pace_ms=20), None) == (cause, {"base": 20, cause: 300})


def test_the_client_alone_abstains_without_a_share() -> None:
    """The share is unknown at the end of a stream. A recorded hold is charged in any case."""
    assert charged(client_gap(320, pace_ms=20), None) == ("unknown", {"base": 20, "unknown": 300})
    held = client_gap(320, pace_ms=20, hold_ns=310, hold_known=True)
    assert charged(held, None) == ("consumer", {"base": 10, "consumer": 310})


def test_no_gaps_and_unfitted_steps_are_no_error() -> None:
    """Empty arrays give empty results, and steps without a fitted model explain nothing."""
    steps = charged_steps(BASE, BASE, {"base": 10, "host": 300}, BASE)
    none = gap(23, 333, 21, 331).at(np.zeros(0, np.int64))
    assert charge(none, steps).names() == [] and charge(none, None).names() == []
    assert charged(gap(23, 333, 21, 331), replace(steps, fitted=False))[0] == "generation"


MS_TIMES = st.integers(0, 900)
STEP = st.dictionaries(st.sampled_from(STEP_PARTS), st.integers(0, 200), max_size=3).map(lambda parts: {"base": 1, **parts})


@st.composite
def gaps_and_steps(draw: st.DrawFn) -> tuple[Gaps, ChargedSteps]:
    """Draw a few gaps with any fields, and steps with any parts, delays and preemptions."""
    several = []
    for _ in range(draw(st.integers(1, 4))):
        start, sent = draw(MS_TIMES), draw(MS_TIMES)
        flags = {name: draw(st.booleans()) for name in ("has_server", "hold_known", "buffered", "unread", "socket_known")}
        times = {name: draw(st.integers(0, 300)) for name in ("hold_ns", "usual_ns", "pace_ns", "clock_offset_ns")}
        share = draw(st.one_of(st.just(np.nan), st.floats(0, 2)))
        several.append(
            gap(
                start,
                start + draw(st.integers(1, 900)),
                sent,
                sent + draw(MS_TIMES),
                caught_up=share,
                clock_offset_error_ns=draw(st.integers(0, 10)),
                **flags,
                **times,
            )
        )
    durations = draw(st.lists(STEP, min_size=1, max_size=8))
    late = draw(st.lists(st.integers(0, 500), min_size=len(durations), max_size=len(durations)))
    at = st.lists(st.integers(0, len(durations) - 1), max_size=2)
    return Gaps.joined(several), charged_steps(*durations, late_ms=late, preempted=draw(at), missing=draw(at))


@given(gaps_and_steps(), st.booleans())
def test_parts_always_add_up_to_the_gap(drawn: tuple[Gaps, ChargedSteps], with_engine: bool) -> None:
    """Exact in ns for any evidence. Only delays of the path may be negative, where a stream made up for an earlier delay."""
    gaps, steps = drawn
    verdicts = charge(gaps, steps if with_engine else None)
    assert (verdicts.parts.sum(axis=1) == gaps.length_ns).all()
    path = [index_of(name) for name in ("coalescing", "connection")]
    assert (np.delete(verdicts.parts, [*path, index_of("slow_reader")], axis=1) >= 0).all()
    assert len(verdicts.names()) == len(gaps.start_ns)
