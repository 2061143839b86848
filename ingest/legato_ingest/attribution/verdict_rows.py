"""From judged gaps to rows of `verdicts`, as one Arrow table.

One idea: a row names what it rests on, so that it can be checked: the numbers, the engine's steps, the step and requests to blame, the
causes that are out of the question, what was missing, how far it may be off. It judges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from legato_ingest.attribution.load.engines import Engine
from legato_ingest.attribution.load.gpu_clock_samples import SLOWER_MIN
from legato_ingest.attribution.load.streams import Stream
from legato_ingest.attribution.model.charge import CAUSES, Gaps, Verdicts
from legato_ingest.attribution.model.evidence import errors_of, evidence_of, excluded_of
from legato_ingest.attribution.model.root_step import culprits_of, prompts_of

__all__ = ["HEALTHY", "Judged", "verdict_rows"]

Ints = NDArray[np.int64]
# What a gap is called that was a stall by less evidence, and is a healthy step by more.
HEALTHY = "base"
_WORK_STEPS_MIN = 5
_KV = CAUSES.index("kv_pressure")
_SCHEDULING = CAUSES.index("scheduling")
# Causes that follow from a sum of records of one clock, those that follow from the release pattern, and those that are what is left.
_CONFIDENCE = {
    "consumer": "proven",
    "scheduling": "strong",
    "kv_pressure": "strong",
    "gpu_clock": "strong",
    "host": "strong",
    "front_end": "strong",
    "generation": "strong",
    "delivery": "likely",
    "coalescing": "strong",
    "slow_reader": "strong",
    "connection": "likely",
    "mixed": "strong",
    HEALTHY: "strong",
}
# Without a step, these were concluded from what an engine's page ruled out.
_BY_EXCLUSION = {"front_end": "likely", "host": "possible", "kv_pressure": "possible", "scheduling": "possible"}


@dataclass(frozen=True, slots=True)
class Judged:
    """The gaps of some streams of one engine (or of none that is known), ``owners`` being the place of each gap's stream.

    ``scraped``: what the pages of engines whose steps are not known rule out, by cause, an entry a gap. ``waited``: what the kernel
    counted beside a gap, by its place, where that is known.
    """

    streams: Sequence[Stream]
    owners: Ints
    gaps: Gaps
    verdicts: Verdicts
    engine: Engine | None
    scraped: Sequence[Mapping[str, str]] = ()
    waited: Mapping[int, Mapping[str, int]] = field(default_factory=dict)


def verdict_rows(judged: Judged, worth: Sequence[int], healthy: Sequence[int], judged_at_ns: int) -> pa.Table:
    """The rows of the gaps ``worth`` telling, and of those to be told ``healthy`` after all."""
    at = np.array([*worth, *healthy], np.int64)
    gaps, verdicts = judged.gaps, judged.verdicts
    mine = [judged.streams[owner] for owner in judged.owners[at]]
    starts = np.array([stream.start_ns for stream in mine], np.int64)
    causes = [CAUSES[cause] if cause >= 0 else "mixed" for cause in verdicts.cause[at[: len(worth)]]] + [HEALTHY] * len(healthy)
    parts = [{name: int(ns) for name, ns in zip(CAUSES, row, strict=True) if ns} for row in verdicts.parts[at]]
    return pa.table(
        {
            "tenant": pa.array([stream.tenant for stream in mine], pa.string()),
            "start_time": pa.array(starts, pa.timestamp("ns", "UTC")),
            "trace_id": pa.array([stream.trace_id for stream in mine], pa.binary(16)),
            "span_id": pa.array([stream.span_id for stream in mine], pa.binary(8)),
            "gap_start_us": pa.array(((gaps.start_ns[at] - starts) // 1000).astype(np.uint64)),
            "gap_us": pa.array(((gaps.end_ns[at] - gaps.start_ns[at]) // 1000).astype(np.uint64)),
            "excess_us": pa.array((verdicts.excess_ns[at] // 1000).astype(np.uint64)),
            "judged_at": pa.array(np.full(len(at), judged_at_ns // 1_000_000), pa.timestamp("ms", "UTC")),
            "cause": pa.array(causes, pa.string()),
            "confidence": pa.array(_confidences(judged, at, causes), pa.string()),
            "share": pa.array(verdicts.share[at].astype(np.float32)),
            "parts": pa.array([list(each.items()) for each in parts], pa.map_(pa.string(), pa.int64())),
            "engine_id": pa.array([stream.engine_id for stream in mine], pa.string()),
            "missing": pa.array(
                [_missing(stream, bool(laid)) for stream, laid in zip(mine, verdicts.laid[at], strict=True)], pa.list_(pa.string())
            ),
            **_grounds(judged, at),
            **_steps(judged, at),
        }
    )


def _confidences(judged: Judged, at: Ints, causes: Sequence[str]) -> list[str]:
    """Weaker without the server, as which step made a chunk is then concluded, not recorded; where the engine had so few steps with prompts
    or recompute that the cost of a token is those steps' own; and where a clock was lowered by the driver's count, but never seen low.
    """
    few = judged.engine is not None and judged.engine.charges.work_steps < _WORK_STEPS_MIN
    out = []
    for row, cause in zip(at, causes, strict=True):
        said = _CONFIDENCE.get(cause, "unknown")
        if judged.engine is None and cause in _BY_EXCLUSION:
            said = _BY_EXCLUSION[cause]
        unsampled = cause == "gpu_clock" and not _seen_low(judged, row)
        by_fit = few and (cause == "scheduling" or cause == "kv_pressure" and judged.verdicts.preempted[row] < 0)
        unseen = judged.streams[judged.owners[row]].server is None
        out.append("likely" if said == "strong" and (unseen or by_fit or unsampled) else said)
    return out


def _seen_low(judged: Judged, row: int) -> bool:
    """Whether a sample of the clock in the gap's steps was below the usual."""
    if judged.engine is None:
        return False
    steps, first, last = judged.engine.charges, judged.verdicts.step_first[row], judged.verdicts.step_last[row]
    return bool((steps.clocks.mhz[first : last + 1] < (1 - SLOWER_MIN) * steps.usual_mhz).any())


