"""The worker that judges streams as they settle, and again when late evidence comes.

One idea: it follows the times of receipt. What came in since the last sweep, and long enough ago for the other vantages to have followed,
is judged; how far it has come is a row in the store, so a restart goes on there. It has a handle of its own and delays no acknowledgement.
Only the process that holds the store's lock runs it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pyarrow as pa

from legato_ingest.attribution.run import Swept, Thresholds, sweep
from legato_ingest.metrics import Metrics
from legato_ingest.periodic import PeriodicTask
from legato_ingest.settings import Settings
from legato_ingest.storage import Store
from legato_ingest.storage.sql import after_until_ms
from legato_ingest.storage.watermark import Watermark, now_ms

__all__ = ["Worker"]

_log = logging.getLogger("legato")
# Steps that came this long after they were recorded came late: the streams that may have run through them are judged again.
_LATE_MS = 30_000
# How long before a late step a stream that ran through it may have started.
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


class Worker:
    """Owns the judging thread and ``store``, a handle of its own. Without ``start()`` it judges only when ``step()`` is called.

    ``received_ms`` tells until when all that was received is in the store. Verdicts get times later than ``after_ms``.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        metrics: Metrics,
        received_ms: Callable[[], int] = now_ms,
        after_ms: int = 0,
        my_turn: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store = store
        self._thresholds = Thresholds(settings.stall_ms, settings.stall_excess_ms)
        self._settle_ms = int(settings.attribute_settle_s * 1000)
        self._received_ms = received_ms
        self._metrics = metrics
        self._usual_ms: dict[tuple[str, str], int] = {}
        self._sweeping = threading.Lock()
        self._stamps = Watermark(after_ms, store.clock_ms)
        self._until_ms = now_ms()
        metrics.attribution_lag_seconds.set_function(lambda: max(0.0, (now_ms() - self._until_ms) / 1000) if my_turn() else 0.0)
        self._background = PeriodicTask("attribute", self.step, settings.attribute_every_s, metrics, my_turn=my_turn)

    def start(self) -> None:
        """Sweep in the background from now on."""
        self._background.start()

    def close(self) -> None:
        """Finish the slice that runs, then stop and close the store's handle. What is left is judged after the next start."""
        self._background.close()
        with self._sweeping:
            self._store.close()

    def judged_ms(self) -> int:
        """All verdicts with a time until this are in the store; later ones have later times."""
        return self._stamps.reached_ms()

    def step(self) -> Swept:
        """One sweep over what has settled since the last."""
        with self._sweeping:
            return self._step()

    def _step(self) -> Swept:
        started = time.monotonic()
        since, until = self._swept_until(), min(self._received_ms(), self._store.clock_ms() - self._settle_ms)
        swept = Swept()
        if until <= since:
            self._until_ms = until
            return swept
        due = self._due(since, until)
        for low, high, received in due:
            part = self._sweep(low, high, received)
            swept.streams += part.streams
            swept.verdicts += part.verdicts
        if (due or since == 0) and not self._background.closing.is_set():
            self._note(until, swept, time.monotonic() - started)
        self._metrics.verdicts.inc(swept.verdicts)
        self._metrics.sweep_seconds.observe(time.monotonic() - started)
        self._until_ms = until
        return swept

    def again(self, since_s: int) -> dict[str, float]:
        """Judge again all streams that started in the last ``since_s`` seconds (0: ever): how many, and how long it took.

        Not at the same time as a sweep: of two judgements the newest counts, and this one is to be it.
        """
        started = time.monotonic()
        low = time.time_ns() - since_s * 1_000_000_000 if since_s else 0
        with self._sweeping:
            swept = self._sweep(low, _NS_MAX, None)
        self._metrics.verdicts.inc(swept.verdicts)
        return {"streams": swept.streams, "verdicts": swept.verdicts, "seconds": time.monotonic() - started}

    def _sweep(self, low: int, high: int, received: tuple[int, int] | None) -> Swept:
        stopping = self._background.closing.is_set
        with self._stamps.stamp() as judged_ms:
            return sweep(self._store, low, high, self._thresholds, judged_ms * 1_000_000, received, stopping, self._failed)

    def _failed(self, error: Exception) -> None:
        self._metrics.errors.labels("attribute", type(error).__name__).inc()
        _log.error("some streams could not be judged and are left out; please report this", exc_info=error)

    def _swept_until(self) -> int:
        ((until,),) = self._store.select("SELECT toUnixTimestamp64Milli(max(until)) FROM attribution_runs")
        return max(0, int(until))

    def _due(self, since: int, until: int) -> list[tuple[int, int, tuple[int, int] | None]]:
        """Stretches of streams' starts to judge: those that came in, and those that late steps may change."""
        new = after_until_ms("received_at", since, until)
        ((count, low, high),) = self._store.select(
            "SELECT count(), toUnixTimestamp64Nano(min(start_time)), toUnixTimestamp64Nano(max(start_time)) FROM stream_revs"
            f" WHERE vantage = 'client' AND trace_id IN (SELECT trace_id FROM stream_revs WHERE {new})"
        )
        due: list[tuple[int, int, tuple[int, int] | None]] = []
        if count:
            due.append((int(low), int(high), (since, until)))
        late = self._late(new)
        # Before the first sweep nothing was judged that they could change.
        due += [(low - _STREAM_NS_MAX, high, None) for low, high in late if since]
        return due

    def _late(self, new: str) -> list[tuple[int, int]]:
        """Stretches of time that steps which came in late tell of, by the receiver's clock.

        An engine whose clock is behind is not late: its steps come as far behind their times as ever. So how far that is at least is kept.
        """
        out = []
        for tenant, engine_id, soonest, latest, low, high in self._store.select(_LATENESS.format(new=new)):
            key = (str(tenant), str(engine_id))
            usual_ms = max(self._usual_ms.get(key, 0), 0)
            self._usual_ms[key] = min(int(soonest), self._usual_ms.get(key, int(soonest)))
            if int(latest) > usual_ms + _LATE_MS:
                out.append((int(low) + 1_000_000 * usual_ms, int(high) + 1_000_000 * usual_ms))
        return out

    def _note(self, until: int, swept: Swept, seconds: float) -> None:
        moment = pa.timestamp("ms", "UTC")
        row = {
            "tenant": pa.array([""]),
            "until": pa.array([until], moment),
            "ran_at": pa.array([datetime.now(UTC)], moment),
            "streams": pa.array([swept.streams], pa.uint32()),
            "verdicts": pa.array([swept.verdicts], pa.uint32()),
            "seconds": pa.array([seconds], pa.float32()),
        }
        # What was judged may have been read of a part that a full disk cut short: then this run is not noted, and is done again.
        self._store.verify()
        self._store.insert("attribution_runs", pa.table(row))
