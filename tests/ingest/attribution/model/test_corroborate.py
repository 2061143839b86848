"""Sides taken from simultaneous stalls: only from other streams, on one clock, at the same moment, and by a clear majority."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.builders.attribution import client_gap, parts_ms
from legato_ingest.attribution.model.charge import charge
from legato_ingest.attribution.model.corroborate import corroborate
from legato_ingest.attribution.model.gaps import Gaps
from legato_ingest.attribution.model.verdicts import Verdicts

UNKNOWN, GENERATED, DELIVERED = float("nan"), 0.0, 1.0


def corroborated(*streams: tuple[float, float, float], owners: list[int] | None = None, clocks: list[int] | None = None) -> Verdicts:
    """Return the verdicts on one gap of each stream, given as start (ms), length (ms), and the share that caught up."""
    gaps = Gaps.joined([client_gap(length, share, start_ms=start, pace_ms=20) for start, length, share in streams])
    count = len(streams)
    verdicts = corroborate(gaps, charge(gaps, None), np.array(owners or range(count)), np.array(clocks or [0] * count))
    assert (verdicts.parts.sum(axis=1) == gaps.length_ns).all()
    return verdicts


@pytest.mark.parametrize(("share", "side"), [(GENERATED, "generation"), (DELIVERED, "delivery")])
def test_an_unknown_gap_takes_the_side_of_simultaneous_ones(share: float, side: str) -> None:
    """Begins and ends differ by less than a twentieth of the 400 ms."""
    verdicts = corroborated((1000, 400, UNKNOWN), (1010, 400, share), (990, 415, share))
    assert verdicts.names() == [side] * 3 and verdicts.corroborated_by.tolist() == [2, 0, 0]
    assert parts_ms(verdicts) == {"base": 20, side: 380}


@pytest.mark.parametrize(
    "other",
    [(1030, 400, GENERATED), (1000, 430, GENERATED), (900, 500, GENERATED), (1000, 400, UNKNOWN)],
    ids=["begins later", "ends later", "begins earlier", "is unknown, too"],
)
def test_other_gaps_corroborate_nothing(other: tuple[float, float, float]) -> None:
    """Both ends must agree, and the other gap must have a side."""
    assert corroborated((1000, 400, UNKNOWN), other).names()[0] == "unknown"


def test_the_stream_itself_and_other_clocks_corroborate_nothing() -> None:
    """A stream does not corroborate itself, and times by two clocks are not compared."""
    assert corroborated((1000, 400, UNKNOWN), (1000, 400, GENERATED), owners=[0, 0]).names()[0] == "unknown"
    assert corroborated((1000, 400, UNKNOWN), (1000, 400, GENERATED), clocks=[0, 1]).names()[0] == "unknown"


@pytest.mark.parametrize(("generated", "side"), [(3, "unknown"), (4, "generation")])
def test_four_in_five_must_agree(generated: int, side: str) -> None:
    """One other stream has the opposite side."""
    others = [(1000, 400, GENERATED)] * generated
    verdicts = corroborated((1000, 400, UNKNOWN), (1000, 400, DELIVERED), *others)
    assert verdicts.names()[:2] == [side, "delivery"]


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(100, 900), st.sampled_from([UNKNOWN, GENERATED, DELIVERED])), max_size=8))
def test_known_sides_never_change(streams: list[tuple[float, float, float]]) -> None:
    """Only unknown gaps take a side, and parts keep adding up."""
    if streams:
        gaps = Gaps.joined([client_gap(length, share, start_ms=start, pace_ms=20) for start, length, share in streams])
        before = charge(gaps, None).names()
        after = corroborated(*streams).names()
        assert all(old in (new, "unknown") for old, new in zip(before, after, strict=True))


def test_very_many_simultaneous_gaps_take_bounded_memory() -> None:
    """40,000 streams stalled at one moment, half of them for an unknown cause: 400 million pairs. Other clocks keep their votes."""
    count = 40_000
    one = client_gap(400, UNKNOWN, start_ms=1000, pace_ms=20)
    other = client_gap(400, GENERATED, start_ms=1000, pace_ms=20)
    gaps = Gaps.joined([one, other] * (count // 2))
    clocks = np.zeros(count, np.int64)
    clocks[:4] = 1
    charged = charge(gaps, None)
    tracemalloc.start()
    try:
        verdicts = corroborate(gaps, charged, np.arange(count), clocks)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 512 * 2**20 and set(verdicts.names()) == {"generation"}
    assert verdicts.corroborated_by[:4].tolist() == [2, 0, 2, 0] and verdicts.corroborated_by[4] == 2_048
