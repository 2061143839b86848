"""Turn the evidence of one group of streams into a judgement: verdicts on their gaps, and which of the gaps are stalls.

A group is the streams of one engine with recorded steps, or all other streams. The judgement depends on nothing else, so the same evidence
always gives the same verdicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.charge import charge
from legato_ingest.attribution.model.clock_set import clock_was_set
from legato_ingest.attribution.model.corroborate import corroborate
from legato_ingest.attribution.model.cpu_wait import CpuSamples, cpu_waits_of
from legato_ingest.attribution.model.engine import Engine, EngineRecords
from legato_ingest.attribution.model.gaps import Gaps, gaps_of
from legato_ingest.attribution.model.matching import server_from_steps
from legato_ingest.attribution.model.metric_exclusion import MetricFindings, excluded_by_metrics, name_by_exclusion
from legato_ingest.attribution.model.scraped import EngineKey, ScrapedMetrics
from legato_ingest.attribution.model.vantage import Stream
from legato_ingest.attribution.model.verdicts import Verdicts
from legato_ingest.definitions import STALL_EXCESS_MS, STALL_MS
from legato_ingest.timeline.ragged import Segments

__all__ = ["Evidence", "GapKey", "Judgement", "Thresholds", "judge"]

Ints = NDArray[np.int64]
GapKey = tuple[str, bytes, bytes, int]
"""Tenant, trace id, span id, and the start of the gap in µs since the start of the stream."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Gaps of at least ``gap_ms`` are judged. They are stalls if at least ``excess_ms`` of them is beyond the healthy step."""

    gap_ms: float = STALL_MS
    excess_ms: float = STALL_EXCESS_MS

    @property
    def gap_ns(self) -> int:
        """The least length of a judged gap in ns."""
        return int(self.gap_ms * 1_000_000)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that the store has about a group of streams.

    ``engine``: the engine of all streams, if its steps are known. ``metrics``: what was scraped of the engines that have no steps, or an
    incomplete record of them; it counts where no step explains a gap. ``cpu``: the samples of the engines' hosts. ``stored_stalls``: the
    gaps of these streams that the store has as stalls.
    """

    streams: Sequence[Stream]
    engine: EngineRecords | None = None
    metrics: Mapping[EngineKey, ScrapedMetrics] = field(default_factory=dict)
    cpu: Mapping[EngineKey, CpuSamples] = field(default_factory=dict)
    stored_stalls: frozenset[GapKey] = frozenset()


@dataclass(frozen=True, slots=True)
class Judgement:
    """The gaps of a group of streams with their verdicts, one entry a gap.

    ``owners``: the index of each gap's stream. ``excluded``: the causes that scraped metrics exclude, with the reason. ``cpu_waits``: by
    index, what the kernel counted around a gap. ``stalls``: the indices of the gaps that are stalls; ``withdrawn``: of those that are not,
    and that the store has as stalls.
    """

    streams: Sequence[Stream]
    owners: Ints
    gaps: Gaps
    verdicts: Verdicts
    engine: Engine | None
    excluded: Sequence[Mapping[str, str]]
    cpu_waits: Mapping[int, Mapping[str, int]]
    stalls: Ints
    withdrawn: Ints

    @property
    def step_count(self) -> int:
        """The number of steps of the engine; 0 without one."""
        return len(self.engine.steps.number) if self.engine is not None else 0


def judge(evidence: Evidence, thresholds: Thresholds) -> Judgement:
    """Judge the gaps of a group of streams."""
    streams, engine = evidence.streams, _engine(evidence)
    each = [_gaps_of_stream(stream, engine, thresholds.gap_ns) for stream in streams]
    gaps = Gaps.joined(each)
    owners = Segments.of_lengths(np.array([len(own.start_ns) for own in each])).owners()
    verdicts = charge(gaps, engine.steps if engine is not None else None)
    verdicts = corroborate(gaps, verdicts, owners, _clock_numbers(streams)[owners])
    rows = _rows_by_engine(streams, owners)
    unexplained = {key: own[~verdicts.aligned[own]] for key, own in rows.items()}
    findings = _findings(evidence, owners, gaps, unexplained)
    verdicts = name_by_exclusion(gaps, verdicts, findings)
    cpu_waits: dict[int, dict[str, int]] = {}
    for key, samples in evidence.cpu.items():
        own = rows.get(key, np.zeros(0, np.int64))
        cpu_waits |= cpu_waits_of(samples, gaps, verdicts, own[verdicts.aligned[own]] if engine is not None else own)
    is_stall = verdicts.excess_ns >= thresholds.excess_ms * 1_000_000
    return Judgement(
        streams=streams,
        owners=owners,
        gaps=gaps,
        verdicts=verdicts,
        engine=engine,
        excluded=findings.excluded,
        cpu_waits=cpu_waits,
        stalls=np.flatnonzero(is_stall),
        withdrawn=_stored(evidence, owners, gaps, np.flatnonzero(~is_stall)),
    )


def _engine(evidence: Evidence) -> Engine | None:
    """Return the group's engine; ``None`` if the clock of its records was set, because then nothing joins them to the streams."""
    records = evidence.engine
    if records is None:
        return None
    engine = Engine.of(records)
    return None if clock_was_set(records, engine.steps.late_ns, evidence.streams) else engine


