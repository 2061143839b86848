"""From the evidence about groups of streams to the rows that are written about them. Pure: nothing is read from a store or written to one.

``judging_process`` does the same in a separate process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from legato_ingest.attribution.counterfactual_rows import counterfactual_rows
from legato_ingest.attribution.model.judge import Evidence, Judgement, Thresholds, judge
from legato_ingest.attribution.model.judgements import Judgements
from legato_ingest.attribution.verdict_rows import verdict_rows
from legato_ingest.columns import REPLAYS, VERDICTS

__all__ = ["Judged", "Judging", "judged_rows"]

# Rows are made of so many steps together (25 MB of them in the judgements, and half as much joined).
_STEPS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Judged:
    """The rows of several groups of streams in one piece, the number of their streams, and the ``errors`` of groups that cannot be judged.

    One piece, because every function costs as much for the rows of one group as for those of a hundred, and most of all pickling.
    """

    streams: int
    counterfactuals: pa.Table
    verdicts: pa.Table
    errors: tuple[Exception, ...] = ()

    @classmethod
    def failed(cls, error: Exception) -> Judged:
        """Return the value of groups that cannot be judged."""
        return cls(0, REPLAYS.empty, VERDICTS.empty, (error,))

    @classmethod
    def joined(cls, parts: Sequence[Judged]) -> Judged:
        """Return one value with everything of all parts, in their order."""
        return cls(
            sum(each.streams for each in parts),
            pa.concat_tables([each.counterfactuals for each in parts] or [REPLAYS.empty]).combine_chunks(),
            pa.concat_tables([each.verdicts for each in parts] or [VERDICTS.empty]).combine_chunks(),
            tuple(error for each in parts for error in each.errors),
        )


Judging = Callable[[Sequence[Evidence], Thresholds, int], Judged]
"""Judges groups of streams. The number is the time of the verdicts (ns)."""


def judged_rows(groups: Sequence[Evidence], thresholds: Thresholds, judged_at_ns: int) -> Judged:
    """Judge groups of streams one by one, and make the rows of several together."""
    parts: list[Judged] = []
    waiting: list[Judgement] = []
    steps = 0
    for evidence in groups:
        try:
            # No other name keeps a judgement while the next one is made.
            waiting.append(judge(evidence, thresholds))
        except Exception as error:
            parts.append(Judged.failed(error))
            continue
        steps += waiting[-1].step_count
        if steps > _STEPS_MAX:
            parts.append(_rows(waiting, thresholds, judged_at_ns))
            waiting, steps = [], 0
    if waiting:
        parts.append(_rows(waiting, thresholds, judged_at_ns))
    return Judged.joined(parts)


def _rows(judgements: Sequence[Judgement], thresholds: Thresholds, judged_at_ns: int) -> Judged:
    """Return the rows of these judgements, at least one. If rows of one cannot be made, return those of the others, and the error."""
    try:
        counterfactuals = counterfactual_rows(judgements, thresholds.gap_ns, judged_at_ns)
        verdicts = verdict_rows(Judgements.of(judgements), judged_at_ns)
    except Exception as error:
        if len(judgements) == 1:
            return Judged.failed(error)
        return Judged.joined([_rows([each], thresholds, judged_at_ns) for each in judgements])
    return Judged(sum(len(each.streams) for each in judgements), counterfactuals, verdicts)
