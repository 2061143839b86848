"""Rows of `replays` from judgements: each stalled stream without each cause that took part in its stalls.

A stream has rows only if the sends of its server and the steps of its engine are known. The module is pure and judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from legato_ingest.attribution.model.counterfactual import Delay, counterfactual
from legato_ingest.attribution.model.judge import Judgement
from legato_ingest.causes import DELAYS, REPLAYABLE, index_of
from legato_ingest.columns import REPLAYS

__all__ = ["counterfactual_rows"]

Ints = NDArray[np.int64]

# A cause took part in a stall if it has this share of the excess or more.
_PART_MIN = 0.1
_REPLAYABLE = np.array([index_of(name) for name in REPLAYABLE])


def counterfactual_rows(judgements: Sequence[Judgement], stall_ns: int, judged_at_ns: int) -> pa.Table:
    """Return the rows of all streams with a stall. Gaps of at least ``stall_ns`` are counted."""
    rows = [row for judgement in judgements for row in _of_group(judgement, stall_ns, judged_at_ns)]
    return pa.Table.from_pylist(rows, REPLAYS.schema)


def _of_group(judgement: Judgement, stall_ns: int, judged_at_ns: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of one group."""
    stalls: dict[int, list[int]] = {}
    for row in judgement.stalls.tolist():
        stalls.setdefault(int(judgement.owners[row]), []).append(row)
    for owner, own in stalls.items():
        yield from _of_stream(judgement, owner, np.array(own), stall_ns, judged_at_ns)


def _of_stream(judgement: Judgement, owner: int, stalls: Ints, stall_ns: int, judged_at_ns: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of one stream; ``stalls``: the indices of its stalls."""
    stream, engine = judgement.streams[owner], judgement.engine
    if engine is None or stream.server is None or engine.offset_ns is None or stream.is_open:
        return
    took_part = _took_part(judgement, stalls)
    causes = [name for name, rows in took_part.items() if len(rows)]
    delays = [Delay(name, int(judgement.gaps.start_ns[row]), int(judgement.gaps.end_ns[row])) for name in DELAYS for row in took_part[name]]
    offset = engine.offset_ns + engine.offset_error_ns
    result = counterfactual(stream.judged, stream.server, offset, engine.steps, causes, delays, stall_ns)
    if result is None:
        return
    for each in result.remaining:
        yield {
            "tenant": stream.tenant,
            "start_time": stream.start_ns,
            "trace_id": stream.trace_id,
            "span_id": stream.span_id,
            "cause": each.cause,
            "judged_at": judged_at_ns // 1_000_000,
            "engine_id": stream.engine_id,
            "stalls": result.stalls,
            "stalls_min": each.stalls_min,
            "stalls_max": each.stalls_max,
            "stalled_us": result.stalled_ns // 1000,
            "stalled_min_us": each.stalled_min_ns // 1000,
            "stalled_max_us": each.stalled_max_ns // 1000,
        }


def _took_part(judgement: Judgement, stalls: Ints) -> dict[str, Ints]:
    """Return, for each replayable cause, the stalls in which it took part."""
    excess = np.maximum(judgement.verdicts.excess_ns[stalls], 1)
    took_part = judgement.verdicts.parts[stalls[:, None], _REPLAYABLE] >= _PART_MIN * excess[:, None]
    return {name: stalls[took_part[:, column]] for column, name in enumerate(REPLAYABLE)}
