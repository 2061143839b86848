"""The attribution worker: it judges streams when their vantages have arrived, and again when late evidence arrives.

It follows the times of receipt: a run judges what was received since the last run and long enough ago for the other vantages to have
followed. The progress is a row in the store, so a restarted process continues there. The worker has its own handle of the store and
delays no acknowledgement. Only the process that holds the lock of the store runs it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from legato_ingest.attribution.load.streams import Received
from legato_ingest.attribution.model.judge import Thresholds
from legato_ingest.attribution.run import RunResult, attribute
from legato_ingest.metrics import Metrics
from legato_ingest.periodic import PeriodicWorker, always, record_run
from legato_ingest.settings import Settings
from legato_ingest.storage import Store
from legato_ingest.storage.sql import after_until_ms
from legato_ingest.storage.watermark import Watermark, now_ms

__all__ = ["AttributionWorker"]

_log = logging.getLogger("legato")
# Steps that arrived this long after they were recorded were late: streams that ran at their time are judged again.
_LATE_MS = 30_000
# A stream that ran at the time of a late step started at most this long before it.
_STREAM_NS_MAX = 600_000_000_000
_NS_MAX = 2**63 - 1
_LATENESS = """
SELECT
    tenant, engine_id,
    min(toUnixTimestamp64Milli(received_at) - toUnixTimestamp64Milli(recorded_at)) AS soonest,
    max(toUnixTimestamp64Milli(received_at) - toUnixTimestamp64Milli(recorded_at)) AS latest,
    toUnixTimestamp64Nano(min(recorded_at)) AS low, toUnixTimestamp64Nano(max(recorded_at)) AS high
FROM engine_steps
WHERE {new}
GROUP BY tenant, engine_id"""


class AttributionWorker(PeriodicWorker[RunResult]):
    """Judges streams periodically. Owns ``store``, a separate handle. Without ``start()`` it runs only when ``step()`` is called.

    ``received_ms`` returns the time until which everything received is in the store. Verdicts get times later than ``after_ms``.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        metrics: Metrics,
        received_ms: Callable[[], int] = now_ms,
        after_ms: int = 0,
        my_turn: Callable[[], bool] = always,
    ) -> None:
        lag = metrics.attribution_lag_seconds
        super().__init__("attribute", store, settings.attribute_every_s, metrics, my_turn=my_turn, lag=lag)
        self._store, self._metrics = store, metrics
        self._thresholds = Thresholds(settings.stall_ms, settings.stall_excess_ms)
        self._settle_ms = int(settings.attribute_grace_s * 1000)
        self._received_ms = received_ms
        # The least delay of each engine's steps so far, in ms.
        self._delay_ms: dict[tuple[str, str], int] = {}
        self._watermark = Watermark(after_ms, store.clock_ms)

    def judged_ms(self) -> int:
        """Return the watermark: all verdicts with a time until this are in the store, and later ones have later times."""
        return self._watermark.reached_ms()

    def _run(self) -> RunResult:
        """Judge what has become ready since the last run."""
        started = time.monotonic()
        since, until = self._judged_until(), min(self._received_ms(), self._store.clock_ms() - self._settle_ms)
        result = RunResult()
        if until > since:
            due = self._due(since, until)
            for low, high, received in due:
                result.add(self._attribute(low, high, received))
            if (due or since == 0) and not self.stopping:
                counts = {"streams": result.streams, "verdicts": result.verdicts}
                record_run(self._store, "attribution_runs", {"until": until}, counts, started)
            self._metrics.verdicts.inc(result.verdicts)
            self._metrics.sweep_seconds.observe(time.monotonic() - started)
        self.until_ms = until
        return result

    def again(self, since_s: int) -> dict[str, float]:
        """Judge again all streams that started in the last ``since_s`` seconds (0: all). Returns the numbers and the duration.

        It waits for a run in progress, because of two verdicts on a gap the newest counts, and that must be this one.
        """
        started = time.monotonic()
        low = time.time_ns() - since_s * 1_000_000_000 if since_s else 0
        with self.exclusive:
            result = self._attribute(low, _NS_MAX, None)
        self._metrics.verdicts.inc(result.verdicts)
        return {"streams": result.streams, "verdicts": result.verdicts, "seconds": time.monotonic() - started}

    def _attribute(self, low: int, high: int, received: Received | None) -> RunResult:
        with self._watermark.stamp() as judged_ms:
            at_ns = judged_ms * 1_000_000
            return attribute(self._store, low, high, self._thresholds, at_ns, received, lambda: self.stopping, self._failed)

    def _failed(self, error: Exception) -> None:
        self._metrics.errors.labels("attribute", type(error).__name__).inc()
        _log.error("some streams could not be judged and are left out; please report this", exc_info=error)

    def _judged_until(self) -> int:
        ((until,),) = self._store.select("SELECT toUnixTimestamp64Milli(max(until)) FROM attribution_runs")
        return max(0, int(until))

    def _due(self, since: int, until: int) -> list[tuple[int, int, Received | None]]:
        """Return the stretches of time to judge: starts of streams that were received, and of streams that late steps may change."""
        new = after_until_ms("received_at", since, until)
        ((count, low, high),) = self._store.select(
            "SELECT count(), toUnixTimestamp64Nano(min(start_time)), toUnixTimestamp64Nano(max(start_time)) FROM stream_revs"
            f" WHERE vantage = 'client' AND trace_id IN (SELECT trace_id FROM stream_revs WHERE {new})"
        )
        due: list[tuple[int, int, Received | None]] = []
        if count:
            due.append((int(low), int(high), (since, until)))
        late = self._late(new)
        # Before the first run there are no verdicts that late steps could change.
        due += [(low - _STREAM_NS_MAX, high, None) for low, high in late if since]
        return due

    def _late(self, new: str) -> list[tuple[int, int]]:
        """Return the stretches of time of steps that arrived late, by the receiver's clock.

        An engine with a clock that is behind is not late: its steps always arrive as long after their times. So the least delay of each
        engine is kept.
        """
        out = []
        for tenant, engine_id, soonest, latest, low, high in self._store.select(_LATENESS.format(new=new)):
            key = (str(tenant), str(engine_id))
            usual_ms = max(self._delay_ms.get(key, 0), 0)
            self._delay_ms[key] = min(int(soonest), self._delay_ms.get(key, int(soonest)))
            if int(latest) > usual_ms + _LATE_MS:
                out.append((int(low) + 1_000_000 * usual_ms, int(high) + 1_000_000 * usual_ms))
        return out