def _gaps_of_stream(stream: Stream, engine: Engine | None, gap_ns_min: int) -> Gaps:
    """Return the long gaps of a stream; a server that was not recorded is concluded from the engine's steps."""
    if engine is None:
        return gaps_of(stream.judged, stream.server, 0, gap_ns_min, has_client=stream.has_client, is_open=stream.is_open)
    never_preempted = stream.response_id in engine.never_preempted
    if stream.server is not None:
        offset, error = engine.offset_ns or 0, engine.offset_error_ns
        return gaps_of(
            stream.judged,
            stream.server,
            offset,
            gap_ns_min,
            clock_offset_error_ns=error,
            has_client=stream.has_client,
            is_open=stream.is_open,
            never_preempted=never_preempted,
        )
    last_step = engine.last_step.get(stream.response_id, -1)
    server = server_from_steps(stream.judged, engine.steps.recorded_ns, engine.client_offsets[stream.clock], last_step)
    return gaps_of(stream.judged, server, 0, gap_ns_min, server_error_ns=engine.steps.median_ns, never_preempted=never_preempted)


def _clock_numbers(streams: Sequence[Stream]) -> Ints:
    """Return a number for the clock of each stream; streams of one clock have the same number."""
    numbers: dict[tuple[str, str], int] = {}
    return np.array([numbers.setdefault((stream.tenant, stream.clock), len(numbers)) for stream in streams], np.int64)


def _rows_by_engine(streams: Sequence[Stream], owners: Ints) -> dict[EngineKey, Ints]:
    """Return the indices of the gaps of each engine's streams."""
    out: dict[EngineKey, list[int]] = {}
    for row, owner in enumerate(owners):
        out.setdefault((streams[owner].tenant, streams[owner].engine_id), []).append(row)
    return {key: np.array(rows, np.int64) for key, rows in out.items()}


def _findings(evidence: Evidence, owners: Ints, gaps: Gaps, rows: Mapping[EngineKey, Ints]) -> MetricFindings:
    """Return what the scraped metrics of each stream's engine show about its gaps. ``rows``: the gaps of each engine in question."""
    out = MetricFindings.none(len(owners))
    start = np.where(gaps.has_server, gaps.server_start_ns, gaps.start_ns)
    end = np.where(gaps.has_server, gaps.server_end_ns, gaps.end_ns)
    for key, metrics in evidence.metrics.items():
        own = rows.get(key)
        if own is not None and len(own):
            boots = [evidence.streams[owner].server_boot for owner in owners[own]]
            same_clock = np.array([bool(boot) and boot in metrics.boots for boot in boots], np.bool_)
            out.put(own, excluded_by_metrics(metrics, start[own], end[own], same_clock))
    return out


def _stored(evidence: Evidence, owners: Ints, gaps: Gaps, rows: Ints) -> Ints:
    """Return those of the gaps ``rows`` that the store has as stalls, by earlier evidence."""
    stored = []
    for row in rows.tolist():
        stream = evidence.streams[owners[row]]
        start_us = (int(gaps.start_ns[row]) - stream.start_ns) // 1000
        if (stream.tenant, stream.trace_id, stream.span_id, start_us) in evidence.stored_stalls:
            stored.append(row)
    return np.array(stored, np.int64)
