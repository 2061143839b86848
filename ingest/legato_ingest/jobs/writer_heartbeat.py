"""Writer heartbeats: the watermarks of a store that several instances write to.

Each writer stamps its rows with a receive time, so a reader of the rows of all writers may go as far as the writer that is furthest behind.
Each instance therefore writes its own watermark to `writers` every 2 s, and that of its verdicts, which rollups follow. A writer without a
heartbeat for 30 s is left out. On an embedded store there is only one writer, and no heartbeats are written. The module stamps no rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa

from legato_ingest.metrics import Metrics
from legato_ingest.periodic import PeriodicTask
from legato_ingest.storage import Store

__all__ = ["WriterHeartbeat"]

_EVERY_S = 2.0
_EXPIRES_S = 30
_SLOWEST = f"""
SELECT count(), min(watermark_ms)
FROM (
    SELECT writer, argMax(toUnixTimestamp64Milli({{column}}), seen_at) AS watermark_ms, max(seen_at) AS seen
    FROM writers
    GROUP BY writer
)
WHERE seen > now64(3) - INTERVAL {_EXPIRES_S} SECOND"""


class WriterHeartbeat:
    """Writes the watermarks of ``writer`` (Unix ms) to ``store`` and reads those of all writers.

    ``own_ms``: everything that it received until then is stored. ``judged_ms``: so are all its verdicts with a time up to this.
    """

    def __init__(self, store: Store, writer: str, own_ms: Callable[[], int], judged_ms: Callable[[], int], metrics: Metrics) -> None:
        self._store, self._writer, self._own_ms, self._judged_ms = store, writer, own_ms, judged_ms
        self._beat_at = time.monotonic()
        self._metrics = metrics
        self._task = PeriodicTask("writers", self.beat, _EVERY_S, metrics)

    def start(self) -> None:
        """Write a heartbeat now, before the first row is written, and then every 2 s."""
        self.beat()
        self._task.start()

    def close(self) -> None:
        """Stop the heartbeats."""
        self._task.close()

    def beat(self) -> None:
        """Write one heartbeat. Count an error of type ``HeartbeatMissed`` if the one before is older than 30 s."""
        settled, judged = (pa.array([at_ms()], pa.timestamp("ms", "UTC")) for at_ms in (self._own_ms, self._judged_ms))
        row = {"tenant": [""], "writer": [self._writer], "settled_at": settled, "judged_until": judged}
        self._store.insert("writers", pa.table(row))
        silent_s, self._beat_at = time.monotonic() - self._beat_at, time.monotonic()
        if silent_s > _EXPIRES_S:
            # The other instances did not wait for this one, and may have missed the rows that it wrote meanwhile.
            self._metrics.errors.labels("writers", "HeartbeatMissed").inc()

    def watermark_ms(self) -> int:
        """Return the watermark of all live writers (Unix ms): every row with an earlier or equal stamp is in the store."""
        return self._least(self._own_ms(), "settled_at")

    def judged_watermark_ms(self) -> int:
        """Return the watermark of the verdicts of all live writers (Unix ms): all with an earlier or equal time are in the store."""
        return self._least(self._judged_ms(), "judged_until")

    def _least(self, own_ms: int, column: str) -> int:
        ((writers, slowest),) = self._store.select(_SLOWEST.format(column=column))
        return min(own_ms, int(slowest)) if int(writers) else own_ms
