"""Group commit: one thread inserts the rows of many requests and answers each request with the result for its rows.

All batches that wait when the thread becomes free go into one insert, so they share the cost of a synced insert. Only after an insert of
many requests a timer delays the next one.
The committer alone sets ``received_at``. It decodes nothing; it depends on HTTP only by the types of errors that it raises.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from legato_ingest.errors import Overloaded, StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.objectives import Objective
from legato_ingest.otlp.batch import Batch
from legato_ingest.storage import Store
from legato_ingest.storage.watermark import Watermark
from legato_ingest.write.group_insert import GroupInsert, Receipt

__all__ = ["Committer", "Receipt"]

# After an insert of so many requests, the next one begins at the earliest so long after its begin.
_BUSY_REQUESTS, _APART_S = 8, 0.15


@dataclass(slots=True)
class _Waiting:
    """A batch in the queue, with its size in bytes and the future that its request waits for."""

    batch: Batch
    size: int
    future: Future[Receipt]


class Committer:
    """Owns the writing thread. ``queue_bytes_max`` limits the queue, ``chunks_max`` one insert (a larger batch is inserted alone).

    Rows get the time of their insert as ``received_at``. It is later than ``after_ms`` and than every value that ``watermark_ms`` returned
    before. Streams that ended are counted by their objectives; a stream without one has the default limits. ``look_again_s``: where other
    instances write into the same store, rows are compared with theirs once more after this time.
    """

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        *,
        queue_bytes_max: int,
        chunks_max: int,
        after_ms: int = 0,
        objectives: Sequence[Objective] = (),
        look_again_s: float | None = None,
    ) -> None:
        self._metrics = metrics
        self._queue_bytes_max = queue_bytes_max
        metrics.queue_bytes_max.set(queue_bytes_max)
        self._chunks_max = chunks_max
        self._groups = GroupInsert(store, metrics, objectives, look_again_s)
        self._queue: deque[_Waiting] = deque()
        self._queue_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._last_requests, self._last_began_s = 0, 0.0
        self._watermark = Watermark(after_ms, store.clock_ms)
        self._thread = threading.Thread(target=self._run, name="legato-commit", daemon=True)
        self._thread.start()

    def submit(self, batch: Batch) -> Future[Receipt]:
        """Queue the rows of a request. The future is done when they are stored.

        Raises ``Overloaded`` when the queue is full and ``StoreUnavailable`` when the committer is closing; then nothing was queued. The
        future raises ``StoreUnavailable`` when the rows could not be stored.
        """
        size = batch.nbytes
        with self._changed:
            if self._closing:
                raise StoreUnavailable("the server is stopping")
            if self._queue and self._queue_bytes + size > self._queue_bytes_max:
                raise Overloaded(f"{self._queue_bytes} bytes of rows wait to be stored")
            waiting = _Waiting(batch, size, Future())
            self._queue.append(waiting)
            self._add_bytes(size)
            self._changed.notify()
        return waiting.future

    def close(self) -> None:
        """Commit the queue, then stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def use_objectives(self, objectives: Sequence[Objective]) -> None:
        """Count the streams of later inserts by these objectives."""
        self._groups.objectives = objectives

    def watermark_ms(self) -> int:
        """Return the watermark: all rows with a ``received_at`` up to it are stored, and all later rows get a later one."""
        return self._watermark.reached_ms()

    def _add_bytes(self, size: int) -> None:
        self._queue_bytes += size
        self._metrics.queue_bytes.set(self._queue_bytes)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing, self._groups.due_in_s())
                self._gather()
                is_idle, is_closing = not self._queue, self._closing
                group = [] if is_idle else self._next_group()
            if is_idle:
                self._write_waiting(is_closing)
                if is_closing:
                    return
                continue
            if self._commit(group) and self._groups.due_in_s() == 0:
                self._write_waiting(False)
            with self._changed:
                self._add_bytes(-sum(waiting.size for waiting in group))

    def _gather(self) -> None:
        """Under a load, wait until the last insert began 150 ms ago: inserts of many requests cost little more than those of few."""
        if self._last_requests >= _BUSY_REQUESTS:
            self._changed.wait_for(lambda: self._closing, max(0.0, self._last_began_s + _APART_S - time.monotonic()))

    def _write_waiting(self, all_now: bool) -> None:
        """Write what no request waits for: all of it, or what is due. No request fails with it."""
        try:
            with self._watermark.stamp() as received_ms:
                self._groups.write_waiting(received_ms, all_now=all_now)
        except Exception as error:
            self._groups.postpone()
            self._metrics.errors.labels("write_waiting", type(error).__name__).inc()

    def _next_group(self) -> list[_Waiting]:
        self._last_began_s = time.monotonic()
        group = [self._queue.popleft()]
        weight = group[0].batch.weight
        while self._queue and weight + self._queue[0].batch.weight <= self._chunks_max:
            group.append(self._queue.popleft())
            weight += group[-1].batch.weight
        self._last_requests = len(group)
        return group

    def _commit(self, group: list[_Waiting]) -> bool:
        """Insert the group, and return whether it is stored. Every future is done afterwards, with a receipt or an error."""
        started = time.perf_counter()
        try:
            with self._watermark.stamp() as received_ms:
                receipts = self._groups.insert([waiting.batch for waiting in group], received_ms)
        except Exception as error:
            self._metrics.errors.labels("commit", type(error).__name__).inc()
            if not isinstance(error, StoreUnavailable):
                error = StoreUnavailable(f"{type(error).__name__} while committing")
            for waiting in group:
                if waiting.future.set_running_or_notify_cancel():
                    waiting.future.set_exception(error)
            return False
        self._metrics.commit_seconds.observe(time.perf_counter() - started)
        for waiting, receipt in zip(group, receipts, strict=True):
            if waiting.future.set_running_or_notify_cancel():
                waiting.future.set_result(receipt)
        return True
