"""Dirty minutes that wait for their computation.

Minutes near the present come first, so that no panel and no alert on the present waits for old minutes, of which a small request can make
many thousands dirty. The others follow in the order in which they were found, so each has its turn, whatever is found later. The module
reads no store and no clock.
"""

from __future__ import annotations

from itertools import islice

import numpy as np
from numpy.typing import NDArray

from legato_ingest.rollups.compute import MINUTES_MAX, pass_with

__all__ = ["RECENT_S", "Backlog", "Progress"]

Progress = tuple[int, int]
"""Everything received up to the first time, and judged up to the second one (Unix ms), is rolled up."""
RECENT_S = 3_600
"""A minute no further from the present is recent. Later ones are not: a clock that is ahead may name any minute of the next day."""


class Backlog:
    """Minutes (Unix s), each with the progress before it was found. Not for several threads at once."""

    def __init__(self) -> None:
        # In the order in which they were found; of one run the newest first.
        self._before: dict[int, Progress] = {}

    def __bool__(self) -> bool:
        """Whether a minute waits."""
        return bool(self._before)

    def add(self, minutes_s: NDArray[np.int64], before: Progress) -> None:
        """Add minutes (ascending). ``before``: the progress until they were looked for, never less than in earlier calls.

        A minute that waits already keeps its place and its progress.
        """
        for minute in reversed(minutes_s.tolist()):
            self._before.setdefault(minute, before)

    def recent(self, now_s: float) -> NDArray[np.int64]:
        """Return the minutes near the present (ascending)."""
        return np.array(sorted(minute for minute in self._before if abs(minute - now_s) <= RECENT_S), np.int64)

    def first(self) -> NDArray[np.int64]:
        """Return one pass (ascending) of the minutes that were found first, with the very first; the backlog must not be empty."""
        first = list(islice(self._before, MINUTES_MAX))
        return pass_with(np.array(sorted(first), np.int64), first[0])

    def remove(self, minutes_s: NDArray[np.int64]) -> None:
        """Remove minutes that were computed; those that do not wait are ignored."""
        for minute in minutes_s.tolist():
            self._before.pop(minute, None)

    def postpone(self, minutes_s: NDArray[np.int64]) -> None:
        """Let minutes that wait have their turn after all others. They keep their progress."""
        for minute in minutes_s.tolist():
            if minute in self._before:
                self._before[minute] = self._before.pop(minute)

    def before(self, minutes_s: NDArray[np.int64], found: Progress) -> Progress:
        """Return the progress before the first of these minutes was found; ``found`` if none waits."""
        return min([found, *(self._before[minute] for minute in minutes_s.tolist() if minute in self._before)])

    def progress(self, found: Progress) -> Progress:
        """Return the progress that excludes no minute that waits; ``found`` if none does."""
        return min([found, *self._before.values()])
