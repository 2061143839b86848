"""The hold of each chunk: the time for which the application, or its event loop, kept the stream waiting.

The reader appends; the worker moves what it finds into columns, which take a fraction of the memory. A stream that runs for days has no
more holds than its timeline has chunks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from sys import maxsize

from legato._pace import breathe
from legato._records import listed
from legato._timeline import CHUNKS_MAX, PART, parts_of

__all__ = ["Holds", "holds_of"]

Pairs = Sequence[tuple[int, int]]
"""Time of a read (monotonic ns) and hold in ns."""
_PACK_AT = 4096


class Holds:
    """The holds of one stream. ``items``: of each item that was handed over, in order. ``reads``: of whole reads, with their times.
    ``lags``: the event loop's lag before a read, with its time. The thread that reads appends to them.
    """

    __slots__ = ("_items", "_read_holds", "_read_times", "items", "lags", "reads")

    def __init__(self) -> None:
        # Without a bound, a reader that goes on after the end would fill it.
        self.items: deque[int] = deque(maxlen=CHUNKS_MAX)
        self.reads: deque[tuple[int, int]] = deque(maxlen=CHUNKS_MAX)
        self.lags: deque[tuple[int, int]] = deque(maxlen=CHUNKS_MAX)
        # Columns of a stream that has many, made when it has.
        self._items: array[int] | None = None
        self._read_times: array[int] | None = None
        self._read_holds: array[int] | None = None

    def pack(self) -> None:
        """Move many that were appended into the columns. They keep the first: the newest holds of a full timeline have no chunk."""
        while len(self.items) >= _PACK_AT:
            self._items = _extended(self._items, [self.items.popleft() for _ in range(PART)])
            breathe()
        while len(self.reads) >= _PACK_AT:
            pairs = [self.reads.popleft() for _ in range(PART)]
            self._read_times = _extended(self._read_times, [time_ns for time_ns, _ in pairs])
            self._read_holds = _extended(self._read_holds, [hold_ns for _, hold_ns in pairs])
            breathe()

    def of(self, times: Sequence[int], yielded: Sequence[int]) -> list[int] | None:
        """Return the hold of the chunk at each of the ``times``; ``None`` if there was none."""
        items, reads, lags = listed(self.items), listed(self.reads), listed(self.lags)
        if not (items or reads or lags or self._items or self._read_times):
            return None
        if self._items is not None:
            items = [*self._items, *items]
        holds = holds_of(times, yielded, items, reads, lags)
        for at, part in parts_of(self._read_times or ()):
            _add_reads(holds, times, zip(part, (self._read_holds or ())[at : at + len(part)], strict=True))
        return holds

    def forget(self) -> None:
        """Forget what is appended after the end."""
        self.items.clear()
        self.reads.clear()


def _extended(column: array[int] | None, values: list[int]) -> array[int]:
    found = array("q") if column is None else column
    found.extend(values[: CHUNKS_MAX - len(found)])
    return found


def holds_of(times: Sequence[int], yielded: Sequence[int], items_ns: Sequence[int], reads: Pairs, lags: Pairs) -> list[int]:
    """Return the hold in ns of the chunk at each of the ``times``.

    ``yielded``: the indexes of the chunks that were handed over, ``items_ns``: their holds. The hold of a whole read counts for its last
    chunk, and the event loop's lag before a read for the chunk before it.
    """
    holds = [0] * len(times)
    for first, part in parts_of(items_ns):
        places = yielded[first : first + len(part)]
        if isinstance(places, range) and places:
            holds[places.start : places.stop] = part[: len(places)]
            continue
        for at, hold_ns in zip(places, part, strict=False):
            holds[at] = hold_ns
    for _, pairs in parts_of(reads):
        _add_reads(holds, times, pairs)
    end_ns = _end_ns(times)
    for _, pairs in parts_of(lags):
        for time_ns, late_ns in pairs:
            if (before := bisect_left(times, time_ns)) and time_ns <= end_ns:
                holds[before - 1] += late_ns
    return holds


def _end_ns(times: Sequence[int]) -> int:
    """Return the time up to which reads have chunks in a timeline: for ever, unless it is full."""
    return times[-1] if len(times) >= CHUNKS_MAX else maxsize


def _add_reads(holds: list[int], times: Sequence[int], pairs: Iterable[tuple[int, int]]) -> None:
    end_ns = _end_ns(times)
    for time_ns, hold_ns in pairs:
        if (last := bisect_right(times, time_ns)) and time_ns <= end_ns:
            holds[last - 1] += hold_ns
