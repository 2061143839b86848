"""Stalls that several streams had at the same moment, for those that no stream alone can explain.

One idea: one step stalls every stream of an engine from the same moment to the same moment; what happens on one stream's way does not. So
where the client alone was not enough, others that stalled with it lend it their word. It overrules nobody, and compares only times of one
clock.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.charge import CAUSES, Gaps, Verdicts
from legato_ingest.timeline.ragged import Segments

__all__ = ["lend_words"]

Ints = NDArray[np.int64]
_UNKNOWN, _GENERATION, _DELIVERY = (CAUSES.index(name) for name in ("unknown", "generation", "delivery"))
# Two gaps are one event when both begin and both end within this share of the gap; and so many must agree for one that does not.
_TOGETHER_SHARE, _AGREE = 0.05, 4


def lend_words(gaps: Gaps, verdicts: Verdicts, owners: Ints, clocks: Ints) -> Verdicts:
    """The verdicts, with a word for each ``unknown`` gap that other streams had too and know. ``owners`` and ``clocks``: an entry a gap."""
    alone = ~gaps.has_server
    asking = np.flatnonzero(alone & (verdicts.cause == _UNKNOWN))
    knowing = np.flatnonzero(alone & ((verdicts.cause == _GENERATION) | (verdicts.cause == _DELIVERY)))
    if not len(asking) or not len(knowing):
        return verdicts
    asked, other = _pairs(gaps, asking, knowing)
    length = gaps.end_ns[asked] - gaps.start_ns[asked]
    together = np.abs(gaps.start_ns[other] - gaps.start_ns[asked]) <= _TOGETHER_SHARE * length
    together &= (owners[other] != owners[asked]) & (clocks[other] == clocks[asked])
    asked, other = asked[together], other[together]
    made = np.bincount(asked[verdicts.cause[other] == _GENERATION], minlength=len(owners))
    kept = np.bincount(asked[verdicts.cause[other] == _DELIVERY], minlength=len(owners))
    cause, parts, coincident = verdicts.cause.copy(), verdicts.parts.copy(), verdicts.coincident.copy()
    for said, of_others, against in ((_GENERATION, made, kept), (_DELIVERY, kept, made)):
        rows = asking[(of_others[asking] > 0) & (of_others[asking] >= _AGREE * against[asking])]
        cause[rows], coincident[rows] = said, of_others[rows]
        parts[rows, said], parts[rows, _UNKNOWN] = parts[rows, _UNKNOWN], 0
    return replace(verdicts, cause=cause, parts=parts, coincident=coincident)


def _pairs(gaps: Gaps, asking: Ints, knowing: Ints) -> tuple[Ints, Ints]:
    """All pairs of a gap that asks and one that knows which end at the same moment."""
    knowing = knowing[np.argsort(gaps.end_ns[knowing], kind="stable")]
    ends = gaps.end_ns[knowing]
    near = (_TOGETHER_SHARE * (gaps.end_ns[asking] - gaps.start_ns[asking])).astype(np.int64)
    first = np.searchsorted(ends, gaps.end_ns[asking] - near, "left")
    found = Segments.of_lengths(np.searchsorted(ends, gaps.end_ns[asking] + near, "right") - first)
    owners = found.owners()
    return asking[owners], knowing[first[owners] + found.ranks()]
