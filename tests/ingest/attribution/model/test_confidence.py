"""The confidence of verdicts: that of the table, and lower where evidence is missing that could change the verdict."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers.builders.attribution import charged_steps, joined, throttling, verdict
from legato_ingest.attribution.model.confidence import confidences
from legato_ingest.attribution.model.steps import ChargedSteps
from legato_ingest.causes import CAUSES, CORE, PARTS, Cause

STEPS = charged_steps(*[{"base": 10}] * 3, state=throttling(3, known=True, mhz=900))


def confidence(
    cause: str, steps: ChargedSteps | None, *, server: bool = True, waited_us: int = 0, was_preempted: bool = True, **fields: int
) -> str:
    """Return the confidence of one verdict on 400 ms of the cause."""
    one = verdict(cause, {cause: 400} if cause in PARTS else {}, **fields)
    (found,) = confidences(
        [cause], one, np.array([server]), joined(steps), [{"cpu_wait_us": waited_us}], np.array([False]), np.array([was_preempted])
    )
    return found


@pytest.mark.parametrize("cause", [cause for cause in CAUSES if cause.is_part or cause.name == "mixed"], ids=lambda cause: cause.name)
def test_with_everything_recorded_it_is_the_tables(cause: Cause) -> None:
    """This holds for every cause except throttling, which needs a sample of the clock, and late generation, which steps would explain."""
    found = confidence(cause.name, STEPS, step_first=1, step_last=1)
    assert cause.name == "gpu_clock" or found == ("likely" if cause.name == "generation" else cause.confidence)


@pytest.mark.parametrize(
    ("cause", "expected"), [("front_end", "likely"), ("host", "possible"), ("kv_pressure", "possible"), ("scheduling", "possible")]
)
def test_without_steps_it_is_weaker(cause: str, expected: str) -> None:
    """The cause was reached by exclusion."""
    assert confidence(cause, None) == expected and confidence(cause, None, server=False) == expected
    assert confidence(cause, STEPS) == expected, "steps are known, but those of this gap are not"


@pytest.mark.parametrize("cause", PARTS)
def test_without_the_server_nothing_is_strong(cause: str) -> None:
    """The step of a chunk is only concluded. A recorded hold stays proven."""
    assert confidence(cause, STEPS, server=False, step_first=1, step_last=1) != "strong"
    assert confidence("consumer", STEPS, server=False) == "proven"


@pytest.mark.parametrize("cause", CORE)
def test_few_steps_with_work_make_its_cost_unreliable(cause: str) -> None:
    """Prefill and the recompute of other streams become likely. The stream's own preemption and the host do not rest on the fit."""
    few = charged_steps(*[{"base": 10}] * 3, work_steps=4, state=throttling(3, known=True, mhz=900))
    weak = cause in ("scheduling", "kv_pressure", "gpu_clock")
    assert confidence(cause, few, step_first=1, step_last=1) == ("likely" if weak else "strong")
    assert confidence("kv_pressure", few, step_first=1, step_last=1, preempted=1) == "strong"


@pytest.mark.parametrize("cause", ["kv_pressure", "mixed"])
def test_a_preemption_is_strong_where_the_engine_reports_it_of_the_request(cause: str) -> None:
    """Else another request may have been preempted, or aborted. The recompute of others is in the steps themselves."""
    for preempted, reported, expected in ((1, True, "strong"), (1, False, "likely"), (-1, False, "strong")):
        assert confidence(cause, STEPS, step_first=1, step_last=1, preempted=preempted, was_preempted=reported) == expected


@pytest.mark.parametrize(("mhz", "expected"), [(900, "strong"), (1970, "likely"), (float("nan"), "likely")])
def test_throttling_is_strong_where_a_low_clock_was_seen(mhz: float, expected: str) -> None:
    """Strong needs a sample more than 3 % below the usual 1980 MHz in a step of the gap."""
    steps = replace(charged_steps(*[{"base": 10}] * 3, state=throttling(3, known=True, mhz=mhz)), usual_mhz=1980.0)
    assert confidence("gpu_clock", steps, step_first=0, step_last=1) == expected


@pytest.mark.parametrize(
    ("known", "waited_us", "expected"),
    [(True, 0, "strong"), (False, 0, "likely"), (False, 199_000, "likely"), (False, 200_000, "strong")],
)
def test_the_host_is_strong_where_the_gpu_or_the_kernel_was_recorded(known: bool, waited_us: int, expected: str) -> None:
    """Without both, a sample that arrives late may show that the GPU was throttled."""
    steps = charged_steps(*[{"base": 10}] * 3, state=throttling(3, known=known))
    assert confidence("host", steps, waited_us=waited_us, step_first=0, step_last=1) == expected


@pytest.mark.parametrize(("waited_us", "expected"), [(0, "likely"), (200_000, "strong")])
def test_the_host_is_likely_where_a_step_may_have_waited_for_another_rank(waited_us: int, expected: str) -> None:
    """Unless the kernel counted that the engine waited for a CPU. Steps outside of the gap do not count."""
    steps = charged_steps(*[{"base": 10}] * 4, state=throttling(4, known=True), unsure=[2])
    assert confidence("host", steps, waited_us=waited_us, step_first=1, step_last=2) == expected
    assert confidence("host", steps, step_first=0, step_last=1) == "strong"


def test_a_verdict_with_time_that_no_step_explains_is_not_strong() -> None:
    """A tenth of the stall has no steps; they may arrive late."""
    for generated_ms, expected in ((39, "strong"), (41, "likely")):
        one = verdict("scheduling", {"scheduling": 400 - generated_ms, "generation": generated_ms}, step_first=1, step_last=1)
        assert confidences(["scheduling"], one, np.array([True]), joined(STEPS), [{}], np.array([False]), np.array([True])) == [expected]
