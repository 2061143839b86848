"""Group commit: one thread inserts the rows of many requests and answers each request with the result for its rows.

All batches that wait when the thread becomes free go into one insert, so they share the cost of a synced insert. With a write-ahead log a
request is answered when its body is in the log, and an insert begins a second after the one before, later while few requests wait, and at
once when a reader asks for it. Requests with late rows have a separate queue (``lanes``), and those of now are inserted in between.
The committer alone sets ``received_at``. It decodes nothing; it depends on HTTP only by the types of errors that it raises.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from legato_ingest.errors import Overloaded, StoreRestarting, StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.objectives import Objective
from legato_ingest.otlp.batch import Batch
from legato_ingest.storage import Store
from legato_ingest.storage.wal import WriteAheadLog
from legato_ingest.storage.watermark import Watermark
from legato_ingest.write.body import Entry
from legato_ingest.write.group_insert import GroupInsert, Receipt, receipt_of
from legato_ingest.write.lanes import Lanes, LatePauses, Waiting, by_day, is_late, size_of
from legato_ingest.write.log_writer import LogWriter
from legato_ingest.write.set_aside import is_set_aside
from legato_ingest.write.settling import Settling

__all__ = ["Committer", "Receipt"]

_log = logging.getLogger("legato")
# Without a log: after an insert of so many requests, the next one begins so long after its begin at the earliest.
_BUSY_REQUESTS, _APART_S = 8, 0.15
# With a log: the time between the begins of two inserts if many requests wait, so many requests, and the time if fewer wait. A larger
# number of bytes is inserted at once.
_LOGGED_APART_S, _MANY_REQUESTS, _FEW_APART_S, _QUEUE_BYTES = 1.0, 64, 8.0, 16 * 2**20
# After a failed insert it is repeated after this time.
_RETRY_S = 1.0


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
        self._metrics, self._chunks_max = metrics, chunks_max
        self._insert_bytes = min(_QUEUE_BYTES, queue_bytes_max // 2)
        metrics.queue_bytes_max.set(queue_bytes_max)
        self._groups = GroupInsert(store, metrics, objectives, look_again_s)
        self._lanes = Lanes(queue_bytes_max)
        self._now, self._late = self._lanes.now, self._lanes.late
        self._changed, self._closing, self._log = threading.Condition(), False, log
        # Of the last insert: its requests, its begin, and whether it had no room for all that waited.
        self._last_requests, self._last_began_s, self._is_rest = 0, 0.0, False
        # ``all_stored``: bodies of which every batch was stored before ``finish``. The thread removes them from the log.
        self._late_pauses, self._inserting, self._all_stored = LatePauses(), list[Waiting](), list[Entry]()
        # The error of the last insert of rows of now, and that of all requests since a thread has ended.
        self._failed: StoreUnavailable | None = None
        self._broken: StoreUnavailable | None = None
        self._watermark = Watermark(after_ms, store.clock_ms)
        self._log_writer = LogWriter(log, Waiting.logged_form, self._logged, self._refuse, self._break_off) if log is not None else None
        self._settling = Settling(self._changed, self._lanes, lambda: self._failed is not None)
        self._thread = threading.Thread(target=self._run, name="legato-commit", daemon=True)
        self._thread.start()

    def submit(self, batch: Batch, entry: Entry | None = None) -> Future[Receipt]:
        """Queue rows of a request. The future is done when they are stored, or when the body of ``entry`` is in the log.

        Of a body with several batches, the first is in the log before the second is submitted; after the last, ``finish`` the entry.
        Raises ``Overloaded`` when the queue is full and ``StoreUnavailable`` when the committer is closing or, with a log, the last insert
        failed; then nothing was queued. The future raises ``StoreUnavailable`` when the rows, or the body, could not be stored.
        """
        has_log = self._log_writer is not None and entry is not None
        waiting = Waiting.of(batch, time.time_ns(), entry)
        with self._changed:
            if (failed := self._failed) is not None and (has_log or self._closing):
                # Not the error itself: raised again and again, it would keep these requests.
                raise StoreUnavailable(str(failed), failed.code)
            if self._closing:
                raise StoreUnavailable("the server is stopping")
            if why_full := self._lanes.why_full(waiting.size, is_late=waiting.is_late, entry=entry, has_log=has_log):
                raise Overloaded(why_full)
            self._accept(waiting, is_queued=waiting.is_logged or not has_log)
        if waiting.is_logged:
            waiting.answer(receipt_of(batch))
        elif self._log_writer is not None and has_log:
            self._log_writer.put(waiting)
        return waiting.future

    def has_room(self, batch: Batch, entry: Entry, *, in_lane: bool = False) -> bool:
        """Return whether a further batch of a body would not be refused for want of room now; ``in_lane``: in its lane alone."""
        size, late = size_of(batch, time.time_ns()), is_late(batch, time.time_ns())
        with self._changed:
            why_full = self._lanes.why_full(size, is_late=late, entry=entry, has_log=self._log is not None, in_lane=in_lane)
            return not why_full or self._closing or (self._failed is not None and not in_lane)

    def recover(self, batch: Batch, entry: Entry) -> None:
        """Queue rows of a request that is in the log since before this process, whether there is room or not."""
        with self._changed:
            self._accept(Waiting.of(batch, time.time_ns(), entry), is_queued=True)

    def finish(self, entry: Entry) -> None:
        """Take note that no further batch of a body is submitted."""
        with self._changed:
            if all_stored := self._count_down([entry]):
                self._all_stored += all_stored
                self._changed.notify_all()

    def settle(self) -> None:
        """Wait until the rows of all requests that were acknowledged before are stored, or until that fails. Without a log they are."""
        self.begin_settling()()

    def begin_settling(self, stale_max_s: float = 0.0) -> Callable[[], None]:
        """Ask for the insert for which ``settle`` waits, without waiting. Return the function that waits (``settling``)."""
        return self._settling.begin(stale_max_s) if self._log is not None else lambda: None

    def close(self) -> None:
        """Commit the queue, then stop. What cannot be committed stays in the log."""
        with self._changed:
            self._closing = True
        if self._log_writer is not None:
            self._log_writer.close()
        with self._changed:
            self._changed.notify_all()
        self._thread.join()
        self._leave_log(self._all_stored)
        if self._log is not None:
            self._log.close()

    def expect_accepting(self) -> None:
        """Raise ``StoreUnavailable`` if requests are refused, because the last insert failed or the log cannot be written."""
        if (failed := self._failed) is not None and (self._log is not None or self._closing):
            raise StoreUnavailable(str(failed), failed.code)
        if self._log is not None:
            self._log.check()

    def use_objectives(self, objectives: Sequence[Objective]) -> None:
        """Count the streams of later inserts by these objectives."""
        self._groups.objectives = objectives

    def watermark_ms(self) -> int:
        """Return the watermark: all rows with a ``received_at`` up to it are stored, and all later rows get a later one."""
        return self._watermark.reached_ms()

    def stamp_after(self, after_ms: int) -> int | None:
        """Return the ``received_at`` of the first insert later than a time (Unix ms), of the last minutes; ``None`` without any."""
        return self._watermark.stamp_after(after_ms)

    def _accept(self, waiting: Waiting, *, is_queued: bool) -> None:
        self._lanes.hold_body(waiting)
        self._hold(waiting.parts())
        if waiting.entry is not None:
            waiting.entry.open += 1
        if is_queued:
            self._enqueue([waiting])

    def _hold(self, group: Iterable[Waiting], sign: int = 1) -> None:
        """Count the bytes of batches that were accepted, or with -1 of those that have left."""
        self._lanes.hold(group, sign)
        self._metrics.queue_bytes.set(self._lanes.bytes)

    def _enqueue(self, group: Sequence[Waiting]) -> None:
        parts = [part for waiting in group for part in waiting.parts()]
        before, late = len(self._now), [part for part in parts if part.is_late]
        self._now.put([part for part in parts if not part.is_late])
        self._late.put(late)
        # While the thread waits for the time of the next insert, further batches wake it only if they bring that time nearer.
        is_many = before < _MANY_REQUESTS <= len(self._now)
        if not before or is_many or self._log is None or late or self._now.row_bytes > self._insert_bytes:
            self._changed.notify_all()

    def _logged(self, group: Sequence[Waiting], segment: int) -> None:
        """The bodies are in the log: queue the rows, then answer the requests. Called by the log's thread."""
        with self._changed:
            for waiting in group:
                if waiting.entry is not None:
                    waiting.entry.segment = segment
            self._enqueue(group)
        for waiting in group:
            waiting.answer(receipt_of(waiting.batch))

    def _refuse(self, group: Sequence[Waiting], error: Exception) -> None:
        """The bodies could not be written into the log. Called by the log's thread."""
        self._metrics.errors.labels("log", type(error).__name__).inc()
        for waiting in group:
            waiting.answer(error)
        with self._changed:
            self._count_down(waiting.entry for waiting in group)
            self._hold((part for waiting in group for part in waiting.parts()), -1)

    def _run(self) -> None:
        try:
            self._insert_until_closed()
        except BaseException as error:
            self._break_off(error, self._inserting)

    def _break_off(self, error: BaseException, left: Sequence[Waiting]) -> None:
        """Refuse all requests from now on, and those that wait: a thread has ended by an internal error. ``left``: what it had at hand.

        What is in the log is inserted after the next start.
        """
        failed = StoreUnavailable("inserts ended by an internal error: restart `legato serve`")
        with self._changed:
            self._failed, self._broken, self._closing = failed, failed, True
            waiting = [*left, *self._now.drain(), *self._late.drain()]
            self._changed.notify_all()
        for each in waiting:
            each.answer(failed)
        self._metrics.errors.labels("commit", type(error).__name__).inc()
        _log.critical("a thread that stores requests ended by an internal error: restart `legato serve`", exc_info=error)

    def _insert_until_closed(self) -> None:
        while True:
            with self._changed:
                self._wait()
                is_closing, all_stored, self._all_stored = self._closing, self._all_stored, []
            self._leave_log(all_stored)
            self._inserting = group = self._next_late() or self._next_group()
            if not group:
                self._write_waiting(is_closing)
                if is_closing:
                    return
                continue
            is_stored = self._commit_late(group) if group[0].is_late else self._commit(group)
            if is_stored and self._groups.due_in_s() == 0:
                self._write_waiting(False)
            if not is_stored and is_closing and self._log is not None:
                # What is left is in the log.
                return

    def _wait(self) -> None:
        """Wait until an insert is due, or something that no request waits for, or until the end."""
        while not self._closing and not self._all_stored:
            pauses_s = [pause_s() for lane, pause_s in ((self._now, self._pause_s), (self._late, self._late_pause_s)) if lane]
            due_s = min(pauses_s) if pauses_s else self._groups.due_in_s()
            if due_s is not None and due_s <= 0:
                return
            self._changed.wait(due_s)

    def _pause_s(self) -> float:
        """Return the seconds until the next insert: inserts of many requests cost little more than those of few."""
        apart_s = 0.0
        if self._failed is not None:
            apart_s = _RETRY_S
        elif self._log is not None:
            is_wanted = self._now.is_wanted or self._now.row_bytes > self._insert_bytes or self._is_rest
            apart_s = 0.0 if is_wanted else _LOGGED_APART_S if len(self._now) >= _MANY_REQUESTS else _FEW_APART_S
        elif self._last_requests >= _BUSY_REQUESTS:
            apart_s = _APART_S
        return self._last_began_s + apart_s - time.monotonic() if apart_s else 0.0

    def _late_pause_s(self) -> float:
        is_full = 2 * self._late.row_bytes > self._late.held.most
        return self._late_pauses.left_s(self._late.is_wanted or self._log is None or is_full)

    def _write_waiting(self, all_now: bool) -> None:
        """Write what no request waits for: all of it, or what is due. No request fails with it."""
        try:
            with self._watermark.stamp() as received_ms:
                self._groups.write_waiting(received_ms, all_now=all_now)
        except Exception as error:
            self._groups.postpone()
            self._metrics.errors.labels("write_waiting", type(error).__name__).inc()

    def _next_group(self, at_once: bool = False) -> list[Waiting]:
        """Return the next group of batches of now; none while its insert is not due, unless it is wanted at once."""
        if self._log is not None:
            self._log.rotate()
        with self._changed:
            if not self._now or not (at_once or self._closing or self._pause_s() <= 0):
                return []
            self._last_began_s = time.monotonic()
            group = self._now.take(self._chunks_max)
            self._last_requests, self._is_rest = len(group), bool(self._now)
            return group

    def _next_late(self) -> list[Waiting]:
        """Return the next group of batches with late rows; none while its insert is not due."""
        with self._changed:
            is_due = bool(self._late) and (self._closing or self._late_pause_s() <= 0)
            return self._late.take(self._chunks_max) if is_due else []

    def _commit(self, group: list[Waiting]) -> bool:
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
        self._stored(group, receipts)
        return True

    def _commit_late(self, group: list[Waiting]) -> bool:
        """Insert a group with late rows a day at a time, and groups of now that become due between two days. Return as ``_commit`` does."""
        receipts, took_s, failed = [Receipt() for _ in group], 0.0, None
        # The rows of now of this group come first, and are then left out of it.
        self._commit_due(group, at_once=any(each.early is not None and not each.early.future.done() for each in group))
        parts = by_day([waiting.batch for waiting in group])
        while failed is None:
            try:
                part = next(parts, None)
            except Exception as error:
                failed = error
                break
            if part is None:
                break
            self._commit_due(group)
            began_s = time.monotonic()
            try:
                with self._watermark.stamp() as received_ms:
                    for receipt, more in zip(receipts, self._groups.insert(part, received_ms), strict=True):
                        receipt.add(more)
            except Exception as error:
                failed = error
            else:
                took_s += time.monotonic() - began_s
        self._late_pauses.ended(took_s)
        if failed is None:
            self._stored(group, receipts)
            return True
        self._metrics.errors.labels("commit", type(failed).__name__).inc()
        self._fail(group, failed)
        return False

    def _commit_due(self, group: list[Waiting], at_once: bool = False) -> None:
        """Insert the group of now that is due, if any, while a late group is inserted."""
        if due := self._next_group(at_once):
            self._inserting = [*group, *due]
            self._commit(due)
            self._inserting = group

    def _stored(self, group: Sequence[Waiting], receipts: Sequence[Receipt]) -> None:
        """Answer the requests of a group that is stored."""
        for waiting, receipt in zip(group, receipts, strict=True):
            waiting.answer(receipt)
            waiting.stored()
        with self._changed:
            all_stored = self._count_down(waiting.entry for waiting in group)
        self._leave_log(all_stored)
        self._leave(group[0].is_late, group, None)

    def _fail(self, group: Sequence[Waiting], error: Exception) -> None:
        """Answer the requests that wait, and queue again what is in the log."""
        failed = error if isinstance(error, StoreUnavailable) else StoreUnavailable(f"{type(error).__name__} while committing")
        again = [waiting for waiting in group if waiting.is_logged and not is_set_aside(waiting, error, self._log, self._metrics)]
        gone = [waiting for waiting in group if waiting not in again]
        with self._changed:
            self._lanes.of(group[0]).put_back(again)
            self._count_down(waiting.entry for waiting in gone)
        for waiting in gone:
            waiting.answer(failed)
        # While the process of the store starts again, requests go on into the log; so they do if only late rows cannot be inserted.
        self._leave(group[0].is_late, gone, failed if again and not isinstance(failed, StoreRestarting) else None)

    def _count_down(self, entries: Iterable[Entry | None]) -> list[Entry]:
        """Take note that a batch of each body has left, or that the last is queued. Return the bodies that may leave the log."""
        counted = [(entry, entry.count_down()) for entry in entries if entry is not None]
        for entry, _ in counted:
            if not entry.open:
                self._lanes.release_body(entry)
        self._metrics.queue_bytes.set(self._lanes.bytes)
        return [entry for entry, may_leave in counted if may_leave]

    def _leave_log(self, all_stored: Iterable[Entry]) -> None:
        """Bodies of which all batches are stored leave the log."""
        for segment, payloads in Counter(entry.segment for entry in all_stored if entry.segment is not None).items():
            if self._log is not None:
                self._log.stored(segment, payloads)

    def _leave(self, is_late: bool, group: Sequence[Waiting], failed: StoreUnavailable | None) -> None:
        """Take note that batches have left the committer. ``failed``: the error of the insert, if it is repeated."""
        with self._changed:
            if not is_late:
                self._failed = self._broken or failed
            (self._late if is_late else self._now).finish(group)
            self._hold(group, -1)
            self._changed.notify_all()
