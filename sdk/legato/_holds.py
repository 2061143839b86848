"""The hold of each chunk: the time for which the application, or its event loop, kept the stream waiting. A pure function."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

__all__ = ["holds_of"]

Holds = Iterable[tuple[int, int]]
"""Time of a read (monotonic ns) and hold in ns."""


def holds_of(times: Sequence[int], yielded: Iterable[int], items_ns: Iterable[int], reads: Holds, lags: Holds) -> list[int]:
    """Return the hold in ns of the chunk at each of the ``times``.

    ``yielded``: the indexes of the chunks that were handed over, ``items_ns``: their holds. The hold of a whole read counts for its last
    chunk, and the event loop's lag before a read for the chunk before it.
    """
    holds = [0] * len(times)
    for at, hold_ns in zip(yielded, items_ns, strict=False):
        if at < len(holds):
            holds[at] = hold_ns
    for time_ns, hold_ns in reads:
        if last := bisect_right(times, time_ns):
            holds[last - 1] += hold_ns
    for time_ns, late_ns in lags:
        if before := bisect_left(times, time_ns):
            holds[before - 1] += late_ns
    return holds
