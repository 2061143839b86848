"""Ragged arrays: many short arrays (segments) concatenated into one, and operations on all segments at once.

A request holds thousands of streams with a few hundred chunks each. Each operation takes a few numpy calls for all streams together, and
none per stream. Empty segments are allowed everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Segments"]


@dataclass(frozen=True)
class Segments:
    """The position of each segment, from ``lengths`` (int64, one per segment): element ``k`` of segment ``i`` is at ``starts[i] + k``."""

    lengths: NDArray[np.int64]

    @classmethod
    def of_lengths(cls, lengths: NDArray[Any]) -> Segments:
        """Return segments of these lengths, concatenated from position 0."""
        return cls(np.asarray(lengths, np.int64))

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """The index after each segment's last element."""
        return np.cumsum(self.lengths)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The index of each segment's first element."""
        return self.ends - self.lengths

    @cached_property
    def total(self) -> int:
        """The number of elements."""
        return int(self.ends[-1]) if len(self.lengths) else 0

    @cached_property
    def filled(self) -> NDArray[np.int64]:
        """The segments that are not empty."""
        return np.flatnonzero(self.lengths)

    @cached_property
    def _owners(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def owners(self) -> NDArray[np.int64]:
        """Return the number of each element's segment."""
        return self._owners

    def ranks(self) -> NDArray[np.int64]:
        """Return the place of each element in its segment, from 0."""
        return np.arange(self.total) - np.repeat(self.starts, self.lengths)

    def select(self, mask: NDArray[np.bool_]) -> Segments:
        """Return the segments that remain when only the elements under ``mask`` are kept."""
        return Segments.of_lengths(self.sums(mask, np.int64))

    def _reduce(self, function: np.ufunc, values: NDArray[Any], empty: Any, dtype: Any) -> NDArray[Any]:
        out = np.full(len(self.lengths), empty, dtype)
        if self.filled.size:
            out[self.filled] = function.reduceat(values, self.starts[self.filled], dtype=dtype)
        return out

    def sums(self, values: NDArray[Any], dtype: Any = np.int64) -> NDArray[Any]:
        """Return the sum of each segment; 0 for an empty one."""
        return self._reduce(np.add, values, 0, dtype)

    def maxima(self, values: NDArray[Any], empty: Any = 0) -> NDArray[Any]:
        """Return the maximum of each segment; ``empty`` for an empty one."""
        return self._reduce(np.maximum, values, empty, values.dtype)

    def cumulate(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return the running sum within each segment, including the element itself."""
        running: NDArray[np.int64] = np.cumsum(values, dtype=np.int64)
        before = np.concatenate(([0], running))[self.starts]
        running -= np.repeat(before, self.lengths)
        return running

    def sort(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values sorted in ascending order within each segment.

        Segments of similar length are sorted as rows of one matrix. A row stays in the CPU cache, which is 20 times faster than one sort of
        all values by (segment, value).
        """
        out = np.empty_like(values)
        classes = np.ceil(np.log2(np.maximum(self.lengths, 1))).astype(np.int64)
        for size in np.unique(classes[self.filled]):
            members = np.flatnonzero((classes == size) & (self.lengths > 0))
            lengths = self.lengths[members]
            inside = np.arange(lengths.max()) < lengths[:, None]
            where = (self.starts[members][:, None] + np.arange(lengths.max()))[inside]
            rows = np.full(inside.shape, np.iinfo(values.dtype).max, values.dtype)
            rows[inside] = values[where]
            rows.sort(axis=1)
            out[where] = rows[inside]
        return out

    def firsts(self, values: NDArray[Any], empty: Any = 0) -> NDArray[Any]:
        """Return the first element of each segment; ``empty`` for an empty one."""
        out = np.full(len(self.lengths), empty, values.dtype)
        out[self.filled] = values[self.starts[self.filled]]
        return out

    def lasts(self, values: NDArray[Any], empty: Any = 0) -> NDArray[Any]:
        """Return the last element of each segment; ``empty`` for an empty one."""
        out = np.full(len(self.lengths), empty, values.dtype)
        out[self.filled] = values[self.ends[self.filled] - 1]
        return out
