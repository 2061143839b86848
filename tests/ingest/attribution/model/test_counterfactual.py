"""But-for, against worlds in which the cause was really taken away and all else run again with the same seed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.builders.world import MS, World
from legato_ingest.attribution.model.charge import CAUSES, judge
from legato_ingest.attribution.model.counterfactual import DELAYS, ENGINE, Delay, Left, replay
from legato_ingest.attribution.model.gaps import Vantage, gaps_of
from legato_ingest.attribution.model.root_step import prompts_of
from legato_ingest.attribution.model.step_model import charge

STALL_NS = 100 * MS
PROMPTS = {step: 1500 for step in range(40, 400, 60)}


def replayed(world: World, stream: int = 0) -> tuple[int, int, dict[str, Left]]:
    """The stream's stalls, the time in them, and what would be left without each cause."""
    client, server, steps = world.client(stream), world.server(stream), charge(world.records())
    gaps = gaps_of(client, server, 0, STALL_NS)
    verdicts = judge(gaps, steps)
    delays = [
        Delay(CAUSES[cause], int(start), int(end))
        for cause, start, end in zip(verdicts.cause, gaps.start_ns, gaps.end_ns, strict=True)
        if CAUSES[cause] in DELAYS
    ]
    result = replay(client, server, 0, steps, [*ENGINE, *DELAYS], delays, STALL_NS)
    assert result is not None
    stalls, stalled, left = result
    return stalls, stalled, {each.cause: each for each in left}


def stalls_of(times: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[int, int]:
    """What a client that saw these times would count."""
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
def test_the_replay_is_what_really_happens(name: str, stream: int, speed: int) -> None:
    """The number of stalls left, and the time in them to a few ms a stall."""
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
    """An outage hides two prompts: without it there is not one stall less, but one more."""
    world = World(prefill={100: 1500, 110: 1500}, held=(98, 900 * MS))
    stalls, _, left = replayed(world)
    assert (stalls, left["connection"].stalls_min) == (1, 2)
    assert stalls_of(replace(world, held=None).client(0).times_ns)[0] == 2


def test_what_cannot_be_laid_over_the_steps_is_not_replayed() -> None:
    """Steps are missing, chunks cannot be matched, or there is no engine to speak of."""
    world = World(prefill=PROMPTS)
    client, server, steps = world.client(0), world.server(0), charge(world.records())
    records = world.records()
    kept = np.r_[0:195, 205:400]
    holed = charge(type(records)(**{name: getattr(records, name)[kept] for name in records.__dataclass_fields__}))
    short = Vantage(server.times_ns[:300], server.sizes, server.holds_ns)
    nothing = Vantage(*[np.zeros(0, np.int64)] * 3)
    for seen, sent, known in ((client, server, holed), (client, short, steps), (nothing, server, steps), (client, nothing, steps)):
        assert replay(seen, sent, 0, known, ["scheduling"], [], STALL_NS) is None


@given(st.integers(0, 10**6), st.integers(20, 370), st.integers(50, 900), st.integers(20, 350), st.booleans())
@settings(deadline=None, max_examples=60)
def test_taking_an_engines_cause_away_never_adds_time(seed: int, step: int, held_ms: int, frozen: int, preempted: bool) -> None:
    """Whatever overlaps: the time in stalls shrinks or stays when steps end earlier and nothing delays what comes from them."""
    gone = (frozen, frozen + 20) if preempted else None
    world = World(seed=seed, prefill={step: 1200, (step + 30) % 400: 700}, slow={seed % 390: 200 * MS}, preempted=gone)
    _, stalled, left = replayed(world)
    for cause in ("scheduling", "host"):
        assert left[cause].stalled_max_ns <= stalled + 5 * MS
    held = replace(world, held=(step, held_ms * MS), frozen=(frozen, 150 * MS))
    for each in replayed(held)[2].values():
        assert 0 <= each.stalls_min <= each.stalls_max and 0 <= each.stalled_min_ns <= each.stalled_max_ns


def test_a_prompt_is_named_by_its_first_token() -> None:
    """A prompt of three steps is in all of them; a step whose prompt's first token nobody saw is nobody's."""
    steps = charge(World(prefill={40: 500, 41: 500, 42: 100, 80: 900}).records())
    assert prompts_of(steps, [40, 42, 80], {"a": 42, "b": 42, "c": 90, "d": 10}) == {40: ["a", "b"], 42: ["a", "b"]}
    assert prompts_of(steps, [], {}) == {} and prompts_of(steps, [40], {}) == {}
