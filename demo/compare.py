"""Comparison of the stored streams with the recording, at the clients, or at the server if the clients recorded nothing.

The recording is the ground truth. A stored stream is matched to its recorded one by the response id, and each gap between content chunks to
one recorded gap. The stored streams are read from the read endpoint of `legato serve`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from demo.plan import Plan
from legato_ingest.cli.client import Reader

__all__ = ["Comparison", "compare", "compare_rows"]

Row = Mapping[str, object]

STALL_US = 250_000
_TOLERANCE = 0.05
_CANCEL_SLACK = 3
# Text, reasoning, tool: the kinds that carry content (schema/TIMELINE.md).
_CONTENT_KINDS = frozenset((1, 2, 3))


@dataclass(frozen=True, slots=True)
class Comparison:
    """The results of a run: counts of the stored streams at the plan's vantage, and their differences from the recording."""

    streams: int
    chunks: int
    goodput: float
    stalls_250ms: int
    recorded_stalls_250ms: int
    recorded_streams: int
    streams_differ: int
    gaps: int
    gap_diff_p50_ms: float
    gap_diff_p99_ms: float
    gap_diff_max_ms: float
    recorded_gaps_250ms_missed: int
    server_streams: int
    stalls_judged: int
    stalls_explained: int

    def to_dict(self) -> dict[str, float]:
        """Return the results by name."""
        return asdict(self)


def compare(plan: Plan, read_url: str) -> Comparison:
    """Compare all streams of the plan's run with those in the store now. Raises ``LegatoError`` if the store cannot be read."""
    reader = Reader(read_url)
    which = {"prefix": plan.response_id_prefix, "at": plan.vantage}
    (summary,) = reader.rows(_SUMMARY, which)
    (verdicts,) = reader.rows(_JUDGED, {"prefix": plan.response_id_prefix})
    return compare_rows(plan, reader.rows(_STORED, which), {**summary, **verdicts})


def compare_rows(plan: Plan, rows: Sequence[Row], summary: Row) -> Comparison:
    """Compare stored streams (``response_id``, ``dt_us``, ``chunk_kind``) with the plan's recordings."""
    stored = {str(row["response_id"]): row for row in rows}
    recorded = {plan.response_id(stream): stream for recording in plan.recordings() for stream in recording.streams}
    differences: list[float] = []
    missed = differ = stalls = 0
    for response_id, stream in recorded.items():
        expected = [gap / plan.speed for gap in stream.gaps_us()]
        stalls += sum(gap >= STALL_US for gap in expected)
        actual = _gaps_us(stored[response_id]) if response_id in stored else []
        # If the client cancelled, frames in flight at that time may or may not have been received.
        slack = 0 if stream.cancel_us is None else _CANCEL_SLACK
        if abs(len(actual) - len(expected)) > slack:
            differ += 1
            missed += sum(gap >= STALL_US for gap in expected)
            continue
        differences += [abs(is_us - was_us) for is_us, was_us in zip(actual, expected, strict=slack == 0)]
        missed += sum(was >= STALL_US and abs(now - was) > _TOLERANCE * was for now, was in zip(actual, expected, strict=slack == 0))
    return Comparison(
        streams=_int(summary["streams"]),
        chunks=_int(summary["chunks"]),
        goodput=round(float(str(summary["goodput"] or 0)), 4),
        stalls_250ms=_int(summary["stalls"]),
        recorded_stalls_250ms=stalls,
        recorded_streams=len(recorded),
        streams_differ=differ,
        gaps=len(differences),
        gap_diff_p50_ms=_quantile_ms(differences, 0.5),
        gap_diff_p99_ms=_quantile_ms(differences, 0.99),
        gap_diff_max_ms=_quantile_ms(differences, 1.0),
        recorded_gaps_250ms_missed=missed,
        server_streams=_int(summary["server_streams"]),
        stalls_judged=_int(summary["stalls_judged"]),
        stalls_explained=_int(summary["stalls_explained"]),
    )


_STORED = """
SELECT response_id, dt_us, chunk_kind FROM streams
WHERE vantage = {at:String} AND startsWith(response_id, {prefix:String})"""

# The definition of a good stream is the one of `legato_ingest`.
_SUMMARY = """
SELECT
    countIf(vantage = {at:String}) AS streams,
    countIf(vantage = 'server') AS server_streams,
    sumIf(chunks, vantage = {at:String}) AS chunks,
    sumIf(stalls_250ms, vantage = {at:String}) AS stalls,
    countIf(vantage = {at:String} AND good IS NOT NULL) AS judged,
    if(judged = 0, 0, countIf(vantage = {at:String} AND good = 1) / judged) AS goodput
FROM streams
WHERE startsWith(response_id, {prefix:String})"""


_JUDGED = """
SELECT count() AS stalls_judged, countIf(cause NOT IN ('generation', 'delivery', 'unknown')) AS stalls_explained
FROM verdicts FINAL
WHERE cause != 'base' AND trace_id IN (SELECT trace_id FROM streams WHERE startsWith(response_id, {prefix:String}))"""


def _gaps_us(row: Row) -> list[int]:
    steps, kinds = row["dt_us"], row["chunk_kind"]
    assert isinstance(steps, list) and isinstance(kinds, list)
    gaps, since, begun = [], 0, False
    for step, kind in zip(steps, kinds or [1] * len(steps), strict=True):
        since += step
        if kind in _CONTENT_KINDS:
            if begun:
                gaps.append(since)
            since, begun = 0, True
    return gaps


def _int(value: object) -> int:
    return int(str(value or 0))


def _quantile_ms(values_us: list[float], share: float) -> float:
    ordered = sorted(values_us)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1000, 3) if ordered else 0.0
