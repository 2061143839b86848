"""Ragged arrays: each operation on segments equals the same operation on every segment alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from legato_ingest.timeline.ragged import Segments

ragged = st.lists(st.lists(st.integers(-1000, 1000), max_size=7), max_size=8)


def laid_out(rows: list[list[int]]) -> tuple[Segments, NDArray[np.int64]]:
    """Return the segments of these rows and their concatenated values."""
    return Segments.of_lengths(np.array([len(row) for row in rows], np.int64)), np.array([x for row in rows for x in row], np.int64)


@given(ragged)
def test_positions(rows: list[list[int]]) -> None:
    """Starts, ends, owners and ranks locate each element."""
    segments, values = laid_out(rows)
    assert [values[a:b].tolist() for a, b in zip(segments.starts, segments.ends, strict=True)] == rows
    assert segments.total == len(values) and segments.filled.tolist() == [i for i, row in enumerate(rows) if row]
    assert segments.owners().tolist() == [i for i, row in enumerate(rows) for _ in row]
    assert segments.ranks().tolist() == [k for row in rows for k in range(len(row))]


@given(ragged)
def test_reductions(rows: list[list[int]]) -> None:
    """Sum, maximum, first and last of each segment; the given value for an empty one."""
    segments, values = laid_out(rows)
    assert segments.sums(values).tolist() == [sum(row) for row in rows]
    assert segments.maxima(values, -5).tolist() == [max(row, default=-5) for row in rows]
    assert segments.firsts(values, -5).tolist() == [row[0] if row else -5 for row in rows]
    assert segments.lasts(values, -5).tolist() == [row[-1] if row else -5 for row in rows]


@given(ragged)
def test_operations_within_segments(rows: list[list[int]]) -> None:
    """Running sums, sorting and selection do not cross segments."""
    segments, values = laid_out(rows)
    assert segments.cumulate(values).tolist() == [sum(row[: k + 1]) for row in rows for k in range(len(row))]
    assert segments.sort(values).tolist() == [x for row in rows for x in sorted(row)]
    assert segments.select(values > 0).lengths.tolist() == [sum(x > 0 for x in row) for row in rows]
