"""GPU throttling on a few samples and on simulated worlds: charged as far as the driver counted, and never without its counter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.builders.attribution import ints, joined
from helpers.builders.world import MS, World
from legato_ingest.attribution.model.charge import charge
from legato_ingest.attribution.model.evidence import error_bounds_ns, evidence_of
from legato_ingest.attribution.model.exclusion import excluded_by_records
from legato_ingest.attribution.model.gaps import Gaps, gaps_of
from legato_ingest.attribution.model.gpu_throttle import GpuClock, Throttling, throttling_in, throttling_share_ns
from legato_ingest.attribution.model.step_model import charge_steps
from legato_ingest.attribution.model.steps import ChargedSteps
from legato_ingest.attribution.model.verdicts import Verdicts
from legato_ingest.causes import STEP_PARTS, index_of

GAP_NS = 100 * MS
BURST = {step: 8.0 for step in range(200, 206)}


def gpu(*times_ms: float, hard_ms: Sequence[float] = (), soft_ms: Sequence[float] = (), mhz: Sequence[float] = ()) -> GpuClock:
    """Return samples at these times; counters are 0 and the clock is unknown unless given."""
    count = len(times_ms)
    columns = [np.array(each or [missing] * count, np.float64) for each, missing in ((hard_ms, 0.0), (soft_ms, 0.0), (mhz, np.nan))]
    return GpuClock(ints(*times_ms), MS * columns[0], MS * columns[1], columns[2])


def around(gpus: Sequence[GpuClock], start_ms: float, end_ms: float) -> Throttling:
    """Return the throttling in one stretch."""
    return throttling_in(gpus, ints(start_ms), ints(end_ms))


def test_samples_around_a_stretch_bound_its_throttling() -> None:
    """The counters grew by 30 and 80 ms around a stretch of 50 ms, which bounds the second."""
    one = gpu(0, 200, 400, hard_ms=(5, 35, 35), soft_ms=(0, 80, 80), mhz=(1980, 900, 1980))
    found = around([one], 100, 150)
    assert found.known.all() and (found.hard_ns[0], found.soft_ns[0], found.mhz[0]) == (30 * MS, 50 * MS, 900)
    assert around([one], 100, 300).mhz.tolist() == [900]


@pytest.mark.parametrize(("start", "end"), [(-1, 50), (350, 401), (12_000, 12_010)])
def test_without_samples_around_it_nothing_is_known(start: float, end: float) -> None:
    """Before the first, after the last, and between two that are more than 10 s apart."""
    found = around([gpu(0, 200, 400, *((20_000,) if start > 400 else ()))], start, end)
    assert not found.known.any() and np.isnan(found.mhz).all() and found.hard_ns.tolist() == [0]
    assert not around([], 0, 10).known.any() and not around([gpu()], 0, 10).known.any()


def test_all_gpus_must_be_known_and_the_slowest_counts() -> None:
    """The longest time and the lowest clock of all GPUs."""
    hot, cool = gpu(0, 200, hard_ms=(0, 40), mhz=(900, 900)), gpu(0, 200, mhz=(1980, 1980))
    found = around([hot, cool], 50, 150)
    assert found.known.all() and (found.hard_ns[0], found.mhz[0]) == (40 * MS, 900)
    assert not around([hot, gpu(0, 60)], 50, 150).known.any()


def granted(one: GpuClock, demand_ms: Sequence[float], usual_mhz: float = 1980.0) -> list[float]:
    """Return what is granted of the demands of consecutive steps of 100 ms, in ms."""
    ends = ints(*range(100, 100 + 100 * len(demand_ms), 100))
    return [round(value / MS, 3) for value in throttling_share_ns([one], ends, MS * np.array(demand_ms, np.float64), usual_mhz)]


def test_no_more_is_granted_than_was_counted_between_two_samples() -> None:
    """60 ms were counted in the second step: a demand of 40 ms is granted completely, one of 90 ms up to 60 ms."""
    one = gpu(0, 100, 200, 300, 400, hard_ms=(0, 0, 60, 60, 60))
    assert granted(one, [0, 40, 0]) == [0, 40, 0] and granted(one, [0, 90, 20]) == [0, 60, 0]


def test_several_steps_between_two_samples_share_what_was_counted() -> None:
    """60 ms are shared in proportion to the demands of 40 and 80 ms."""
    assert granted(gpu(0, 100, 300, 400, hard_ms=(0, 0, 60, 60)), [0, 40, 80]) == [0, 20, 40]


def test_a_power_limit_counts_where_the_clock_was_low() -> None:
    """The clock must have been below 97 % of the usual frequency."""
    times, counted = (0, 100, 200, 300), (0, 0, 60, 60)
    assert granted(gpu(*times, soft_ms=counted, mhz=(1980, 1980, 1900, 1980)), [0, 90, 0]) == [0, 60, 0]
    assert granted(gpu(*times, soft_ms=counted, mhz=(1980, 1980, 1930, 1980)), [0, 90, 0]) == [0, 0, 0]
    assert granted(gpu(*times, soft_ms=counted), [0, 90, 0]) == [0, 0, 0]


def test_a_hole_between_samples_grants_nothing() -> None:
    """A hole is longer than 10 s. A single sample grants nothing either."""
    assert granted(gpu(0, 100, 20_000, hard_ms=(0, 0, 9_000)), [0, 90, 0]) == [0, 0, 0]
    assert granted(gpu(0), [0, 90, 0]) == [0, 0, 0]


def judged(world: World, gpus: Sequence[GpuClock]) -> tuple[Gaps, Verdicts, ChargedSteps]:
    """Return the gaps of one stream, their verdicts and the charged steps."""
    gaps, steps = gaps_of(world.client(0), world.server(0), 0, GAP_NS), charge_steps(world.records(), gpus)
    verdicts = charge(gaps, steps)
    assert (verdicts.parts.sum(axis=1) == gaps.end_ns - gaps.start_ns).all()
    assert (np.sum([steps.parts.of(name) for name in STEP_PARTS], axis=0) == steps.duration_ns).all()
    return gaps, verdicts, steps


def excluded(gaps: Gaps, verdicts: Verdicts, steps: ChargedSteps) -> list[dict[str, str]]:
    """Return the excluded causes of each gap, with the reason."""
    own = joined(steps, len(gaps.start_ns))
    return excluded_by_records(gaps, verdicts, error_bounds_ns(gaps, verdicts, own), own)


def causes(verdicts: Verdicts) -> set[str]:
    """Return the names of the causes."""
    return set(verdicts.names())


def part(verdicts: Verdicts, name: str) -> float:
    """Return one part of all verdicts in ms."""
    return float(verdicts.parts[:, index_of(name)].sum()) / MS


@pytest.mark.parametrize("soft", [False, True], ids=["heat", "power"])
def test_throttling_is_named_with_its_evidence(soft: bool) -> None:
    """Steps took eight times as long at an eighth of the clock: nearly all of the excess is throttling."""
    gaps, verdicts, steps = judged(World(throttled=BURST), [World(throttled=BURST).gpu(soft=soft)])
    assert causes(verdicts) == {"gpu_clock"}
    assert part(verdicts, "gpu_clock") > 0.95 * float(verdicts.excess_ns.sum()) / MS
    for evidence in evidence_of(gaps, verdicts, joined(steps, len(gaps.start_ns))):
        assert evidence["throttled_us"] > 100_000
        assert (evidence["clock_mhz"], evidence["clock_usual_mhz"]) == (247, 1980)


def test_a_burst_between_two_samples_is_found_by_the_drivers_count() -> None:
    """No sample shows a low clock, but the driver counted the time."""
    world = World(throttled={step: 8.0 for step in range(200, 204)})
    gpu = world.gpu(every_ns=2_000 * MS)
    gaps, verdicts, steps = judged(world, [replace(gpu, mhz=np.full(len(gpu.mhz), 1980.0))])
    assert causes(verdicts) == {"gpu_clock"}
    assert not [each for each in evidence_of(gaps, verdicts, joined(steps, len(gaps.start_ns))) if each["clock_mhz"] < 1980]


def test_a_permanent_power_limit_is_no_cause() -> None:
    """Its counter grows all the time and the clock is as usual: the stall stays charged to the host."""
    world = World(slow={200: 300 * MS})
    gpu = world.gpu()
    _, verdicts, _ = judged(world, [replace(gpu, soft_ns=(gpu.times_ns - gpu.times_ns[0]).astype(float))])
    assert causes(verdicts) == {"host"} and part(verdicts, "gpu_clock") == 0


def test_prefill_at_the_power_limit_is_scheduling() -> None:
    """The prefill causes the power limit. The cost of its tokens is still fitted from its steps, and it stays charged for them."""
    world = World(prefill={n: 1500 for n in range(40, 400, 60)})
    gpu = world.gpu()
    starts = world.ends - world.took
    soft = np.zeros(len(gpu.times_ns))
    for step in world.prefill:
        soft += np.clip(gpu.times_ns - starts[step], 0, world.took[step])
    gaps, verdicts, steps = judged(world, [replace(gpu, soft_ns=soft, mhz=np.full(len(soft), 1755.0))])
    assert causes(verdicts) == {"scheduling"} and len(gaps.start_ns) == 6 and steps.work_steps == 6


def test_a_clock_without_the_drivers_counter_excludes_nothing() -> None:
    """A GPU that only reports its clock may have been throttled between two samples."""
    world = World(prefill={n: 1500 for n in range(40, 400, 60)})
    none = np.zeros(0)
    silent = GpuClock(np.zeros(0, np.int64), none, none, none)
    gaps, verdicts, steps = judged(world, [world.gpu(), silent])
    assert causes(verdicts) == {"scheduling"} and not steps.throttling.known.any()
    assert all("gpu_clock" not in each for each in excluded(gaps, verdicts, steps))


def test_no_more_is_charged_than_the_driver_counted() -> None:
    """Four host stalls between two samples with 30 ms of throttling: throttling is charged 30 ms in total."""
    world = World(slow={step: 200 * MS for step in (100, 102, 104, 106)})
    gpu = world.gpu(every_ns=2_000 * MS)
    inside = int(np.searchsorted(gpu.times_ns, world.ends[103]))
    hard = np.where(np.arange(len(gpu.times_ns)) >= inside, 30.0 * MS, 0.0)
    _, verdicts, steps = judged(world, [replace(gpu, hard_ns=hard)])
    assert causes(verdicts) == {"host"}
    assert int(steps.parts.gpu_clock.sum()) <= 30 * MS


def test_a_gpu_that_is_mostly_throttled_does_not_define_the_healthy_step() -> None:
    """The healthy step is fitted to the steps at the usual clock, even if they are few."""
    world = World(throttled={step: 6.0 for step in range(100, 400)})
    _, verdicts, steps = judged(world, [world.gpu()])
    assert causes(verdicts) == {"gpu_clock"} and steps.usual_mhz == 1980
    assert len(verdicts.cause) > 250


def test_the_slowest_of_several_gpus_counts() -> None:
    """One hot GPU of eight makes all others wait."""
    world = World(throttled=BURST)
    _, verdicts, _ = judged(world, [*[world.gpu(idle=True)] * 7, world.gpu()])
    assert causes(verdicts) == {"gpu_clock"}


def test_without_samples_throttling_is_neither_named_nor_excluded() -> None:
    """No samples, samples that are far apart, or samples of another time: the time is the host's, and throttling is not excluded."""
    world = World(throttled=BURST)
    gpu = world.gpu(every_ns=20_000 * MS)
    for gpus in ([], [gpu], [replace(world.gpu(), times_ns=world.gpu().times_ns - 10**12)]):
        gaps, verdicts, steps = judged(world, gpus)
        assert causes(verdicts) == {"host"}
        assert all("gpu_clock" not in each for each in excluded(gaps, verdicts, steps))


