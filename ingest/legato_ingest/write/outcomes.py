"""What becomes of batches after an insert: stored, repeated because the store is away, or halved, tried alone and set aside.

Only a store that is away concerns all senders: then requests are refused, until it answers an insert. Too little memory (code 241) may be
the fault of a batch or of a moment. So it halves a group, and refuses no request: these go into the log until the queue is full. A batch
that gets it alone is tried again behind the others; that counts against the batch only if others were stored between two of its failures.
The module inserts nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from legato_ingest.errors import MEMORY_LIMIT_EXCEEDED, StoreRestarting, StoreUnavailable
from legato_ingest.metrics import Metrics
from legato_ingest.storage.wal import ASIDE, WriteAheadLog
from legato_ingest.write.body import Entry
from legato_ingest.write.group_insert import Receipt
from legato_ingest.write.lanes import Lanes
from legato_ingest.write.set_aside import BLAME_MAX, FAULT, carry_over, count_failure
from legato_ingest.write.waiting import Waiting

__all__ = ["RETRY_S", "Outcomes"]

_log = logging.getLogger("legato")
RETRY_S = 1.0
"""After a failed insert it is repeated after this time."""
# A tenant with so many batches that failed alone has further ones set aside without a further try (or after four for which the store had no
# memory), unless no insert has ended well for so long: then the fault may be that of the process.
_ALONE_MAX, _ENDED_WELL_S = 8, 15.0
# What cannot be set aside is tried again after this time.
_LEFT_S = 10.0


class Outcomes:
    """Answers requests, and takes their batches from the lanes and their bodies from the log. ``changed`` guards the lanes.

    ``failed``: the error of the last insert of rows of now if it is repeated; ``broken``: that of all requests since a thread has ended.
    """

    def __init__(self, changed: threading.Condition, lanes: Lanes, log: WriteAheadLog | None, metrics: Metrics) -> None:
        self._changed, self._lanes, self._log, self._metrics = changed, lanes, log, metrics
        self.failed: StoreUnavailable | None = None
        self.broken: StoreUnavailable | None = None
        # The number of inserts that ended well, and when the last one did (monotonic, s).
        self._inserts, self._stored_s = 0, float("-inf")
        # Each sets a body aside that cannot be converted and could not be set aside before.
        self._left, self._left_at_s = deque[Callable[[], None]](), float("-inf")

    def hold(self, group: Iterable[Waiting], sign: int = 1) -> None:
        """Count the bytes of batches that were accepted, or with -1 of those that have left."""
        self._lanes.hold(group, sign)
        self._metrics.queue_bytes.set(self._lanes.bytes)

    def stored(self, group: Sequence[Waiting], receipts: Sequence[Receipt]) -> None:
        """Answer the requests of a group that is stored."""
        self._inserts, self._stored_s = self._inserts + 1, time.monotonic()
        self._answers()
        for waiting, receipt in zip(group, receipts, strict=True):
            waiting.answer(receipt)
            # Without memory for the division the whole batch stays as it is: what is stored is found when it is inserted.
            with suppress(MemoryError):
                waiting.stored()
        with self._changed:
            all_stored = self.count_down(waiting.entry for waiting in group)
            self._lanes.clear_of_suspicion()
        self.leave_log(all_stored)
        self._leave(group[0].is_late, group, None)

    def not_stored(self, group: list[Waiting], error: Exception) -> bool:
        """A group was not stored: halve it until what is at fault is alone, which costs the others nothing, or repeat it.

        Return False if the store cannot take any batch now, or the log cannot take aside the one that is alone.
        """
        is_in_log = any((each.whole or each).is_logged for each in group)
        is_short = is_in_log and isinstance(error, StoreUnavailable) and error.code == MEMORY_LIMIT_EXCEEDED
        if is_short or not isinstance(error, StoreUnavailable):
            self._answers()
        elif isinstance(error, StoreRestarting) or not group[0].is_alone:
            # A batch that failed alone before says little of the store: the next insert of others does.
            self._store_away(group, error)
            return False
        if len(group) == 1:
            return self._failed_alone(group[0], error)
        half = len(group) // 2
        with self._changed:
            self._lanes.apart.put([group[half:], group[:half]])
        return True

    def _store_away(self, group: Sequence[Waiting], error: StoreUnavailable) -> None:
        """The store cannot take these batches now: answer the requests that wait, and queue again what is in the log."""
        is_restarting = isinstance(error, StoreRestarting)
        kept = [each for each in group if each.is_logged]
        if is_restarting:
            kept = [each for each in kept if not count_failure(each, error, self._log, self._metrics)]
        with self._changed:
            self._lanes.put_back(kept)
            self._lanes.alone.tried(0.0, RETRY_S)
        # While the process of the store starts again, requests go on into the log; so they do if only late rows cannot be inserted.
        failed = self.failed if group[0].is_alone else error if kept and not is_restarting else None
        gone = set(group).difference(kept)
        self._give_up([waiting for waiting in group if waiting in gone], group[0].is_late, error, failed)

    def _failed_alone(self, waiting: Waiting, error: Exception) -> bool:
        """A batch failed alone: try it again behind all others, or set its body aside after some failures that count against it.

        Return False if the log cannot take it there now.
        """
        counts = not isinstance(error, StoreUnavailable) or self._is_refused_alone(waiting)
        if counts:
            self._blame(waiting)
        is_aside = counts and waiting.is_logged and count_failure(waiting, error, self._log, self._metrics)
        if waiting.is_logged and not is_aside:
            with self._changed:
                # New failures postpone no try: else those of a sender that goes on failing would postpone all.
                if waiting.is_alone or not self._lanes.alone:
                    self._lanes.alone.tried(0.0, RETRY_S)
                self._lanes.alone.put(waiting, self._lanes.of(waiting))
            self._leave(waiting.is_late, [], self.failed)
            log_refused_it = waiting.blame >= BLAME_MAX
            return not log_refused_it
        self._give_up([waiting], waiting.is_late, StoreUnavailable(f"{type(error).__name__} while committing"), self.failed)
        return True

    def _is_refused_alone(self, waiting: Waiting) -> bool:
        """Return whether the store does not take a batch although it takes others: some were stored since it did not the last time.

        What was set aside before has few tries also if there are no others, because the next body that was set aside waits for it.
        """
        before, waiting.refused_after = waiting.refused_after, self._inserts
        was_aside = waiting.entry is not None and waiting.entry.segment == ASIDE
        return (was_aside and self.failed is None) or (before is not None and before < self._inserts)

    def _blame(self, waiting: Waiting) -> None:
        """A failure counts against a batch: its tenant's batches are inserted apart from those of others."""
        waiting.is_at_fault = True
        with self._changed:
            self._lanes.set_apart(waiting.tenant)
        if self._lanes.alone.of_tenant(waiting.tenant) >= _ALONE_MAX and time.monotonic() - self._stored_s < _ENDED_WELL_S:
            waiting.blame = max(waiting.blame, BLAME_MAX - FAULT)

    def _answers(self) -> None:
        """The store answers, whatever the rows were: requests are accepted again."""
        with self._changed:
            self.failed = self.broken

    def count_down(self, entries: Iterable[Entry | None]) -> list[Entry]:
        """Take note that a batch of each body has left, or that the last is queued. Return the bodies that may leave the log."""
        counted = [(entry, entry.count_down()) for entry in entries if entry is not None]
        for entry, _ in counted:
            if not entry.open:
                self._lanes.release_body(entry)
        self._metrics.queue_bytes.set(self._lanes.bytes)
        return [entry for entry, may_leave in counted if may_leave]

    def rotate_log(self) -> None:
        """Append to the other segment of the log from now on, if it is empty.

        If bodies that wait, or that go on failing, are all that keeps it from being emptied, and this one is as large as the queue may be,
        they are appended to this one: else it would grow for as long as one of them waits. What could not be set aside at the start keeps
        it, too, and is set aside now.
        """
        if self._log is None:
            return
        self._log.rotate()
        if self._left and self._log.kept(self._lanes.bytes_max)[1]:
            self._set_left_aside()
        segment, payloads = self._log.kept(self._lanes.bytes_max)
        with self._changed:
            bodies = self._lanes.bodies_in(segment) if payloads else []
        if not bodies or len(bodies) != payloads:
            return
        try:
            carry_over(bodies, self._log)
        except (StoreUnavailable, MemoryError) as error:
            _log.warning("requests that wait cannot be appended to the log once more: %s", error or "no memory")
        self._log.rotate()

    def set_aside_later(self, again: Callable[[], None]) -> None:
        """Call this once the log has grown (``rotate_log``). It sets a body aside, and raises ``StoreUnavailable`` or ``MemoryError``."""
        self._left.append(again)

    def _set_left_aside(self) -> None:
        """Try each of what is left, and again after a pause what fails."""
        if time.monotonic() < self._left_at_s:
            return
        reason = ""
        for _ in range(len(self._left)):
            again = self._left.popleft()
            try:
                again()
            except (StoreUnavailable, MemoryError) as error:
                reason = str(error) or "no memory"
                self._left.append(again)
        self._left_at_s = time.monotonic() + _LEFT_S
        if reason:
            _log.warning("requests that cannot be converted still cannot be set aside: %s", reason)

    def leave_log(self, all_stored: Iterable[Entry]) -> None:
        """Bodies of which all batches are stored leave the log."""
        for segment, payloads in Counter(entry.segment for entry in all_stored if entry.segment is not None).items():
            if self._log is not None:
                self._log.stored(segment, payloads)

    def _give_up(self, gone: Sequence[Waiting], is_late: bool, error: StoreUnavailable, failed: StoreUnavailable | None) -> None:
        with self._changed:
            self.count_down(waiting.entry for waiting in gone)
        for waiting in gone:
            waiting.answer(error)
        self._leave(is_late, gone, failed)

    def _leave(self, is_late: bool, group: Sequence[Waiting], failed: StoreUnavailable | None) -> None:
        """Take note that batches have left the lanes. ``failed``: the error of the insert, if it is repeated."""
        with self._changed:
            if not is_late:
                self.failed = self.broken or failed
            (self._lanes.late if is_late else self._lanes.now).finish(group)
            self.hold(group, -1)
            self._changed.notify_all()
