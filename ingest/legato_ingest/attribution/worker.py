"""The attribution worker: it judges streams when their vantages have arrived, and again when late evidence arrives.

It follows the times of receipt: a run judges what was received since the last run and long enough ago for the other vantages to have
followed, and again the earlier streams that evidence has arrived about, however late. The progress is a row in the store, so a restarted
process continues there. The worker has its own handle of the store and delays no acknowledgement. Only the process that holds the lock of
the store runs it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from legato_ingest.attribution.judging import Judging, judged_rows
from legato_ingest.attribution.load.due import ClockOffsets, Due, due_by_evidence, due_by_receipt, joined
from legato_ingest.attribution.load.open_stalls import open_stalls
from legato_ingest.attribution.model.judge import Thresholds
from legato_ingest.attribution.run import RunResult, attribute, attribute_open
from legato_ingest.columns import NS_MAX
from legato_ingest.metrics import Metrics
from legato_ingest.periodic import PeriodicWorker, always, record_run
from legato_ingest.settings import Settings
from legato_ingest.storage import Store
from legato_ingest.storage.watermark import Watermark, now_ms

__all__ = ["AttributionWorker"]

_log = logging.getLogger("legato")
# While nothing was inserted, the worker looks again after this share of its interval.
_IDLE_SHARE = 0.2


class AttributionWorker(PeriodicWorker[RunResult]):
    """Judges streams periodically. Owns ``store``, a separate handle. Without ``start()`` it runs only when ``step()`` is called.

    ``received_ms`` returns the time until which everything received is in the store. Verdicts get times later than ``after_ms``.
    ``judging`` judges evidence, in this process or in another. ``stamp_after`` returns the time of the first insert later than a time, if
    no other process inserts; then a run begins when that insert's streams have settled, and none while nothing was inserted.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        metrics: Metrics,
        received_ms: Callable[[], int] = now_ms,
        after_ms: int = 0,
        my_turn: Callable[[], bool] = always,
        judging: Judging = judged_rows,
        stamp_after: Callable[[int], int | None] | None = None,
    ) -> None:
        lag, every_s = metrics.attribution_lag_seconds, settings.attribute_every_s
        super().__init__("attribute", store, every_s, metrics, my_turn=my_turn, delay_s=self._delay_s, lag=lag)
        self._stamp_after, self._every_s = stamp_after, every_s
        self._store, self._metrics = store, metrics
        self._thresholds = Thresholds(settings.stall_ms, settings.stall_excess_ms)
        self._settle_ms = int(settings.attribute_grace_s * 1000)
        self._received_ms, self._judging = received_ms, judging
        self._clocks = ClockOffsets()
        # Rows of an earlier process have no stamp in this one: until a run has covered this time, runs follow each other at the interval.
        self._began_ms, self._is_current = store.clock_ms(), False
        # The time of receipt up to which the last run saw all evidence; after a restart unknown, and then that of its streams counts.
        self._seen_ms = 0
        self._watermark = Watermark(after_ms, store.clock_ms)

    def judged_ms(self) -> int:
        """Return the watermark: all verdicts with a time until this are in the store, and later ones have later times."""
        return self._watermark.reached_ms()

    def _run(self) -> RunResult:
        """Judge what has become ready since the last run."""
        started = time.monotonic()
        since, seen = self._judged_until(), self._received_ms()
        until = min(seen, self._settled_ms(seen))
        result = RunResult()
        if until > since:
            due = self._due(since, until, seen)
            for each in due:
                result.add(self._attribute(each))
            result.add(self._attribute_open(max(since, self._seen_ms), seen))
            if (due or since == 0) and not self.stopping:
                counts = {"streams": result.streams, "verdicts": result.verdicts}
                record_run(self._store, "attribution_runs", {"until": until}, counts, started)
            self._seen_ms = seen
            self._metrics.verdicts.inc(result.verdicts)
            self._metrics.sweep_seconds.observe(time.monotonic() - started)
        self.until_ms = until
        self._is_current = self._is_current or until >= self._began_ms
        return result

    def again(self, since_s: int) -> dict[str, float]:
        """Judge again all streams that started in the last ``since_s`` seconds (0: all). Returns the numbers and the duration.

        It waits for a run in progress, because of two verdicts on a gap the newest counts, and that must be this one.
        """
        started = time.monotonic()
        low = time.time_ns() - since_s * 1_000_000_000 if since_s else 0
        with self.exclusive:
            result = self._attribute(Due(max(0, low), NS_MAX))
        self._metrics.verdicts.inc(result.verdicts)
        return {"streams": result.streams, "verdicts": result.verdicts, "seconds": time.monotonic() - started}

    def _delay_s(self) -> float:
        """Return in how many seconds the next insert has settled."""
        if self._stamp_after is None or not self._is_current:
            return 0.0
        # Read before the stamps: an insert that ends in between has a later stamp.
        received_ms = self._received_ms()
        settled_ms = self._settled_ms(received_ms)
        stamp_ms = self._stamp_after(self.until_ms)
        if stamp_ms is None:
            self.until_ms = max(self.until_ms, min(received_ms, settled_ms))
            return _IDLE_SHARE * self._every_s
        return max(0.0, (stamp_ms - settled_ms) / 1000)

    def _settled_ms(self, received_ms: int) -> int:
        """Return until when what was received has settled. After the clock was set back, stamps are ahead of it."""
        return max(self._store.clock_ms(), received_ms) - self._settle_ms

    def _attribute(self, due: Due) -> RunResult:
        with self._watermark.stamp() as judged_ms:
            at_ns = judged_ms * 1_000_000
            return attribute(self._store, due, self._thresholds, at_ns, lambda: self.stopping, self._failed, self._judging)

    def _attribute_open(self, after_ms: int, until_ms: int) -> RunResult:
        """Judge the stalls of running streams that were reported between these times, without a grace period."""
        streams = open_stalls(self._store, after_ms, until_ms)
        with self._watermark.stamp() as judged_ms:
            return attribute_open(self._store, streams, self._thresholds, judged_ms * 1_000_000, self._failed, self._judging)

    def _failed(self, error: Exception) -> None:
        self._metrics.errors.labels("attribute", type(error).__name__).inc()
        _log.error("some streams could not be judged and are left out; please report this", exc_info=error)

    def _judged_until(self) -> int:
        ((until,),) = self._store.select("SELECT toUnixTimestamp64Milli(max(until)) FROM attribution_runs")
        return max(0, int(until))

    def _due(self, since: int, until: int, seen: int) -> list[Due]:
        """Return the streams to judge: those received between ``since`` and ``until``, and those that new evidence is about.

        ``seen``: the time until which all evidence is in the store. Before the first run there are no verdicts that evidence could change.
        """
        due = due_by_receipt(self._store, since, until)
        if since:
            due += due_by_evidence(self._store, self._clocks, since, max(since, self._seen_ms), seen)
        return joined(due)
