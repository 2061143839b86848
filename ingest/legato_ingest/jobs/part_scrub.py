"""Scrub the store in the background, and name every part with rows that are lost.

The store compares its contents with their hashes (``Store.scrub``). A damaged or missing part is written to the log once, counted as a
failure, which the alert on Legato's own health shows, and shown in a gauge for as long as it is set aside. The module repairs nothing.
"""

from __future__ import annotations

import logging
import time

from legato_ingest.metrics import Metrics
from legato_ingest.periodic import PeriodicTask
from legato_ingest.storage import Store
from legato_ingest.storage.store import PartFault

__all__ = ["PartScrubber"]

_log = logging.getLogger("legato")
# Seconds between two steps, seconds of reading in a step, and the pause after a step as a multiple of its duration: a large part cannot be
# read in pieces. So the scrub takes a thirtieth of a core until every part has been read, and little afterwards. A part that a query found
# damaged is read in the next step.
_EVERY_S, _SECONDS, _TIMES = 10.0, 0.3, 30.0


class PartScrubber(PeriodicTask):
    """Scrubs periodically, first at the start. Owns ``store``, a separate handle."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        super().__init__("scrub", self.step, _EVERY_S, metrics, first_s=1.0)
        self._store, self._named = store, set[PartFault]()
        self._next_s = 0.0

    def step(self) -> None:
        """Scrub for a moment, and name what is lost."""
        began_s = time.monotonic()
        is_due = began_s >= self._next_s
        self._store.scrub(_SECONDS if is_due else 0.0)
        if is_due:
            self._next_s = time.monotonic() + _TIMES * (time.monotonic() - began_s)
        lost = self._store.lost_parts()
        self._metrics.parts_lost.set(len(lost))
        for table, name, fault in sorted(set(lost) - self._named):
            self._metrics.errors.labels("scrub", "lost_part").inc()
            _log.error(
                "part %s of table %s is lost (%s): its rows are not shown; a part that is set aside is in the table's folder `detached`; "
                "restore a backup, or accept the loss: docs/operating.md#damaged-data",
                name,
                table,
                fault,
            )
        self._named = set(lost)

    def close(self) -> None:
        """Wait for the running step and close the handle."""
        super().close()
        self._store.close()