def _missing(stream: Stream, laid: bool) -> list[str]:
    """The vantages that the verdict had to do without."""
    return [name for name, absent in (("server", stream.server is None), ("engine", not laid)) if absent]


def _grounds(judged: Judged, at: Ints) -> dict[str, pa.Array]:
    gaps, verdicts, steps = judged.gaps.at(at), judged.verdicts.at(at), judged.engine.charges if judged.engine else None
    errors = errors_of(gaps, verdicts, steps)
    evidence = evidence_of(gaps, verdicts, steps)
    for told, row in zip(evidence, at.tolist(), strict=True):
        told.update(judged.waited.get(row, {}))
    ruled_out = excluded_of(gaps, verdicts, errors, steps)
    for each, row in zip(ruled_out, at if judged.scraped else (), strict=False):
        each.update({cause: why for cause, why in judged.scraped[row].items() if cause not in each})
    excluded = [list(each.items()) for each in ruled_out]
    return {
        "evidence": pa.array([list(each.items()) for each in evidence], pa.map_(pa.string(), pa.int64())),
        "excluded": pa.array(excluded, pa.map_(pa.string(), pa.string())),
        "error_us": pa.array(np.minimum(-(-errors // 1000), 2**32 - 1).astype(np.uint32)),
    }


def _steps(judged: Judged, at: Ints) -> dict[str, pa.Array]:
    """The steps that the gaps were laid over, and whom to blame."""
    verdicts = judged.verdicts.at(at)
    if judged.engine is None:
        number = recorded = np.zeros(1, np.int64)
        steps = None
    else:
        steps = judged.engine.charges
        number, recorded = steps.number, steps.recorded_ns
    culprits = culprits_of(steps, verdicts)

    def numbered(places: Ints) -> pa.Array:
        return pa.array(number[np.maximum(places, 0)].astype(np.uint64), mask=places < 0)

    return {
        "step_first": numbered(verdicts.step_first),
        "step_last": numbered(verdicts.step_last),
        "culprit_step": numbered(culprits.step),
        "culprit_at": pa.array(np.where(culprits.step >= 0, recorded[np.maximum(culprits.step, 0)], 0), pa.timestamp("ns", "UTC")),
        "culprit_us": pa.array((np.maximum(culprits.ns, 0) // 1000).astype(np.uint64)),
        "culprit_responses": pa.array(_requests(judged, at, culprits.step), pa.list_(pa.string())),
    }


def _requests(judged: Judged, at: Ints, steps: Ints) -> list[list[str]]:
    """Whose prompt, or whose recompute, the step to blame was; the stream itself where that was preempted."""
    if judged.engine is None:
        return [[] for _ in at]
    verdicts, owners = judged.verdicts, judged.owners
    blamed = [int(step) for step in steps[(verdicts.cause[at] == _SCHEDULING) & (steps >= 0)]]
    prompts = prompts_of(judged.engine.charges, blamed, judged.engine.first_tokens)
    victims: dict[int, list[str]] = {}
    for row in np.flatnonzero(verdicts.preempted >= 0):
        victims.setdefault(int(verdicts.step_last[row]), []).append(judged.streams[owners[row]].response_id)
    out = []
    for row, step in zip(at, steps.tolist(), strict=True):
        if verdicts.cause[row] == _SCHEDULING:
            out.append(prompts.get(step, []))
        elif verdicts.cause[row] == _KV and verdicts.preempted[row] >= 0:
            out.append([name for name in (judged.streams[owners[row]].response_id,) if name])
        else:
            out.append(victims.get(step, []) if verdicts.cause[row] == _KV else [])
    return out
