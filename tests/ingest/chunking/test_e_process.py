"""The e-process: its definition, its blocks, and its rate of false alarms at the limit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato_ingest.chunking.e_process import FRACTIONS, first_alarm


def definition(x: list[float], upper: list[float], fractions: tuple[float, ...] = FRACTIONS) -> list[float]:
    """Return the paper's recursion in plain Python: the mean of the e-processes after each minute."""
    process, out = [0.0] * len(fractions), []
    for value, limit in zip(x, upper, strict=True):
        process = [(w + 1) * (1 + f * (value / limit - 1)) for w, f in zip(process, fractions, strict=True)]
        out.append(sum(process) / len(process))
    return out


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.02, 0.98)), min_size=1, max_size=60), st.floats(5, 100), st.booleans())
def test_the_e_process_equals_its_definition(pairs: list[tuple[float, float]], threshold: float, rise: bool) -> None:
    """The alarm is at the first minute at which the plain recursion reaches the threshold, with its value, on either side."""
    x, limit = (list(column) for column in zip(*pairs, strict=True))
    process = definition(x, limit)
    over = [at for at, value in enumerate(process) if value >= threshold]
    near = any(math.isclose(value, threshold, rel_tol=1e-9) for value in process)
    # A side that always shrinks still has a value of 4.9: with a small f the latest starts have not shrunk yet.
    never = np.full(len(x), 1e9)
    values, limits = np.array(x), np.array(limit)
    found = first_alarm(values, limits, -never, threshold) if rise else first_alarm(1 - values, never, 1 - limits, threshold)
    if not near:
        assert (None if found is None else found.at) == (over[0] if over else None)
    if found is not None and not near:
        assert found.rose is rise and found.began <= found.at
        assert found.log_e == pytest.approx(math.log(process[found.at]), abs=1e-6)


def test_the_e_process_continues_over_blocks() -> None:
    """With factors of 1 the process counts its starts: 5000 after 5000 minutes, for any block size."""
    fair = np.full(9000, 0.1)
    found = first_alarm(fair, fair, fair - 1.0, 4999.5)
    assert found is not None and found.at == 4999
    assert definition(fair[:5000].tolist(), fair[:5000].tolist())[-2:] == [4999.0, 5000.0]


@pytest.mark.parametrize("draw", ["coins", "means"])
@pytest.mark.parametrize("rise", [True, False])
def test_at_the_limit_false_alarms_are_rare(draw: str, rise: bool) -> None:
    """With the mean exactly at the limit, the mean time to an alarm over 200 runs exceeds the threshold (here 100 minutes)."""
    rng = np.random.default_rng(18)
    waits = []
    for _ in range(200):
        x = (rng.random(2000) < 0.12).astype(np.float64) if draw == "coins" else rng.beta(12, 88, 2000)
        found = first_alarm(x, np.full(2000, 0.12 if rise else 9.0), np.full(2000, -9.0 if rise else 0.12), 100.0)
        waits.append(2000 if found is None else found.at + 1)
    assert np.mean(waits) >= 100
