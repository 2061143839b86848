"""Counterfactuals, compared with the same world simulated without the cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.builders.attribution import charged_steps, ints, vantage
from helpers.builders.world import MS, World
from legato_ingest.attribution.model.charge import charge
from legato_ingest.attribution.model.counterfactual import Delay, Remaining, counterfactual
from legato_ingest.attribution.model.gaps import gaps_of
from legato_ingest.attribution.model.step_model import charge_steps
from legato_ingest.attribution.model.vantage import Vantage
from legato_ingest.causes import CORE, DELAYS, REPLAYABLE

STALL_NS = 100 * MS
PROMPTS = {step: 1500 for step in range(40, 400, 60)}


def replayed(world: World, stream: int = 0) -> tuple[int, int, dict[str, Remaining]]:
    """Return the stream's stalls, the time in them, and what would be left without each cause."""
    client, server, steps = world.client(stream), world.server(stream), charge_steps(world.records())
    gaps = gaps_of(client, server, 0, STALL_NS)
    verdicts = charge(gaps, steps)
    delays = [
        Delay(cause, int(start), int(end))
        for cause, start, end in zip(verdicts.names(), gaps.start_ns, gaps.end_ns, strict=True)
        if cause in DELAYS
    ]
    result = counterfactual(client, server, 0, steps, REPLAYABLE, delays, STALL_NS)
    assert result is not None
    return result.stalls, result.stalled_ns, {each.cause: each for each in result.remaining}


