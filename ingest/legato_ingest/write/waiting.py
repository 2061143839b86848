"""A batch that waits for its insert, and the answer to its request. The module queues and inserts nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from legato_ingest.otlp.batch import Batch
from legato_ingest.otlp.budget import recent_days
from legato_ingest.storage.wal import Payload
from legato_ingest.write.body import Entry
from legato_ingest.write.by_days import Divided, is_late
from legato_ingest.write.group_insert import Receipt

__all__ = ["Waiting", "size_of"]

# Memory of the tables of a batch beside their rows. It is counted for late batches, which wait for seconds.
_BATCH_BYTES = 64 * 1024
_answering = threading.Lock()


@dataclass(slots=True, eq=False)
class Waiting:
    """A batch of a tenant in a queue, with its size in bytes and the future that its request waits for; several threads may ``answer``.

    ``entry``: the body of its request. ``blame``: the points of its failed inserts (``set_aside``), with a log.
    ``early``: the rows of now of a late batch, inserted before it; no request waits for them, and if they are not stored, they still are in
    the ``whole`` batch. ``is_alone``: it has failed alone; no reader waits for it. ``is_at_fault``: and that counts against it, for others
    were stored. ``refused_after``: the inserts that had ended well when the store last did not take it. ``number``: its place in the lane,
    from 1.
    """

    batch: Batch
    size: int
    future: Future[Receipt]
    is_late: bool
    tenant: str = ""
    entry: Entry | None = None
    blame: int = 0
    early: Waiting | None = None
    whole: Waiting | None = None
    is_answered: bool = False
    is_alone: bool = False
    is_at_fault: bool = False
    refused_after: int | None = None
    number: int = 0

    @classmethod
    def of(cls, batch: Batch, now_ns: int, entry: Entry | None) -> Waiting:
        """Return a batch of a request, divided if it has rows of now and late ones."""
        tenant = entry.body.tenant if entry is not None else ""
        waiting = cls(batch, size_of(batch, now_ns), Future(), is_late(batch, now_ns), tenant, entry)
        recent = {day for _, day in batch.days}.intersection(recent_days(now_ns))
        if waiting.is_late and recent:
            early = Divided(batch).part(recent, is_last=False)
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
            self.whole.batch = Divided(whole).part({day for _, day in whole.days - self.batch.days}, is_last=True)


def size_of(batch: Batch, now_ns: int) -> int:
    """Return the bytes that a batch is counted with in the lanes."""
    return batch.nbytes + is_late(batch, now_ns) * _BATCH_BYTES
