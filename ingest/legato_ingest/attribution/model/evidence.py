"""What a verdict rests on: the numbers it was computed from, and the possible error of its parts.

The numbers are stored with the verdict, so that a reader can check it. The module changes no verdict.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.gaps import Gaps
from legato_ingest.attribution.model.joined_steps import JoinedSteps
from legato_ingest.attribution.model.verdicts import Verdicts
from legato_ingest.causes import index_of
from legato_ingest.definitions import HOLD_STEP_US

__all__ = ["HOLD_ERROR_NS", "error_bounds_ns", "evidence_of"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_GPU_CLOCK, _HOST = index_of("gpu_clock"), index_of("host")
_WORK = [index_of("scheduling"), index_of("kv_pressure")]

# Two clocks are assumed to drift apart by at most this ratio (RFC 5905 takes 15 ppm for a good clock).
_DRIFT = 50e-6
# Times have a resolution of 1 µs, at both ends of a gap and at both vantages.
_TIMES_ERROR_NS = 4_000
HOLD_ERROR_NS = 1000 * HOLD_STEP_US
"""The resolution of a hold."""


def error_bounds_ns(gaps: Gaps, verdicts: Verdicts, steps: JoinedSteps) -> Ints:
    """Return the possible error of each gap's parts, in ns.

    It comes from the drift and the resolution of the clocks; with engine steps also from the delay of a usual record after its step and
    from the error of the offset between the clocks.
    """
    error = _TIMES_ERROR_NS + (_DRIFT * gaps.length_ns).astype(np.int64) + np.where(gaps.has_server, gaps.server_error_ns, 0)
    error = error + np.where(gaps.hold_known & (gaps.hold_ns > 0), HOLD_ERROR_NS, 0)
    return np.asarray(error + np.where(verdicts.aligned, steps.usual_late_ns + gaps.clock_offset_error_ns, 0), np.int64)


def evidence_of(gaps: Gaps, verdicts: Verdicts, steps: JoinedSteps) -> list[dict[str, int]]:
    """Return the numbers behind each verdict by name; unknown numbers are absent."""
    has_share = ~gaps.has_server & ~np.isnan(gaps.caught_up)
    columns: list[tuple[str, Bools, Ints]] = [
        ("server_gap_us", gaps.has_server, (gaps.server_end_ns - gaps.server_start_ns) // 1000),
        ("hold_us", gaps.hold_known, gaps.hold_ns // 1000),
        ("caught_up_percent", has_share, np.nan_to_num(100 * gaps.caught_up).astype(np.int64)),
        ("buffered", gaps.has_client & gaps.has_server & gaps.buffered, gaps.buffered.astype(np.int64)),
        ("unread", gaps.socket_known, gaps.unread.astype(np.int64)),
        ("open", gaps.is_open, gaps.is_open.astype(np.int64)),
        ("coincident_stalls", verdicts.corroborated_by > 0, verdicts.corroborated_by),
        ("preempted_step", verdicts.preempted >= 0, _at(steps.number, verdicts.preempted)),
        ("record_late_us", verdicts.step_last >= 0, _at(steps.late_ns, verdicts.step_last) // 1000),
        *_throttling_columns(verdicts, steps),
        *_rank_columns(verdicts, steps),
    ]
    out: list[dict[str, int]] = [{} for _ in gaps.start_ns]
    for name, known, values in columns:
        for row in np.flatnonzero(known):
            out[row][name] = int(values[row])
    return out


def _throttling_columns(verdicts: Verdicts, steps: JoinedSteps) -> list[tuple[str, Bools, Ints]]:
    """Return, for gaps with throttling, the longest throttling in one of their steps, and the clock that was seen there."""
    part = verdicts.parts[:, _GPU_CLOCK] > 0
    if not part.any():
        return []
    throttling = steps.throttling
    counted = np.maximum(throttling.hard_ns, throttling.soft_ns).astype(np.int64)
    longest = np.full(len(part), -1, np.int64)
    for row in np.flatnonzero(part & (verdicts.step_first >= 0)):
        first, last = verdicts.step_first[row], verdicts.step_last[row]
        longest[row] = first + int(np.argmax(counted[first : last + 1]))
    mhz = np.nan_to_num(throttling.mhz, nan=0.0).astype(np.int64)
    usual = np.nan_to_num(steps.usual_mhz, nan=0.0).astype(np.int64)
    known = longest >= 0
    return [
        ("throttled_us", known, _at(counted, longest) // 1000),
        ("clock_mhz", known & (_at(mhz, longest) > 0), _at(mhz, longest)),
        ("clock_usual_mhz", known & (usual > 0), usual),
    ]


def _rank_columns(verdicts: Verdicts, steps: JoinedSteps) -> list[tuple[str, Bools, Ints]]:
    """Return whether the steps of a gap waited for the work of other ranks (1), or may have and count as the host's (0)."""
    if not steps.awaited.any():
        return []
    has_work = np.isin(verdicts.cause, _WORK) & _any_of(steps.awaited & ~steps.unsure, verdicts)
    is_unsure = (verdicts.cause == _HOST) & _any_of(steps.unsure, verdicts)
    return [("other_ranks", has_work | is_unsure, has_work.astype(np.int64))]


def _any_of(marked: Bools, verdicts: Verdicts) -> Bools:
    """Return whether a marked step is among those of each gap in which its stream took part."""
    count = np.concatenate([[0], np.cumsum(marked)])
    took_part = (verdicts.step_first >= 0) & (verdicts.preempted < 0)
    return np.asarray(took_part & (count[verdicts.step_last + 1] > count[np.maximum(verdicts.step_first, 0)]))


def _at(values: Ints, steps: Ints) -> Ints:
    """Return the values of these steps; any value for an index of -1."""
    return values[np.maximum(steps, 0)] if len(values) else np.zeros(len(steps), np.int64)
