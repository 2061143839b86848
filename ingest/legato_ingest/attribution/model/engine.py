"""One engine over the time of some streams: its steps, and the offsets between the clock of its records and other clocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from legato_ingest.attribution.model.gpu_throttle import GpuClock
from legato_ingest.attribution.model.ranks import Rank
from legato_ingest.attribution.model.step_model import charge_steps
from legato_ingest.attribution.model.steps import ChargedSteps, Steps
from legato_ingest.attribution.model.vantage import Stream

__all__ = ["Engine", "EngineRecords", "steps_of_requests"]

Ints = NDArray[np.int64]

# The assumed error of the clock's offset if it is unknown, as a share of a median step and at most: a chunk that is earlier than this may
# belong to the step before.
_OFFSET_ERROR_SHARE, _OFFSET_ERROR_NS_MAX = 0.35, 10_000_000


@dataclass(frozen=True, slots=True)
class EngineRecords:
    """What the store has of one engine.

    ``ranks``: the other ranks of its server; ``has_all_ranks``: there are no more. ``server_offset``: the records' clock minus the server's
    clock, and how much larger the true offset may be (``None``: unknown); ``None`` if nothing gives the offset. ``client_offsets``: the
    records' clock minus each client's (by ``Stream.clock``), assuming that the fastest delivery took no time. ``last_step``: the index of
    the step that ended a request, by response id. ``first_token_ns``: when the server sent a request's first token, by the server's clock,
    by response id. ``preempted``, ``never_preempted``: the response ids of the requests that ended and, as the engine reports, were
    preempted once or more, or never.
    """

    steps: Steps
    gpus: Sequence[GpuClock] = ()
    ranks: Sequence[Rank] = ()
    has_all_ranks: bool = True
    server_offset: tuple[int, int | None] | None = None
    client_offsets: Mapping[str, int] = field(default_factory=dict)
    last_step: Mapping[str, int] = field(default_factory=dict)
    first_token_ns: Mapping[str, int] = field(default_factory=dict)
    preempted: frozenset[str] = frozenset()
    never_preempted: frozenset[str] = frozenset()

    def covers(self, stream: Stream) -> bool:
        """Whether the offset to the clock of the stream's server is known or, without a server, to the clock of its client."""
        return stream.clock in self.client_offsets if stream.server is None else self.server_offset is not None


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine with charged steps.

    ``offset_ns``, ``offset_error_ns``: the records' clock minus the server's clock, and how much larger the true offset may be; ``None``:
    unknown. ``client_offsets``, ``last_step``, ``preempted`` and ``never_preempted`` are as in ``EngineRecords``. ``first_token``: the
    index of the step that gave a request its first token, by response id.
    """

    steps: ChargedSteps
    offset_ns: int | None
    offset_error_ns: int
    client_offsets: Mapping[str, int]
    last_step: Mapping[str, int]
    first_token: Mapping[str, int]
    preempted: frozenset[str] = frozenset()
    never_preempted: frozenset[str] = frozenset()

    @classmethod
    def of(cls, records: EngineRecords) -> Engine:
        """Charge the engine's steps."""
        steps = charge_steps(records.steps, records.gpus, records.ranks, records.has_all_ranks)
        error = min(int(_OFFSET_ERROR_SHARE * steps.median_ns), _OFFSET_ERROR_NS_MAX)
        offset = None
        first_token: dict[str, int] = {}
        if records.server_offset is not None:
            offset, known_error = records.server_offset
            error = error if known_error is None else min(known_error, error)
            times = np.array(list(records.first_token_ns.values()), np.int64)
            index = np.searchsorted(steps.end_ns - offset, times, "right") - 1
            first_token = {name: step for name, step in zip(records.first_token_ns, index.tolist(), strict=True) if step >= 0}
        ended = records.last_step, first_token, records.preempted, records.never_preempted
        return cls(steps, offset, error, records.client_offsets, *ended)


def steps_of_requests(request_steps: Ints, request_recorded_ns: Ints, number: Ints, recorded_ns: Ints) -> Ints:
    """Return the indices of the steps in which requests ended; -1 for a step that is not recorded.

    ``request_steps``: the number of each request's last step; ``request_recorded_ns``: when that was recorded. ``number``, ``recorded_ns``:
    the engine's steps. A restarted engine counts its steps from one again, so of several steps with one number the one that was recorded at
    the nearest time is taken.
    """
    order = np.lexsort((recorded_ns, number))
    # Of steps with one number and one time the first counts.
    is_new = (np.diff(number[order], prepend=-1) != 0) | (np.diff(recorded_ns[order], prepend=-1) != 0)
    order = order[np.maximum.accumulate(np.where(is_new, np.arange(len(order)), 0))]
    # Steps and requests in one order of number and time: the last step before each request and the first one after it are its neighbours.
    both = np.lexsort((np.append(recorded_ns, request_recorded_ns), np.append(number, request_steps)))
    is_step = both < len(number)
    after = np.cumsum(is_step)[~is_step]
    rows = both[~is_step] - len(number)
    out = np.full(len(request_steps), -1, np.int64)
    nearest_ns = np.full(len(request_steps), np.iinfo(np.int64).max)
    for place in (after - 1, after):
        known = (place >= 0) & (place < len(order))
        at, row = order[place[known]], rows[known]
        distance_ns = np.abs(recorded_ns[at] - request_recorded_ns[row])
        is_nearer = (number[at] == request_steps[row]) & (distance_ns < nearest_ns[row])
        out[row[is_nearer]], nearest_ns[row[is_nearer]] = at[is_nearer], distance_ns[is_nearer]
    return out
