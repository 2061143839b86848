"""Until when all instances that write to one store have written.

One idea: rows are stamped by their writer, and a follower of several writers may go as far as the one that is furthest behind. So each says
every few seconds until when its rows are in the store, and one that has said nothing for half a minute is not waited for. Alone with an
embedded store a writer is asked itself, and nothing is written. It stamps no row.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa

from legato_ingest.metrics import Metrics
from legato_ingest.periodic import Background
from legato_ingest.storage.chdb import Store

__all__ = ["Writers"]

_EVERY_S = 2.0
_LAPSED_S = 30
_SLOWEST = f"""
SELECT count(), min(settled_ms)
FROM (
    SELECT writer, argMax(toUnixTimestamp64Milli(settled_at), seen_at) AS settled_ms, max(seen_at) AS seen
    FROM writers
    GROUP BY writer
)
WHERE seen > now64(3) - INTERVAL {_LAPSED_S} SECOND"""


class Writers:
    """Tells for ``writer`` until when its rows are in ``store`` (``own_ms``), and of all of them from ``start()`` until ``close()``."""

    def __init__(self, store: Store, writer: str, own_ms: Callable[[], int], metrics: Metrics) -> None:
        self._store, self._writer, self._own_ms = store, writer, own_ms
        self._told = time.monotonic()
        self._metrics = metrics
        self._background = Background("writers", self.tell, _EVERY_S, metrics)

    def start(self) -> None:
        """Tell now, before the first row is written, and then every few seconds."""
        self.tell()
        self._background.start()

    def close(self) -> None:
        """Tell no more."""
        self._background.close()

    def tell(self) -> None:
        """Write down until when this writer's rows are in the store."""
        settled = pa.array([self._own_ms()], pa.timestamp("ms", "UTC"))
        self._store.insert("writers", pa.table({"tenant": [""], "writer": [self._writer], "settled_at": settled}))
        silent_s, self._told = time.monotonic() - self._told, time.monotonic()
        if silent_s > _LAPSED_S:
            # Others did not wait for this one: what it wrote meanwhile may have slipped past them.
            self._metrics.errors.labels("writers", "Lapsed").inc()

    def settled_ms(self) -> int:
        """All rows that any live writer stamped until this are in the store."""
        own = self._own_ms()
        ((writers, slowest),) = self._store.select(_SLOWEST)
        return min(own, int(slowest)) if int(writers) else own
