"""Lowered clocks over worlds whose truth is known: charged as far as the driver's count goes, never further, and never without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.builders.batches import received_points
from helpers.builders.points import gauge, metrics_request, total
from helpers.builders.world import MS, World
from legato_ingest.attribution.load.gpu_clock_samples import GpuClock, clocks_of, lowered
from legato_ingest.attribution.model.charge import CAUSES, Gaps, Verdicts, judge
from legato_ingest.attribution.model.evidence import errors_of, evidence_of, excluded_of
from legato_ingest.attribution.model.gaps import gaps_of
from legato_ingest.attribution.model.step_model import Charges, charge
from legato_ingest.otlp.batch import Limits
from legato_ingest.storage import Store

GAP_NS = 100 * MS
BURST = {step: 8.0 for step in range(200, 206)}


def judged(world: World, gpus: Sequence[GpuClock]) -> tuple[Gaps, Verdicts, Charges]:
    """One stream's gaps, their verdicts and the charged steps they rest on."""
    gaps, steps = gaps_of(world.client(0), world.server(0), 0, GAP_NS), charge(world.records(), gpus)
    verdicts = judge(gaps, steps)
    assert (verdicts.parts.sum(axis=1) == gaps.end_ns - gaps.start_ns).all()
    took = steps.base + steps.scheduling + steps.kv_pressure + steps.gpu_clock + steps.host
    assert (took == steps.took).all()
    return gaps, verdicts, steps


def causes(verdicts: Verdicts) -> set[str]:
    """The names of the causes."""
    return {CAUSES[cause] if cause >= 0 else "mixed" for cause in verdicts.cause}


def part(verdicts: Verdicts, name: str) -> float:
    """One part of all verdicts in ms."""
    return float(verdicts.parts[:, CAUSES.index(name)].sum()) / MS


@pytest.mark.parametrize("soft", [False, True], ids=["heat", "power"])
def test_a_lowered_clock_is_named_with_its_evidence(soft: bool) -> None:
    """Steps that took eight times as long while the clock was an eighth: nearly all beyond the base is the clock's."""
    gaps, verdicts, steps = judged(World(throttled=BURST), [World(throttled=BURST).gpu(soft=soft)])
    assert causes(verdicts) == {"gpu_clock"}
    assert part(verdicts, "gpu_clock") > 0.95 * float(verdicts.excess_ns.sum()) / MS
    for evidence in evidence_of(gaps, verdicts, steps):
        assert evidence["throttled_us"] > 100_000
        assert (evidence["clock_mhz"], evidence["clock_usual_mhz"]) == (247, 1980)


def test_a_burst_between_two_samples_is_found_by_the_drivers_count() -> None:
    """Nobody saw the clock low, but the driver counted the time."""
    world = World(throttled={step: 8.0 for step in range(200, 204)})
    gpu = world.gpu(every_ns=2_000 * MS)
    gaps, verdicts, steps = judged(world, [replace(gpu, mhz=np.full(len(gpu.mhz), 1980.0))])
    assert causes(verdicts) == {"gpu_clock"}
    assert not [each for each in evidence_of(gaps, verdicts, steps) if each["clock_mhz"] < 1980]


def test_a_power_limit_that_is_always_there_is_no_news() -> None:
    """Its time grows all the while and the clock is as ever: a busy host keeps the blame."""
    world = World(slow={200: 300 * MS})
    gpu = world.gpu()
    _, verdicts, _ = judged(world, [replace(gpu, soft_ns=(gpu.times_ns - gpu.times_ns[0]).astype(float))])
    assert causes(verdicts) == {"host"} and part(verdicts, "gpu_clock") == 0


def test_prompts_that_bring_a_gpu_to_its_power_limit_are_prompts() -> None:
    """They are what limits it: the cost of their tokens still comes from their steps, and they keep the blame."""
    world = World(prefill={n: 1500 for n in range(40, 400, 60)})
    gpu = world.gpu()
    starts = world.ends - world.took
    soft = np.zeros(len(gpu.times_ns))
    for step in world.prefill:
        soft += np.clip(gpu.times_ns - starts[step], 0, world.took[step])
    gaps, verdicts, steps = judged(world, [replace(gpu, soft_ns=soft, mhz=np.full(len(soft), 1755.0))])
    assert causes(verdicts) == {"scheduling"} and len(gaps.start_ns) == 6 and steps.work_steps == 6


