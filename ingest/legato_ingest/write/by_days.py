"""The division of batches by the days of their rows: late rows are inserted a day at a time.

Nothing is inserted or queued here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from legato_ingest.columns import REJECTED
from legato_ingest.otlp.batch import DAY_NS, Batch
from legato_ingest.otlp.budget import recent_days

__all__ = ["Divided", "by_day", "is_late"]

# The tables of a batch with the time that decides on a row's day.
_TIMES = {
    "revs": "start_time",
    "sockets": "start_time",
    "silences": "recorded_at",
    "steps": "recorded_at",
    "requests": "recorded_at",
    "samples": "recorded_at",
}


def is_late(batch: Batch, now_ns: int) -> bool:
    """Return whether a batch has rows of other days than today and yesterday."""
    recent = recent_days(now_ns)
    return any(day not in recent for _, day in batch.days)


def by_day(batches: Sequence[Batch]) -> Iterator[list[Batch]]:
    """Yield the rows of these batches one day after another, as one batch each.

    What belongs to no day is in the last, because it would be counted again if a later day could not be inserted.
    """
    days = sorted({day for batch in batches for _, day in batch.days})
    divided = [Divided(batch) for batch in batches]
    for number, day in enumerate(days):
        yield [each.part({day}, is_last=number == len(days) - 1) for each in divided]


class Divided:
    """A batch, and the day of each row in each of its tables."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._days: dict[str, Any] = {}
        for name, column in _TIMES.items():
            rows = getattr(batch, name)
            if rows.num_rows:
                self._days[name] = rows[column].combine_chunks().cast(pa.int64()).to_numpy() // DAY_NS

    def part(self, wanted: Collection[int], *, is_last: bool) -> Batch:
        """Return the rows of these days. The last part also has the rejections and the counts of senders."""
        tables: dict[str, pa.Table] = {}
        for name, days in self._days.items():
            rows, mask = getattr(self._batch, name), np.isin(days, list(wanted))
            tables[name] = rows if mask.all() else rows.filter(pa.array(mask)) if np.any(mask) else rows.slice(0, 0)
        revs, steps = tables.get("revs", self._batch.revs), tables.get("steps", self._batch.steps)
        chunks = (pc.sum(pc.list_value_length(revs["dt_us"])).as_py() or 0) + steps.num_rows
        touched = frozenset(each for each in self._batch.days if each[1] in wanted)
        part = replace(self._batch, **tables, chunks=chunks, size_bytes=0, days=touched)
        return part if is_last else replace(part, rejected=REJECTED.empty, unlisted=Counter(), senders=Counter())
