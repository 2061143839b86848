"""The SDK's timeline encoder against the decoder of `legato_ingest`."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato._timeline import CHUNKS_MAX, DT_MAX, PART, pack
from legato_ingest.timeline.codec import decode, read_head

steps = st.one_of(st.just(0), st.integers(0, 3), st.integers(0, 300), st.integers(0, 2**17), st.integers(0, 2**31))
values = st.one_of(st.integers(0, 1), st.integers(0, 300), st.integers(0, 2**32 - 1))


@given(st.lists(st.tuples(steps, values, values, st.integers(0, 7), values), max_size=200), st.booleans())
@settings(deadline=None)
def test_every_column_round_trips(rows: list[tuple[int, int, int, int, int]], holds: bool) -> None:
    """Decoding returns the encoded columns, for any width, base and exceptions that the encoder chooses."""
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], [], []]
    times = np.cumsum(columns[0], dtype=np.int64).tolist()
    blob = pack(times, columns[1], columns[2], columns[3], columns[4] if holds else None)
    timelines, bad = decode([blob], [read_head(blob)])
    assert not bad
    assert timelines.dt_us.tolist() == columns[0]
    assert (timelines.sizes.tolist(), timelines.tokens.tolist(), timelines.kinds.tolist()) == (columns[1], columns[2], columns[3])
    assert bool(timelines.has_holds[0]) is holds
    assert not holds or timelines.holds.tolist() == columns[4]


@pytest.mark.parametrize("chunks", [PART, PART + 1, 10_000, CHUNKS_MAX])
def test_long_columns_round_trip(chunks: int) -> None:
    """They are worked on in parts, by a sample, which may be unlike the rest: then no value costs more than in the widest column."""
    stride = -(-chunks // PART)
    draw = random.Random(chunks)
    columns = {
        "equal": [7] * chunks,
        "usual": [int(draw.lognormvariate(3, 1)) for _ in range(chunks)],
        "two": [place % 2 for place in range(chunks)],
        "one": [2**31 if place == chunks - 2 else 5 for place in range(chunks)],
        "unlike": [0 if place % stride == 0 else place * 60_001 % 2**32 for place in range(chunks)],
        "beyond": [2**40 if place % 3 == 0 else place for place in range(chunks)],
    }
    for name, column in columns.items():
        blob = pack(list(range(0, 20 * chunks, 20)), column)
        timelines, bad = decode([blob], [read_head(blob)])
        assert not bad and timelines.sizes.tolist() == [min(value, 2**32 - 1) for value in column], name
        assert set(timelines.dt_us.tolist()[1:]) == {20} and len(blob) < 4 * chunks + 100, name


def test_limits() -> None:
    """More than 65,536 chunks, decreasing times and columns of unequal length are errors; values are capped at 2**32 - 1."""
    assert read_head(pack(list(range(CHUNKS_MAX)))).chunks == CHUNKS_MAX
    with pytest.raises(ValueError, match="65536"):
        pack([0] * (CHUNKS_MAX + 1))
    with pytest.raises(ValueError, match="backwards"):
        pack([5, 4])
    with pytest.raises(ValueError, match="length"):
        pack([1, 2], [1])
    blob = pack([1, 2], [2**40, 3])
    assert decode([blob], [read_head(blob)])[0].sizes.tolist() == [2**32 - 1, 3]


def test_a_pause_of_hours_becomes_heartbeats() -> None:
    """A pause too long for one dt is encoded as heartbeats without content, and its length is exact."""
    blob = pack([1_000, 1_000 + 2 * DT_MAX + 5], [3, 4])
    timelines, _ = decode([blob], [read_head(blob)])
    assert int(timelines.dt_us.astype(np.int64).sum()) == 1_000 + 2 * DT_MAX + 5
    assert timelines.kinds.tolist() == [1, 5, 5, 1] and timelines.sizes.tolist() == [3, 0, 0, 4]
