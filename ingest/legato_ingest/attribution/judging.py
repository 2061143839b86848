"""From the evidence about groups of streams to the rows that are written about them. Pure: nothing is read from a store or written to one.

``judging_process`` does the same in a separate process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from legato_ingest.attribution.counterfactual_rows import counterfactual_rows
from legato_ingest.attribution.model.judge import Evidence, Thresholds, judge
from legato_ingest.attribution.verdict_rows import verdict_rows

__all__ = ["Judging", "Rows", "judged_rows"]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one group of streams, and the number of its streams."""

    streams: int
    counterfactuals: pa.Table
    verdicts: pa.Table


Judging = Callable[[Sequence[Evidence], Thresholds, int], list[Rows | Exception]]
"""Returns the rows of each group, or the error of a group that cannot be judged. The number is the time of the verdicts (ns)."""


def judged_rows(groups: Sequence[Evidence], thresholds: Thresholds, judged_at_ns: int) -> list[Rows | Exception]:
    """Return the rows of each group, or the error of a group that cannot be judged."""
    out: list[Rows | Exception] = []
    for evidence in groups:
        try:
            out.append(_rows(evidence, thresholds, judged_at_ns))
        except Exception as error:
            out.append(error)
    return out


def _rows(evidence: Evidence, thresholds: Thresholds, judged_at_ns: int) -> Rows:
    judgement = judge(evidence, thresholds)
    counterfactuals = counterfactual_rows(judgement, thresholds.gap_ns, judged_at_ns)
    return Rows(len(evidence.streams), counterfactuals, verdict_rows(judgement, judged_at_ns))
