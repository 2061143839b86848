"""What works beside the doors of `legato serve`: attribution, rollups, the watch on chunking and on parts, samples of its own metrics.

One idea: of several instances on one ClickHouse server one has the lease and does this work for all; the others wait for it. Alone with an
embedded store an instance has nobody to ask. It does none of the work itself.
"""

from __future__ import annotations

import contextlib
import socket
import uuid
from collections.abc import Iterator

from legato_ingest.attribution.worker import Worker
from legato_ingest.chunking.worker import ChunkingWatch
from legato_ingest.jobs.leases import Lease
from legato_ingest.jobs.self_monitoring import SelfSampler
from legato_ingest.jobs.writer_heartbeat import Writers
from legato_ingest.metrics import Metrics
from legato_ingest.periodic import Background
from legato_ingest.rollups.worker import Roller, judgements_followed_until_ms
from legato_ingest.settings import Settings
from legato_ingest.storage.chdb import Store
from legato_ingest.storage.opening import open_store
from legato_ingest.write.committer import Committer

__all__ = ["Workers"]

# Merges are looked at this often; what they replaced stays for longer (`parts.SOURCES_KEPT_S`).
_PARTS_EVERY_S = 10.0


class Workers:
    """The workers of one instance, from ``start()`` until ``close()``. ``store`` and ``committer`` are the doors'."""

    def __init__(self, settings: Settings, store: Store, committer: Committer, metrics: Metrics) -> None:
        instance = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
        received_ms, my_turn = committer.settled_ms, _always
        self._lease: Lease | None = None
        self._writers: Writers | None = None
        self._sampler = SelfSampler(store, committer, metrics, instance if settings.server else "")
        self._parts = Background("parts", store.verify, _PARTS_EVERY_S, metrics)
        self._own: list[Store] = []
        if settings.server is not None:
            # Handles of their own: what they say must not wait for an insert.
            self._own = [open_store(settings), open_store(settings)]
            self._writers = Writers(self._own[0], instance, committer.settled_ms, metrics)
            lease = self._lease = Lease(self._own[1], "work", instance, metrics)
            received_ms, my_turn = self._writers.settled_ms, lambda: lease.held
        judged_ms = judgements_followed_until_ms(store)
        self.attribution = Worker(open_store(settings), settings, metrics, received_ms, judged_ms, my_turn)
        self.roller = Roller(open_store(settings), settings, metrics, received_ms, self.attribution.judged_ms, my_turn)
        self._chunking = ChunkingWatch(open_store(settings), settings, metrics, my_turn)

    def start(self) -> None:
        """Work from now on. Before the first row is written: the others must know of this writer by then."""
        for part in (self._writers, self._lease, self.attribution, self.roller, self._sampler, self._chunking, self._parts):
            if part is not None:
                part.start()

    @contextlib.contextmanager
    def closing(self, committer: Committer) -> Iterator[None]:
        """At the end: nothing new is sampled, what waits is committed, the steps that run come to their end, the lease goes to the next."""
        try:
            yield
        finally:
            self._sampler.close()
            committer.close()
            for part in (self.attribution, self.roller, self._chunking, self._parts, self._lease, self._writers):
                if part is not None:
                    part.close()
            for own in self._own:
                own.close()


def _always() -> bool:
    return True
