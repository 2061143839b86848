"""Rows of `verdicts` from judgements, as one Arrow table.

A row contains what it rests on, so that a reader can check it: the numbers, the engine's steps, the root-cause step and its requests, the
excluded causes, the missing vantages, and the possible error. The module is pure and judges nothing.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from legato_ingest.attribution.model.confidence import confidences
from legato_ingest.attribution.model.evidence import error_bounds_ns, evidence_of
from legato_ingest.attribution.model.exclusion import excluded_by_records
from legato_ingest.attribution.model.gaps import Gaps
from legato_ingest.attribution.model.joined_steps import JoinedSteps
from legato_ingest.attribution.model.judgements import Judgements
from legato_ingest.attribution.model.root_step import responses_of, root_steps
from legato_ingest.attribution.model.verdicts import Verdicts
from legato_ingest.causes import BY_NAME, HEALTHY, PARTS
from legato_ingest.columns import VERDICTS

__all__ = ["verdict_rows", "withdrawn_rows"]

Ints = NDArray[np.int64]

# The values of a withdrawn verdict. Its gap counts as healthy, because another verdict has its time.
_NOTHING: tuple[tuple[str, pa.DataType, object], ...] = (
    ("cause", pa.string(), HEALTHY),
    ("confidence", pa.string(), BY_NAME[HEALTHY].confidence),
    ("excess_us", pa.uint64(), 0),
    ("share", pa.float32(), 0.0),
    ("error_us", pa.uint32(), 0),
    ("culprit_us", pa.uint64(), 0),
)


def verdict_rows(judged: Judgements, judged_at_ns: int) -> pa.Table:
    """Return the rows, those of withdrawn stalls with the cause ``base``."""
    gaps, verdicts, steps = judged.gaps.at(judged.rows), judged.verdicts.at(judged.rows), judged.steps.at(judged.rows)
    causes = [HEALTHY if withdrawn else name for name, withdrawn in zip(verdicts.names(), judged.is_withdrawn.tolist(), strict=True)]
    columns = {
        **_identity(judged, gaps, judged_at_ns),
        **_verdict(judged, gaps, verdicts, steps, causes),
        **_basis(judged, gaps, verdicts, steps),
    }
    return VERDICTS.rows(columns)


def withdrawn_rows(stalls: pa.Table, judged_at_ns: int) -> pa.Table:
    """Return the rows that withdraw stalls that others replace. ``stalls``: the columns of ``load.superseded.superseded_stalls``."""
    count = stalls.num_rows
    columns = {name: pa.nulls(count, kind).fill_null(value) for name, kind, value in _NOTHING}
    columns |= {column.name: pa.array([[]] * count, column.type) for column in VERDICTS.columns if pa.types.is_nested(column.type)}
    gap_us = stalls["gap_us"].cast(pa.uint64())
    return VERDICTS.rows(
        columns
        | {
            "tenant": stalls["tenant"].cast(pa.string()),
            "start_time": stalls["start_ns"].cast(pa.int64()).cast(pa.timestamp("ns", "UTC")),
            "trace_id": pa.array(stalls["trace_id"].to_pylist(), pa.binary(16)),
            "span_id": pa.array(stalls["span_id"].to_pylist(), pa.binary(8)),
            "gap_start_us": stalls["gap_start_us"].cast(pa.uint64()),
            "gap_us": gap_us,
            "judged_at": pa.array(np.full(count, judged_at_ns // 1_000_000), pa.timestamp("ms", "UTC")),
            "parts": pa.array([[(HEALTHY, 1_000 * us)] for us in gap_us.to_pylist()], pa.map_(pa.string(), pa.int64())),
            "engine_id": stalls["engine_id"].cast(pa.string()),
            "vantage": stalls["vantage"].cast(pa.string()),
            "step_first": pa.nulls(count, pa.uint64()),
            "step_last": pa.nulls(count, pa.uint64()),
            "culprit_step": pa.nulls(count, pa.uint64()),
            "culprit_at": pa.array(np.zeros(count, np.int64), pa.timestamp("ns", "UTC")),
        }
    )


def _identity(judged: Judgements, gaps: Gaps, judged_at_ns: int) -> dict[str, pa.Array]:
    """Return the columns that identify a gap and its judgement. ``gaps``: those of the rows."""
    rows = judged.rows
    streams = [judged.streams[owner] for owner in judged.owners[rows].tolist()]
    starts = np.array([stream.start_ns for stream in streams], np.int64)
    return {
        "tenant": pa.array([stream.tenant for stream in streams], pa.string()),
        "start_time": pa.array(starts, pa.timestamp("ns", "UTC")),
        "trace_id": pa.array([stream.trace_id for stream in streams], pa.binary(16)),
        "span_id": pa.array([stream.span_id for stream in streams], pa.binary(8)),
        "gap_start_us": pa.array(((gaps.start_ns - starts) // 1000).astype(np.uint64)),
        "gap_us": pa.array((gaps.length_ns // 1000).astype(np.uint64)),
        "judged_at": pa.array(np.full(len(rows), judged_at_ns // 1_000_000), pa.timestamp("ms", "UTC")),
        "vantage": pa.array([stream.vantage for stream in streams], pa.string()),
        "engine_id": pa.array([stream.engine_id for stream in streams], pa.string()),
    }


def _verdict(judged: Judgements, gaps: Gaps, verdicts: Verdicts, steps: JoinedSteps, causes: list[str]) -> dict[str, pa.Array]:
    """Return the columns of the verdict itself. ``gaps``, ``verdicts`` and ``causes``: those of the rows."""
    rows = judged.rows
    streams = [judged.streams[owner] for owner in judged.owners[rows].tolist()]
    has_server = gaps.has_server & np.array([stream.server is not None for stream in streams], np.bool_)
    parts = [[(name, ns) for name, ns in zip(PARTS, row, strict=True) if ns] for row in verdicts.parts.tolist()]
    has_client = [stream.has_client for stream in streams]
    vantages = (("client", has_client), ("server", has_server.tolist()), ("engine", verdicts.aligned.tolist()))
    missing = [[name for name, seen in vantages if not seen[row]] for row in range(len(rows))]
    cpu_waits = [judged.cpu_waits.get(row, {}) for row in rows.tolist()]
    was_preempted = judged.was_preempted[rows]
    return {
        "excess_us": pa.array((verdicts.excess_ns // 1000).astype(np.uint64)),
        "cause": pa.array(causes, pa.string()),
        "confidence": pa.array(confidences(causes, verdicts, has_server, steps, cpu_waits, gaps.is_open, was_preempted), pa.string()),
        "share": pa.array(verdicts.share.astype(np.float32)),
        "parts": pa.array(parts, pa.map_(pa.string(), pa.int64())),
        "missing": pa.array(missing, pa.list_(pa.string())),
    }


def _basis(judged: Judgements, gaps: Gaps, verdicts: Verdicts, steps: JoinedSteps) -> dict[str, pa.Array]:
    """Return the columns that the verdict rests on. ``gaps`` and ``verdicts``: those of the rows."""
    errors = error_bounds_ns(gaps, verdicts, steps)
    evidence = evidence_of(gaps, verdicts, steps)
    excluded = excluded_by_records(gaps, verdicts, errors, steps)
    for numbers, reasons, row in zip(evidence, excluded, judged.rows.tolist(), strict=True):
        numbers.update(judged.cpu_waits.get(row, {}))
        reasons.update({cause: reason for cause, reason in judged.excluded[row].items() if cause not in reasons})
    return {
        "evidence": pa.array([list(each.items()) for each in evidence], pa.map_(pa.string(), pa.int64())),
        "excluded": pa.array([list(each.items()) for each in excluded], pa.map_(pa.string(), pa.string())),
        "error_us": pa.array(np.minimum(-(-errors // 1000), 2**32 - 1).astype(np.uint32)),
        **_steps(judged, verdicts),
    }


def _steps(judged: Judgements, verdicts: Verdicts) -> dict[str, pa.Array]:
    """Return the columns of the steps that the gaps are aligned with, and of the root-cause step."""
    roots = root_steps(judged.steps, verdicts)
    own = [judged.streams[owner].response_id for owner in judged.owners.tolist()]
    responses = responses_of(judged.rows, roots.step, judged.verdicts, own, judged.steps, judged.first_tokens)
    # The last entry is that of the index -1: no step.
    number, recorded = np.append(judged.steps.number, 0), np.append(judged.steps.recorded_ns, 0)

    def numbered(steps: Ints) -> pa.Array:
        return pa.array(number[steps].astype(np.uint64), mask=steps < 0)

    return {
        "step_first": numbered(verdicts.step_first),
        "step_last": numbered(verdicts.step_last),
        "culprit_step": numbered(roots.step),
        "culprit_at": pa.array(recorded[roots.step], pa.timestamp("ns", "UTC")),
        "culprit_us": pa.array((np.maximum(roots.ns, 0) // 1000).astype(np.uint64)),
        "culprit_responses": pa.array(responses, pa.list_(pa.string())),
    }
