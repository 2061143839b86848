"""The judgements of several groups of streams as one, so that all rows about them are made at once.

The module judges nothing: ``judge`` does that, group by group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.gaps import Gaps
from legato_ingest.attribution.model.joined_steps import JoinedSteps
from legato_ingest.attribution.model.judge import Judgement
from legato_ingest.attribution.model.vantage import Stream
from legato_ingest.attribution.model.verdicts import Verdicts
from legato_ingest.timeline.ragged import Segments

__all__ = ["Judgements"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Judgements:
    """The gaps of all groups with their verdicts, one entry a gap. Indices of steps are those in ``steps``.

    ``owners``, ``excluded`` and ``cpu_waits`` are as in ``Judgement``. ``first_tokens``: the index of a step and the response id of a
    request that got its first token from it. ``was_preempted``: the engine reports that of the request of the gap's stream. ``rows``: the
    gaps that have rows, of each group its stalls and then the stalls that are withdrawn (``is_withdrawn``, one entry a row).
    """

    streams: Sequence[Stream]
    owners: Ints
    gaps: Gaps
    verdicts: Verdicts
    steps: JoinedSteps
    first_tokens: Sequence[tuple[int, str]]
    was_preempted: Bools
    excluded: Sequence[Mapping[str, str]]
    cpu_waits: Mapping[int, Mapping[str, int]]
    rows: Ints
    is_withdrawn: Bools

    @classmethod
    def of(cls, groups: Sequence[Judgement]) -> Judgements:
        """Join the judgements, at least one."""
        engines = [each.engine for each in groups]
        steps = [engine.steps if engine is not None else None for engine in engines]
        gaps = [len(each.owners) for each in groups]
        gaps_before, streams_before = _before(gaps), _before([len(each.streams) for each in groups])
        steps_before = _before([each.step_count for each in groups])
        rows = [row + before for each, before in zip(groups, gaps_before, strict=True) for row in (each.stalls, each.withdrawn)]
        return cls(
            streams=list(chain.from_iterable(each.streams for each in groups)),
            owners=np.concatenate([each.owners + before for each, before in zip(groups, streams_before, strict=True)]),
            gaps=Gaps.joined([each.gaps for each in groups]),
            verdicts=Verdicts.joined([each.verdicts for each in groups], steps_before),
            steps=JoinedSteps.of(steps, gaps),
            first_tokens=[
                (step + before, name)
                for engine, before in zip(engines, steps_before, strict=True)
                if engine is not None
                for name, step in engine.first_token.items()
            ],
            was_preempted=np.concatenate([_was_preempted(each) for each in groups]),
            excluded=list(chain.from_iterable(each.excluded for each in groups)),
            cpu_waits={
                row + before: waits for each, before in zip(groups, gaps_before, strict=True) for row, waits in each.cpu_waits.items()
            },
            rows=np.concatenate(rows),
            is_withdrawn=np.repeat(np.arange(len(rows)) % 2 == 1, [len(each) for each in rows]),
        )


def _before(counts: Sequence[int]) -> list[int]:
    """Return how many entries precede those of each group."""
    before: list[int] = Segments.of_lengths(np.array(counts)).starts.tolist()
    return before


def _was_preempted(judgement: Judgement) -> Bools:
    """Return, for each gap, whether the engine reports that the request of its stream was preempted."""
    preempted = judgement.engine.preempted if judgement.engine is not None else frozenset[str]()
    if not preempted:
        return np.zeros(len(judgement.owners), np.bool_)
    return np.array([stream.response_id in preempted for stream in judgement.streams], np.bool_)[judgement.owners]
