"""Recorded steps are charged: their true ends, the fit, and the rest for the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.builders.attribution import MS, ints, steps
from legato_ingest.attribution.model.gpu_throttle import GpuClock
from legato_ingest.attribution.model.step_model import charge_steps, step_ends
from legato_ingest.attribution.model.steps import ChargedSteps
from legato_ingest.causes import STEP_PARTS

# Forty steps of 20 ms, of which those at 5, 10, … take 30 ms more for 100 tokens of prefill.
COUNT = 40
PREFILL = [100.0 if n and n % 5 == 0 else 0.0 for n in range(COUNT)]


def run(longer_ms: dict[int, float], gpus: list[GpuClock] | None = None, **columns: Any) -> ChargedSteps:
    """Return the charged forty steps, some of which took longer; all are recorded at once."""
    took = [20.0 + 0.3 * PREFILL[n] + longer_ms.get(n, 0.0) for n in range(COUNT)]
    charged = charge_steps(steps(took, list(np.cumsum(took)), **{"prefill_tokens": PREFILL, **columns}), gpus or [])
    assert (np.sum([charged.parts.of(name) for name in STEP_PARTS], axis=0) == charged.duration_ns).all()
    return charged


def parts_of(charged: ChargedSteps, step: int) -> dict[str, float]:
    """Return the parts of one step in ms, without parts under 10 µs."""
    parts = {name: float(charged.parts.of(name)[step]) / MS for name in STEP_PARTS}
    return {name: round(value, 2) for name, value in parts.items() if value >= 0.01}


def test_ends_are_exact_though_records_are_late() -> None:
    """Steps of 10 ms, of which the third was recorded at once: it gives the constant for all."""
    recorded = [14.0, 27.0, 30.0, 95.0, 95.0]
    assert (step_ends(steps([np.nan, 10, 10, 10, 10], recorded)) / MS).tolist() == [10, 20, 30, 40, 50]
    charged = charge_steps(steps([np.nan, 10, 10, 10, 10], recorded))
    assert (charged.late_ns / MS).tolist() == [4, 7, 0, 55, 45]


def test_a_missing_duration_or_number_begins_a_new_run() -> None:
    """Each run has its own constant; ends never go back."""
    assert (step_ends(steps([np.nan, 10, np.nan, 10], [10, 20, 53, 60])) / MS).tolist() == [10, 20, 50, 60]
    assert (step_ends(steps([10, 10, 10], [10, 20, 90], number=[1, 2, 7])) / MS).tolist() == [10, 20, 90]
    assert len(step_ends(steps([], []))) == 0


def test_an_interval_of_several_steps_begins_a_new_run() -> None:
    """The only request of step 5 had its previous token in step 1: no earlier end moves, and the interval is not the step's duration."""
    recorded = [11.0, 20.0, 32.0, 40.0, 51.0, 80.0, 91.0, 100.0]
    charged = charge_steps(steps([np.nan, 10, 10, 10, 10, 60, 10, 10], recorded))
    assert (charged.end_ns / MS).tolist() == [10, 20, 30, 40, 50, 80, 90, 100]
    assert charged.linked[5] and charged.complete.tolist() == [n not in (0, 5) for n in range(8)]


def test_the_intervals_of_a_pipeline_measure_no_step() -> None:
    """Two batches take turns, so each interval is the time of two steps: nothing is fitted, and steps end at their records."""
    took = np.array([20.0 + 300.0 * (n % 10 == 5) for n in range(60)])
    recorded = np.cumsum(took)
    charged = charge_steps(steps(list(took + np.roll(took, 1)), list(recorded)))
    assert not charged.fitted and not charged.late_ns[20:].any()


@pytest.mark.parametrize(("before", "late_ms"), [(1, [15, 0]), (30, [0, 0])])
def test_a_few_records_may_all_be_late_and_many_may_not(before: int, late_ms: list[float]) -> None:
    """A record is 15 ms earlier than those before it allow. Was one late, a step took 320 ms; were many on time, it took 305 ms."""
    took = [20.0] * before + [320.0, 20.0, 20.0]
    recorded = np.cumsum(took) + 15.0 * (np.arange(len(took)) < before)
    charged = charge_steps(steps([np.nan, *took[1:]], list(recorded)))
    assert (charged.late_ns[[before - 1, before]] / MS).tolist() == late_ms and charged.complete[before]


def test_prefill_is_scheduling() -> None:
    """The step takes 30 ms for its 100 tokens; the rest is base."""
    charged = run({})
    assert charged.fitted and charged.work_steps == 7
    assert parts_of(charged, 10) == {"base": 20, "scheduling": 30} and parts_of(charged, 11) == {"base": 20}