def test_a_clock_without_a_count_of_its_time_rules_nothing_out() -> None:
    """A GPU that tells its clock alone may have been lowered between two samples."""
    world = World(prefill={n: 1500 for n in range(40, 400, 60)})
    none = np.zeros(0)
    silent = GpuClock(np.zeros(0, np.int64), none, none, none)
    gaps, verdicts, steps = judged(world, [world.gpu(), silent])
    assert causes(verdicts) == {"scheduling"} and not steps.clocks.known.any()
    assert all("gpu_clock" not in each for each in excluded_of(gaps, verdicts, errors_of(gaps, verdicts, steps), steps))


def test_no_more_is_charged_than_the_driver_counted() -> None:
    """Four stalls of the host's between two samples in which clocks were lowered for 30 ms: those are all that the clock gets."""
    world = World(slow={step: 200 * MS for step in (100, 102, 104, 106)})
    gpu = world.gpu(every_ns=2_000 * MS)
    inside = int(np.searchsorted(gpu.times_ns, world.ends[103]))
    hard = np.where(np.arange(len(gpu.times_ns)) >= inside, 30.0 * MS, 0.0)
    _, verdicts, steps = judged(world, [replace(gpu, hard_ns=hard)])
    assert causes(verdicts) == {"host"}
    assert int(steps.gpu_clock.sum()) <= 30 * MS


def test_a_gpu_that_is_slow_most_of_the_time_is_not_the_measure() -> None:
    """The healthy step comes from the steps at the usual clock, however few they are."""
    world = World(throttled={step: 6.0 for step in range(100, 400)})
    _, verdicts, steps = judged(world, [world.gpu()])
    assert causes(verdicts) == {"gpu_clock"} and steps.usual_mhz == 1980
    assert len(verdicts.cause) > 250


def test_of_several_gpus_the_slowest_counts() -> None:
    """One of eight that gets hot makes all wait."""
    world = World(throttled=BURST)
    _, verdicts, _ = judged(world, [*[world.gpu(idle=True)] * 7, world.gpu()])
    assert causes(verdicts) == {"gpu_clock"}


def test_without_samples_the_clock_is_not_spoken_of() -> None:
    """No samples, samples that are far apart, or of another time: what is left over stays the host's, and the clock is not ruled out."""
    world = World(throttled=BURST)
    gpu = world.gpu(every_ns=20_000 * MS)
    for gpus in ([], [gpu], [replace(world.gpu(), times_ns=world.gpu().times_ns - 10**12)]):
        gaps, verdicts, steps = judged(world, gpus)
        assert causes(verdicts) == {"host"}
        excluded = excluded_of(gaps, verdicts, errors_of(gaps, verdicts, steps), steps)
        assert all("gpu_clock" not in each for each in excluded)


def test_clocks_that_were_never_lowered_are_ruled_out() -> None:
    """A sampled GPU that ran as usual is out of the question."""
    world = World(prefill={n: 1500 for n in range(40, 400, 60)})
    gaps, verdicts, steps = judged(world, [world.gpu()])
    assert causes(verdicts) == {"scheduling"}
    for each in excluded_of(gaps, verdicts, errors_of(gaps, verdicts, steps), steps):
        assert each["gpu_clock"] == "its GPUs' clocks were not lowered in its steps"


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    every_ms=st.sampled_from([50, 100, 1000, 3000]),
    slow=st.dictionaries(st.integers(30, 390), st.integers(0, 900), max_size=8),
    low=st.dictionaries(st.integers(30, 390), st.floats(1.0, 20.0), max_size=30),
    soft=st.booleans(),
)
def test_the_clock_never_gets_more_than_its_time(seed: int, every_ms: int, slow: dict[int, int], low: dict[int, float], soft: bool) -> None:
    """Whatever else happens: parts add up, and in any stretch between samples the clock is charged no more than the driver counted."""
    world = World(seed=seed, slow={step: ms * MS for step, ms in slow.items()}, throttled=low)
    gpu = world.gpu(every_ns=every_ms * MS, soft=soft)
    _, _, steps = judged(world, [gpu])
    counted = gpu.hard_ns + gpu.soft_ns
    assert int(steps.gpu_clock.sum()) <= counted[-1] - counted[0] + len(steps.number)
    known = lowered([gpu], steps.end_ns - steps.took, steps.end_ns)
    assert (steps.gpu_clock <= np.maximum(known.hard_ns, known.soft_ns) + 1).all()


