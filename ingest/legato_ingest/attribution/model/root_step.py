"""The root-cause step of each stall, and the requests with the prompt or the recompute in that step.

A stall's parts are sums over steps, so the step with the largest part of the named cause is the event behind the stall. One event stalls
many streams. The last step of a prompt gives the request its first token, and a preempted stream's stall ends with its recompute, so these
steps identify the requests, if the requests were recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.joined_steps import JoinedSteps
from legato_ingest.attribution.model.verdicts import Verdicts
from legato_ingest.causes import CORE, RESPONSES_MAX, index_of
from legato_ingest.timeline.ragged import Segments

__all__ = ["RootSteps", "prompts_in_steps", "responses_of", "root_steps"]

Ints = NDArray[np.int64]
_SCHEDULING, _KV_PRESSURE, _FRONT_END = index_of("scheduling"), index_of("kv_pressure"), index_of("front_end")


@dataclass(frozen=True, slots=True)
class RootSteps:
    """One entry a gap. ``step``: the index of the root-cause step (-1: none). ``ns``: the part of the gap that the cause took in it."""

    step: Ints
    ns: Ints


def root_steps(steps: JoinedSteps, verdicts: Verdicts) -> RootSteps:
    """Return the step that caused each gap.

    It is the longest step for prefill, recompute, throttling and host causes; the step of the preemption for a preempted stream; the last
    step before the pause for the front end.
    """
    count = len(verdicts.cause)
    step, took = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    evicted = (verdicts.cause == _KV_PRESSURE) & (verdicts.preempted >= 0)
    front = (verdicts.cause == _FRONT_END) & (verdicts.step_last >= 0)
    for name in CORE:
        rows = np.flatnonzero((verdicts.cause == index_of(name)) & (verdicts.step_first >= 0) & ~evicted)
        step[rows], took[rows] = _largest(steps.parts.of(name), verdicts.step_first[rows], verdicts.step_last[rows])
    for which, index, cause in ((evicted, verdicts.preempted, _KV_PRESSURE), (front, verdicts.step_last, _FRONT_END)):
        step[which] = index[which]
        took[which] = verdicts.parts[which, cause]
    return RootSteps(step, took)


def _largest(values: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Return the index and the value of the largest value from each ``first`` to its ``last``, both included."""
    if not len(first):
        return first, first
    stretches = Segments.of_lengths(last - first + 1)
    owners = stretches.owners()
    at = first[owners] + stretches.ranks()
    largest = stretches.maxima(values[at])
    hits = np.flatnonzero(values[at] == largest[owners])
    return at[hits[np.searchsorted(hits, stretches.starts)]], largest


def prompts_in_steps(steps: JoinedSteps, roots: Sequence[int], first_tokens: Iterable[tuple[int, str]]) -> dict[int, list[str]]:
    """Return, for root-cause steps of ``scheduling``, the requests that were prefilled in them, the first ``RESPONSES_MAX`` by name.

    ``first_tokens``: the index of the step that gave a request its first token, and its response id. A prompt that takes several steps is
    in all of them up to that step. A step without a first token directly after its prompt is left out.
    """
    order = sorted(first_tokens)
    at = np.array([step for step, _ in order], np.int64)
    without = np.concatenate([[0], np.cumsum(steps.prefill_tokens == 0)])
    out: dict[int, list[str]] = {}
    for root in set(roots):
        low = int(np.searchsorted(at, root))
        if low == len(at) or without[at[low] + 1] > without[root] or steps.group[at[low]] != steps.group[root]:
            continue
        end = min(low + RESPONSES_MAX, int(np.searchsorted(at, at[low], "right")))
        out[root] = [name for _, name in order[low:end]]
    return out


def responses_of(
    rows: Ints, roots: Ints, verdicts: Verdicts, own: Sequence[str], steps: JoinedSteps, first_tokens: Iterable[tuple[int, str]]
) -> list[list[str]]:
    """Return, for each of the gaps ``rows``, ``RESPONSES_MAX`` response ids at most behind its root-cause step (``roots``, an entry a row).

    They are the requests that were prefilled in it, or those that were recomputed; for a preempted stream the stream itself. ``own``: the
    response id of each gap's stream, an entry a gap.
    """
    is_prefill = (verdicts.cause[rows] == _SCHEDULING) & (roots >= 0)
    prompts = prompts_in_steps(steps, roots[is_prefill].tolist(), first_tokens)
    recomputed: dict[int, list[str]] = {}
    for row in np.flatnonzero(verdicts.preempted >= 0).tolist():
        if len(names := recomputed.setdefault(int(verdicts.step_last[row]), [])) < RESPONSES_MAX:
            names.append(own[row])
    out: list[list[str]] = []
    for row, root in zip(rows.tolist(), roots.tolist(), strict=True):
        cause = verdicts.cause[row]
        if cause == _SCHEDULING:
            out.append(prompts.get(root, []))
        elif cause == _KV_PRESSURE and verdicts.preempted[row] >= 0:
            out.append([own[row]] if own[row] else [])
        else:
            out.append(recomputed.get(root, []) if cause == _KV_PRESSURE else [])
    return out
