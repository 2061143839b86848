"""Whether the clock of an engine's records was set while streams ran.

A clock that is set moves all later records, but not the chunks of streams that began before: their times are counted from their start. So
one offset no longer joins the records and the streams. A front end that freezes leaves a pause in the records, too. But it sends nothing
meanwhile, and later records are on time again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.engine import EngineRecords
from legato_ingest.attribution.model.steps import Steps
from legato_ingest.attribution.model.vantage import Stream

__all__ = ["clock_was_set"]

Ints = NDArray[np.int64]

# A clock that is set by less is not looked for.
_SET_NS_MIN = 50_000_000
# All later records must be late by this share of the pause. A send in a pause is farther from both of its ends than this share of it. An
# offset is wrong because of the pause if it is wrong by its length within this share.
_STAYING_SHARE, _EDGE_SHARE, _SAME_SHARE = 0.75, 0.25, 0.125


def clock_was_set(records: EngineRecords, late_ns: Ints, streams: Sequence[Stream]) -> bool:
    """Return whether the clock of the records was set back, or set forward while one of these streams or another one ran.

    ``late_ns``: how long after its end each step was recorded.

    Of several pauses only the longest is examined. The time is linear in the number of steps, and logarithmic in that of chunks.
    """
    steps = records.steps
    if (np.diff(steps.recorded_ns)[np.diff(steps.number) == 1] < -_SET_NS_MIN).any():
        return True
    after, pause_ns = _longest_pause(steps, late_ns)
    return pause_ns >= _SET_NS_MIN and any(_contradicts(records, stream, after, pause_ns) for stream in streams)


def _longest_pause(steps: Steps, late_ns: Ints) -> tuple[int, int]:
    """Return the step before which the records paused the longest beyond the step itself, and for how long; 0: they caught up later."""
    if len(steps.number) < 2:
        return 0, 0
    begins_run = (np.diff(steps.number) != 1) | np.isnan(steps.interval_ns[1:])
    paused = np.where(begins_run, 0, np.diff(late_ns))
    after = int(np.argmax(paused)) + 1
    pause = int(paused[after - 1])
    later_runs = np.flatnonzero(begins_run[after:])
    until = after + 1 + int(later_runs[0]) if len(later_runs) else len(late_ns)
    return after, pause if late_ns[after:until].min() - late_ns[after - 1] >= _STAYING_SHARE * pause else 0


def _contradicts(records: EngineRecords, stream: Stream, after: int, pause_ns: int) -> bool:
    """Return whether a stream shows that no front end was frozen before the step ``after``.

    It was sent something in the middle of the pause. Or its last send is earlier than the record of its last step by the pause: streams
    that began before the clock was set gave the offset.
    """
    times, server = (stream.server or stream.judged).times_ns, records.server_offset
    if not len(times) or not records.covers(stream):
        return False
    offset = records.client_offsets[stream.clock] if stream.server is None or server is None else server[0]
    recorded, edge = records.steps.recorded_ns, int(_EDGE_SHARE * pause_ns)
    begin, end = np.searchsorted(times, [recorded[after] - pause_ns + edge - offset, recorded[after] - edge - offset])
    last = records.last_step.get(stream.response_id, -1)
    is_moved = last >= 0 and abs(times[-1] + offset - recorded[last] - pause_ns) < _SAME_SHARE * pause_ns
    return bool(end > begin or is_moved)
