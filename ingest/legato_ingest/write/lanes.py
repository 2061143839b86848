"""The two queues of the committer, and the parts in which late rows are inserted.

Each day of each table that an insert touches is a separate part on the disk and takes some 20 ms. Rows of today and yesterday (UTC) touch
few parts, however many requests bring them. Requests with other rows wait in the late lane. They are inserted together, a day at a time, so
that requests of now never wait for more than one day. The rows of now of a late request are also a separate batch in the first lane. The
module inserts nothing and knows no thread.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from legato_ingest.columns import REJECTED
from legato_ingest.otlp.batch import DAY_NS, Batch
from legato_ingest.otlp.budget import recent_days
from legato_ingest.shares import Shares
from legato_ingest.storage.wal import Payload
from legato_ingest.write.body import Entry
from legato_ingest.write.group_insert import Receipt

__all__ = ["LATE_DAYS_MAX", "Lane", "Lanes", "LatePauses", "Waiting", "by_day", "is_late", "size_of"]

# Days of tables that the requests of one group touch, unless a single request touches more.
LATE_DAYS_MAX = 64
# Late rows may take so much of the queue; from half of that on they are inserted without the long pause.
_LATE_SHARE = 0.5
# Rows of one insert, in bytes: they are in memory several times until they are stored. A larger batch is inserted alone.
_INSERT_BYTES_MAX = 64 * 2**20
# Late batches of one insert: each is divided by days, which takes half a millisecond a day.
_LATE_BATCHES_MAX = 1_000
# Memory of the tables of a batch beside their rows. It is counted for late batches, which wait for seconds.
_BATCH_BYTES = 64 * 1024
_answering = threading.Lock()
# The tables of a batch with the time that decides on a row's day.
_TIMES = {
    "revs": "start_time",
    "sockets": "start_time",
    "silences": "recorded_at",
    "steps": "recorded_at",
    "requests": "recorded_at",
    "samples": "recorded_at",
}


@dataclass(slots=True, eq=False)
class Waiting:
    """A batch of a tenant in a queue, with its size in bytes and the future that its request waits for; several threads may ``answer``.

    ``entry``: the body of its request. With a log: how often its insert has failed for its own fault.
    ``early``: the rows of now of a late batch, inserted before it; no request waits for them, and if they are not stored, they still are in
    the ``whole`` batch.
    """

    batch: Batch
    size: int
    future: Future[Receipt]
    is_late: bool
    tenant: str = ""
    entry: Entry | None = None
    failures: float = 0
    early: Waiting | None = None
    whole: Waiting | None = None
    is_answered: bool = False

    @classmethod
    def of(cls, batch: Batch, now_ns: int, entry: Entry | None) -> Waiting:
        """Return a batch of a request, divided if it has rows of now and late ones."""
        tenant = entry.body.tenant if entry is not None else ""
        waiting = cls(batch, size_of(batch, now_ns), Future(), is_late(batch, now_ns), tenant, entry)
        recent = {day for _, day in batch.days}.intersection(recent_days(now_ns))
        if waiting.is_late and recent:
            early = _Divided(batch).part(recent, is_last=False)
            waiting.early = cls(early, early.nbytes, Future(), False, tenant, whole=waiting)
        return waiting

    @property
    def is_logged(self) -> bool:
        """Whether the body is in the log."""
        return self.entry is not None and self.entry.segment is not None

    @property
    def row_bytes(self) -> int:
        """The bytes of the rows."""
        return self.size - self.is_late * _BATCH_BYTES

    def logged_form(self) -> Payload:
        """Return what is written into the log."""
        return self.entry.body.logged() if self.entry is not None else b""

    def parts(self) -> Iterator[Waiting]:
        """Yield the batch, and its early rows."""
        yield self
        if self.early is not None:
            yield self.early

    def answer(self, result: Receipt | Exception) -> None:
        """Give the request its result, unless it has one. The thread of the log and that of the inserts may do so at the same time."""
        with _answering:
            is_first, self.is_answered = not self.is_answered, True
        if not is_first or not self.future.set_running_or_notify_cancel():
            return
        if isinstance(result, Exception):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)

    def stored(self) -> None:
        """Take note that the batch is stored: early rows are left out of the whole batch."""
        if self.whole is not None:
            whole = self.whole.batch
            self.whole.batch = _Divided(whole).part({day for _, day in whole.days - self.batch.days}, is_last=True)


class Lane:
    """One queue. ``held`` are the bytes of tenants that were accepted for it, with their bodies; ``row_bytes`` those of its rows.

    ``finished`` of ``queued`` batches are finished, and a reader waits for the first ``wanted``. Not thread-safe.
    """

    def __init__(self, bytes_max: int, days_max: int | None = None) -> None:
        self._days_max = days_max
        self._waiting: deque[Waiting] = deque()
        self.held = Shares(bytes_max)
        self.queued = self.finished = self.wanted = self.row_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_wanted(self) -> bool:
        """Whether a reader waits for a batch."""
        return self.wanted > self.finished

    def want(self) -> int:
        """Take note that a reader waits for all batches that are queued, and return their number."""
        if self.finished < self.queued:
            self.wanted = max(self.wanted, self.queued)
        return self.queued

    def put(self, group: Sequence[Waiting]) -> None:
        """Queue batches."""
        self._waiting.extend(group)
        self.queued += len(group)

    def drain(self) -> list[Waiting]:
        """Remove and return all batches."""
        drained = list(self._waiting)
        self._waiting.clear()
        return drained

    def put_back(self, group: Sequence[Waiting]) -> None:
        """Queue batches of a failed insert again, before all others."""
        self._waiting.extendleft(reversed(group))

    def finish(self, group: Sequence[Waiting]) -> None:
        """Take note that batches have left the committer."""
        self.finished += len(group)

    def take(self, chunks_max: int) -> list[Waiting]:
        """Remove and return the batches of the next insert: as many as fit, at least one.

        Batches of a group that failed for the fault of one of them are inserted one by one.
        """
        group = [self._waiting.popleft()]
        weight, size, days = group[0].batch.weight, group[0].row_bytes, set(group[0].batch.days)
        is_alone = group[0].failures >= 1
        while self._waiting and not (is_alone or self._waiting[0].failures >= 1):
            batch, size = self._waiting[0].batch, size + self._waiting[0].row_bytes
            is_spread = self._days_max is not None and (
                len(days | batch.days) > max(self._days_max, len(days)) or len(group) >= _LATE_BATCHES_MAX
            )
            if is_spread or weight + batch.weight > chunks_max or size > _INSERT_BYTES_MAX:
                break
            group.append(self._waiting.popleft())
            weight += batch.weight
            days |= batch.days
        return group


class Lanes:
    """The lane of rows of today and yesterday, that of late rows, and the bytes that wait in both. Not thread-safe.

    A body is counted from its first batch until none is open, in the lane of the first.
    """

    def __init__(self, bytes_max: int) -> None:
        self.now, self.late = Lane(bytes_max), Lane(int(_LATE_SHARE * bytes_max), LATE_DAYS_MAX)
        self._held = Shares(bytes_max)
        self._bodies = dict[Entry, Lane]()

    @property
    def bytes(self) -> int:
        """Bytes that were accepted for both lanes."""
        return self._held.total

    def of(self, waiting: Waiting) -> Lane:
        """Return the lane of a batch."""
        return self.late if waiting.is_late else self.now

    def hold(self, group: Iterable[Waiting], sign: int = 1) -> None:
        """Count the bytes of batches that were accepted, or with -1 of those that have left."""
        for waiting in group:
            lane = self.of(waiting)
            lane.row_bytes += sign * waiting.size
            for held in (lane.held, self._held):
                held.add(waiting.tenant, sign * waiting.size)

    def hold_body(self, waiting: Waiting) -> None:
        """Count the body of a batch that was accepted, unless it is counted."""
        if waiting.entry is not None and waiting.entry not in self._bodies:
            self._bodies[waiting.entry] = lane = self.of(waiting)
            self._count_body(waiting.entry, lane, 1)

    def release_body(self, entry: Entry) -> None:
        """Count a body no longer."""
        if (lane := self._bodies.pop(entry, None)) is not None:
            self._count_body(entry, lane, -1)

    def _count_body(self, entry: Entry, lane: Lane, sign: int) -> None:
        for held in (lane.held, self._held):
            held.add(entry.body.tenant, sign * len(entry.body.content))

    def why_full(self, size: int, *, is_late: bool, entry: Entry | None, has_log: bool, in_lane: bool = False) -> str:
        """Return what fills the lanes if there is no room for a batch of this size, else an empty text.

        A batch without a log has room if no other waits. ``in_lane``: only the lane of the batch counts, not both together.
        """
        tenant, body_bytes, own_lane, lane = "", 0, None, self.late if is_late else self.now
        if entry is not None:
            tenant, body_bytes, own_lane = entry.body.tenant, len(entry.body.content), self._bodies.get(entry)
        # A body that is counted is what the request has already; another one comes with this batch.
        own, size = (body_bytes, size) if own_lane is not None else (0, size + body_bytes)
        if not in_lane and (self.now or self.late or has_log) and not self._held.has_room(tenant, size, own):
            return f"{self._held.total} bytes of rows wait to be stored"
        if (is_late or in_lane) and not lane.held.has_room(tenant, size, own if own_lane is lane else 0):
            return f"{lane.held.total} bytes of rows of {'earlier' if is_late else 'these'} days wait to be stored"
        return ""


class LatePauses:
    """The pauses after inserts of late rows: most of the time is for rows of now. The pause is shorter if something waits for late rows."""

    _APART_S, _WANTED_S = 8.0, 1.0
    # After an insert that took long: so many times its duration, at most so long.
    _TIMES, _LONG_S, _MOST_S = 4.0, 0.5, 10.0

    def __init__(self) -> None:
        self._ended_s = self._took_s = 0.0

    def ended(self, took_s: float) -> None:
        """Take note that an insert of late rows has ended now, and how long it took."""
        self._ended_s, self._took_s = time.monotonic(), took_s

    def left_s(self, is_urgent: bool) -> float:
        """Return the seconds until the next insert. ``is_urgent``: a reader or a request waits for it, or the queue is half full."""
        apart_s = self._WANTED_S if is_urgent else self._APART_S
        if self._took_s > self._LONG_S:
            apart_s = max(apart_s, min(self._TIMES * self._took_s, self._MOST_S))
        return self._ended_s + apart_s - time.monotonic()


def is_late(batch: Batch, now_ns: int) -> bool:
    """Return whether a batch has rows of other days than today and yesterday."""
    recent = recent_days(now_ns)
    return any(day not in recent for _, day in batch.days)


def size_of(batch: Batch, now_ns: int) -> int:
    """Return the bytes that a batch is counted with in the lanes."""
    return batch.nbytes + is_late(batch, now_ns) * _BATCH_BYTES


def by_day(batches: Sequence[Batch]) -> Iterator[list[Batch]]:
    """Yield the rows of these batches one day after another, as one batch each.

    What belongs to no day is in the last, because it would be counted again if a later day could not be inserted.
    """
    days = sorted({day for batch in batches for _, day in batch.days})
    divided = [_Divided(batch) for batch in batches]
    for number, day in enumerate(days):
        yield [each.part({day}, is_last=number == len(days) - 1) for each in divided]


class _Divided:
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
