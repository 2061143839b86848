"""The holds of a stream: which chunk each counts for, and how many are kept of a stream that runs for days."""

from __future__ import annotations

from itertools import count

import pytest

from legato import _holds
from legato._holds import Holds, holds_of


def test_each_hold_counts_for_its_chunk() -> None:
    """Holds of items in their order, of a whole read for its last chunk, and a lag for the chunk before the read."""
    times = [10, 20, 20, 30]
    assert holds_of(times, range(4), [1, 2], [(20, 100)], [(30, 1_000)]) == [1, 2, 1_100, 0]
    assert holds_of(times, [1, 3], [1, 2, 3], [], [(10, 9)]) == [0, 1, 0, 2]
    assert holds_of([], range(0), [1], [(1, 1)], [(1, 1)]) == []


@pytest.mark.parametrize("parts", [2, 5])
def test_a_stream_of_days_keeps_the_holds_of_the_chunks_that_it_keeps(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones, of items and of reads, however often they are moved into columns; what is not moved yet counts, too."""
    for name, value in (("CHUNKS_MAX", 100), ("PART", 10), ("_PACK_AT", 20)):
        monkeypatch.setattr(_holds, name, value)
    holds, numbers = Holds(), count(1)
    for _ in range(parts):
        for number in (next(numbers) for _ in range(60)):
            holds.items.append(number)
            holds.reads.append((number, 1_000 * number))
        holds.pack()
    assert len(holds.items) < 20 and len(holds.reads) < 20
    times = list(range(1, 101))
    found = holds.of(times, range(100))
    assert found is not None and found == [1_001 * time_ns for time_ns in times]
    assert all(column is not None and len(column) <= 100 for column in (holds._items, holds._read_times, holds._read_holds))
    holds.forget()
    assert not holds.items and not holds.reads


def test_a_stream_without_holds_has_none() -> None:
    """Unknown is not 0."""
    assert Holds().of([1, 2], range(2)) is None


def test_a_reader_that_goes_on_after_the_end_fills_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more holds are kept than a timeline has chunks, also where the worker no longer looks at them."""
    monkeypatch.setattr(_holds, "CHUNKS_MAX", 100)
    holds = Holds()
    for number in range(1_000):
        holds.items.append(number)
        holds.reads.append((number, 1))
    assert len(holds.items) == len(holds.reads) == 100
