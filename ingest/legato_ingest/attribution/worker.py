"""The attribution worker: it judges streams when their vantages have arrived, and again when late evidence arrives.

It follows the times of receipt: a run judges what was received since the last run and long enough ago for the other vantages to have
followed, and again the earlier streams that evidence has arrived about, however late. The progress is a row in the store, with that of
each tenant that is behind, so a restarted process continues there. The worker has a separate handle of the store and delays no
acknowledgement. Instances that share a server divide the streams, and each records the progress of its part.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from legato_ingest.attribution.halves import Short, by_halves
from legato_ingest.attribution.judging import Judging, judged_rows
from legato_ingest.attribution.load.due import Due, due_by_receipt, joined
from legato_ingest.attribution.load.due_again import due_by_evidence
from legato_ingest.attribution.load.learned_offsets import LearnedOffsets
from legato_ingest.attribution.load.open_stalls import open_stalls, small_and_large
from legato_ingest.attribution.load.streams import Size, sizes_of, slices_of
from legato_ingest.attribution.model.judge import Thresholds
from legato_ingest.attribution.model.vantage import Stream
from legato_ingest.attribution.run import RunResult, attribute, attribute_streams, withdraw
from legato_ingest.attribution.turns import TURN, Aside, Turns
from legato_ingest.columns import NS_MAX
from legato_ingest.errors import StoreUnavailable, release
from legato_ingest.metrics import Metrics
from legato_ingest.periodic import IDLE_SHARE, PeriodicWorker, record_run
from legato_ingest.settings import Settings
from legato_ingest.storage import Store
from legato_ingest.storage.judged import ALL_SHARDS, Key, Progress, aside_columns, least_of, newest_runs
from legato_ingest.storage.watermark import Watermark, now_ms

__all__ = ["AttributionWorker"]

_log = logging.getLogger("legato")
# In each run the tenants that are aside have turns for so long, and the one that began in this time ends.
_TURNS_S = 4.0
# The progress of some shards is recorded this often, also without streams.
_RECORD_MS = 15_000


def all_shards() -> int:
    """Return all shards: the share of an instance that judges alone."""
    return ALL_SHARDS


class AttributionWorker(PeriodicWorker[RunResult]):
    """Judges streams periodically. Owns ``store``, a separate handle. Without ``start()`` it runs only when ``step()`` is called.

    ``received_ms`` returns the time until which everything received is in the store. Verdicts get times later than ``after_ms``.
    ``shards`` returns the set of shards to judge (``load.shards``). ``judging`` judges evidence, in this process or in another.
    ``stamp_after`` returns the time of the first insert later than a time, if no other process inserts; then a run begins when that
    insert's streams have settled, and none while nothing was inserted.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        metrics: Metrics,
        received_ms: Callable[[], int] = now_ms,
        after_ms: int = 0,
        shards: Callable[[], int] = all_shards,
        judging: Judging = judged_rows,
        stamp_after: Callable[[int], int | None] | None = None,
    ) -> None:
        lag, every_s = metrics.attribution_lag_seconds, settings.attribute_every_s
        super().__init__("attribute", store, every_s, metrics, my_turn=lambda: shards() != 0, delay_s=self._delay_s, lag=lag)
        self._stamp_after, self._every_s = stamp_after, every_s
        self._store, self._metrics = store, metrics
        self._thresholds = Thresholds(settings.stall_ms, settings.stall_excess_ms)
        self._settle_ms = int(settings.attribute_grace_s * 1000)
        self._received_ms, self._judging, self._shards_now = received_ms, judging, shards
        self._shards = ALL_SHARDS
        self._clocks = LearnedOffsets()
        # Rows of an earlier process have no stamp in this one: until a run has covered this time, runs follow each other at the interval.
        self._began_ms, self._is_current = store.clock_ms(), False
        # The time of receipt up to which the last run saw all evidence; after a restart unknown, and then that of its streams counts.
        self._seen_ms = 0
        # Tenants with much to judge, until when the streams of the others are judged, and the progress in the store that both belong to.
        self._turns, self._since_ms = Turns(), 0
        self._recorded: Progress | None = None
        self._watermark = Watermark(after_ms, store.clock_ms)

    def judged_ms(self) -> int:
        """Return the watermark: all verdicts with a time until this are in the store, and later ones have later times."""
        return self._watermark.reached_ms()

    def judged_after(self, after_ms: int) -> int | None:
        """Return the time of the first verdicts of this process later than a time (Unix ms), of the last minutes; ``None`` without any."""
        return self._watermark.stamp_after(after_ms)

    def _run(self) -> RunResult:
        """Judge what has become ready since the last run. After an error the next run begins at the recorded progress."""
        try:
            return self._run_on()
        except BaseException:
            # What the run has noted in memory may rest on rows that it did not see: its record verifies the store first.
            self._forget()
            raise

    def _run_on(self) -> RunResult:
        started = time.monotonic()
        self._take(self._shards_now())
        if not self._shards:
            return RunResult()
        runs, seen = newest_runs(self._store), self._received_ms()
        recorded = least_of(runs, self._shards)
        if recorded != self._recorded:
            self._restore(recorded)
        had_turns = bool(self._turns)
        since = self._since_ms if had_turns else recorded.others_ms
        until = min(seen, self._settled_ms(seen))
        result, any_due = RunResult(), False
        if until > since:
            any_due = self._sweep(result, since, until, seen)
        if self._turns:
            self._take_turns(result)
        progress = self._turns.progress(max(until, since) if had_turns else until)
        is_news = any_due or had_turns or (until > since and (since == 0 or self._is_progress_old(since, until)))
        if is_news and progress.others_ms > 0 and not self.stopping:
            self._record(progress, result, started)
            self._recorded = least_of([*runs, (self._shards, progress)], self._shards)
        if until > since or had_turns:
            self._metrics.verdicts.inc(result.verdicts)
            self._metrics.sweep_seconds.observe(time.monotonic() - started)
        self.until_ms = progress.least_ms or self.until_ms
        self._is_current = self._is_current or until >= self._began_ms
        return result

    def _restore(self, recorded: Progress) -> None:
        """Go on at the progress in the store, which is that of an earlier process or of another instance.

        The latter has perhaps put tenants aside that this worker does not know of. Those that are behind follow the others from there on.
        """
        self._turns.clear()
        self._turns.restore(recorded.aside)
        self._since_ms = self._seen_ms = recorded.others_ms
        self._recorded = recorded

    def _forget(self) -> None:
        """Forget what was noted in memory, so that the next run goes on at the progress in the store."""
        self._turns.clear()
        self._since_ms = self._seen_ms = 0
        self._recorded = None

    def _record(self, progress: Progress, result: RunResult, started: float) -> None:
        """Record how far the run came. An instance of an earlier version reads `until` alone, and goes on where all tenants are judged."""
        times = {"until": progress.least_ms, "others_until": progress.others_ms}
        counts = {"streams": result.streams, "verdicts": result.verdicts, "shards": self._shards}
        record_run(self._store, "attribution_runs", times, counts, started, aside_columns(progress))

    def _sweep(self, result: RunResult, since: int, until: int, seen: int) -> bool:
        """Judge what is due of the tenants that are not aside, and return whether any stream is. ``since``, ``until``, ``seen``: as in
        ``_due``.
        """
        short: Short = {}
        due = self._due(since, until, self._seen_ms, seen, self._turns.others, short)
        for each in self._without_large(due, since, until, seen):
            result.add(self._attribute(each, short))
        for number, error in short.items():
            _log.warning("the store has no memory for the streams of some tenant, which are tried again: %s", error)
            self._turns.put_part_aside(number, since, self._seen_ms)
        result.add(self._attribute_open(max(since, self._seen_ms), seen))
        self._since_ms, self._seen_ms = until, seen
        return bool(due)

    def again(self, since_s: int) -> dict[str, float]:
        """Judge again all streams that started in the last ``since_s`` seconds (0: all). Returns the numbers and the duration.

        It waits for a run in progress, because of two verdicts on a gap the newest counts, and that must be this one. Raises
        ``StoreUnavailable`` if the worker is stopped meanwhile.
        """
        started = time.monotonic()
        low = time.time_ns() - since_s * 1_000_000_000 if since_s else 0
        with self.exclusive:
            result = self._attribute(Due(max(0, low), NS_MAX))
        if self.stopping:
            raise StoreUnavailable("the server is stopping before all streams were judged; repeat the command after the restart")
        self._metrics.verdicts.inc(result.verdicts)
        return {"streams": result.streams, "verdicts": result.verdicts, "seconds": time.monotonic() - started}

    def _delay_s(self) -> float:
        """Return in how many seconds the next insert has settled."""
        if self._stamp_after is None or not self._is_current or self._turns:
            return 0.0
        # Read before the stamps: an insert that ends in between has a later stamp.
        received_ms = self._received_ms()
        settled_ms = self._settled_ms(received_ms)
        stamp_ms = self._stamp_after(self.until_ms)
        if stamp_ms is None:
            self.until_ms = max(self.until_ms, min(received_ms, settled_ms))
            return IDLE_SHARE * self._every_s
        return max(0.0, (stamp_ms - settled_ms) / 1000)

    def _settled_ms(self, received_ms: int) -> int:
        """Return until when what was received has settled. After the clock was set back, stamps are ahead of it."""
        return max(self._store.clock_ms(), received_ms) - self._settle_ms

    def _attribute(self, due: Due, short: Short | None = None) -> RunResult:
        result = RunResult()
        for part in by_halves(lambda tenants: self._attribute_part(due.only(tenants)), "1", self._failed, short):
            result.add(part)
        return result

    def _attribute_part(self, due: Due) -> RunResult:
        with self._watermark.stamp() as judged_ms:
            at_ns = judged_ms * 1_000_000
            return attribute(self._store, due, self._thresholds, at_ns, lambda: self.stopping, self._failed, self._judging)

    def _attribute_open(self, after_ms: int, until_ms: int) -> RunResult:
        """Judge the stalls of running streams that were reported between these times, without a grace period.

        Those of tenants with much work come last, for as long as a turn; what is left is judged at its next report, or at its end.
        """
        result = RunResult()
        for part in by_halves(lambda tenants: self._attribute_open_of(after_ms, until_ms, tenants), "1", self._failed):
            result.add(part)
        return result

    def _attribute_open_of(self, after_ms: int, until_ms: int, tenants: str) -> RunResult:
        result = RunResult()
        # The time is that before the reading: another instance may judge the end of such a stream meanwhile, and its verdict counts.
        with self._watermark.stamp() as judged_ms:
            small, large = small_and_large(open_stalls(self._store, after_ms, until_ms, self._shards, tenants))
            for part in small:
                result.add(self._attribute_open_part(part, judged_ms))
            end_s = time.monotonic() + _TURNS_S
            for part in large:
                if self.stopping or time.monotonic() > end_s:
                    break
                result.add(self._attribute_open_part(part, judged_ms))
        return result

    def _attribute_open_part(self, streams: list[Stream], judged_ms: int) -> RunResult:
        return attribute_streams(self._store, streams, self._thresholds, judged_ms * 1_000_000, self._failed, self._judging)

    def _failed(self, error: Exception) -> None:
        self._metrics.errors.labels("attribute", type(error).__name__).inc()
        _log.error("some streams could not be judged and are left out; please report this", exc_info=error)

    def _take(self, shards: int) -> None:
        """Judge these shards from now on. What another instance saw about them is unknown, so its progress in the store counts."""
        if shards != self._shards:
            self._shards = shards
            self._forget()

    def _is_progress_old(self, since: int, until: int) -> bool:
        """Return whether to record a run without streams: else its next ones would look at all streams of other shards again."""
        return self._shards != ALL_SHARDS and until - since > _RECORD_MS

    def _due(self, since: int, until: int, seen_before: int, seen: int, tenants: str, short: Short) -> list[Due]:
        """Return the streams to judge: those received between ``since`` and ``until``, and those that new evidence is about.

        ``seen``: the time until which all evidence is in the store, and ``seen_before`` that of the last run. Before the first run there
        are no verdicts that evidence could change. ``tenants``: a condition on `tenant`. ``short``: as in ``by_halves``.
        """
        store, shards, clocks = self._store, self._shards, self._clocks
        found = list(by_halves(lambda some: due_by_receipt(store, since, until, shards, some), tenants, self._failed, short))
        if since:
            after = max(since, seen_before)
            found += by_halves(lambda some: due_by_evidence(store, clocks, since, after, seen, shards, some), tenants, self._failed, short)
        return joined(each for some in found for each in some)

    def _without_large(self, due: list[Due], since: int, until: int, seen: int) -> list[Due]:
        """Put the tenants aside of which much is due, and return the streams of the others."""
        sizes: dict[str, Size] = {}
        for each in due:
            for name, size in self._sizes(each).items():
                sizes[name] = size.plus(sizes.get(name, Size()))
        for name in self._turns.put_aside(sizes, due, since, until, seen):
            _log.info("tenant %r has %d streams with stalls to judge: those of others come first", name, sizes[name].streams)
        return [each.only(self._turns.others) for each in due] if self._turns else due

    def _sizes(self, due: Due) -> dict[str, Size]:
        gap_us, found = self._thresholds.gap_ns // 1000, dict[str, Size]()
        for part in by_halves(lambda tenants: sizes_of(self._store, due.only(tenants), gap_us), "1", self._failed):
            found |= part
        return found

    def _take_turns(self, result: RunResult) -> None:
        """Judge slices of the tenants that are aside, for some seconds. An error in a turn costs that tenant the next ones."""
        end_s = time.monotonic() + _TURNS_S
        while not self.stopping and (turn := self._turns.next()) is not None:
            key, own = turn
            if own.slices or own.due or own.until_ms < self._since_ms:
                try:
                    self._take_step(key, own, result)
                except Exception as error:
                    # If all fail, such a run takes as long as one: the store may be away, and then the run cannot be recorded either.
                    self._put_off(key, error)
                    break
            # At once: before its next turn the others may go on, and it would have to be looked at again, each time.
            if not own.slices and not own.due and own.until_ms >= self._since_ms:
                self._turns.end(key)
            # Also after a step that judges nothing: after a restart there are thousands of those.
            if time.monotonic() > end_s:
                break

    def _put_off(self, key: Key, error: Exception) -> None:
        """Repeat a step in a later run. What the run has judged of others stays, and so does their progress."""
        self._turns.failed(key)
        self._metrics.errors.labels("attribute", type(error).__name__).inc()
        _log.warning("streams of tenant or part %r could not be judged, and are tried again later: %s", key, error)
        # Its frames hold the streams that were loaded.
        release(error)

    def _take_step(self, key: Key, own: Aside, result: RunResult) -> None:
        """Judge a slice of what is aside, or divide what is due, or look for it.

        If the store has no memory for it, the step is repeated in a later run, and after some tries it is left out.
        """
        short: Short = {}
        if own.slices:
            result.add(self._attribute(own.slices[0], short))
            if self._is_done(own, short):
                del own.slices[0]
                if not short:
                    own.tries = 0
                    self._turns.succeeded(key)
        elif own.due:
            slices = self._slices(own.due[0], result, short)
            if self._is_done(own, short):
                own.slices += slices
                del own.due[0]
        else:
            until, seen = self._since_ms, self._seen_ms
            due = self._due(own.until_ms, until, own.seen_ms, seen, own.tenants, short)
            if self._is_done(own, short):
                own.due, own.since_ms, own.until_ms, own.seen_ms = due, own.until_ms, until, seen

    def _is_done(self, own: Aside, short: Short) -> bool:
        """Return whether a step is not repeated: it was done, or is left out after several tries without memory."""
        if not short:
            return True
        if self._turns.try_later(own):
            return False
        for error in short.values():
            self._failed(error)
        return True

    def _slices(self, due: Due, result: RunResult, short: Short) -> list[Due]:
        """Divide the streams of a tenant. Those without a gap to judge are in no slice, so what they replace is withdrawn before."""
        gap_us, slices = self._thresholds.gap_ns // 1000, list[Due]()
        for part in by_halves(lambda tenants: slices_of(self._store, due.only(tenants), gap_us, TURN), "1", self._failed, short):
            slices += part
        with self._watermark.stamp() as judged_ms:
            at_ns = judged_ms * 1_000_000
            for withdrawn in by_halves(lambda tenants: withdraw(self._store, due.only(tenants), at_ns), "1", self._failed, short):
                result.verdicts += withdrawn
        return slices