def test_samples_are_read_as_they_were_sent(store: Store) -> None:
    """From OTLP to arrays: reasons added up by kind, restarts of a counter no loss, other tenants' and other engines' not."""
    body = metrics_request({"host.name": "node-1"})
    start_ns = 1_790_000_000 * 10**9
    for second in range(6):
        at = start_ns + second * 10**9
        of = {"legato.engine.id": "127.0.0.1:8000", "hw.id": "GPU-1"}
        gauge(body, "hw.gpu.clock.sm", 1980 - 300 * (second == 3), at, attributes=of)
        # The driver was loaded again after the third second.
        total(body, "hw.gpu.throttle.time", [10, 10, 10.5, 0, 0.25, 0.25][second], at, attributes={**of, "reason": "thermal_hardware"})
        total(body, "hw.gpu.throttle.time", second, at, attributes={**of, "reason": "power_cap"})
        total(body, "hw.gpu.throttle.time", 99 * second, at, attributes={**of, "legato.engine.id": "other", "reason": "thermal"})
    samples = received_points(body, tenant="", now_ns=start_ns, limits=Limits(retention_days=0))
    store.insert("node_samples", samples.samples)
    (gpu,) = clocks_of(store, "", "127.0.0.1:8000/1", start_ns, start_ns + 10**10)
    assert ((gpu.times_ns - start_ns) // 10**9).tolist() == list(range(6))
    assert (gpu.hard_ns / 1e6).round(6).tolist() == [0, 0, 500, 500, 750, 750]
    assert (gpu.soft_ns / 1e9).round(6).tolist() == [0, 1, 2, 3, 4, 5]
    assert gpu.mhz.tolist() == [1980, 1980, 1980, 1680, 1980, 1980]
    assert clocks_of(store, "somebody", "127.0.0.1:8000", start_ns, start_ns + 10**10) == []


def test_a_gpu_that_engines_share_is_each_one_s(store: Store) -> None:
    """Its samples name nobody; beside them stands whose it is. Another GPU of the node is nobody's."""
    start_ns = 1_790_000_000 * 10**9
    body = metrics_request({"host.name": "node-1"})
    for second in range(3):
        at = start_ns + second * 10**9
        for gpu in ("GPU-1", "GPU-2"):
            total(body, "hw.gpu.throttle.time", second, at, attributes={"hw.id": gpu, "reason": "thermal"})
        for engine in ("a:1", "b:1"):
            gauge(body, "legato.gpu.engine", 1.0, at, attributes={"hw.id": "GPU-1", "legato.engine.id": engine})
    store.insert("node_samples", received_points(body, tenant="", now_ns=start_ns, limits=Limits(retention_days=0)).samples)
    for engine, count in (("a:1", 1), ("b:1/2", 1), ("c:1", 0)):
        found = clocks_of(store, "", engine, start_ns, start_ns + 10**10)
        assert [len(gpu.times_ns) for gpu in found] == [3] * count
    # One whose processes are on the whole of it, and a tenant of a part: its figures are told under the first.
    body = metrics_request({"host.name": "node-1"})
    for second in range(3):
        at = start_ns + second * 10**9
        of = {"hw.id": "GPU-3", "legato.engine.id": "d:1"}
        total(body, "hw.gpu.throttle.time", second, at, attributes={**of, "reason": "thermal"})
        for engine in ("d:1", "e:1"):
            gauge(body, "legato.gpu.engine", 1.0, at, attributes={**of, "legato.engine.id": engine})
    store.insert("node_samples", received_points(body, tenant="", now_ns=start_ns, limits=Limits(retention_days=0)).samples)
    for engine in ("d:1", "e:1"):
        assert [len(gpu.times_ns) for gpu in clocks_of(store, "", engine, start_ns, start_ns + 10**10)] == [3]


def test_what_several_nodes_or_no_counter_tell_is_not_told(store: Store) -> None:
    """Samples of a clock alone are no evidence; and nobody knows whose GPUs they are where two nodes have an engine of this id."""
    start_ns = 1_790_000_000 * 10**9
    for host in ("node-1", "node-2"):
        body = metrics_request({"host.name": host})
        for second in range(3):
            at, of = start_ns + second * 10**9, {"legato.engine.id": "127.0.0.1:8000", "hw.id": f"GPU of {host}"}
            gauge(body, "hw.gpu.clock.sm", 300, at, attributes=of)
            if host == "node-2":
                total(body, "hw.gpu.throttle.time", second, at, attributes={**of, "reason": "thermal"})
        store.insert("node_samples", received_points(body, tenant="", now_ns=start_ns, limits=Limits(retention_days=0)).samples)
        found = clocks_of(store, "", "127.0.0.1:8000", start_ns, start_ns + 10**10)
        assert [len(gpu.times_ns) for gpu in found] == ([0] if host == "node-1" else [])