def test_what_the_work_does_not_explain_is_the_hosts() -> None:
    """One step without prefill, and one with prefill, in which 1.5 times the fitted cost and 5 ms still count as work."""
    charged = run({13: 100, 20: 100})
    assert parts_of(charged, 13) == {"base": 20, "host": 100}
    assert parts_of(charged, 20) == {"base": 20, "scheduling": 50, "host": 80}


def test_recompute_is_kv_pressure_and_drafts_are_not() -> None:
    """The engine counts recomputed tokens as decoded, 100 more than its requests. The same number of drafted tokens is no work."""
    decode = [4.0 + PREFILL[n] for n in range(COUNT)]
    plain: dict[str, Any] = {"prefill_tokens": [0.0] * COUNT, "decode_tokens": decode}
    charged = run({}, **plain)
    assert parts_of(charged, 10) == {"base": 20, "kv_pressure": 30}
    speculated = run({}, **plain, draft_tokens=PREFILL)
    assert parts_of(speculated, 10) == {"base": 20, "host": 30}


def test_prefill_and_recompute_share_the_work() -> None:
    """Each has half of the tokens."""
    halves = [tokens / 2 for tokens in PREFILL]
    charged = run({}, prefill_tokens=halves, decode_tokens=[4.0 + half for half in halves])
    assert parts_of(charged, 10) == {"base": 20, "scheduling": 15, "kv_pressure": 15}


def test_a_throttled_gpu_takes_the_blame_of_the_host() -> None:
    """The driver counted 60 of the 100 ms that the step took longer."""
    at = sum(20.0 + 0.3 * PREFILL[n] for n in range(13))
    times = ints(-100, at - 5, at + 125, at + 1000, at + 3000)
    gpu = GpuClock(times, np.array([0.0, 0, 60, 60, 60]) * MS, np.zeros(5), np.full(5, 1980.0))
    charged = run({13: 100}, [gpu])
    assert parts_of(charged, 13) == {"base": 20, "gpu_clock": 60, "host": 40} and charged.usual_mhz == 1980


@pytest.mark.parametrize(("finished", "waits", "preempted"), [(0.0, 1.0, True), (1.0, 1.0, False), (0.0, 0.0, False)])
def test_a_preemption_is_a_request_that_stopped_running_and_waits(finished: float, waits: float, preempted: bool) -> None:
    """Running falls by one at step 2: unless a request ended, or the number of waiting requests did not rise."""
    charged = charge_steps(
        steps([10] * 4, [10, 20, 30, 40], running=[4, 4, 3, 3], waiting=[0, 0, waits, waits], finished=[0, 0, finished, 0])
    )
    assert charged.preempted.tolist() == [False, False, preempted, False]


def test_steps_are_linked_while_the_engine_is_busy() -> None:
    """A missing record or an idle engine breaks the link. Linked steps with a duration and a load are complete."""
    charged = charge_steps(
        steps(
            [10, 10, 10, 10, np.nan],
            [10, 20, 50, 60, 70],
            number=[0, 1, 4, 5, 6],
            running=[4, 4, 0, 4, 4],
            decode_requests=[4, 4, 4, 4, 4],
        )
    )
    assert charged.linked.tolist() == [False, True, False, False, True]
    assert charged.complete.tolist() == [False, True, False, False, False]


def test_too_few_steps_fit_nothing() -> None:
    """The steps are marked as not fitted, so that they explain no gap."""
    charged = charge_steps(steps([10] * 15, list(range(10, 160, 10))))
    assert not charged.fitted and charged.parts.host.sum() == charged.duration_ns.sum()
    assert charge_steps(steps([], [])).median_ns == 0


@given(st.lists(st.tuples(st.integers(1, 900), st.integers(0, 200), st.integers(0, 500)), min_size=1, max_size=60))
def test_parts_add_up_whatever_was_recorded(rows: list[tuple[int, int, int]]) -> None:
    """Durations, prefills and late records in order, at random: no part is negative, and a step's add up to its duration."""
    took, tokens, late = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    recorded = np.maximum.accumulate(np.cumsum(took) + late)
    charged = charge_steps(steps(list(took), list(recorded), prefill_tokens=list(tokens)))
    parts = np.stack([charged.parts.of(name) for name in STEP_PARTS])
    assert (parts >= 0).all() and (parts.sum(axis=0) == charged.duration_ns).all()
    assert (np.diff(charged.end_ns) >= 0).all() and (charged.late_ns >= 0).all()