def stalls_of(times: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[int, int]:
    """Return the stalls that a client with these times would count, and the time in them."""
    gaps = np.diff(times)
    return int((gaps >= STALL_NS).sum()), int(gaps[gaps >= STALL_NS].sum())


WORLDS: dict[str, tuple[World, str, dict[str, Any]]] = {
    "prompts": (World(prefill=PROMPTS), "scheduling", {"prefill": {}}),
    "prompts and an outage": (World(prefill=PROMPTS, held=(100, 500 * MS)), "scheduling", {"prefill": {}}),
    "an outage over a prompt": (World(prefill=PROMPTS, held=(98, 500 * MS)), "connection", {"held": None}),
    "an outage over a slow step": (World(slow={200: 300 * MS}, held=(195, 500 * MS)), "connection", {"held": None}),
    "a slow step in an outage": (World(slow={200: 300 * MS}, held=(195, 500 * MS)), "host", {"slow": {}}),
    "a frozen front end": (World(frozen=(200, 400 * MS)), "front_end", {"frozen": None}),
    "a front end frozen over a prompt": (World(frozen=(200, 400 * MS), prefill={205: 1500}), "front_end", {"frozen": None}),
    "a prompt while the front end is frozen": (World(frozen=(200, 400 * MS), prefill={205: 1500}), "scheduling", {"prefill": {}}),
    "preempted": (World(preempted=(200, 230)), "kv_pressure", {"preempted": None}),
    "preempted over a prompt": (World(preempted=(200, 230), prefill={210: 1500}), "kv_pressure", {"preempted": None}),
    "a prompt while preempted": (World(preempted=(200, 230), prefill={210: 1500}), "scheduling", {"prefill": {}}),
}


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("stream", [0, 1])
@pytest.mark.parametrize("speed", [1, 3])
def test_it_is_what_really_happens_without_the_cause(name: str, stream: int, speed: int) -> None:
    """The number of remaining stalls, and the time in them within a few ms a stall."""
    world, cause, without = WORLDS[name]
    world = replace(world, speed=speed)
    stalls, stalled, left = replayed(world, stream)
    assert (stalls, stalled) == stalls_of(world.client(stream).times_ns)
    true_stalls, true_ns = stalls_of(replace(world, **without).client(stream).times_ns)
    found = left[cause]
    assert found.stalls_min <= true_stalls <= found.stalls_max
    assert found.stalled_min_ns - 60 * MS <= true_ns <= found.stalled_max_ns + 60 * MS
    assert found.stalls_max - found.stalls_min <= 1


def test_counting_labels_would_overstate_it() -> None:
    """An outage hides two prompts: without it there is one stall more, not one less."""
    world = World(prefill={100: 1500, 110: 1500}, held=(98, 900 * MS))
    stalls, _, left = replayed(world)
    assert (stalls, left["connection"].stalls_min) == (1, 2)
    assert stalls_of(replace(world, held=None).client(0).times_ns)[0] == 2


@pytest.mark.parametrize("cause", CORE)
def test_pieces_of_a_chunk_are_of_one_step(cause: str) -> None:
    """Each chunk reaches the client in two pieces; nothing else changes."""
    steps = charged_steps(*[{"base": 10}] * 2, {"base": 10, cause: 300}, *[{"base": 10}] * 3)
    sent = vantage(10, 20, 330, 340, 350, 360, sizes=[2] * 6)
    pieces = vantage(*np.repeat((10, 20, 330, 340, 350, 360), 2), sizes=[1] * 12)
    assert counterfactual(pieces, sent, 0, steps, CORE, [], STALL_NS) == counterfactual(sent, sent, 0, steps, CORE, [], STALL_NS)


def test_a_stream_that_cannot_be_aligned_has_none() -> None:
    """Steps are missing, chunks cannot be matched, or a vantage has no chunks."""
    world = World(prefill=PROMPTS)
    client, server, steps = world.client(0), world.server(0), charge_steps(world.records())
    records = world.records()
    kept = np.r_[0:195, 205:400]
    holed = charge_steps(type(records)(**{name: getattr(records, name)[kept] for name in records.__dataclass_fields__}))
    short = Vantage(server.times_ns[:300], server.sizes, server.holds_ns)
    nothing = Vantage(*[np.zeros(0, np.int64)] * 3)
    for seen, sent, known in ((client, server, holed), (client, short, steps), (nothing, server, steps), (client, nothing, steps)):
        assert counterfactual(seen, sent, 0, known, ["scheduling"], [], STALL_NS) is None


@given(st.integers(0, 10**6), st.integers(20, 370), st.integers(50, 900), st.integers(20, 350), st.booleans())
@settings(deadline=None, max_examples=60)
def test_removing_a_cause_of_the_core_never_adds_time(seed: int, step: int, held_ms: int, frozen: int, preempted: bool) -> None:
    """For any overlap: the time in stalls shrinks or stays the same if steps end earlier and nothing delays their output."""
    gone = (frozen, frozen + 20) if preempted else None
    world = World(seed=seed, prefill={step: 1200, (step + 30) % 400: 700}, slow={seed % 390: 200 * MS}, preempted=gone)
    _, stalled, left = replayed(world)
    for cause in ("scheduling", "host"):
        assert left[cause].stalled_max_ns <= stalled + 5 * MS
    held = replace(world, held=(step, held_ms * MS), frozen=(frozen, 150 * MS))
    for each in replayed(held)[2].values():
        assert 0 <= each.stalls_min <= each.stalls_max and 0 <= each.stalled_min_ns <= each.stalled_max_ns


@pytest.mark.parametrize("cause", CORE)
def test_without_a_cause_of_the_core_the_step_is_shorter(cause: str) -> None:
    """One step took 300 ms longer. Without its cause no stall is left; without another cause the complete stall is."""
    steps = charged_steps(*[{"base": 10}] * 2, {"base": 10, cause: 300}, *[{"base": 10}] * 3)
    sent = vantage(10, 20, 330, 340, 350, 360)
    result = counterfactual(sent, sent, 0, steps, CORE, [], STALL_NS)
    assert result is not None and (result.stalls, result.stalled_ns) == (1, 310 * MS)
    for each in result.remaining:
        left = (0, 0, 0, 0) if each.cause == cause else (1, 1, 310 * MS, 310 * MS)
        assert (each.stalls_min, each.stalls_max, each.stalled_min_ns, each.stalled_max_ns) == left


@pytest.mark.parametrize("cause", DELAYS)
def test_without_a_delay_chunks_arrive_with_their_steps(cause: str) -> None:
    """The chunks of steps 3 to 6 arrived together, 300 ms late; without another delay nothing changes."""
    steps = charged_steps(*[{"base": 10}] * 40)
    sent = vantage(*range(10, 410, 10))
    arrived = Vantage(np.maximum(sent.times_ns, np.where(np.arange(40) >= 3, ints(340)[0], 0)), sent.sizes, sent.holds_ns)
    delay = Delay(cause, int(ints(30)[0]), int(ints(340)[0]))
    result = counterfactual(arrived, sent, 0, steps, DELAYS, [delay], STALL_NS)
    assert result is not None and (result.stalls, result.stalled_ns) == (1, 310 * MS)
    for each in result.remaining:
        assert (each.stalls_min, each.stalls_max) == ((0, 0) if each.cause == cause else (1, 1))


def test_noise_of_the_fit_is_not_the_hosts() -> None:
    """Half a millisecond in each of 100 steps is an error of the fit and not removed."""
    steps = charged_steps(*[{"base": 10, "host": 0.5}] * 100)
    sent = Vantage(steps.end_ns, ints(), ints())
    result = counterfactual(sent, sent, 0, steps, ["host"], [], int(ints(10.2)[0]))
    assert result is not None and result.remaining[0].stalls_min == result.stalls == 99
