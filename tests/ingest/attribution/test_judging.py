"""Groups of streams are judged one by one, and their rows are made together: the rows are those of each group alone."""

from __future__ import annotations

import pyarrow as pa
import pytest

from helpers.builders.world import MS, World
from legato_ingest.attribution import judging
from legato_ingest.attribution.judging import Judged, judged_rows
from legato_ingest.attribution.model.engine import EngineRecords
from legato_ingest.attribution.model.judge import Evidence, Thresholds
from legato_ingest.attribution.model.judgements import Judgements
from legato_ingest.attribution.model.vantage import Stream
from legato_ingest.attribution.verdict_rows import verdict_rows

THRESHOLDS = Thresholds(100.0, 50.0)
JUDGED_AT_NS = 1_800_000_000 * 10**9
WORLDS = (
    World(seed=1, prefill={n: 1_500 for n in range(40, 400, 60)}),
    World(seed=2, slow={100: 300 * MS, 399: 300 * MS}),
    World(seed=3, throttled={step: 8.0 for step in range(200, 204)}),
    World(seed=4, preempted=(150, 170), prefill={50: 2_000, 399: 1_000}),
    # Its first step has a prompt, and so has the last one of the engine before it.
    World(seed=5, prefill={0: 1_000, 1: 1_000, 60: 900}, frozen=(300, 500 * MS)),
    World(seed=6, held=(120, 800 * MS), steps=200),
)


def group(number: int, world: World, *, engine: bool = True) -> Evidence:
    """Return the evidence about one engine and its streams. A request gets its first token in each step with a prompt."""
    name = f"engine-{number}"
    own = [
        Stream(f"tenant-{number % 2}", 10**15, bytes([number]) * 16, bytes([stream]) * 8, world.client(stream), world.server(stream),
               name if engine else "", f"request-{stream}", "clock")
        for stream in range(world.streams)
    ]  # fmt: skip
    if not engine:
        return Evidence(own)
    records = EngineRecords(
        world.records(),
        gpus=[world.gpu()] if world.throttled else [],
        server_offset=(0, 0),
        first_token_ns={f"prompt-{step}": int(world.ends[step]) + MS for step in world.prefill},
        preempted=frozenset({"request-0"} if world.preempted else ()),
    )
    return Evidence(own, records)


def groups() -> list[Evidence]:
    """Return groups with each kind of fault, one without an engine, and one of which the store has stalls that are none any more."""
    found = [group(number, world) for number, world in enumerate(WORLDS)]
    none = group(len(found), World(seed=7))
    gone = judged_rows([none], Thresholds(15.0, 0.0), JUDGED_AT_NS).verdicts.slice(0, 1).to_pylist()
    stored = frozenset((row["tenant"], row["trace_id"], row["span_id"], row["gap_start_us"]) for row in gone)
    withdrawn = Evidence(none.streams, none.engine, stored_stalls=stored)
    return [*found[:3], group(8, World(seed=8, slow={50: 300 * MS}), engine=False), *found[3:], withdrawn]


def test_the_rows_of_several_groups_are_those_of_each_alone() -> None:
    """With causes in all parts of the path, causing steps, the requests behind them, and stalls that are withdrawn."""
    thresholds = Thresholds(15.0, 5.0)
    several = groups()
    together = judged_rows(several, thresholds, JUDGED_AT_NS)
    assert together == Judged.joined([judged_rows([each], thresholds, JUDGED_AT_NS) for each in several])
    assert together.streams == sum(len(each.streams) for each in several) and not together.errors
    rows = together.verdicts.to_pylist()
    causes = {row["cause"] for row in rows}
    assert causes >= {"scheduling", "host", "gpu_clock", "kv_pressure", "front_end", "connection", "generation", "base"}
    assert {name for row in rows for name in row["culprit_responses"]} >= {"prompt-40", "prompt-399", "prompt-60", "request-0"}
    assert {row["engine_id"] for row in rows} >= {"", "engine-0", "engine-5"} and together.counterfactuals.num_rows > 10


def test_the_rows_do_not_depend_on_how_many_groups_are_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in memory at once is bounded by the number of steps."""
    several = groups()
    together = judged_rows(several, THRESHOLDS, JUDGED_AT_NS)
    steps = list[int]()

    def counting(judged: Judgements, judged_at_ns: int) -> pa.Table:
        steps.append(len(judged.steps.number))
        return verdict_rows(judged, judged_at_ns)

    monkeypatch.setattr(judging, "verdict_rows", counting)
    monkeypatch.setattr(judging, "_STEPS_MAX", 500)
    assert judged_rows(several, THRESHOLDS, JUDGED_AT_NS) == together
    assert len(steps) > 2 and max(steps) <= 900, "at most one group beyond the limit"
    assert judged_rows([], THRESHOLDS, JUDGED_AT_NS) == Judged.joined([])


def test_rows_that_cannot_be_made_cost_no_other_group_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is counted once, with the streams of the other groups."""

    def failing(judged: Judgements, judged_at_ns: int) -> pa.Table:
        if any(stream.engine_id == "engine-1" for stream in judged.streams):
            raise ValueError("this engine")
        return verdict_rows(judged, judged_at_ns)

    several = groups()
    expected = judged_rows([several[0], *several[2:]], THRESHOLDS, JUDGED_AT_NS)
    monkeypatch.setattr(judging, "verdict_rows", failing)
    found = judged_rows(several, THRESHOLDS, JUDGED_AT_NS)
    assert [str(error) for error in found.errors] == ["this engine"]
    assert (found.streams, found.verdicts, found.counterfactuals) == (expected.streams, expected.verdicts, expected.counterfactuals)
