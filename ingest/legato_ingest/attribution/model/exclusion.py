"""Causes that the records of the vantages and of the engine's steps exclude.

A cause is excluded only by an observation, never because a vantage is missing. The sentences are in `legato_ingest.causes`; this module
says when each observation holds. `metric_exclusion` has the observations in scraped metrics.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.charge import ALL_BEHIND_MIN, NONE_BEHIND_MAX
from legato_ingest.attribution.model.evidence import HOLD_ERROR_NS
from legato_ingest.attribution.model.gaps import Gaps
from legato_ingest.attribution.model.joined_steps import JoinedSteps
from legato_ingest.attribution.model.verdicts import Verdicts
from legato_ingest.causes import Rule, excluded_when, index_of

__all__ = ["excluded_by_records"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_ON_PATH = [index_of(name) for name in excluded_when("delivered at once")]
_GENERATION = index_of("generation")


def excluded_by_records(gaps: Gaps, verdicts: Verdicts, error_ns: Ints, steps: JoinedSteps) -> list[dict[str, str]]:
    """Return, for each gap, the excluded causes with the reason. A cause with a part of the gap beyond ``error_ns`` is never excluded."""
    out: list[dict[str, str]] = [{} for _ in gaps.start_ns]
    observations = {**_of_steps(gaps, verdicts, error_ns, steps), **_of_delivery(gaps, verdicts, error_ns)}
    for rule, holds in observations.items():
        for cause, sentence in excluded_when(rule).items():
            for row in np.flatnonzero(holds & (np.abs(verdicts.parts[:, index_of(cause)]) <= error_ns)):
                out[row].setdefault(cause, sentence)
    return out


def _of_steps(gaps: Gaps, verdicts: Verdicts, error_ns: Ints, steps: JoinedSteps) -> dict[Rule, Bools]:
    """Return the observations about the engine and its front end, in the order in which their sentences take precedence."""
    has_steps = verdicts.aligned & (verdicts.step_first >= 0)
    # A preempted stream was in none of its steps, so their contents exclude nothing.
    took_part = has_steps & (verdicts.preempted < 0)
    throttling = steps.throttling
    lowered = throttling.hard_ns + throttling.soft_ns > 0
    return {
        "server on time": gaps.has_server & ~verdicts.aligned & (verdicts.parts[:, _GENERATION] <= error_ns),
        "no prefill": took_part & _none_in_steps((steps.prefill_tokens > 0) | steps.awaited, verdicts),
        "no recompute": took_part & _none_in_steps(steps.preempted | (steps.recompute_share > 0) | steps.awaited, verdicts),
        "no throttling": took_part & _none_in_steps(~throttling.known | lowered, verdicts),
        "duration explained": took_part,
        "sent at once": has_steps,
    }


def _of_delivery(gaps: Gaps, verdicts: Verdicts, error_ns: Ints) -> dict[Rule, Bools]:
    """Return the observations about the network path and the client."""
    client_only = ~gaps.has_server
    on_path = np.asarray(verdicts.parts[:, _ON_PATH].sum(axis=1))
    return {
        "delivered at once": gaps.has_client & gaps.has_server & (gaps.server_error_ns == 0) & (on_path <= error_ns),
        "no release": gaps.has_client & gaps.has_server & ~gaps.buffered,
        "socket empty": gaps.socket_known & ~gaps.unread,
        "socket unread": gaps.unread,
        "buffered": gaps.has_client & gaps.has_server & gaps.buffered,
        "no hold": gaps.hold_known & (gaps.hold_ns <= HOLD_ERROR_NS),
        "none behind": client_only & (gaps.caught_up <= NONE_BEHIND_MAX),
        "all behind": client_only & (gaps.caught_up >= ALL_BEHIND_MIN),
    }


def _none_in_steps(marked: Bools, verdicts: Verdicts) -> Bools:
    """Return whether no step that a gap is aligned with is marked."""
    # Without steps both indices are -1.
    first, last = np.maximum(verdicts.step_first, 0), verdicts.step_last + 1
    count = np.concatenate([[0], np.cumsum(marked)])
    return np.asarray(count[last] == count[first])
