"""The engine event behind each stall: which step, and whose request.

One idea: a stall's parts are sums over steps, so the step with the most of the named cause is the event, and one event stalls many streams.
A prompt's last step is where its own first token comes from, and a victim's stall ends with its recompute: so the steps name the requests,
where those were recorded. It counts no stall and asks no store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.charge import CAUSES, Verdicts
from legato_ingest.attribution.model.step_model import Charges
from legato_ingest.timeline.ragged import Segments

__all__ = ["Culprits", "culprits_of", "prompts_of"]

Ints = NDArray[np.int64]
_SCHEDULING, _KV, _CLOCK, _HOST, _FRONT_END = (
    CAUSES.index(name) for name in ("scheduling", "kv_pressure", "gpu_clock", "host", "front_end")
)


@dataclass(frozen=True, slots=True)
class Culprits:
    """One entry a gap. ``step``: the step to blame, by its place in the steps (-1: none is). ``ns``: what it took of the gap."""

    step: Ints
    ns: Ints


def culprits_of(steps: Charges | None, verdicts: Verdicts) -> Culprits:
    """The step to blame for each gap: for a prompt, another's recompute, the clock and the host the one that took most; for a stream that
    was preempted itself the step in which it was; for the front end the last that had ended when it stopped.
    """
    count = len(verdicts.cause)
    step, took = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    if steps is None:
        return Culprits(step, took)
    robbed = (verdicts.cause == _KV) & (verdicts.preempted >= 0)
    front = (verdicts.cause == _FRONT_END) & (verdicts.step_last >= 0)
    columns = ((_SCHEDULING, steps.scheduling), (_KV, steps.kv_pressure), (_CLOCK, steps.gpu_clock), (_HOST, steps.host))
    for cause, column in columns:
        at = np.flatnonzero((verdicts.cause == cause) & (verdicts.step_first >= 0) & ~robbed)
        step[at], took[at] = _most(column, verdicts.step_first[at], verdicts.step_last[at])
    for which, place, cause in ((robbed, verdicts.preempted, _KV), (front, verdicts.step_last, _FRONT_END)):
        step[which] = place[which]
        took[which] = verdicts.parts[which, cause]
    return Culprits(step, took)


def _most(values: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """The place and value of the most in each of these stretches, ends included."""
    if not len(first):
        return first, first
    stretches = Segments.of_lengths(last - first + 1)
    owners = stretches.owners()
    places = first[owners] + stretches.ranks()
    most = stretches.maxima(values[places])
    hit = np.flatnonzero(values[places] == most[owners])
    return places[hit[np.searchsorted(hit, stretches.starts)]], most


def prompts_of(steps: Charges, culprits: Sequence[int], first_tokens: Mapping[str, int]) -> dict[int, list[str]]:
    """For steps blamed for a prompt, the requests whose prompt that was.

    ``first_tokens``: by request, the place of the step that gave it its first token. A prompt that takes several steps is in all of them up
    to that one. Steps of which nobody's first token followed at once are left out.
    """
    order = sorted(first_tokens.items(), key=lambda item: item[1])
    at = np.array([place for _, place in order], np.int64)
    without = np.concatenate([[0], np.cumsum(steps.prefill_tokens == 0)])
    out: dict[int, list[str]] = {}
    for step in set(culprits):
        low = int(np.searchsorted(at, step))
        if low == len(at) or without[at[low] + 1] > without[step]:
            continue
        out[step] = [name for name, place in order[low:] if place == at[low]]
    return out