def test_a_gpu_without_throttling_is_excluded() -> None:
    """Samples cover the steps and show no throttling."""
    world = World(prefill={n: 1500 for n in range(40, 400, 60)})
    gaps, verdicts, steps = judged(world, [world.gpu()])
    assert causes(verdicts) == {"scheduling"}
    for each in excluded(gaps, verdicts, steps):
        assert each["gpu_clock"] == "no GPU was throttled in its steps"


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    every_ms=st.sampled_from([50, 100, 1000, 3000]),
    slow=st.dictionaries(st.integers(30, 390), st.integers(0, 900), max_size=8),
    low=st.dictionaries(st.integers(30, 390), st.floats(1.0, 20.0), max_size=30),
    soft=st.booleans(),
)
def test_throttling_is_never_charged_more_than_its_time(
    seed: int, every_ms: int, slow: dict[int, int], low: dict[int, float], soft: bool
) -> None:
    """For any faults: parts add up, and between two samples throttling is charged no more than the driver counted."""
    world = World(seed=seed, slow={step: ms * MS for step, ms in slow.items()}, throttled=low)
    gpu = world.gpu(every_ns=every_ms * MS, soft=soft)
    _, _, steps = judged(world, [gpu])
    counted = gpu.hard_ns + gpu.soft_ns
    assert int(steps.parts.gpu_clock.sum()) <= counted[-1] - counted[0] + len(steps.number)
    known = throttling_in([gpu], steps.end_ns - steps.duration_ns, steps.end_ns)
    assert (steps.parts.gpu_clock <= np.maximum(known.hard_ns, known.soft_ns) + 1).all()
