"""Group commit: one thread inserts the rows of many requests and answers each request with the result for its rows.

All batches that wait when the thread becomes free go into one insert, so they share the cost of a synced insert. With a write-ahead log a
request is answered when its body is in the log, and its insert waits for more requests (``pacing``), until a reader asks for it. Requests
with late rows have a separate queue (``lanes``), and those of now are inserted in between. The committer alone sets ``received_at``. It
decodes nothing; it depends on HTTP only by the types of errors that it raises.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import Overloaded, StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.objectives import Objective
from legato_ingest.otlp.batch import Batch
from legato_ingest.storage import Store
from legato_ingest.storage.wal import ASIDE, WriteAheadLog
from legato_ingest.storage.watermark import Watermark
from legato_ingest.write.body import Entry
from legato_ingest.write.by_days import by_day, is_late
from legato_ingest.write.group_insert import GroupInsert, Receipt, receipt_of
from legato_ingest.write.lanes import Lanes, LatePauses
from legato_ingest.write.log_writer import LogWriter
from legato_ingest.write.outcomes import RETRY_S, Outcomes
from legato_ingest.write.pacing import Pacing
from legato_ingest.write.set_aside import BLAME_MAX, FAULT
from legato_ingest.write.settling import Settling
from legato_ingest.write.waiting import Waiting, size_of

__all__ = ["Committer", "Receipt"]

_log = logging.getLogger("legato")
# So long after the begin of its end the committer still halves what failed, and tries what failed alone.
_END_S = 5.0


class Committer:
    """Owns the writing thread. ``queue_bytes_max`` limits the queue, ``chunks_max`` one insert (a larger batch is inserted alone).

    Rows get the time of their insert as ``received_at``. It is later than ``after_ms`` and than every value that ``watermark_ms`` returned
    before. Streams that ended are counted by their objectives; a stream without one has the default limits. ``look_again_s``: where other
    instances write into the same store, rows are compared with theirs once more after this time. ``log``: the write-ahead log of a store
    that no other process writes into; the committer closes it. ``is_always_read``: as for ``Pacing``.
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
        is_always_read: bool = False,
    ) -> None:
        self._metrics, self._chunks_max = metrics, chunks_max
        metrics.queue_bytes_max.set(queue_bytes_max)
        self._groups, self._lanes = GroupInsert(store, metrics, objectives, look_again_s), Lanes(queue_bytes_max)
        self._now, self._late = self._lanes.now, self._lanes.late
        self._pacing = Pacing(self._now, has_log=log is not None, is_always_read=is_always_read, queue_bytes_max=queue_bytes_max)
        self._changed, self._closing, self._log = threading.Condition(), False, log
        self._outcomes = Outcomes(self._changed, self._lanes, log, metrics)
        # ``all_stored``: bodies of which every batch was stored before ``finish``. The thread removes them from the log.
        # ``is_apart``: the last insert was one of those apart. ``end_s``: until when they go on (monotonic).
        self._is_apart, self._end_s = False, float("inf")
        self._late_pauses, self._inserting, self._all_stored = LatePauses(), list[Waiting](), list[Entry]()
        self._watermark = Watermark(after_ms, store.clock_ms)
        self._log_writer = LogWriter(log, Waiting.logged_form, self._logged, self._refuse, self._break_off) if log is not None else None
        self._settling = Settling(self._changed, self._lanes, lambda: self._outcomes.failed is not None)
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
            if (failed := self._outcomes.failed) is not None and (has_log or self._closing):
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
            return not why_full or self._closing or (self._outcomes.failed is not None and not in_lane)

    def recover(self, batch: Batch, entry: Entry) -> None:
        """Queue rows of a request that is in the log since before this process, whether there is room or not."""
        waiting = Waiting.of(batch, time.time_ns(), entry)
        with self._changed:
            if entry.segment == ASIDE:
                # It failed before this process: it has one try, in one piece.
                waiting.blame, waiting.is_alone, waiting.is_at_fault, waiting.early = BLAME_MAX - FAULT, True, True, None
            self._accept(waiting, is_queued=True)

    def finish(self, entry: Entry) -> None:
        """Take note that no further batch of a body is submitted."""
        with self._changed:
            if all_stored := self._outcomes.count_down([entry]):
                self._all_stored += all_stored
                self._changed.notify_all()

    def set_aside_later(self, again: Callable[[], None]) -> None:
        """Call this once the log has grown: it sets a body aside for which the disk or the memory had no room at the start."""
        self._outcomes.set_aside_later(again)

    def settle(self) -> None:
        """Wait until the rows of all requests that were acknowledged before are stored, or until that fails. Without a log they are."""
        self.begin_settling()()

    def begin_settling(self, tenant: str = ALL_TENANTS, stale_max_s: float = 0.0) -> Callable[[], None]:
        """Ask for the insert for which a reader of this tenant waits. Return the function that waits (``settling``)."""
        if self._log is None:
            return lambda: None
        with self._changed:
            self._pacing.read()
        return self._settling.begin(tenant, stale_max_s)

    def close(self) -> None:
        """Commit the queue, then stop. What cannot be committed within some seconds stays in the log; without one it is refused."""
        with self._changed:
            self._closing, self._end_s = True, time.monotonic() + _END_S
            self._lanes.alone.end()
        if self._log_writer is not None:
            self._log_writer.close()
        with self._changed:
            self._changed.notify_all()
        self._thread.join()
        self._outcomes.leave_log(self._all_stored)
        if self._log is not None:
            self._log.close()

    def expect_accepting(self) -> None:
        """Raise ``StoreUnavailable`` if requests are refused, because the last insert failed or the log cannot be written."""
        if (failed := self._outcomes.failed) is not None and (self._log is not None or self._closing):
            raise StoreUnavailable(str(failed), failed.code)
        if self._log is not None:
            self._log.check()

    def use_objectives(self, objectives: Sequence[Objective]) -> None:
        """Count the streams of later inserts by these objectives."""
        self._groups.objectives = objectives

    def insert_waiting(self) -> None:
        """Insert what was acknowledged before, and wait for it, as for a reader; but the pauses between inserts stay as they are."""
        if self._log is not None:
            self._settling.begin()()

    def is_read(self) -> bool:
        """Return whether a reader asked for rows lately, or something else waits for the results of what is inserted."""
        return self._pacing.is_read()

    def watermark_ms(self) -> int:
        """Return the watermark: all rows with a ``received_at`` up to it are stored, and all later rows get a later one."""
        return self._watermark.reached_ms()

    def stamp_after(self, after_ms: int) -> int | None:
        """Return the ``received_at`` of the first insert later than a time (Unix ms), of the last minutes; ``None`` without any."""
        return self._watermark.stamp_after(after_ms)

    def _accept(self, waiting: Waiting, *, is_queued: bool) -> None:
        self._lanes.hold_body(waiting)
        self._outcomes.hold(waiting.parts())
        if waiting.entry is not None:
            waiting.entry.open += 1
        if is_queued:
            self._enqueue([waiting])

    def _enqueue(self, group: Sequence[Waiting]) -> None:
        for waiting in (each for each in group if each.is_alone):
            self._lanes.alone.put(waiting, self._lanes.of(waiting))
            self._changed.notify_all()
        parts = [part for waiting in group if not waiting.is_alone for part in waiting.parts()]
        before, late = len(self._now), [part for part in parts if part.is_late]
        self._now.put([part for part in parts if not part.is_late])
        self._late.put(late)
        # While the thread waits for the time of the next insert, further batches wake it only if they bring that time nearer.
        has_streams = any(part.batch.revs.num_rows for part in parts)
        has_silences = any(part.batch.silences.num_rows for part in parts)
        if self._pacing.arrived(before, has_streams=has_streams, has_silences=has_silences) or late:
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
            self._outcomes.count_down(waiting.entry for waiting in group)
            self._outcomes.hold((part for waiting in group for part in waiting.parts()), -1)

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
            self._outcomes.failed = self._outcomes.broken = failed
            self._closing = True
            waiting = [*left, *self._lanes.drain()]
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
            self._outcomes.leave_log(all_stored)
            self._inserting = group = self._next()
            if not group:
                self._write_waiting(is_closing)
                if is_closing:
                    self._refuse_left()
                    return
                continue
            began_s, is_alone = time.monotonic(), group[0].is_alone
            is_stored = self._commit_late(group) if group[0].is_late else self._commit(group, self._insert)
            if is_alone:
                self._lanes.alone.tried(time.monotonic() - began_s)
            if is_stored and self._groups.due_in_s() == 0:
                self._write_waiting(False)
            if not is_stored and is_closing and self._log is not None:
                # What is left is in the log.
                return

    def _wait(self) -> None:
        """Wait until an insert is due, or something that no request waits for, or until the end."""
        while not self._closing and not self._all_stored:
            apart, alone = self._lanes.apart, self._lanes.alone
            lanes = (self._now, self._pause_s), (self._late, self._late_pause_s), (apart, self._apart_pause_s), (alone, alone.pause_s)
            pauses_s = [pause_s() for lane, pause_s in lanes if lane]
            due_s = min(pauses_s) if pauses_s else self._groups.due_in_s()
            if due_s is not None and due_s <= 0:
                return
            self._changed.wait(due_s)

    def _pause_s(self) -> float:
        """Return the seconds until the next insert of rows of now."""
        return self._pacing.pause_s() if self._outcomes.failed is None else self._pacing.left_s(RETRY_S)

    def _late_pause_s(self) -> float:
        is_full = 2 * self._late.row_bytes > self._late.held.most
        return self._late_pauses.left_s(self._late.is_wanted or self._log is None or is_full)

    def _apart_pause_s(self) -> float:
        return 0.0 if self._outcomes.failed is None else self._pause_s()

    def _write_waiting(self, all_now: bool) -> None:
        """Write what no request waits for: all of it, or what is due. No request fails with it."""
        try:
            with self._watermark.stamp() as received_ms:
                self._groups.write_waiting(received_ms, all_now=all_now)
        except Exception as error:
            self._groups.postpone()
            self._metrics.errors.labels("write_waiting", type(error).__name__).inc()

    def _refuse_left(self) -> None:
        """Answer the requests of what was not inserted before the end."""
        with self._changed:
            left = self._lanes.drain()
        for each in left:
            each.answer(StoreUnavailable("the server is stopping"))

    def _next(self) -> list[Waiting]:
        """Return the next group that is due. What is inserted apart has each second turn: neither it nor the others wait for long."""
        was_apart, self._is_apart = self._is_apart, False
        # While requests are refused, the rows of now show first that the store is back.
        first = (self._outcomes.failed is not None and self._next_group()) or ([] if was_apart else self._next_apart())
        return first or self._next_late() or self._next_alone() or self._next_group() or self._next_apart()

    def _next_group(self, at_once: bool = False) -> list[Waiting]:
        """Return the next group of batches of now; none while its insert is not due, unless it is wanted at once."""
        self._outcomes.rotate_log()
        with self._changed:
            if not self._now or not (at_once or self._closing or self._pause_s() <= 0):
                return []
            group = self._lanes.take(self._now, self._chunks_max)
            self._pacing.began(len(group), is_rest=self._now.has_trusted)
            return group

    def _next_late(self) -> list[Waiting]:
        """Return the next group of batches with late rows; none while its insert is not due."""
        with self._changed:
            if not self._late or not (self._closing or self._late_pause_s() <= 0):
                return []
            self._late_pauses.taken()
            return self._lanes.take(self._late, self._chunks_max)

    def _next_apart(self) -> list[Waiting]:
        """Return the next group that is inserted apart; none while the store is away."""
        with self._changed:
            if not self._lanes.apart or time.monotonic() > self._end_s or not (self._closing or self._apart_pause_s() <= 0):
                return []
            if self._outcomes.failed is not None:
                self._pacing.began_apart()
            self._is_apart = True
            return self._lanes.apart.take()

    def _next_alone(self) -> list[Waiting]:
        """Return the next batch that failed alone before; none while its try is not due."""
        with self._changed:
            is_due = bool(self._lanes.alone) and self._lanes.alone.pause_s() <= 0 and time.monotonic() <= self._end_s
            return self._lanes.alone.take() if is_due else []

    def _insert(self, group: Sequence[Waiting]) -> list[Receipt]:
        started = time.perf_counter()
        with self._watermark.stamp() as received_ms:
            receipts = self._groups.insert([waiting.batch for waiting in group], received_ms)
        self._metrics.commit_seconds.observe(time.perf_counter() - started)
        return receipts

    def _commit(self, group: list[Waiting], insert: Callable[[list[Waiting]], list[Receipt]]) -> bool:
        """Insert the group; of batches that are not stored, every future is done, their bodies are in the log, or they wait in a queue.

        Return False if the store, or the disk, cannot take them now.
        """
        try:
            receipts = insert(group)
        except Exception as error:
            self._metrics.errors.labels("commit", type(error).__name__).inc()
            return self._outcomes.not_stored(group, error)
        self._outcomes.stored(group, receipts)
        return True

    def _commit_late(self, group: list[Waiting]) -> bool:
        """Insert a group with late rows a day at a time, and groups of now that become due between two days. Return as ``_commit`` does."""
        # The rows of now of this group come first, and are then left out of it.
        early = [each.early for each in group if each.early is not None and not self._is_apart]
        self._commit_due(group, at_once=not all(each.future.done() for each in early))
        return self._commit(group, self._insert_days)

    def _insert_days(self, group: list[Waiting]) -> list[Receipt]:
        receipts, took_s = [Receipt() for _ in group], 0.0
        try:
            for part in by_day([waiting.batch for waiting in group]):
                self._commit_due(group)
                began_s = time.monotonic()
                with self._watermark.stamp() as received_ms:
                    for receipt, more in zip(receipts, self._groups.insert(part, received_ms), strict=True):
                        receipt.add(more)
                took_s += time.monotonic() - began_s
        finally:
            # What failed is no reason to let the others wait longer.
            if not group[0].is_alone:
                self._late_pauses.ended(took_s, is_apart=self._is_apart)
        return receipts

    def _commit_due(self, group: list[Waiting], at_once: bool = False) -> None:
        """Insert the group of now that is due, if any, while a late group is inserted."""
        if due := self._next_group(at_once):
            self._inserting = [*group, *due]
            self._commit(due, self._insert)
            self._inserting = group
