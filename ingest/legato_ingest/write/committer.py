"""Group commit: one thread inserts the rows of many requests and answers each request with the result for its rows.

All batches that wait when the thread becomes free go into one insert, so they share the cost of a synced insert. With a write-ahead log a
request is answered when its body is in the log, and an insert begins a second after the one before, later while few requests wait, and at
once when a reader asks for it.
The committer alone sets ``received_at``. It decodes nothing; it depends on HTTP only by the types of errors that it raises.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from legato_ingest.errors import Overloaded, StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.objectives import Objective
from legato_ingest.otlp.batch import Batch
from legato_ingest.storage import Store
from legato_ingest.storage.wal import WriteAheadLog
from legato_ingest.storage.watermark import Watermark
from legato_ingest.write.body import Body
from legato_ingest.write.group_insert import GroupInsert, Receipt, receipt_of
from legato_ingest.write.log_writer import LogWriter

__all__ = ["Committer", "Receipt"]

_log = logging.getLogger("legato")
# Without a log: after an insert of so many requests, the next one begins at the earliest so long after its begin.
_BUSY_REQUESTS, _APART_S = 8, 0.15
# With a log: the time between the begins of two inserts if many requests wait, so many requests, and the time if fewer wait. A larger
# number of bytes is inserted at once.
_LOGGED_APART_S, _MANY_REQUESTS, _FEW_APART_S, _QUEUE_BYTES = 1.0, 64, 8.0, 16 * 2**20
# After a failed insert it is repeated after this time. A request that fails so often, and not because the store is away, is set aside.
_RETRY_S, _FAILURES_MAX = 1.0, 3
# The longest time for which a reader waits for the rows of acknowledged requests.
_SETTLE_S = 10.0


@dataclass(slots=True, eq=False)
class _Waiting:
    """A batch in the queue, with its size in bytes and the future that its request waits for.

    With a log: the ``body``, its ``segment`` of the log once it is in the log, and how often its insert has failed for its own fault.
    """

    batch: Batch
    size: int
    future: Future[Receipt]
    body: Body | None = None
    segment: int | None = None
    failures: int = 0


class Committer:
    """Owns the writing thread. ``queue_bytes_max`` limits the queue, ``chunks_max`` one insert (a larger batch is inserted alone).

    Rows get the time of their insert as ``received_at``. It is later than ``after_ms`` and than every value that ``watermark_ms`` returned
    before. Streams that ended are counted by their objectives; a stream without one has the default limits. ``look_again_s``: where other
    instances write into the same store, rows are compared with theirs once more after this time. ``log``: the write-ahead log of a store
    that no other process writes into; the committer closes it.
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
        log: WriteAheadLog | None = None,
    ) -> None:
        self._metrics = metrics
        self._queue_bytes_max = queue_bytes_max
        self._insert_bytes = min(_QUEUE_BYTES, queue_bytes_max // 2)
        metrics.queue_bytes_max.set(queue_bytes_max)
        self._chunks_max = chunks_max
        self._groups = GroupInsert(store, metrics, objectives, look_again_s)
        self._queue: deque[_Waiting] = deque()
        self._queue_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._last_requests, self._last_began_s = 0, 0.0
        # Whether the last insert had no room for all that waited.
        self._is_rest = False
        # The error of the last insert, and the number of batches that were queued, that are finished, and that a reader waits for.
        self._failed: StoreUnavailable | None = None
        self._queued = self._finished = self._wanted = 0
        self._watermark = Watermark(after_ms, store.clock_ms)
        self._log = log
        self._log_writer = LogWriter(log, _logged_form, self._logged, self._refuse) if log is not None else None
        self._thread = threading.Thread(target=self._run, name="legato-commit", daemon=True)
        self._thread.start()

    def submit(self, batch: Batch, body: Body | None = None) -> Future[Receipt]:
        """Queue the rows of a request. The future is done when they are stored, or when the request's ``body`` is in the log.

        Raises ``Overloaded`` when the queue is full and ``StoreUnavailable`` when the committer is closing or, with a log, the last insert
        failed; then nothing was queued. The future raises ``StoreUnavailable`` when the rows, or the body, could not be stored.
        """
        is_logged = self._log_writer is not None and body is not None
        waiting = _Waiting(batch, batch.nbytes + (len(body.content) if is_logged and body else 0), Future(), body if is_logged else None)
        with self._changed:
            if self._closing:
                raise StoreUnavailable("the server is stopping")
            if self._failed is not None and is_logged:
                raise self._failed
            if (self._queue or is_logged) and self._queue_bytes and self._queue_bytes + waiting.size > self._queue_bytes_max:
                raise Overloaded(f"{self._queue_bytes} bytes of rows wait to be stored")
            self._add_bytes(waiting.size)
            if not is_logged:
                self._enqueue([waiting])
        if self._log_writer is not None and is_logged:
            self._log_writer.put(waiting)
        return waiting.future

    def recover(self, batch: Batch, body: Body, segment: int) -> None:
        """Queue the rows of a request that is in the log since before this process."""
        with self._changed:
            waiting = _Waiting(batch, batch.nbytes + len(body.content), Future(), body, segment)
            self._add_bytes(waiting.size)
            self._enqueue([waiting])

    def settle(self) -> None:
        """Wait until the rows of all requests that were acknowledged before are stored, or until that fails. Without a log they are."""
        self.begin_settling()()

    def begin_settling(self) -> Callable[[], None]:
        """Ask for the insert for which ``settle`` waits, without waiting. Return the function that waits."""
        if self._log is None:
            return lambda: None
        with self._changed:
            wanted = self._queued
            if self._finished < wanted and self._failed is None:
                self._wanted = max(wanted, self._wanted)
                self._changed.notify_all()
        return partial(self._wait_for, wanted)

    def _wait_for(self, wanted: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._finished >= wanted or self._failed is not None, _SETTLE_S)

    def close(self) -> None:
        """Commit the queue, then stop. What cannot be committed stays in the log."""
        with self._changed:
            self._closing = True
        if self._log_writer is not None:
            self._log_writer.close()
        with self._changed:
            self._changed.notify_all()
        self._thread.join()
        if self._log is not None:
            self._log.close()

    def use_objectives(self, objectives: Sequence[Objective]) -> None:
        """Count the streams of later inserts by these objectives."""
        self._groups.objectives = objectives

    def watermark_ms(self) -> int:
        """Return the watermark: all rows with a ``received_at`` up to it are stored, and all later rows get a later one."""
        return self._watermark.reached_ms()

    def stamp_after(self, after_ms: int) -> int | None:
        """Return the ``received_at`` of the first insert later than a time (Unix ms), of the last minutes; ``None`` without any."""
        return self._watermark.stamp_after(after_ms)

    def _add_bytes(self, size: int) -> None:
        self._queue_bytes += size
        self._metrics.queue_bytes.set(self._queue_bytes)

    def _enqueue(self, group: Sequence[_Waiting]) -> None:
        before = len(self._queue)
        self._queue.extend(group)
        self._queued += len(group)
        # While the thread waits for the time of the next insert, further batches wake it only if they bring that time nearer.
        is_many = before < _MANY_REQUESTS <= len(self._queue)
        if not before or is_many or self._log is None or self._queue_bytes > self._insert_bytes:
            self._changed.notify_all()

    def _logged(self, group: Sequence[_Waiting], segment: int) -> None:
        """The bodies are in the log: queue the rows, then answer the requests. Called by the log's thread."""
        for waiting in group:
            waiting.segment = segment
        with self._changed:
            self._enqueue(group)
        for waiting in group:
            _answer(waiting, receipt_of(waiting.batch))

    def _refuse(self, group: Sequence[_Waiting], error: Exception) -> None:
        """The bodies could not be written into the log. Called by the log's thread."""
        self._metrics.errors.labels("log", type(error).__name__).inc()
        for waiting in group:
            _answer(waiting, error)
        with self._changed:
            self._add_bytes(-sum(waiting.size for waiting in group))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._wait()
                is_closing = self._closing
            if self._log is not None:
                self._log.rotate()
            with self._changed:
                group = self._next_group() if self._queue else []
            if not group:
                self._write_waiting(is_closing)
                if is_closing:
                    return
                continue
            is_stored = self._commit(group)
            if is_stored and self._groups.due_in_s() == 0:
                self._write_waiting(False)
            if not is_stored and is_closing and self._log is not None:
                # What is left is in the log.
                return

    def _wait(self) -> None:
        """Wait until an insert is due, or something that no request waits for, or until the end."""
        while not self._closing:
            due_s = self._pause_s() if self._queue else self._groups.due_in_s()
            if due_s is not None and due_s <= 0:
                return
            self._changed.wait(due_s)

    def _pause_s(self) -> float:
        """Return the seconds until the next insert: inserts of many requests cost little more than those of few."""
        apart_s = 0.0
        if self._failed is not None:
            apart_s = _RETRY_S
        elif self._log is not None:
            is_wanted = self._wanted > self._finished or self._queue_bytes > self._insert_bytes or self._is_rest
            apart_s = 0.0 if is_wanted else _LOGGED_APART_S if len(self._queue) >= _MANY_REQUESTS else _FEW_APART_S
        elif self._last_requests >= _BUSY_REQUESTS:
            apart_s = _APART_S
        return self._last_began_s + apart_s - time.monotonic() if apart_s else 0.0

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
        # Batches of a group that failed for the fault of one of them are inserted one by one.
        is_alone = bool(group[0].failures)
        while self._queue and not (is_alone or self._queue[0].failures) and weight + self._queue[0].batch.weight <= self._chunks_max:
            group.append(self._queue.popleft())
            weight += group[-1].batch.weight
        self._last_requests, self._is_rest = len(group), bool(self._queue)
        return group

    def _commit(self, group: list[_Waiting]) -> bool:
        """Insert the group, and return whether it is stored. Every future is done afterwards, with a receipt or an error."""
        started = time.perf_counter()
        try:
            with self._watermark.stamp() as received_ms:
                receipts = self._groups.insert([waiting.batch for waiting in group], received_ms)
        except Exception as error:
            self._metrics.errors.labels("commit", type(error).__name__).inc()
            self._fail(group, error)
            return False
        self._metrics.commit_seconds.observe(time.perf_counter() - started)
        for waiting, receipt in zip(group, receipts, strict=True):
            _answer(waiting, receipt)
        for segment, payloads in Counter(waiting.segment for waiting in group if waiting.segment is not None).items():
            if self._log is not None:
                self._log.stored(segment, payloads)
        self._leave(group, None)
        return True

    def _fail(self, group: Sequence[_Waiting], error: Exception) -> None:
        """Answer the requests that wait, and queue again what is in the log."""
        failed = error if isinstance(error, StoreUnavailable) else StoreUnavailable(f"{type(error).__name__} while committing")
        again = [waiting for waiting in group if waiting.segment is not None and not self._is_set_aside(waiting, error)]
        with self._changed:
            self._queue.extendleft(reversed(again))
        gone = [waiting for waiting in group if waiting not in again]
        for waiting in gone:
            _answer(waiting, failed)
        self._leave(gone, failed if again else None)

    def _is_set_aside(self, waiting: _Waiting, error: Exception) -> bool:
        """Set a request aside that has failed too often for its own fault, so that the others are inserted; return whether it was."""
        waiting.failures += not isinstance(error, StoreUnavailable)
        if waiting.failures < _FAILURES_MAX or self._log is None or waiting.body is None or waiting.segment is None:
            return False
        try:
            self._log.set_aside(waiting.segment, waiting.body.logged())
        except StoreUnavailable as full:
            _log.error("a request cannot be inserted and cannot be set aside: %s", full)
            return False
        self._metrics.errors.labels("set_aside", type(error).__name__).inc()
        _log.error("a request was set aside: its insert fails; it is tried again after the next start", exc_info=error)
        return True

    def _leave(self, group: Sequence[_Waiting], failed: StoreUnavailable | None) -> None:
        """Take note that batches have left the committer. ``failed``: the error of the insert, if it is repeated."""
        with self._changed:
            self._failed = failed
            self._finished += len(group)
            self._add_bytes(-sum(waiting.size for waiting in group))
            self._changed.notify_all()


def _logged_form(waiting: _Waiting) -> bytes:
    return waiting.body.logged() if waiting.body is not None else b""


def _answer(waiting: _Waiting, result: Receipt | Exception) -> None:
    """Give a request its result, unless it has one."""
    if waiting.future.done() or not waiting.future.set_running_or_notify_cancel():
        return
    if isinstance(result, Exception):
        waiting.future.set_exception(result)
    else:
        waiting.future.set_result(result)
