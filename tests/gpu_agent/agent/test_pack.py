"""The agent's packer against the receiver's decoder: the decoded columns equal the packed ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato._timeline import pack as sdk_pack
from legato_gpu_agent.agent.pack import pack
from legato_ingest.timeline.codec import decode_columns, read_head

VALUES = st.lists(st.one_of(st.integers(0, 20), st.integers(0, 2**32 - 1)), max_size=300)


@given(VALUES, st.integers(1, 200))
def test_packed_columns_are_decoded(values: list[int], number: int) -> None:
    """Any column under any id, next to the required one."""
    zeros = np.zeros(len(values), np.int64)
    known = frozenset((1, number))
    blob = pack({1: zeros, number: np.array(values, np.int64)}, len(values))
    _, columns, bad = decode_columns([blob], [read_head(blob, known)], known)
    assert not bad and columns[number].tolist() == values


def test_values_out_of_range_are_clipped() -> None:
    """A counter that overflows has the largest value of a column."""
    blob = pack({1: np.array([-5, 2**40, 7])}, 3)
    _, columns, _ = decode_columns([blob], [read_head(blob)], frozenset((1,)))
    assert columns[1].tolist() == [0, 2**32 - 1, 7]


def test_it_packs_as_tightly_as_the_sdk() -> None:
    """Realistic gaps take no more bytes than with the SDK's packer."""
    rng = np.random.default_rng(1)
    gaps = np.where(rng.random(4000) < 0.02, rng.integers(10**5, 10**6, 4000), rng.normal(30_000, 2_000, 4000).astype(int))
    assert len(pack({1: gaps}, 4000)) <= len(sdk_pack(np.cumsum(gaps).tolist()))


@pytest.mark.parametrize("columns", [{1: np.zeros(3, np.int64)}, {1: np.zeros(70_000, np.int64)}])
def test_invalid_columns_are_rejected(columns: dict[int, np.ndarray[tuple[int], np.dtype[np.int64]]]) -> None:
    """Columns of another length, and too many rows."""
    with pytest.raises(ValueError, match="row"):
        pack(columns, len(columns[1]) if len(columns[1]) > 10 else 4)
