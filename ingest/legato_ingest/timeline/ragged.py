"""Many short arrays laid end to end, and the operations on all of them at once.

One idea: a request brings thousands of streams of a few hundred chunks; an operation costs one numpy call for all of them, never
one a stream. Empty segments are allowed everywhere. It knows nothing of streams or time.
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
    """Where each segment lies: ``lengths`` (int64, one a segment); element ``k`` of segment ``i`` is at ``starts[i] + k``."""

    lengths: NDArray[np.int64]

    @classmethod
    def of_lengths(cls, lengths: NDArray[Any]) -> Segments:
        """Segments of these lengths, end to end from 0."""
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
        """For each element the number of its segment."""
        return self._owners

    def ranks(self) -> NDArray[np.int64]:
        """For each element its place in its segment, from 0."""
        return np.arange(self.total) - np.repeat(self.starts, self.lengths)

    def select(self, mask: NDArray[np.bool_]) -> Segments:
        """The segments that are left when only the elements under ``mask`` stay."""
        return Segments.of_lengths(self.sums(mask, np.int64))

    def _reduce(self, function: np.ufunc, values: NDArray[Any], empty: Any, dtype: Any) -> NDArray[Any]:
        out = np.full(len(self.lengths), empty, dtype)
        if self.filled.size:
            out[self.filled] = function.reduceat(values, self.starts[self.filled], dtype=dtype)
        return out

    def sums(self, values: NDArray[Any], dtype: Any = np.int64) -> NDArray[Any]:
        """Each segment's sum; 0 for an empty one."""
        return self._reduce(np.add, values, 0, dtype)

    def maxima(self, values: NDArray[Any], empty: Any = 0) -> NDArray[Any]:
        """Each segment's maximum; ``empty`` for an empty one."""
        return self._reduce(np.maximum, values, empty, values.dtype)

    def cumulate(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """The running sum within each segment, the element itself included."""
        running: NDArray[np.int64] = np.cumsum(values, dtype=np.int64)
        before = np.concatenate(([0], running))[self.starts]
        running -= np.repeat(before, self.lengths)
        return running

    def sort(self, values: NDArray[Any]) -> NDArray[Any]:
        """The values, each segment's ascending. Segments of like length are sorted as rows of one matrix: a row stays in the cache,
        which is twenty times faster than one sort of all values by (segment, value)."""
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
        """Each segment's first element; ``empty`` for an empty one."""
        out = np.full(len(self.lengths), empty, values.dtype)
        out[self.filled] = values[self.starts[self.filled]]
        return out

    def lasts(self, values: NDArray[Any], empty: Any = 0) -> NDArray[Any]:
        """Each segment's last element; ``empty`` for an empty one."""
        out = np.full(len(self.lengths), empty, values.dtype)
        out[self.filled] = values[self.ends[self.filled] - 1]
        return out
