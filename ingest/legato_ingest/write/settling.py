"""Readers wait for the rows of acknowledged requests: the insert is asked for at once, and the wait has a limit.

The module inserts nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.write.lanes import Lane, Lanes

__all__ = ["Settling"]

# The longest time for which a reader waits for the rows of acknowledged requests, and for late ones among them.
_SETTLE_S, _LATE_SETTLE_S = 10.0, 3.0
# A lane, the number of its last batch that a reader waits for, and until when (monotonic, s).
_Wanted = tuple[Lane, int, float]


class Settling:
    """``changed`` guards the lanes, and is notified when batches have left them. While ``has_failed``, no reader waits."""

    def __init__(self, changed: threading.Condition, lanes: Lanes, has_failed: Callable[[], bool]) -> None:
        self._changed, self._lanes, self._has_failed = changed, lanes, has_failed
        # When the inserts of a tenant's batches were last asked for, and for what.
        self._asked = dict[str, tuple[float, list[_Wanted]]]()

    def begin(self, tenant: str = ALL_TENANTS, stale_max_s: float = 0.0) -> Callable[[], None]:
        """Ask for the inserts of what waits now of a tenant, or of all, and return the function that waits for them.

        A tenant's reader sees no rows of others, so it does not wait for theirs, which may be halved for minutes.
        Rows of earlier days delay a reader by some seconds at most, or a sender of many of them would delay all readers. The time begins
        with this call, not with that of the function: the queries of a dashboard wait for each other. ``stale_max_s``: what was asked for
        within this time suffices, so a reader may miss rows that were acknowledged since.
        """
        with self._changed:
            now_s, limits_s = time.monotonic(), ((self._lanes.now, _SETTLE_S), (self._lanes.late, _LATE_SETTLE_S))
            asked_s, wanted = self._asked.get(tenant, (float("-inf"), []))
            if now_s - asked_s >= stale_max_s:
                wanted = [(lane, 0 if self._has_failed() else lane.want(tenant), now_s + limit_s) for lane, limit_s in limits_s]
                self._asked[tenant] = now_s, wanted
                self._changed.notify_all()
            return partial(self._wait_for, tenant, wanted)

    def _wait_for(self, tenant: str, wanted: Sequence[_Wanted]) -> None:
        """Wait until the batches of the tenant in each lane up to a number are finished, until its time (monotonic, s) at most."""
        with self._changed:
            for lane, number, until_s in wanted:
                self._changed.wait_for(partial(self._is_settled, lane, tenant, number), max(0.0, until_s - time.monotonic()))

    def _is_settled(self, lane: Lane, tenant: str, number: int) -> bool:
        return lane.is_finished(tenant, number) or self._has_failed()
