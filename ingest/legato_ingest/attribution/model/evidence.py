"""What a verdict rests on: its evidence, the causes that are out of the question and why, and how far its parts may be off.

One idea: whatever led the judgement to its words is kept beside them as numbers, so a reader can check the claim, and a cause is excluded
only by what was seen, never because it was not looked for. It changes no verdict.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.charge import CAUSES, LATE_MIN, MADE_MAX, Gaps, Verdicts
from legato_ingest.attribution.model.step_model import Charges

__all__ = ["errors_of", "evidence_of", "excluded_of"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Two clocks may drift apart by this, until they are known better (RFC 5905 takes 15 ppm for a good one).
_DRIFT = 50e-6
# Times are whole microseconds, at both ends of a gap and at both vantages; holds are in steps of 64 µs.
_TIMES_NS, _HOLD_NS = 4_000, 64_000
_ENGINE = ("scheduling", "kv_pressure", "gpu_clock", "host", "front_end")


def errors_of(gaps: Gaps, verdicts: Verdicts, steps: Charges | None) -> Ints:
    """How far a part may be off, ns: drift and resolution of the clocks; and with steps how late a healthy record is
    after its step, and how well the offset of its clock is known.
    """
    gap = gaps.end_ns - gaps.start_ns
    error = _TIMES_NS + (_DRIFT * gap).astype(np.int64) + np.where(gaps.has_server, gaps.server_error_ns, 0)
    error = error + np.where(gaps.hold_known & (gaps.hold_ns > 0), _HOLD_NS, 0)
    late = int(np.median(steps.late_ns)) if steps is not None and len(steps.late_ns) else 0
    return np.asarray(error + np.where(verdicts.laid, late + gaps.shift_error_ns, 0), np.int64)


def evidence_of(gaps: Gaps, verdicts: Verdicts, steps: Charges | None) -> list[dict[str, int]]:
    """The numbers that each verdict was made from, by name; what was not known is absent."""
    number = steps.number if steps is not None else np.zeros(0, np.int64)
    late = steps.late_ns if steps is not None else number
    columns: list[tuple[str, Bools, Ints]] = [
        ("server_gap_us", gaps.has_server, (gaps.server_end_ns - gaps.server_start_ns) // 1000),
        ("hold_us", gaps.hold_known, gaps.hold_ns // 1000),
        ("caught_up_percent", ~gaps.has_server & ~np.isnan(gaps.caught_up), np.nan_to_num(100 * gaps.caught_up).astype(np.int64)),
        ("buffered", gaps.has_server & gaps.buffered, gaps.buffered.astype(np.int64)),
        ("unread", gaps.socket_known, gaps.unread.astype(np.int64)),
        ("coincident_stalls", verdicts.coincident > 0, verdicts.coincident),
        ("preempted_step", verdicts.preempted >= 0, _at(number, verdicts.preempted)),
        ("record_late_us", verdicts.step_last >= 0, _at(late, verdicts.step_last) // 1000),
        *_clocks(verdicts, steps),
    ]
    out: list[dict[str, int]] = [{} for _ in gaps.start_ns]
    for name, known, values in columns:
        for row in np.flatnonzero(known):
            out[row][name] = int(values[row])
    return out


def _clocks(verdicts: Verdicts, steps: Charges | None) -> list[tuple[str, Bools, Ints]]:
    """Of gaps that lowered clocks had a part in: for how long they were, in the step where that was longest, and the lowest seen there."""
    part = verdicts.parts[:, CAUSES.index("gpu_clock")] > 0
    if steps is None or not part.any():
        return []
    counted = np.maximum(steps.clocks.hard_ns, steps.clocks.soft_ns).astype(np.int64)
    place = np.full(len(part), -1, np.int64)
    for row in np.flatnonzero(part & (verdicts.step_first >= 0)):
        first, last = verdicts.step_first[row], verdicts.step_last[row]
        place[row] = first + int(np.argmax(counted[first : last + 1]))
    mhz = np.nan_to_num(steps.clocks.mhz, nan=0.0).astype(np.int64)
    usual = np.full(len(part), np.nan_to_num(steps.usual_mhz, nan=0.0), np.int64)
    known = place >= 0
    return [
        ("throttled_us", known, _at(counted, place) // 1000),
        ("clock_mhz", known & (_at(mhz, place) > 0), _at(mhz, place)),
        ("clock_usual_mhz", known & (usual > 0), usual),
    ]


def _at(values: Ints, places: Ints) -> Ints:
    return values[np.maximum(places, 0)] if len(values) else np.zeros(len(places), np.int64)


def excluded_of(gaps: Gaps, verdicts: Verdicts, error_ns: Ints, steps: Charges | None) -> list[dict[str, str]]:
    """By cause, why it is out of the question. Only for causes that have no part in the gap."""
    parts = {name: verdicts.parts[:, place] for place, name in enumerate(CAUSES)}
    made = gaps.has_server & ~verdicts.laid & (parts["generation"] <= error_ns)
    in_time = gaps.has_server & (gaps.server_error_ns == 0) & (_way(parts) <= error_ns)
    alone = ~gaps.has_server
    # Of a stream that was preempted itself the steps say nothing but that: it was in none of them.
    took_part = verdicts.laid & (verdicts.preempted < 0) & (verdicts.step_first >= 0)
    no_prompt, no_recompute = _without(steps, verdicts)
    cool = took_part & _never_lowered(steps, verdicts)
    rules: list[tuple[str, str, Bools]] = [(name, "the server sent it in time", made) for name in _ENGINE]
    rules += [
        ("scheduling", "no prompt in its steps", took_part & no_prompt),
        ("kv_pressure", "no preemption and no recompute in its steps", took_part & no_recompute),
        ("gpu_clock", "its GPUs' clocks were not lowered in its steps", cool),
        ("host", "its steps took what their work explains", took_part),
        ("front_end", "sent as soon as its step was over", verdicts.laid & (verdicts.step_first >= 0)),
        *[(name, "it came as soon as it was sent", in_time) for name in ("coalescing", "connection", "slow_reader")],
        ("coalescing", "reads came one by one", gaps.has_server & ~gaps.buffered),
        ("slow_reader", "nothing lay unread in the socket", gaps.socket_known & ~gaps.unread),
        ("connection", "it lay unread in the socket", gaps.unread),
        ("connection", "the stream came through a buffer", gaps.has_server & gaps.buffered),
        ("consumer", "the application asked for more at once", gaps.hold_known & (gaps.hold_ns <= _HOLD_NS)),
        ("delivery", "what was missing did not come behind it", alone & (gaps.caught_up <= MADE_MAX)),
        ("generation", "what was missing came right behind it", alone & (gaps.caught_up >= LATE_MIN)),
    ]
    out: list[dict[str, str]] = [{} for _ in gaps.start_ns]
    for name, why, holds in rules:
        for row in np.flatnonzero(holds & (np.abs(parts[name]) <= error_ns)):
            out[row].setdefault(name, why)
    return out


def _without(steps: Charges | None, verdicts: Verdicts) -> tuple[Bools, Bools]:
    """Of each gap, whether no step that it was laid over had a prompt in it; and whether none had a preemption or a recompute."""
    if steps is None or not len(steps.number):
        nothing = np.zeros(len(verdicts.cause), np.bool_)
        return nothing, nothing
    first, last = np.maximum(verdicts.step_first, 0), np.maximum(verdicts.step_last, 0) + 1
    prompts = np.concatenate([[0], np.cumsum(steps.prefill_tokens > 0)])
    robbed = np.concatenate([[0], np.cumsum(steps.preempted | (steps.recompute_share > 0))])
    return prompts[last] == prompts[first], robbed[last] == robbed[first]


def _never_lowered(steps: Charges | None, verdicts: Verdicts) -> Bools:
    """Of each gap, whether samples cover all steps that it was laid over, and in none of them clocks were lowered."""
    if steps is None or not len(steps.number):
        return np.zeros(len(verdicts.cause), np.bool_)
    first, last = np.maximum(verdicts.step_first, 0), np.maximum(verdicts.step_last, 0) + 1
    doubts = np.concatenate([[0], np.cumsum(~steps.clocks.known | (steps.clocks.hard_ns + steps.clocks.soft_ns > 0))])
    return np.asarray(doubts[last] == doubts[first])


def _way(parts: dict[str, Ints]) -> Ints:
    return np.asarray(parts["coalescing"] + parts["connection"] + parts["slow_reader"])
