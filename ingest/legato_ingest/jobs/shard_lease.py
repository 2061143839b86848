"""The shards of the attribution that an instance judges, on a store that several instances share.

Each instance renews its row in `leases` every 5 s. The instances that did so within 30 s divide the shards by their places in the order
of their claims, so all find the same division without talking to each other. When an instance starts or ends, two may judge a stream at the
same time, or none for up to 5 s (40 s after one was killed). Neither loses anything: both write the same verdict, and the progress of each
shard is in the store. An instance of an earlier version holds the lease of all work and knows no shards: it judges alone until it ends.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from legato_ingest.jobs.leases import EVERY_S, EXPIRES_S, WORK, claim
from legato_ingest.metrics import Metrics
from legato_ingest.periodic import PeriodicTask
from legato_ingest.storage import Store
from legato_ingest.storage.judged import SHARDS

__all__ = ["ShardLease", "shards_of"]

_NAME = "attribution"
_LIVE = f"""
SELECT lease, holder FROM leases FINAL
WHERE lease IN ('{_NAME}', '{WORK}') AND acting AND seen_at > now64(3) - INTERVAL {EXPIRES_S} SECOND
ORDER BY claimed_at, holder"""


class ShardLease:
    """The part of the shards that ``holder`` has, from ``start()`` until ``close()``."""

    def __init__(self, store: Store, holder: str, metrics: Metrics) -> None:
        self._store, self._holder = store, holder
        self._claimed_ms = 0
        self._written_s = 0.0
        self._shards = 0
        self._task = PeriodicTask("lease", self.step, EVERY_S, metrics, 0.0)

    def start(self) -> None:
        """Claim a part, and renew the claim periodically."""
        self._task.start()

    def close(self) -> None:
        """Give the part to the other instances; they need not wait until the claim expires."""
        self._task.close()
        if self._claimed_ms:
            self._shards = 0
            self._write(acting=False)

    def held(self) -> int:
        """Return the shards that this instance may judge now, as a set of bits. None if it could not renew its claim for 15 s."""
        return self._shards if time.monotonic() - self._written_s < EXPIRES_S / 2 else 0

    def step(self) -> None:
        """Write or renew the claim, and find the part."""
        if not self._claimed_ms or time.monotonic() - self._written_s > EXPIRES_S:
            self._claimed_ms = self._store.clock_ms()
        self._write(acting=True)
        live = [(str(lease), str(holder)) for lease, holder in self._store.select(_LIVE)]
        members = [holder for lease, holder in live if lease == _NAME]
        is_alone = all(holder in members for lease, holder in live if lease == WORK)
        self._shards = shards_of(self._holder, members) if is_alone else 0

    def _write(self, *, acting: bool) -> None:
        self._store.insert("leases", claim(_NAME, self._holder, self._claimed_ms, acting=acting))
        self._written_s = time.monotonic()


def shards_of(holder: str, members: Sequence[str]) -> int:
    """Return the shards of one of these instances, as a set of bits. Together the members have all, and no two have the same."""
    if holder not in members:
        return 0
    return sum(1 << shard for shard in range(members.index(holder), SHARDS, len(members)))
