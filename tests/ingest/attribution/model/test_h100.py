"""Steps on a real H100 near its power limit (`tests/data/h100_power_cap.json.gz`): what throttling is charged there.

A GPU that serves is at its power limit most of the time, also while its clock is at the usual frequency. So a verdict that rested on the
driver's counter alone would charge throttling for gaps that prompts caused.
"""

from __future__ import annotations

import gzip
import json
import pathlib
from typing import Any

import numpy as np
import pytest

from legato_ingest.attribution.model.gpu_throttle import GpuClock
from legato_ingest.attribution.model.step_model import charge_steps
from legato_ingest.attribution.model.steps import ChargedSteps, Steps

_RECORDED: dict[str, Any] = json.loads(
    gzip.decompress((pathlib.Path(__file__).parents[3] / "data" / "h100_power_cap.json.gz").read_bytes())
)
_STEPS = {name: np.array(values, np.int64) for name, values in _RECORDED["steps"].items()}
_SAMPLES = {name: np.array(values, np.int64) for name, values in _RECORDED["samples"].items()}


@pytest.fixture(scope="module")
def charged() -> ChargedSteps:
    """Return the recorded steps, charged with the samples of their GPU."""
    count = len(_STEPS["recorded_us"])
    prefill, decode = _STEPS["prefill_tokens"].astype(float), _STEPS["decode_requests"].astype(float)
    recorded = Steps(
        number=np.arange(count),
        recorded_ns=1000 * _STEPS["recorded_us"],
        interval_ns=(1000 * _STEPS["interval_us"]).astype(np.float64),
        running=decode + (prefill > 0),
        waiting=np.zeros(count),
        prefill_requests=(prefill > 0).astype(float),
        prefill_tokens=prefill,
        decode_requests=decode,
        decode_tokens=decode,
        draft_tokens=np.zeros(count),
        preempted=np.zeros(count),
        finished=np.zeros(count),
    )
    at_ns, mhz = 1000 * _SAMPLES["at_us"], _SAMPLES["sm_mhz"].astype(np.float64)
    hard_ns, soft_ns = ((1000 * _SAMPLES[name]).astype(np.float64) for name in ("thermal_us", "power_cap_us"))
    return charge_steps(recorded, [GpuClock(at_ns, hard_ns, soft_ns, mhz)])


def _phases(name: str) -> list[tuple[int, int]]:
    starts = _RECORDED["phases"]
    return [(start, end) for (phase, start), (_, end) in zip(starts, starts[1:], strict=False) if phase == name]


def test_the_driver_counts_most_of_the_time_at_the_usual_clock() -> None:
    """With a prompt in every 40th step: over 75 % of the time counted as capped, half of the samples within 1 % of the usual clock."""
    for start, end in _phases("light"):
        inside = (_SAMPLES["at_us"] >= start) & (_SAMPLES["at_us"] < end)
        at, capped, mhz = (_SAMPLES[name][inside] for name in ("at_us", "power_cap_us", "sm_mhz"))
        assert (capped[-1] - capped[0]) / (at[-1] - at[0]) > 0.75
        assert np.median(mhz) > 0.99 * mhz.max()


def test_gaps_of_prompts_are_charged_to_prompts(charged: ChargedSteps) -> None:
    """Of each step of 25 ms or more with a prompt, throttling and the host together get at most a fifth, and 1 % of all of them."""
    slow = (charged.duration_ns > 25_000_000) & (charged.prefill_tokens > 0)
    other = charged.parts.gpu_clock + charged.parts.host
    assert slow.sum() > 100 and charged.fitted
    assert (other[slow] / charged.duration_ns[slow]).max() < 0.2
    assert other[slow].sum() / charged.duration_ns[slow].sum() < 0.01


def test_a_capped_clock_makes_the_same_prompt_some_percent_longer() -> None:
    """In every step a prompt of 4,096 tokens: 4 to 12 % longer than one in 40 steps. The verdict leaves this share with the prompt."""
    prompts = _STEPS["prefill_tokens"] == 4096
    ((start, end),) = _phases("heavy 4096")
    heavy = (_STEPS["recorded_us"] >= start) & (_STEPS["recorded_us"] < end)
    ratio = np.median(_STEPS["interval_us"][prompts & heavy]) / np.median(_STEPS["interval_us"][prompts & ~heavy])
    assert 1.04 < ratio < 1.12
