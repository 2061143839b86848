"""Corroboration: a cause taken from simultaneous stalls of other streams.

One engine step stalls all streams of the engine from the same moment to the same moment; an event on one stream's network path does not. So
a gap that the client alone cannot explain takes the side from other streams that stalled at the same moment. Verdicts with a cause do not
change, and only times of one clock are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.gaps import Gaps
from legato_ingest.attribution.model.verdicts import Verdicts
from legato_ingest.causes import index_of
from legato_ingest.timeline.ragged import Segments

__all__ = ["corroborate"]

Ints = NDArray[np.int64]
_UNKNOWN, _GENERATION, _DELIVERY = index_of("unknown"), index_of("generation"), index_of("delivery")
# Two gaps are simultaneous if their begins and their ends differ by at most this share of the gap.
_SIMULTANEOUS_SHARE = 0.05
# So many streams must agree for each one that does not.
_AGREEING = 4
# An unknown gap is compared with so many others at most, and so many pairs are in memory at once: streams of one sender may all stall at
# one moment.
_NEAREST_MAX, _PAIRS_MAX = 2_048, 4_194_304


def corroborate(gaps: Gaps, verdicts: Verdicts, owners: Ints, clocks: Ints) -> Verdicts:
    """Return the verdicts, in which an ``unknown`` gap takes the side of simultaneous gaps of other streams if four in five agree.

    ``owners``: the index of each gap's stream. ``clocks``: a number for the clock of each gap's times.
    """
    client_only = ~gaps.has_server
    unknown = np.flatnonzero(client_only & (verdicts.cause == _UNKNOWN))
    known = np.flatnonzero(client_only & ((verdicts.cause == _GENERATION) | (verdicts.cause == _DELIVERY)))
    if not len(unknown) or not len(known):
        return verdicts
    generated, delivered = np.zeros(len(owners), np.int64), np.zeros(len(owners), np.int64)
    for some_unknown, some_known in _by_clock(clocks, unknown, known):
        for row, other in _ending_together(gaps, some_unknown, some_known):
            length = gaps.length_ns[row]
            together = np.abs(gaps.start_ns[other] - gaps.start_ns[row]) <= _SIMULTANEOUS_SHARE * length
            together &= owners[other] != owners[row]
            row, other = row[together], other[together]
            generated += np.bincount(row[verdicts.cause[other] == _GENERATION], minlength=len(owners))
            delivered += np.bincount(row[verdicts.cause[other] == _DELIVERY], minlength=len(owners))
    cause, parts, corroborated_by = verdicts.cause.copy(), verdicts.parts.copy(), verdicts.corroborated_by.copy()
    for side, votes, against in ((_GENERATION, generated, delivered), (_DELIVERY, delivered, generated)):
        rows = unknown[(votes[unknown] > 0) & (votes[unknown] >= _AGREEING * against[unknown])]
        cause[rows], corroborated_by[rows] = side, votes[rows]
        parts[rows, side], parts[rows, _UNKNOWN] = parts[rows, _UNKNOWN], 0
    return replace(verdicts, cause=cause, parts=parts, corroborated_by=corroborated_by)


def _by_clock(clocks: Ints, unknown: Ints, known: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yield the unknown and the known gaps of each clock that has both."""
    known = known[np.argsort(clocks[known], kind="stable")]
    unknown = unknown[np.argsort(clocks[unknown], kind="stable")]
    for clock in np.intersect1d(clocks[unknown], clocks[known]).tolist():
        one, other = (rows[slice(*np.searchsorted(clocks[rows], [clock, clock + 1]))] for rows in (unknown, known))
        yield one, other


def _ending_together(gaps: Gaps, unknown: Ints, known: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yield the pairs of an unknown gap and a known one that end at the same moment, of each unknown gap the nearest ``_NEAREST_MAX``."""
    known = known[np.argsort(gaps.end_ns[known], kind="stable")]
    ends = gaps.end_ns[known]
    for first in range(0, len(unknown), _PAIRS_MAX // _NEAREST_MAX):
        some = unknown[first : first + _PAIRS_MAX // _NEAREST_MAX]
        end, near = gaps.end_ns[some], (_SIMULTANEOUS_SHARE * gaps.length_ns[some]).astype(np.int64)
        middle = np.searchsorted(ends, end, "left")
        low = np.maximum(np.searchsorted(ends, end - near, "left"), middle - _NEAREST_MAX // 2)
        high = np.minimum(np.searchsorted(ends, end + near, "right"), low + _NEAREST_MAX)
        pairs = Segments.of_lengths(high - low)
        of_pair = pairs.owners()
        yield some[of_pair], known[low[of_pair] + pairs.ranks()]
