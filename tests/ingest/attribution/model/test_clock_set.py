"""A clock of an engine that was set is recognised, and what else leaves a pause in the records is not taken for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from helpers.builders.attribution import ints, steps
from helpers.builders.world import MS, World
from legato_ingest.attribution.model.clock_set import clock_was_set
from legato_ingest.attribution.model.engine import EngineRecords
from legato_ingest.attribution.model.judge import Evidence, Thresholds, judge
from legato_ingest.attribution.model.step_model import step_ends
from legato_ingest.attribution.model.vantage import Stream, Vantage

WORLD = World(prefill={n: 1500 for n in range(40, 400, 60)})
SET_AT = 200


def records(world: World = WORLD, set_ms: int = 0, offset_ms: int = 0) -> EngineRecords:
    """Return the records of a world: the clock is set by so much after step 199, and the offset to the server's clock is not 0."""
    recorded = world.recorded + set_ms * MS * (np.arange(world.steps) >= SET_AT)
    offset = offset_ms * MS
    known = replace(world.records(), recorded_ns=recorded)
    return EngineRecords(known, server_offset=(offset, None), client_offsets={"c": offset}, last_step={"r": world.steps - 1})


def is_set(known: EngineRecords, streams: Sequence[Stream]) -> bool:
    """Return whether the clock of these records was set while the streams ran."""
    return clock_was_set(known, known.steps.recorded_ns - step_ends(known.steps), streams)


def stream(world: World = WORLD, first: int = 0, moved_ms: int = 0, **vantages: Vantage | None) -> Stream:
    """Return a stream from this step on, by a clock that had been moved when the stream began."""
    client, server = (Vantage(each.times_ns[first:] + moved_ms * MS, ints(), ints()) for each in (world.client(1), world.server(1)))
    known: dict[str, Any] = {"tenant": "", "start_ns": 0, "trace_id": b"t", "span_id": b"s", "judged": client, "server": server, **vantages}
    return Stream(**known, engine_id="e", response_id="r", clock="c")


@pytest.mark.parametrize("set_ms", [-3000, -500, -130, 130, 500, 3000])
@pytest.mark.parametrize("has_server", [True, False])
def test_a_clock_that_was_set_joins_nothing(set_ms: int, has_server: bool) -> None:
    """The stream ran while the clock was set: no step explains its stalls, also from the client alone."""
    one = stream() if has_server else stream(server=None)
    assert is_set(records(set_ms=set_ms), [one])
    out = judge(Evidence([one], records(set_ms=set_ms)), Thresholds(100.0, 50.0))
    assert set(out.verdicts.names()) == {"generation"} and not out.verdicts.aligned.any()


def test_streams_on_one_side_are_joined_unless_others_gave_the_offset() -> None:
    """The stream began after the clock was set. Most streams that gave the offset had begun before."""
    later = stream(first=SET_AT + 10, moved_ms=500)
    assert not is_set(records(set_ms=500), [later])
    assert is_set(records(set_ms=500, offset_ms=500), [later])


@pytest.mark.parametrize(
    "world",
    [WORLD, World(frozen=(SET_AT, 800 * MS)), World(frozen=(395, 800 * MS)), World(slow={SET_AT: 500 * MS}), World(preempted=(200, 230))],
)
def test_other_pauses_are_no_clock_that_was_set(world: World) -> None:
    """Long steps, and a front end that was frozen, also at the end of the records."""
    assert not is_set(records(world), [stream(world), stream(world, server=None)])


def test_a_front_end_that_stays_late_was_not_set() -> None:
    """All records and sends are 500 ms late from one step on."""
    late = 500 * MS * (np.arange(WORLD.steps) >= SET_AT)
    own = Vantage(WORLD.server(1).times_ns + late, ints(), ints())
    assert not is_set(records(set_ms=500), [stream(judged=own, server=own)])


def test_few_steps_or_chunks_are_no_error() -> None:
    """No step, one step, and a stream without content."""
    empty = Vantage(ints(), ints(), ints())
    for count in (0, 1):
        few = EngineRecords(steps([20] * count, [20] * count), server_offset=(0, None))
        assert not is_set(few, [stream()])
    assert not is_set(records(set_ms=500), [stream(judged=empty, server=empty)])
