"""The background work of `legato serve`: attribution, rollups, chunking detection, part checks, exports and self-monitoring.

Several instances on one ClickHouse server divide the attribution. The holder of the lease does all other work for all, and the others wait
for the lease. An instance with an embedded store needs no lease. The module only starts and stops the workers.
"""

from __future__ import annotations

import contextlib
import socket
import uuid
from collections.abc import Iterator
from typing import Protocol

from legato_ingest.attribution.judging_process import JudgingProcess
from legato_ingest.attribution.worker import AttributionWorker, all_shards
from legato_ingest.chunking.worker import ChunkingWorker
from legato_ingest.jobs.free_memory import FreeMemory
from legato_ingest.jobs.leases import WORK, Lease
from legato_ingest.jobs.part_scrub import PartScrubber
from legato_ingest.jobs.self_monitoring import SelfMonitor
from legato_ingest.jobs.shard_lease import ShardLease
from legato_ingest.jobs.writer_heartbeat import WriterHeartbeat
from legato_ingest.metrics import Metrics
from legato_ingest.periodic import PeriodicTask, always
from legato_ingest.rollups.followed import Stamps, judgements_followed_until_ms
from legato_ingest.rollups.worker import RollupWorker
from legato_ingest.settings import Settings
from legato_ingest.storage import Store, objective_rows
from legato_ingest.trace_export.worker import TraceExportWorker
from legato_ingest.write.committer import Committer

__all__ = ["Workers"]

# Interval of the part integrity check. Merged source parts are kept longer than that, so the check can still restore them.
_PARTS_EVERY_S = 10.0
# Interval at which the counters of /metrics follow the objectives in the store.
_OBJECTIVES_EVERY_S = 15.0
_MEMORY_EVERY_S = 5.0


class _Worker(Protocol):
    def stop(self) -> None: ...

    def close(self) -> None: ...


class Workers:
    """The workers of one instance. ``store`` and ``committer`` are those of the endpoints.

    ``attribution`` and ``rollups`` are public for the admin socket.
    """

    def __init__(self, settings: Settings, store: Store, committer: Committer, metrics: Metrics) -> None:
        instance = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
        received_ms, my_turn, shards = committer.watermark_ms, always, all_shards
        # Other instances of a server's store insert, too.
        stamp_after = None if settings.server else committer.stamp_after
        self._lease: Lease | None = None
        self._shard_lease: ShardLease | None = None
        self._heartbeat: WriterHeartbeat | None = None
        self._self_monitor = SelfMonitor(store, committer, metrics, instance if settings.server else "")
        reading = store.clone()
        self._upkeep = (
            PeriodicTask("parts", store.verify, _PARTS_EVERY_S, metrics),
            PartScrubber(store.clone(), metrics),
            PeriodicTask("objectives", lambda: committer.use_objectives(objective_rows.applied(reading)), _OBJECTIVES_EVERY_S, metrics),
            PeriodicTask("memory", FreeMemory().step, _MEMORY_EVERY_S, metrics),
        )
        self._handles: list[Store] = [reading]
        if settings.server is not None:
            # Separate connections: a heartbeat or a lease renewal must not wait for an insert.
            beating, leasing, sharing = store.clone(), store.clone(), store.clone()
            self._handles += [beating, leasing, sharing]
            heartbeat = WriterHeartbeat(beating, instance, committer.watermark_ms, lambda: self.attribution.judged_ms(), metrics)
            lease = Lease(leasing, WORK, instance, metrics)
            self._heartbeat, self._lease, self._shard_lease = heartbeat, lease, ShardLease(sharing, instance, metrics)
            received_ms, my_turn, shards = heartbeat.watermark_ms, lambda: lease.held, self._shard_lease.held
        judged_ms = judgements_followed_until_ms(store)
        self._judging = JudgingProcess()
        self.attribution = AttributionWorker(store.clone(), settings, metrics, received_ms, judged_ms, shards, self._judging, stamp_after)
        all_judged_ms = self._heartbeat.judged_watermark_ms if self._heartbeat else self.attribution.judged_ms
        judged_after, judged_until = self.attribution.judged_after, lambda: self.attribution.until_ms
        stamps = Stamps(stamp_after, judged_after, judged_until, committer.insert_waiting, committer.is_read) if stamp_after else None
        self.rollups = RollupWorker(store.clone(), settings, metrics, received_ms, all_judged_ms, my_turn, stamps)
        self._chunking = ChunkingWorker(store.clone(), settings, metrics, my_turn)
        self._trace_export: TraceExportWorker | None = None
        if settings.traces_export_endpoint:
            self._trace_export = TraceExportWorker(store.clone(), settings, metrics, my_turn, lambda: self.attribution.until_ms)

    def start(self) -> None:
        """Start all workers. Call it before the first row is written: other instances need this writer's heartbeat before its rows."""
        first = (self._heartbeat, self._shard_lease, self._lease, self.attribution, self.rollups)
        for worker in (*first, self._self_monitor, self._chunking, *self._upkeep, self._trace_export):
            if worker is not None:
                worker.start()

    def stop(self) -> None:
        """Begin no other run, without waiting for the running ones. Self-monitoring and the leases go on until ``closing`` ends."""
        # All of them before any is waited for: they end at the same time.
        for worker in self._working():
            worker.stop()

    def _working(self) -> tuple[_Worker, ...]:
        export = (self._trace_export,) if self._trace_export else ()
        return (self.attribution, self.rollups, self._chunking, *self._upkeep, *export)

    @contextlib.contextmanager
    def closing(self, committer: Committer) -> Iterator[None]:
        """On exit: stop self-monitoring, commit the queue, wait for running steps, release the lease, close the handles."""
        try:
            yield
        finally:
            self.stop()
            self._self_monitor.close()
            committer.close()
            for worker in (*self._working(), self._lease, self._shard_lease, self._heartbeat):
                if worker is not None:
                    worker.close()
            self._judging.close()
            for handle in self._handles:
                handle.close()
